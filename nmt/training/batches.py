"""Micro-batches: cuts updates into them, and turns them into tensors ahead of time, padded or packed end to end.

Packed, a micro-batch has no masks, hardly any padding, and tensors of few shapes. Few shapes allow a GPU's work to be
recorded once for each of them. A batch of constant size would leave 8% of it empty, because the shorter side of an
update has 15% fewer tokens than the other on average (benchmarks/packing.py).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from nmt.data.batch import Batch, Packing, Sequences
from nmt.data.corpus import Corpus, Ids, Lengths, Rows
from nmt.data.epochs import EpochPlan
from nmt.recipe import CPU_DEVICE_TOKENS, Model, Training
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.text.vocabulary import BOS, EOS, PAD
from nmt.training.arithmetic import processor, product_dtype
from nmt.training.distributed import Group
from nmt.training.state import RunState

T = TypeVar("T")
SIZES = 16  # numbers of tokens that a side of a packed micro-batch can have; more mean less filler and more shapes
ALIGNED = 8  # numbers of tokens are multiples of it, which kernels need to be fast
BLOCK = 128  # queries or keys that a kernel of packed attention takes at a time


def split_update(source_lengths: Ids, target_lengths: Ids, device_tokens: int, devices: int = 1) -> list[Rows]:
    """Cut an update into micro-batches of at most `device_tokens` cells on either side, including padding.

    Lengths (pairs,) are those of the update, and micro-batches are indices into it. Each of `devices` gets equally
    many, in turn, of nearly equal size so that none is tiny. A pair longer than `device_tokens` makes a micro-batch of
    its own; with fewer pairs than micro-batches, some are empty.
    """
    widths = np.maximum(source_lengths, target_lengths).astype(np.int64) + 1
    rounds = min(-(-int(widths.sum()) // (devices * device_tokens)), -(-len(widths) // devices))
    count = devices * max(1, rounds)
    while True:
        parts = np.array_split(np.arange(len(widths)), count)
        if all(len(part) <= 1 or widths[part].max() * len(part) <= device_tokens for part in parts):
            return parts
        count += devices


def make_batch(corpus: Corpus, rows: Rows) -> Batch:
    """Read pairs into padded tensors; without any pairs, make a batch in which every target is padding."""
    if not len(rows):
        end, begin, nothing = (torch.tensor([[symbol]]) for symbol in (EOS, BOS, PAD))
        return Batch(end if corpus.has_source else None, begin, nothing, torch.empty(0, dtype=torch.int64))
    target_ids, target_lengths = corpus.targets(rows)
    target_out = _with_end(target_ids, target_lengths)
    return Batch(
        source=torch.from_numpy(_with_end(*corpus.sources(rows))) if corpus.has_source else None,
        target_in=torch.from_numpy(np.pad(target_ids, ((0, 0), (1, 0)), constant_values=BOS)),
        target_out=torch.from_numpy(target_out),
        real=torch.from_numpy(np.flatnonzero(target_out)),
    )


def _with_end(ids: Rows, lengths: Ids) -> Rows:
    """Append `</s>` to each row of ids (pairs, length), whose own lengths are (pairs,)."""
    ended = np.pad(ids, ((0, 0), (0, 1)), constant_values=PAD)
    ended[np.arange(len(ids)), lengths] = EOS
    return ended


def prefetched(items: Iterator[T], ahead: int) -> Generator[T]:
    """Yield the same items, computed in a thread that works up to `ahead` items in advance."""
    end = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    try:
        waiting: deque[Future[T | object]] = deque(pool.submit(next, items, end) for _ in range(ahead))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def deal_update(source_lengths: Ids, target_lengths: Ids, device_tokens: int, devices: int = 1) -> list[Rows]:
    """Deal the pairs of an update to micro-batches of at most `device_tokens` tokens on either side.

    As `split_update`, but without padding. Pairs are dealt like cards, and since neighbours are similar in length, all
    micro-batches have nearly equally many tokens on both sides.
    """
    sides = np.stack((source_lengths, target_lengths)).astype(np.int64) + 1
    pairs = sides.shape[1]
    count = devices * max(1, -(-int(sides.sum(1).max()) // (devices * device_tokens)))
    while True:
        parts = [np.arange(first, pairs, count) for first in range(count)]
        if all(len(part) <= 1 or sides[:, part].sum(1).max() <= device_tokens for part in parts):
            return parts
        count += devices


@dataclass(frozen=True)
class Packer:
    """The sizes of packed micro-batches: each side is filled up to one of about `SIZES`, with sequences of padding."""

    share: int  # tokens of an update on either side, divided by the number of devices
    longest: int  # tokens of the longest sentence

    def pack(self, batch: Batch, device_tokens: int) -> Batch:
        """Pack the pairs of a padded batch of at most `device_tokens` tokens on either side."""
        share = min(self.share, device_tokens)
        most = max(1, min(self.longest, BLOCK) - 1)  # tokens of a sequence of filler, beside the one that each has
        step = _up(-(-(share + 1) * most // (SIZES * most - 1)), ALIGNED)  # then `SIZES` steps hold a share and fillers
        fillers = -(-step // most)
        real = batch.target_in != PAD
        target_in, target = self._side(batch.target_in, real, step, fillers)
        target_out = torch.zeros_like(target_in)
        target_out[0, : int(real.sum())] = batch.target_out[real]
        source, sources = None, None
        if batch.source is not None:
            source, sources = self._side(batch.source, batch.source != PAD, step, fillers)
        known = torch.arange(batch.num_tokens)  # those of a batch without pairs are none
        return Batch(source, target_in, target_out, known, Packing(sources, target))

    def _side(self, ids: Tensor, real: Tensor, step: int, fillers: int) -> tuple[Tensor, Sequences]:
        """Return a row (1, tokens) of one side's ids and filler; each filler has a token, so no softmax is empty."""
        tokens = int(real.sum())
        size = _up(tokens + fillers, step)
        row = torch.full((1, size), PAD)
        row[0, :tokens] = ids[real]
        filler = torch.arange(fillers + 1) * (size - tokens) // fillers
        count = len(ids) + fillers
        lengths = torch.zeros(_few(count), dtype=torch.int64)  # the last are 0 and change nothing
        lengths[:count] = torch.cat((real.sum(1), filler.diff()))
        ends = lengths.cumsum(0)
        positions = torch.arange(size) - (ends - lengths).repeat_interleave(lengths)
        bounds = torch.cat((torch.zeros(1, dtype=torch.int64), ends)).int()
        longest = min(_up(int(lengths.max()), BLOCK), self.longest)
        return row, Sequences(bounds, positions[None], longest)


def largest_batch(corpus: Corpus, tokens: int) -> Batch:
    """Return a padded batch of so many tokens on each side, in as many pairs as the corpus can fill them with.

    Memory grows with both numbers.
    """
    lengths = np.maximum(corpus.source_lengths, corpus.target_lengths)
    shortest = np.sort(lengths).cumsum(dtype=np.int64) + np.arange(1, len(lengths) + 1)
    pairs = max(1, int(np.searchsorted(shortest, tokens, side="right")))
    width = min(int(lengths.max()) + 1, -(-tokens // pairs))
    ids = torch.ones(-(-tokens // width), width, dtype=torch.int64)
    return Batch(ids if corpus.has_source else None, ids, ids, torch.arange(ids.numel()))


def _up(number: int, step: int) -> int:
    """Round up to a multiple of `step`."""
    return -(-number // step) * step


def _few(number: int) -> int:
    """Round up to a number with three significant bits."""
    return _up(number, 1 << max(0, number.bit_length() - 3))


SHARE = 0.9  # of a GPU's memory that an update may take; the rest is for gaps between allocations
RETRY = 0.9  # of the size that did not fit, to try next
WIDEST_HEAD, HEAD_STEP = 256, 8  # limits of the kernel of packed attention
OLDEST = (8, 0)  # compute capability that it needs: Ampere


@dataclass(frozen=True)
class Update:
    """An update of the plan, and this rank's share of it."""

    epoch: int
    offset: int  # number of the update in its epoch, counted from 0
    rows: Rows  # (pairs,) of the corpus, over all ranks
    lengths: Lengths  # of these pairs
    device_tokens: int = 0  # size of the micro-batches; 0 before they are made
    batches: Sequence[Batch] = ()  # the micro-batches of this rank


class MicroBatches:
    """The micro-batches of this rank, padded or packed."""

    def __init__(self, model: Model, corpus: Corpus, settings: Training, group: Group) -> None:
        """Raise UserError if `training.packing` asks for what the device cannot do."""
        self._corpus, self._settings, self._group = corpus, settings, group
        self._share = -(-settings.batch_tokens // group.size)  # tokens of an update on either side, of this rank
        self._packer: Packer | None = None
        if use_packing(model, settings, group.device):
            self._packer = Packer(self._share, corpus.longest() + 1)
        self._copies = torch.cuda.Stream(group.device) if group.device.type == "cuda" else None

    def updates(self, plan: Callable[[int], EpochPlan], state: RunState) -> Iterator[Update]:
        """Yield updates from the state on, epoch after epoch without end; `plan` gives the plan of an epoch."""
        epoch, offset = state.epoch, state.offset
        while True:
            planned = plan(epoch)
            for number in range(offset, len(planned)):
                rows, size = planned.rows(number), state.device_tokens
                lengths = self._corpus.lengths(rows)
                yield Update(epoch, number, rows, lengths, size, self._split(rows, lengths, size))
            epoch, offset = epoch + 1, 0

    def of(self, update: Update, device_tokens: int) -> Sequence[Batch]:
        """Return the micro-batches of an update; make them if they are not there, or of another size."""
        same = update.device_tokens == device_tokens
        return update.batches if same else self._split(update.rows, update.lengths, device_tokens)

    def on_device(self, batch: Batch) -> Batch:
        """Copy a micro-batch to the device; to a GPU on a stream of its own, while it computes."""
        device = self._group.device
        if self._copies is None:
            return batch.to(device)
        with torch.cuda.stream(self._copies):
            copied = batch.to(device)
        computing = torch.cuda.current_stream(device)
        computing.wait_stream(self._copies)
        copied.hold(computing)
        return copied

    def probe(self, tokens: int) -> Batch:
        """Return a micro-batch of so many tokens on each side, to measure its memory.

        If it is padded, it has two rows or more, and lengths that differ, because torch.compile would make other graphs
        for a single row and for equal lengths, of no use to most batches.
        """
        if self._packer is not None:
            return self._packer.pack(largest_batch(self._corpus, tokens), tokens)
        longest = self._corpus.longest() + 1
        ids = torch.ones(max(2, -(-tokens // longest)), longest, dtype=torch.int64)
        source = ids[:, 1:].clone() if self._corpus.has_source else None
        return Batch(source, ids, ids, torch.arange(ids.numel()))

    def choose_size(self, state: RunState, memory_of: Callable[[int], int], console: Console) -> None:
        """Set the size of micro-batches in the state of a run, unless it was chosen for the same devices before.

        `memory_of` returns the bytes that a GPU needs for a micro-batch of so many tokens.
        """
        device = self._group.device
        # Without the number of threads, on which memory does not depend.
        own = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
        names = Counter(name for (name,) in self._group.gather([own]))
        place = " + ".join(f"{number} × {name}" for name, number in sorted(names.items()))
        kept = state.device_tokens if state.place == place else 0  # other devices hold more or less
        if state.place not in ("", place):
            console.say(f"changed: devices from {state.place} to {place}; sums may differ in their last bits")
        state.device_tokens = kept or self._settings.device_tokens or self._fitting(memory_of, console)
        state.place = place

    def _split(self, rows: Rows, lengths: Lengths, device_tokens: int) -> list[Batch]:
        """Return this rank's stripe of the micro-batches of an update."""
        split = split_update if self._packer is None else deal_update
        parts = split(*lengths, device_tokens, self._group.size)
        batches = [self.batch(rows[part], device_tokens) for part in parts[self._group.rank :: self._group.size]]
        return [batch.pin() for batch in batches] if self._group.device.type == "cuda" else batches

    def batch(self, rows: Rows, device_tokens: int) -> Batch:
        """Read pairs into a micro-batch, padded or packed as all of this run are."""
        batch = make_batch(self._corpus, rows)
        return batch if self._packer is None else self._packer.pack(batch, device_tokens)

    def _fitting(self, memory_of: Callable[[int], int], console: Console) -> int:
        """Return the tokens of a micro-batch that fits the memory of every device."""
        device = self._group.device
        if device.type != "cuda":
            return CPU_DEVICE_TOKENS
        least = 2 * (self._corpus.longest() + 1)  # two rows, see `probe`
        most = max(least, 2 * self._share)  # a whole share, however padded
        free, _ = torch.cuda.mem_get_info(device)
        limit = int(SHARE * (free + torch.cuda.memory_reserved(device)))  # without what other processes hold
        fitting = -self._group.largest(-largest_fitting(memory_of, least, most, limit))[0]
        console.say(f"micro-batches of {fitting:,} tokens fit the memory of the device")
        return fitting


def largest_fitting(measure: Callable[[int], int], least: int, most: int, limit: int) -> int:
    """Return the tokens of the largest micro-batch, from `least` to `most`, whose memory stays within `limit` bytes.

    `measure` runs a micro-batch of so many tokens and returns the bytes it took, or raises torch.OutOfMemoryError.
    Memory grows linearly with tokens, so the size follows from two small micro-batches, and a third one of that size
    verifies it. Return `least` where nothing fits.
    """

    def taken(tokens: int) -> float:
        with suppress(torch.OutOfMemoryError):
            return measure(tokens)
        torch.cuda.empty_cache()  # only now, since the error's traceback held tensors
        return math.inf

    small = min(most, 4 * least)
    first, second = taken(least), taken(small)
    if small == most and second <= limit:
        return most
    if second <= limit:
        slope = max(1.0, (second - first) / (small - least))
        tokens = min(most, least + int((limit - first) / slope))
    else:
        tokens = int(RETRY * small)
    while tokens > least and taken(tokens) > limit:
        tokens = int(RETRY * tokens)
    return max(least, tokens)


def use_packing(model: Model, settings: Training, device: torch.device) -> bool:
    """Tell whether `training.packing` packs the micro-batches of a model; on a CPU `auto` does not.

    Raise UserError where sentences must be packed and cannot be.
    """
    if settings.packing != "auto" and not settings.packing:
        return False
    if device.type == "cpu":  # where any model can be packed, but more slowly than padded
        return settings.packing is True
    obstacle = _obstacle(model, settings, device)
    if obstacle is not None and settings.packing is True:
        reason, hint = obstacle
        raise UserError(f"training.packing: sentences cannot be packed, since {reason}", hint)
    return obstacle is None


def _obstacle(model: Model, settings: Training, device: torch.device) -> tuple[str, str] | None:
    """Return why the kernel of packed attention cannot train a model on this GPU, and what to do; None if it can."""
    otherwise = ", or training.packing=auto"
    if not torch.backends.cuda.is_flash_attention_available() or torch.version.hip is not None:
        return "this build of PyTorch has no FlashAttention for NVIDIA's GPUs", "--set training.packing=auto"
    if torch.cuda.get_device_capability(device) < OLDEST:
        return f"{torch.cuda.get_device_name(device)} is too old for it", "--set training.packing=auto"
    if product_dtype(settings.precision, device) != torch.bfloat16:
        return f"training.precision is {settings.precision}", f"--set training.precision=bf16{otherwise}"
    if model.attention_dropout > 0.0:
        return f"model.attention_dropout is {model.attention_dropout}", f"--set model.attention_dropout=0{otherwise}"
    key, value = model.key_width, model.value_width
    if key != value or key % HEAD_STEP or key > WIDEST_HEAD:
        return (
            f"a head's keys have {key} numbers and its values {value}, which must be equally many, a multiple of "
            f"{HEAD_STEP}, at most {WIDEST_HEAD}",
            f"change model.d_k, d_v or heads{otherwise}",
        )
    return None
