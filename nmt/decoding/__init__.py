"""Decoding: input lines become sources, sources become hypotheses, hypotheses become translations or trees."""

MOST_SAMPLES = 1000  # of one source; all are searched at once
