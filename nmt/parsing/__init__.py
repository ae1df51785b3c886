"""All that is about trees; knows no model and no search."""
