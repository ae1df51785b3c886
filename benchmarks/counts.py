"""What a GPU is made to do: how often the host waits for it, how many graphs are compiled, which kernels take long.

On a CPU the host never waits, and there are no kernels.
"""

from __future__ import annotations

import re
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo.utils import counters, get_compilation_metrics
from torch.profiler import ProfilerActivity, profile

from nmt.compute.recorded import Recorded
from nmt.search.beam import BeamSearch
from nmt.system.device import Download
from results import KERNELS, Results

WAIT = "called a synchronizing CUDA operation"  # a warning of torch.cuda.set_sync_debug_mode
LAUNCH = re.compile(r"cu(da)?Launch(Cooperative)?Kernel|cudaGraphLaunch")
WORK = {"_admit": "admission", "_advance": "steps", "_remove": "removal", "_results": "hypotheses"}
GROUPS = {  # kernels by their names; the first that matches counts
    "attention": r"flash|fmha|attention",
    "products": r"gemm|gemv|cutlass|nvjet|cublas|splitk",
    "optimizer": r"multi_tensor|adam|lpnorm",
    "softmax": r"softmax|logsumexp|_exp_",
    "norms": r"layer_norm|layernorm|native_norm",
    "activations and sums of biases": r"relu|gelu|threshold|_sum|sum_functor|reduce_kernel",
    "copies and casts": r"memcpy|memset|copy|cat|index|gather(?!topk)|scatter|embedding|fill",
    "rest": r"",
}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def large_size(device: torch.device) -> int:
    """Return the size of a product that is as fast as products become."""
    return 8192 if device.type == "cuda" else 512


def product_flops(device: torch.device, shape: tuple[int, int, int], seconds: float = 0.03) -> float:
    """Return the FLOP/s of (m, k) by (k, n) in bf16, random numbers, measured for about so long."""
    m, k, n = shape
    a, b = (torch.randn(*each, device=device, dtype=torch.bfloat16) for each in ((m, k), (k, n)))

    def elapsed(count: int) -> float:
        synchronize(device)
        began = time.perf_counter()
        for _ in range(count):
            a @ b
        synchronize(device)
        return time.perf_counter() - began

    elapsed(1)
    count = min(1000, max(1, int(seconds / elapsed(1))))
    return 2.0 * m * k * n * count / elapsed(count)


@contextmanager
def host_waits(device: torch.device, places: Counter[str]) -> Iterator[None]:
    """Count, by the line of Python that is at work, how often the host waits for the device within the block.

    PyTorch tells of its own waits; torch.cuda.synchronize and waits for an event are not among them.
    """
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
            for each in found:
                if WAIT in str(each.message):
                    places[f"{short(each.filename)}:{each.lineno}"] += 1
    for place, count in places.most_common():
        print(f"  {count:6,} waits at {place}")


@contextmanager
def host_seconds(spent: dict[str, float]) -> Iterator[None]:
    """Add up the host's seconds by the work of searches; work within other work counts once."""
    inner = [0.0]

    def timed(owner: type, method: str, work: str) -> Any:
        original = getattr(owner, method)

        @wraps(original)
        def run(*arguments: Any) -> Any:
            inner.append(0.0)
            began = time.perf_counter()
            try:
                return original(*arguments)
            finally:
                took = time.perf_counter() - began
                spent[work] = spent.get(work, 0.0) + took - inner.pop()
                inner[-1] += took

        return patch.object(owner, method, run)

    with ExitStack() as stack:
        for method, work in WORK.items():
            stack.enter_context(timed(BeamSearch, method, work))
        stack.enter_context(timed(Recorded, "_record", "recording"))
        stack.enter_context(timed(Download, "read", "waits"))
        yield


def graphs() -> dict[str, int]:
    """Return what torch.compile has done in this process; print how many graphs each function was compiled to.

    A function past the recompilation limit runs without being compiled.
    """
    found: Counter[str] = Counter()
    seconds = 0.0
    for each in get_compilation_metrics():
        seconds += each.entire_frame_compile_time_s or 0.0
        if each.fail_reason is not None:
            found[f"NOT COMPILED: {each.fail_reason.splitlines()[0]}"] += 1
        elif each.has_guarded_code and each.is_forward is not False:
            found[f"{short(str(each.co_filename))}:{each.co_firstlineno} {each.co_name}"] += 1
    for name, count in found.most_common():
        print(f"  {count:6,} graphs of {name}")
    return {
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "compiling_s": round(seconds),
    }


def profiler(device: torch.device, host: bool = False) -> profile:
    """Return a profiler of kernels, and with `host` of operations; it has not begun."""
    on_gpu = {ProfilerActivity.CUDA} if device.type == "cuda" else {ProfilerActivity.CPU}
    return profile(activities=on_gpu | ({ProfilerActivity.CPU} if host else set()))


def union(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the length of all intervals (begin, end) together; what overlaps counts once."""
    total = reached = 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def add_kernels(results: Results, row: str, watch: profile, number: int, seconds: float) -> None:
    """Add, of each of `number` equal pieces of work that took `seconds` without a profiler, launches and kernels' ms.

    `busy` is the share of that time in which a kernel was at work. All kernels go to a file of their own.
    """
    events: list[Any] = list(watch.profiler.kineto_results.events())  # type: ignore[union-attr]
    kernels = [event for event in events if "CUDA" in str(event.device_type()) and not event.is_user_annotation()]
    if not kernels:
        results.add(row, failed="no kernels in the profile")
        return
    launches = sum(LAUNCH.match(event.name()) is not None for event in events)
    work = union((event.start_ns(), event.end_ns()) for event in kernels) / 1e6
    results.add(row, launches=launches / number, kernels_ms=work / number, busy=work / number / seconds / 1000)
    spent, counts = Counter[str](), Counter[str]()
    for event in kernels:
        spent[event.name()] += event.duration_ns()
        counts[event.name()] += 1
    groups = dict.fromkeys(GROUPS, 0)
    for name, nanoseconds in spent.most_common():
        groups[group_of(name)] += nanoseconds
        each = {"kernel": name, "count": counts[name] / number, "ms": nanoseconds / 1e6 / number}
        results.write({"row": results.named(row), **each}, KERNELS)
    results.add(f"{row}: kernels, ms", **{name: nanoseconds / 1e6 / number for name, nanoseconds in groups.items()})


def group_of(kernel: str) -> str:
    return next(name for name, pattern in GROUPS.items() if re.search(pattern, kernel, re.IGNORECASE))


def short(path: str) -> str:
    """The last parts of a path."""
    return "/".join(Path(path).parts[-3:])
