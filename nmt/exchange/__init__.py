"""Import and export of models in other programs' formats."""
