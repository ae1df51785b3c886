"""Search: sources become hypotheses, by steps in plain PyTorch, in C or on a GPU."""
