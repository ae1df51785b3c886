"""Generated segments with codes: what becomes of tags, placeholders and white space in a translation."""
