"""The share of a GPU's peak that training reaches: model FLOPs utilisation (MFU, Chowdhery et al. 2022, appendix B).

The model's own arithmetic is 6 FLOPs per token for each weight that the token meets, and attention's products;
`nmt/training/flops.py` counts them. What a run computes besides, or twice, is not counted.
"""

from __future__ import annotations

import re

import torch

# FLOP/s of dense products in 16 bits with sums in fp32, by the names that CUDA gives. From NVIDIA's data sheets, half
# of what they give for sparse matrices; of the RTX from its white papers of GA102 and Ada.
PEAKS = {
    r"A100-\w+-\d+GB|A100 80GB PCIe": 312e12,
    r"H100 80GB HBM3|H200": 989e12,
    r"H100 PCIe": 756e12,
    r"H100 NVL|H200 NVL": 835e12,
    r"L4": 121e12,
    r"T4": 65e12,
    r"V100-SXM2-\d+GB": 125e12,
    r"V100-PCIE-\d+GB": 112e12,
    r"RTX 3090": 71e12,
    r"RTX 4090": 165e12,
}
MAKERS = r"^(NVIDIA |Tesla |GeForce )*"


def peak_flops(device: torch.device) -> float | None:
    """Return the peak FLOP/s of a GPU in 16 bits; None if it is unknown, or if the device is a part of one."""
    if device.type != "cuda":
        return None
    model = re.sub(MAKERS, "", torch.cuda.get_device_name(device))
    for pattern, peak in PEAKS.items():
        if re.fullmatch(pattern, model):
            return peak
    return None
