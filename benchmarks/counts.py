"""What a GPU is made to do: how often the host waits for it, how many graphs are compiled, which kernels take long.

On a CPU the host never waits, and the heaviest operations take the place of kernels.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch._dynamo.utils import counters, get_compilation_metrics
from torch.profiler import ProfilerActivity, profile

WAIT = "called a synchronizing CUDA operation"  # a warning of torch.cuda.set_sync_debug_mode
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")


@contextmanager
def host_waits(device: torch.device, places: Counter[str]) -> Iterator[None]:
    """Counts, by the line of Python that is at work, how often the host waits for the device within the block.

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


def print_waits(title: str, places: Counter[str]) -> None:
    """One line with the sum, and one for each place."""
    print(f"{title}: {places.total()} host waits")
    for place, count in places.most_common():
        print(f"  {count:6,} {place}")


def print_graphs() -> None:
    """What torch.compile has done in this process: how many graphs each function was compiled to.

    A function past the recompilation limit runs without being compiled.
    """
    graphs: Counter[str] = Counter()
    seconds = 0.0
    for each in get_compilation_metrics():
        seconds += each.entire_frame_compile_time_s or 0.0
        if each.fail_reason is not None:
            graphs[f"NOT COMPILED: {each.fail_reason.splitlines()[0]}"] += 1
        elif each.has_guarded_code and each.is_forward is not False:
            graphs[f"{short(str(each.co_filename))}:{each.co_firstlineno} {each.co_name}"] += 1
    breaks = sum(counters["graph_break"].values())
    print(
        f"torch.compile: {counters['stats']['unique_graphs']} graphs in {seconds:.0f} s, {breaks} graph breaks, "
        f"{counters['inductor']['cudagraph_skips']} times no CUDA graph"
    )
    for name, count in graphs.most_common():
        print(f"  {count:6,} {name}")


def profiler(device: torch.device) -> profile:
    """A profiler that has not begun."""
    on_gpu = {ProfilerActivity.CUDA} if device.type == "cuda" else set()
    return profile(activities={ProfilerActivity.CPU} | on_gpu)


def print_profile(title: str, profiler: profile, device: torch.device, rows: int) -> None:
    """Launches, the time in which the GPU was at work, and the heaviest kernels of what was profiled."""
    events = profiler.key_averages()
    if device.type == "cuda":
        calls = Counter({event.key: event.count for event in events})
        busy = sum(event.self_device_time_total for event in events) / 1000
        print(
            f"{title}: {sum(calls[name] for name in LAUNCHES):,} kernels and {calls['cudaGraphLaunch']:,} CUDA graphs "
            f"launched; kernels took {busy:,.1f} ms"
        )
    else:
        print(f"{title}:")
    sort = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(events.table(sort_by=sort, row_limit=rows, max_name_column_width=90))


def short(path: str) -> str:
    """The last parts of a path."""
    return "/".join(Path(path).parts[-3:])
