"""What the path from a prepared corpus to tensors delivers in one thread, against what a GPU would take.

    python benchmarks/feed.py CORPUS... [--batch-tokens 25000] [--device-tokens 25000] [--seconds 5] [--cold]

CORPUS is a train.arrow of `nmt preprocess`, or of benchmarks/epoch_plan.py --folder. Updates of an epoch's plan are
cut into micro-batches and read, one after another, five times for so many seconds. An H200 that takes 36 ms for an
update of 25,000 target tokens needs 0.7 M/s; the bar is twice that. With --cold the corpus leaves the page cache
before each time, and the seconds count from its opening.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import torch

from epoch_plan import forget_pages
from nmt.data.batches import make_batch, split_update
from nmt.data.corpus import Corpus, Rows
from nmt.data.epochs import plan_epoch

TIMES = 5
NEEDED = 2 * 25_000 / 0.036
STAGES = ("rows", "lengths", "split", "batches")


def deliver(
    corpus: Corpus, updates: Iterator[Rows], device_tokens: int, seconds: float
) -> tuple[float, float, dict[str, float]]:
    """Pairs/s and target tokens/s, and the share of each stage in the time."""
    pairs, tokens, spent = 0, 0, dict.fromkeys(STAGES, 0.0)
    began = at = time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal at
        now = time.perf_counter()
        spent[stage], at = spent[stage] + now - at, now

    while at < began + seconds:
        rows = next(updates)
        lap("rows")
        lengths = corpus.lengths(rows)
        lap("lengths")
        parts = split_update(*lengths, device_tokens)
        lap("split")
        tokens += sum(make_batch(corpus, rows[part]).num_tokens for part in parts)
        lap("batches")
        pairs += len(rows)
    return pairs / (at - began), tokens / (at - began), {stage: spent[stage] / (at - began) for stage in STAGES}


def main() -> None:
    """Prints a line per corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, nargs="+")
    parser.add_argument("--batch-tokens", type=int, default=25_000)
    parser.add_argument("--device-tokens", type=int, default=25_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--cold", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for path in arguments.corpus:
        corpus = Corpus(path)
        plan = plan_epoch(corpus.source_lengths, corpus.target_lengths, arguments.batch_tokens, seed=1, epoch=0)
        updates = (plan.rows(update) for update in cycle(range(len(plan))))
        found = []
        for _ in range(TIMES):
            if arguments.cold:
                del corpus
                forget_pages(path)
                corpus = Corpus(path)
            found.append(deliver(corpus, updates, arguments.device_tokens, arguments.seconds))
        pairs, tokens = (statistics.median(column) for column in list(zip(*found, strict=True))[:2])
        low, high = min(rate for _, rate, _ in found), max(rate for _, rate, _ in found)
        shares = ", ".join(f"{stage} {statistics.median(share[stage] for *_, share in found):.0%}" for stage in STAGES)
        print(
            f"{path}: {len(corpus):,} pairs, {'cold' if arguments.cold else 'warm'}: {pairs / 1e3:,.0f} k pairs/s, "
            f"{tokens / 1e6:.2f} M target tokens/s ({low / 1e6:.2f} to {high / 1e6:.2f}), {tokens / NEEDED:.1f} times "
            f"the bar; {shares}",
            flush=True,
        )


if __name__ == "__main__":
    main()
