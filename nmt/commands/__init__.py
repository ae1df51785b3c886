"""The code behind each command."""
