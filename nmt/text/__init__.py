"""Strings and symbols; no torch."""
