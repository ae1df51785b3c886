"""Lines to sources, sources to hypotheses, hypotheses to translations or trees."""
