"""Search: sources become hypotheses, by steps in plain PyTorch, in C or on a GPU."""

MOST_SAMPLES = 1000  # of one source; all are searched at once
