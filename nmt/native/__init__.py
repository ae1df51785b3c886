"""Optional C kernels for inference on a CPU. Each has a twin of PyTorch operations, which is used without them."""
