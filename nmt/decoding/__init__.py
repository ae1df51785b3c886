"""Decoding: input lines become sources, sources become hypotheses, hypotheses become translations or trees."""
