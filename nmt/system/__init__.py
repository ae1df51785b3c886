"""Small services that every package may use."""
