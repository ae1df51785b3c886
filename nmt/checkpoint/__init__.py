"""Saved models: checkpoints and their averages."""
