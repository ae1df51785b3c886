"""Models in other programs' formats, in and out."""
