"""Training of models, from a recipe to checkpoints."""
