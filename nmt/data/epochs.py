"""Assign an epoch's pairs to updates (section 5.1).

An epoch's plan is a pure function of lengths, weights, seed and epoch number, so a checkpoint stores only two integers,
and a run can resume at any update on any number of devices. One rank writes the plan; all ranks of a host share its
memory map.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.data.corpus import ChangedPairs, Corpus, Ids, Lengths, Rows
from nmt.recipe import Data, Training
from nmt.system.errors import UserError
from nmt.system.files import whole_directory
from nmt.system.processes import wait_for

AHEAD = 2  # number of updates to prefetch
ORDER = "order.npy"
BOUNDS = "bounds.npy"
SLICE = 1 << 20  # pairs at a time; bounds the memory of intermediate arrays


@dataclass(frozen=True)
class EpochPlan:
    """The updates of one epoch."""

    order: NDArray[np.int32]
    """(pairs,) corpus rows, sorted by length"""
    bounds: Rows
    """(updates, 2) start and end of each update in `order`; updates are shuffled"""

    def __len__(self) -> int:
        return len(self.bounds)

    def rows(self, update: int) -> Rows:
        """Return the corpus rows of an update."""
        begin, end = self.bounds[update]
        return self.order[begin:end].astype(np.int64)


Mixture = Sequence[tuple[int, float]]
"""For each training set, in corpus order: its number of pairs, and how often an epoch uses each.

1.5 repeats a random half.
"""


def mixture_of(sizes: Sequence[int], data: Data) -> Mixture:
    """Return the mixture of training sets of these `sizes` by their weights and `data.temperature`."""
    # At temperature T, a set's share of an epoch is proportional to its weight times size^(1/T): small sets gain.
    scaled = [size ** (1 / data.temperature) for size in sizes]
    factor = sum(sizes) / max(sum(scaled), 1)  # keeps the number of pairs in an epoch
    mixture = []
    for size, part, dataset in zip(sizes, scaled, data.train, strict=True):
        weight = dataset.weight
        if data.temperature > 1:
            weight *= factor * part / max(size, 1)
        mixture.append((size, weight))
    return mixture


def _draw(mixture: Mixture, random: np.random.Generator) -> Rows | None:
    """Sample an epoch's rows, with repetitions; return None if each occurs once.

    Raise UserError if the weights leave no rows.
    """
    if all(weight == 1.0 for _, weight in mixture):
        return None
    parts = list[Rows]()
    first = 0
    for size, weight in mixture:
        whole = int(weight)
        rest = round((weight - whole) * size)
        parts += [np.arange(first, first + size)] * whole
        parts.append(first + random.choice(size, rest, replace=False))
        first += size
    rows = np.concatenate(parts)
    if not len(rows):
        problem = "data.train: its weights are so small that an epoch has no pair"
        raise UserError(problem, "raise the weight of a training set")
    return rows


def plan_epoch(
    source_lengths: Ids, target_lengths: Ids, batch_tokens: int, seed: int, epoch: int, mixture: Mixture = ()
) -> EpochPlan:
    """Group pairs of similar length into updates of at most `batch_tokens` tokens on each side.

    Lengths (pairs,) exclude `</s>`; tokens include it. Pairs are sorted by the length of the longer side, then by the
    difference between the sides, alternately ascending and descending, so that neighbours are similar on both sides.
    This leaves 3.4% padding, against 8.7% when sorting by one side and then the other (benchmarks/RESULTS.md). Ties are
    broken at random, and updates are shuffled. Each pair occurs once, or as often as `mixture` draws it.
    """
    random = np.random.default_rng((seed, epoch))
    order = _sort(source_lengths, target_lengths, _draw(mixture, random), random)
    cuts = _cuts(order, source_lengths, target_lengths, batch_tokens)
    bounds = np.stack((cuts[:-1], cuts[1:]), axis=1)
    random.shuffle(bounds)
    return EpochPlan(order, bounds)


def _sort(
    source_lengths: Ids, target_lengths: Ids, rows: Rows | None, random: np.random.Generator
) -> NDArray[np.int32]:
    """Return rows sorted by length; `rows` of None means each row of the corpus once.

    Each row becomes one 64-bit number: from the highest bits, its key, a random tie-breaker and the row itself. Sorting
    these in place takes less memory than sorting by several arrays.
    """
    longest_source = source_lengths.max(initial=0)
    longest_target = target_lengths.max(initial=0)
    longest = int(max(longest_source, longest_target)) + 1
    span = 2 * longest + 1  # differences are from -longest to longest
    count = len(source_lengths) if rows is None else len(rows)
    row_bits = max(1, (len(source_lengths) - 1).bit_length())
    random_bits = 64 - row_bits - ((longest + 1) * span).bit_length()
    assert row_bits < 32, "too many pairs: rows are 32-bit numbers"
    packed = np.empty(count, dtype=np.uint64)
    for begin in range(0, count, SLICE):
        part = np.arange(begin, min(begin + SLICE, count))
        if rows is not None:
            part = rows[part]
        source = source_lengths[part].astype(np.int64)
        target = target_lengths[part].astype(np.int64)
        longer = np.maximum(source, target)
        difference = source - target
        key = longer * span + longest + np.where(longer % 2 == 0, difference, -difference)
        tie = random.integers(0, 1 << random_bits, len(part), dtype=np.uint64)
        high = key.astype(np.uint64) << np.uint64(row_bits + random_bits) | tie << np.uint64(row_bits)
        packed[begin : begin + len(part)] = high | part.astype(np.uint64)
    packed.sort()
    packed &= np.uint64((1 << row_bits) - 1)  # only the row
    return packed.astype(np.int32)


def _cuts(order: NDArray[np.int32], source_lengths: Ids, target_lengths: Ids, batch_tokens: int) -> Rows:
    """Fill updates with pairs up to `batch_tokens`; return their boundaries in `order`: (updates + 1,)."""
    cuts = [0]
    first = 0
    size = max(SLICE, batch_tokens + 1)  # a slice holds any update, as a pair has at least one token
    while first < len(order):
        part = order[first : first + size]
        source_sums = _sums(source_lengths[part])
        target_sums = _sums(target_lengths[part])
        is_last = first + len(part) == len(order)
        begin = 0
        while begin < len(part):
            source_end = int(np.searchsorted(source_sums, source_sums[begin] + batch_tokens, side="right")) - 1
            target_end = int(np.searchsorted(target_sums, target_sums[begin] + batch_tokens, side="right")) - 1
            end = max(min(source_end, target_end), begin + 1)
            if end == len(part) and not is_last:
                break  # the update may continue in the next slice
            begin = end
            cuts.append(first + end)
        first = cuts[-1]
    return np.array(cuts, dtype=np.int64)


def _sums(lengths: Ids) -> NDArray[np.int64]:
    """Return cumulative token counts with `</s>`, starting from 0: (pairs + 1,)."""
    tokens = np.append(0, lengths.astype(np.int64) + 1)
    return np.cumsum(tokens)


@dataclass(frozen=True)
class Update:
    """An update of an epoch's plan."""

    epoch: int
    offset: int
    """0-based index of the update in its epoch"""
    rows: Rows
    """(pairs,) indices into the corpus"""
    lengths: Lengths
    """Lengths of the pairs in `rows`, or of `changed`"""
    changed: ChangedPairs | None = None
    """What the pairs in `rows` have become by data.augment; None if they are as in the corpus"""


def updates_from(epoch: int, offset: int, plan: Callable[[int], EpochPlan], corpus: Corpus) -> Iterator[Update]:
    """Yield updates endlessly, from a position in an epoch on; `plan` returns an epoch's plan."""
    while True:
        planned = plan(epoch)
        for number in range(offset, len(planned)):
            rows = planned.rows(number)
            yield Update(epoch, number, rows, corpus.lengths(rows))
        epoch += 1
        offset = 0


@dataclass(frozen=True)
class EpochPlans:
    """A run's epoch plans: one rank writes them to the run directory `out`, and all ranks memory-map them."""

    out: Path
    data: str
    """Fingerprint of the prepared data"""
    corpus: Corpus
    mixture: Mixture
    settings: Training
    leads: bool = True
    """Whether this rank writes the plans; the others wait for them"""
    check: Callable[[], None] = lambda: None
    """Callback polled while waiting; may raise to abort the wait"""

    def plan(self, epoch: int) -> EpochPlan:
        """Return an epoch's plan; raise UserError if the leading rank does not write it in time."""
        settings = self.settings
        weights = [weight for _, weight in self.mixture]
        # Everything that the plan depends on, so that no run uses a plan made with other settings
        shaping = [self.data, weights, settings.batch_tokens, settings.seed, epoch]
        key = hashlib.sha256(json.dumps(shaping).encode()).hexdigest()[:12]
        folder = self.out / f".epoch-{epoch}-{key}"
        if self.leads and not (folder / ORDER).exists():
            remove_plans(self.out, range(epoch - AHEAD, epoch))  # other ranks may lag by up to AHEAD updates
            sources = self.corpus.source_lengths
            targets = self.corpus.target_lengths
            made = plan_epoch(sources, targets, settings.batch_tokens, settings.seed, epoch, self.mixture)
            with whole_directory(folder, ORDER) as part:
                np.save(part / ORDER, made.order)
                np.save(part / BOUNDS, made.bounds)
        wait_for(folder / ORDER, 60 * settings.timeout_minutes, self.check)
        return EpochPlan(np.load(folder / ORDER, mmap_mode="r"), np.load(folder / BOUNDS, mmap_mode="r"))


def remove_plans(out: Path, keep: Collection[int] = ()) -> None:
    """Delete the plans in a run directory except those of the epochs in `keep`."""
    for old in out.glob(".epoch-*"):
        if int(old.name.split("-")[1]) not in keep:
            shutil.rmtree(old, ignore_errors=True)
