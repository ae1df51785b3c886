"""Filler and shapes of packed micro-batches beside those of padded ones, for sentences of WMT's lengths.

    python benchmarks/packing.py [--pairs 300000] [--batch-tokens 25000]

A device takes its share of an update as one micro-batch. Packed, a side may have one of so many sizes; 1 means that all
micro-batches have the same. The shape of a padded micro-batch is its sentences and the widths of both sides.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from nmt.compute.gpu import NARROW, WIDE
from nmt.data.corpus import Ids
from nmt.data.epochs import plan_epoch
from nmt.model.batch import Batch
from nmt.training import batches
from nmt.training.batches import Packer, split_update
from synthetic import LONGEST, wmt_lengths

SIZES = (1, 4, 8, 16)


def padded(source_lengths: Ids, target_lengths: Ids) -> Batch:
    """Pairs of so many subwords, each of which is 1."""
    sides = [lengths.astype(np.int64) + 1 for lengths in (source_lengths, target_lengths)]
    source, target = (torch.from_numpy((np.arange(side.max(initial=1)) < side[:, None]) * 1) for side in sides)
    return Batch(source, target, target, target.flatten().nonzero().squeeze(1))


def report(name: str, batches: list[Batch]) -> None:
    """Prints a line."""
    cells = sum(batch.num_cells for batch in batches)
    sides = [side for batch in batches for side in (batch.source, batch.target_in) if side is not None]
    filler = cells - sum(int(side.count_nonzero()) for side in sides)
    print(f"  {name:<12}{filler / cells:8.1%}{len({batch.shape() for batch in batches}):8,}")


def main() -> None:
    """Prints a table for one device and for one of eight."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=300_000)
    parser.add_argument("--batch-tokens", type=int, default=25_000)
    arguments = parser.parse_args()
    source, target = wmt_lengths(arguments.pairs)
    plan = plan_epoch(source, target, arguments.batch_tokens, seed=1, epoch=0)
    for devices in (1, 8):
        share = -(-arguments.batch_tokens // devices)
        print(f"{devices} devices, {len(plan):,} updates: share of filler, shapes")
        cut, dealt = (
            [
                padded(source[rows][part], target[rows][part])
                for rows in map(plan.rows, range(len(plan)))
                for part in split_update(source[rows], target[rows], 2 * share, devices, packed)
                if len(part)
            ]
            for packed in (False, True)
        )
        report("padded", cut)
        for sizes in SIZES:
            batches.SIZES = sizes
            packer = Packer(share, LONGEST + 1, (NARROW, WIDE))
            report(f"{sizes} sizes", [packer.pack(batch, 2 * share) for batch in dealt])


if __name__ == "__main__":
    main()
