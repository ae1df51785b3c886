"""Scores of translations: how they are computed, how sure they are, and what their differences mean."""
