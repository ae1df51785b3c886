"""How fast this device is at what training needs: a large product in bf16, those of an update by shape, and a copy.

    python benchmarks/ceilings.py [--device cpu]

An update has 24,576 tokens a side and 37,000 subwords; on a CPU it has 1,536.
"""

from __future__ import annotations

import time
from datetime import date
from functools import partial

import torch

from counts import large_size, product_flops, synchronize
from nmt.compute.choice import device_name, for_training
from nmt.system.device import choose_device
from results import Results, parser
from synthetic import MODELS, VOCABULARY


def ceilings(results: Results, device: torch.device) -> None:
    """Add what this device and its software are, and how fast products and a copy are."""
    size = large_size(device)
    results.add("machine", device=device_name(device), torch=torch.__version__, date=f"{date.today()}")
    results.add(f"a product of {size}, bf16", TFLOPs=product_flops(device, (size, size, size), 0.2) / 1e12)
    a, b = torch.zeros(2, size * size * 8, device=device, dtype=torch.bfloat16)
    b.copy_(a)
    synchronize(device)
    began = time.perf_counter()
    for _ in range(10):
        b.copy_(a)
    synchronize(device)
    results.add(f"a copy of {a.nbytes >> 20} MiB", TB_per_s=2 * 10 * a.nbytes / (time.perf_counter() - began) / 1e12)
    del a, b
    for name in ("base", "big"):
        results.attempt(f"{name}, products", partial(products, results, device, name, 3 * size))


def products(results: Results, device: torch.device, name: str, tokens: int) -> None:
    """Add the time of an update's matrix products, forward and backward, by their shapes."""
    model = MODELS[name]
    width, inner, chunk = (
        model.d_model,
        model.d_ff,
        min(tokens, for_training(device, torch.bfloat16).chunk_rows(VOCABULARY)),
    )
    shapes = {  # rows, from, to: how often
        (tokens, width, 3 * width): 2 * model.layers,
        (tokens, width, 2 * width): model.layers,
        (tokens, width, width): 4 * model.layers,
        (tokens, width, inner): 2 * model.layers,
        (tokens, inner, width): 2 * model.layers,
        (chunk, width, VOCABULARY): tokens / chunk,
    }
    total = flops = 0.0
    for (m, k, n), count in shapes.items():
        for shape in ((m, k, n), (m, n, k), (k, m, n)):  # forward, of the inputs, of the weights
            speed = product_flops(device, shape)
            results.write({"row": f"{name}, products", "passed": True, "shape": shape, "TFLOPs": speed / 1e12})
            total += count * 2.0 * m * k * n / speed
            flops += count * 2.0 * m * k * n
    results.add(f"{name}, products", ms=1000 * total, TFLOP=flops / 1e12, tokens=tokens)


def main() -> None:
    given = parser(__doc__).parse_args()
    ceilings(Results(given.out), choose_device(given.device, None))


if __name__ == "__main__":
    main()
