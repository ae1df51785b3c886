"""Ids to logits: the Transformer, which knows neither text nor files."""
