"""The Transformer, from ids to logits; it knows neither text nor files."""
