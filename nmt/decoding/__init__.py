"""Model and text to text."""
