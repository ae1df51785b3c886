"""How the operations of a model are computed, on CPUs and GPUs, chosen once per run or search."""
