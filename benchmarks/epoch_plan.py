"""The plan of an epoch of 36 M pairs: time and memory to make it, time to the first batch, memory of several readers.

    python benchmarks/epoch_plan.py [--pairs 36000000] [--batch-tokens 25000] [--folder FOLDER]

Lengths are random with WMT's distribution. Every measurement has a process of its own. Memory of the bare plan is the
most that its process ever had (VmHWM), interpreter, imports and arrays of lengths included; elsewhere it is anonymous
memory, since pages of files are the page cache's, which all processes share. "Cold" is after the files have left it.
The corpus takes 260 bytes a pair of disk; it is removed at the end unless FOLDER is given to keep it
(benchmarks/feed.py reads it).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar

import numpy as np

from nmt.data.batches import make_batch, split_update
from nmt.data.corpus import Corpus
from nmt.data.epochs import EpochPlan, plan_epoch, stored_plan
from synthetic import wmt_lengths, write_corpus

T = TypeVar("T")
READ = 300  # updates that a reader reads
MIB = 1 << 20


def memory(file: str, key: str) -> int:
    """Bytes that a file of /proc/self gives for a key."""
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self", file).read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def forget_pages(path: Path) -> None:
    """Lets a file that nobody has mapped leave the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bare_plan(lengths: Path, batch_tokens: int) -> tuple[int, float, int]:
    """Updates, seconds and greatest memory of planning from two arrays."""
    source, target = (np.load(lengths / f"{side}.npy") for side in ("source", "target"))
    began = time.perf_counter()
    plan = plan_epoch(source, target, batch_tokens, seed=1, epoch=0)
    return len(plan), time.perf_counter() - began, memory("status", "VmHWM")


def resume(folder: Path, batch_tokens: int) -> tuple[float, int]:
    """Seconds to the first batch of the update in the middle of an epoch, and greatest anonymous memory."""
    seen, done = [0], Event()

    def watch() -> None:
        while not done.wait(0.01):
            seen.append(memory("status", "RssAnon"))

    Thread(target=watch, daemon=True).start()
    began = time.perf_counter()
    corpus = Corpus(folder / "train.arrow")

    def make() -> EpochPlan:
        return plan_epoch(corpus.source_lengths, corpus.target_lengths, batch_tokens, seed=1, epoch=0)

    plan = stored_plan(folder / "plan", make, patience=0)
    make_batch(corpus, plan.rows(len(plan) // 2))
    seconds = time.perf_counter() - began
    done.set()
    return seconds, max(seen)


def read(folder: Path, batch_tokens: int, ranks: int, rank: int) -> tuple[int, int]:
    """Anonymous memory after the imports, and how much more there is after reading a rank's share of many updates."""
    before = memory("smaps_rollup", "Anonymous")
    corpus, plan = Corpus(folder / "train.arrow"), stored_plan(folder / "plan", None, patience=0)
    for update in range(len(plan) // 2, min(len(plan) // 2 + READ, len(plan))):
        rows = plan.rows(update)
        for part in split_update(*corpus.lengths(rows), batch_tokens, ranks)[rank::ranks]:
            make_batch(corpus, rows[part])
    return before, memory("smaps_rollup", "Anonymous") - before


def apart(*calls: Callable[[], T]) -> list[T]:
    """Results of calls made at the same time, each in a fresh process."""
    with ProcessPoolExecutor(len(calls), multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def main() -> None:
    """Measures and prints as it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=36_000_000)
    parser.add_argument("--batch-tokens", type=int, default=25_000)
    parser.add_argument("--folder", type=Path, help="keeps the corpus here, and takes it from here")
    arguments = parser.parse_args()
    tokens = arguments.batch_tokens
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        lengths = wmt_lengths(arguments.pairs)
        print(f"{arguments.pairs:,} pairs, {lengths[0].mean():.1f} and {lengths[1].mean():.1f} subwords", flush=True)
        for side, array in zip(("source", "target"), lengths, strict=True):
            np.save(Path(name) / f"{side}.npy", array)
        for _ in range(3):
            ((updates, seconds, most),) = apart(partial(bare_plan, Path(name), tokens))
            print(f"plan: {updates:,} updates, {seconds:.1f} s, {most / MIB:,.0f} MiB at most", flush=True)
        if not (folder / "train.arrow").exists():
            began = time.perf_counter()
            write_corpus(folder / "train.arrow", *lengths)
            size = (folder / "train.arrow").stat().st_size
            print(f"corpus: {size / 1e9:.2f} GB, written in {time.perf_counter() - began:.0f} s", flush=True)
        del lengths
        for planned in (False, True):
            for cold in (True, False):
                if not planned:
                    shutil.rmtree(folder / "plan", ignore_errors=True)
                if cold:
                    for path in (folder / "train.arrow", *folder.glob("plan/*")):
                        forget_pages(path)
                ((seconds, most),) = apart(partial(resume, folder, tokens))
                plan, pages = "on disk" if planned else "to be made", "cold" if cold else "warm"
                print(
                    f"first batch, plan {plan}, {pages}: {seconds:.2f} s, {most / MIB:,.0f} MiB anonymous", flush=True
                )
        for ranks in (1, 4):
            for rank, found in enumerate(apart(*(partial(read, folder, tokens, ranks, rank) for rank in range(ranks)))):
                imports, more = (figure / MIB for figure in found)
                print(f"reader {rank + 1} of {ranks}: {imports:.0f} MiB with imports, {more:.1f} MiB more", flush=True)
        shutil.rmtree(folder / "plan")


if __name__ == "__main__":
    main()
