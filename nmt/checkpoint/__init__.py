"""Saved models: bundles, checkpoints and averages."""
