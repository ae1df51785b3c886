"""What a search is used for: lines to sources, and hypotheses to translations or trees."""
