"""Lines to what a search takes, and back: translating and parsing."""
