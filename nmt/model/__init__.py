"""The Transformer, from ids to logits, independent of text and files."""
