"""Recipe to checkpoints."""
