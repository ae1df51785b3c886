"""Ids to hypotheses. Knows no lines and no tasks."""
