"""Constituency trees, independent of models and search."""
