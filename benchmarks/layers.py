"""Table 1 measured: time and memory of the four kinds of layer as the sequence grows, and the exponents of its length.

    python benchmarks/layers.py [--d-model 512] [--window 64] [--most 8192] [--seconds 2] [--device cpu]
        [--plot layers.svg]

Forward and backward pass of one sequence, each length in a process of its own. Table 1 leaves out the projections of
self-attention, n · d² of work as in the other layers; here it stands without them and, as in the model, with them. Time
is the processor's on a CPU, which others of a busy machine do not stretch, and elapsed on a GPU. Memory is what a pass
takes at most beyond weights and input. Exponents are slopes of logarithms over the three greatest lengths.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.compute.choice import for_training
from nmt.model.layers import SelfAttention
from nmt.model.operations import Attending, join_heads, split_heads
from nmt.recipe import Model
from nmt.system.device import choose_device

LEAST, REPEATS, KERNEL, LAST = 256, 5, 3, 3
HEAD = 64  # d_k and d_v

Pass = Callable[[Tensor], Tensor]


class Recurrent(nn.LSTM):
    """(1, n, d) to (1, n, d)."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


class Convolution(nn.Conv1d):
    """(1, n, d) to (1, n, d)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


@dataclass(frozen=True)
class Kind:
    """A row of Table 1."""

    order: str
    """Of its work, as the paper has it; n is the length, d the width, r the window, k the kernel."""
    make: Callable[[int, int], Pass]
    """From d and r."""


def restricted(query: Tensor, key: Tensor, value: Tensor, r: int) -> Tensor:
    """Self-attention of each position to the r around it (section 4), in blocks of queries: (b, h, n, d) to the same.

    Each block sees the keys around it, so that work grows linearly with the length.
    """
    queries, before, (batch, _, length, _) = max(32, r), r // 2, query.shape
    keys, filling = queries + r - 1, -length % queries
    blocks = F.pad(query, (0, 0, 0, filling)).unflatten(2, (-1, queries)).transpose(1, 2).flatten(0, 1)

    def around(x: Tensor) -> Tensor:
        return x.unfold(2, keys, queries).permute(0, 2, 1, 4, 3).flatten(0, 1)

    near_keys, near_values = (around(F.pad(x, (0, 0, before, filling + r - 1 - before))) for x in (key, value))
    real = F.pad(torch.ones(1, 1, length, 1), (0, 0, before, filling + r - 1 - before))
    away = torch.arange(keys) - torch.arange(queries)[:, None] - before
    near = (-before <= away) & (away < r - before)
    seen = near & ((around(real).transpose(2, 3) > 0) | away.eq(0)).repeat(batch, 1, 1, 1)
    mixed: Tensor = F.scaled_dot_product_attention(blocks, near_keys, near_values, seen.to(query.device))
    joined: Tensor = mixed.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)
    return joined[:, :, :length]


def products(r: int | None) -> Callable[[Tensor], Tensor]:
    """Self-attention without projections: its input serves as queries, keys and values."""

    def apply(x: Tensor) -> Tensor:
        heads, operations = x.unflatten(-1, (-1, HEAD)).transpose(1, 2), for_training(x.device, x.dtype)
        mixed = restricted(heads, heads, heads, r) if r else operations.attention(heads, heads, heads, Attending())
        return mixed.transpose(1, 2).flatten(2)

    return apply


class Restricted(SelfAttention):
    """Self-attention of the model, restricted to the r positions around each."""

    def __init__(self, config: Model, r: int) -> None:
        super().__init__(config)
        self.r = r

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        query, key, value = split_heads(self.qkv(x), self.heads, self.widths)
        mixed: Tensor = self.out(join_heads(restricted(query, key, value, self.r)))
        return mixed


def layer(d: int, r: int | None) -> nn.Module:
    """Self-attention as in the model."""
    config = Model(d_model=d, heads=d // HEAD)
    return Restricted(config, r) if r else SelfAttention(config)


KINDS = {
    "self-attention": Kind("n²·d", lambda d, r: products(None)),
    "restricted self-attention": Kind("r·n·d", lambda d, r: products(r)),
    "recurrent (LSTM)": Kind("n·d²", lambda d, r: Recurrent(d, d, batch_first=True)),
    f"convolutional, k = {KERNEL}": Kind("k·n·d²", lambda d, r: Convolution(d, d, KERNEL, padding=KERNEL // 2)),
    "self-attention, projections too": Kind("n²·d + n·d²", lambda d, r: layer(d, None)),
    "restricted, projections too": Kind("r·n·d + n·d²", lambda d, r: layer(d, r)),
}


def measure(name: str, d: int, r: int, n: int, device: str, seconds: float) -> tuple[float, float]:
    """Seconds and MiB of a forward and backward pass, in a new process."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_measure, (name, d, r, n, device, seconds))


def _measure(name: str, d: int, r: int, n: int, device: str, seconds: float) -> tuple[float, float]:
    where = choose_device(device, 1)
    on_gpu = where.type == "cuda"
    torch.manual_seed(1)
    run = KINDS[name].make(d, r)
    if isinstance(run, nn.Module):
        run.to(where)

    def once(x: Tensor, gradient: Tensor) -> float:
        began = time.perf_counter() if on_gpu else time.process_time()
        run(x).backward(gradient)
        if on_gpu:
            torch.cuda.synchronize()
        return (time.perf_counter() if on_gpu else time.process_time()) - began

    def inputs(length: int) -> tuple[Tensor, Tensor]:
        return torch.randn(1, length, d, device=where, requires_grad=True), torch.randn(1, length, d, device=where)

    once(*inputs(n if on_gpu else LEAST // 2))  # what only the first pass does
    x, gradient = inputs(n)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        before = status("VmRSS")
    times = [once(x, gradient)]
    after = torch.cuda.max_memory_allocated() if on_gpu else status("VmHWM")
    while len(times) < REPEATS and sum(times) < seconds:
        times.append(once(x, gradient))
    return median(times), (after - before) / 2**20


def status(key: str) -> int:
    """Bytes of memory by the kernel's account of this process."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def exponent(lengths: list[int], values: list[float]) -> float:
    """Slope of log value over log length at the greatest lengths."""
    x, y = (np.log(each[-LAST:]) for each in (lengths, values))
    return float(np.polyfit(x, y, 1)[0])


def plot(path: Path, lengths: list[int], found: dict[str, list[tuple[float, float]]], d: int) -> None:
    """Time and memory over length, both axes logarithmic; says so where there is nothing to draw with."""
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no plot: matplotlib is not installed (pip install matplotlib)")
        return
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 5), layout="constrained")
    for index, (panel, title) in enumerate(zip(panels, ("seconds", "MiB"), strict=True)):
        for name, values in found.items():
            dashes = "--" if "projections" in name else "-"
            panel.loglog(lengths, [each[index] for each in values], dashes, marker="o", label=name)
        panel.set(xlabel="length n", title=f"{title}, forward and backward, d = {d}", xticks=lengths)
        panel.set_xticks(lengths, [str(n) for n in lengths])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"plot: {path}")


def main() -> None:
    """Prints a table row per kind of layer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--window", type=int, default=64, help="r")
    parser.add_argument("--most", type=int, default=8192, help=f"greatest length, {LEAST} times a power of two")
    parser.add_argument("--seconds", type=float, default=2.0, help="after which a pass is not repeated")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plot", type=Path, help="file for a plot, .svg or .png")
    arguments = parser.parse_args()
    d, r = arguments.d_model, arguments.window
    torch.set_num_threads(1)
    lengths = [LEAST]
    while 2 * lengths[-1] <= arguments.most:
        lengths.append(2 * lengths[-1])
    print(f"d {d}, r {r}, {arguments.device}, {datetime.now():%Y-%m-%d}; ms (MiB) of a forward and backward pass")
    print(f"| | paper's order | {' | '.join(map(str, lengths))} | exponent of n: time | memory |")
    print(f"|---|---|{'---:|' * (len(lengths) + 2)}")
    found = {}
    for name, kind in KINDS.items():
        values = [measure(name, d, r, n, arguments.device, arguments.seconds) for n in lengths]
        found[name] = values
        cells = " | ".join(f"{1e3 * seconds:,.1f} ({memory:,.0f})" for seconds, memory in values)
        slopes = " | ".join(f"{exponent(lengths, list(each)):.2f}" for each in zip(*values, strict=True))
        print(f"| {name} | O({kind.order}) | {cells} | {slopes} |", flush=True)
    if arguments.plot is not None:
        plot(arguments.plot, lengths, found, d)


if __name__ == "__main__":
    main()
