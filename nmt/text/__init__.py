"""Text and subwords, without torch."""
