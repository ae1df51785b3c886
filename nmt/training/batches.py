"""Micro-batches: split updates, pad or pack them into tensors, prefetch them, and choose their size.

A packed micro-batch concatenates its sentences. It needs no masks and little filler, and has few distinct shapes, each
of which a GPU computes by a graph of its own. A single fixed size would leave 8.8% filler, because the shorter side of
an update has 15% fewer tokens on average (benchmarks/packing.py).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from nmt.compute.choice import device_name, training_precision
from nmt.compute.gpu import OLDEST, attention_tiles
from nmt.data.augment import Augmenter
from nmt.data.corpus import ChangedPairs, Corpus, Ids, Rows
from nmt.data.epochs import Update
from nmt.model.batch import Batch, Groups, Packing, Sequences
from nmt.recipe import CPU_DEVICE_TOKENS, Model, Training
from nmt.system import torch_internals
from nmt.system.console import Console
from nmt.system.device import largest_fitting
from nmt.system.errors import UserError
from nmt.text.vocabulary import BOS, EOS, PAD
from nmt.training.distributed import Group

T = TypeVar("T")
WORTH_A_BATCH = 256  # cells of padding that cost as much as one more micro-batch
FEWEST_TOKENS = 512  # of a micro-batch on a CPU; products of fewer rows are slower
SIZES = 8  # distinct sizes per side of packed micro-batches; more sizes mean less filler but more shapes
ALIGNED = 8  # token counts are rounded up to a multiple of this, for fast kernels
TILE = 128  # queries or keys that the packed-attention kernel processes at a time


def split_update(
    source_lengths: Ids, target_lengths: Ids, device_tokens: int, devices: int = 1, packed: bool = False
) -> list[Rows]:
    """Split an update into micro-batches of at most `device_tokens` tokens per side.

    Lengths are (pairs,), similar for neighbours, and each micro-batch is an array of indices into them. Padding counts,
    so padded micro-batches hold neighbours, about equally many each, so that none is tiny. A packed one holds every
    n-th pair, which balances the tokens of both sides. The number of micro-batches is a multiple of `devices`; some are
    empty if the update has too few pairs. A pair longer than `device_tokens` is alone.
    """
    sides = np.stack((source_lengths, target_lengths)).astype(np.int64) + 1  # (2, pairs), with `</s>`
    widths = sides.max(0)  # (pairs,)
    pairs = len(widths)
    tokens = int(sides.sum(1).max() if packed else widths.sum())
    rounds = min(_ceil(tokens, devices * device_tokens), _ceil(pairs, devices))  # for each device, if all fit

    def fits(part: Rows) -> bool:
        if len(part) <= 1:
            return True
        size = sides[:, part].sum(1).max() if packed else widths[part].max() * len(part)
        return bool(size <= device_tokens)

    count = devices * max(1, rounds)
    while True:
        if packed:
            parts = [np.arange(first, pairs, count) for first in range(count)]
        else:
            parts = np.array_split(np.arange(pairs), count)
        if all(map(fits, parts)):
            return parts
        count += devices


def split_mixed(source_lengths: Ids, target_lengths: Ids, device_tokens: int, devices: int = 1) -> list[Rows]:
    """Split an update into padded micro-batches as `split_update` does, though neighbours have unlike lengths.

    Pairs are sorted and divided where lengths differ much. Each device gets every n-th pair of a stretch, so that all
    have equally much to do.
    """
    widths = np.maximum(source_lengths, target_lengths).astype(np.int64) + 1  # (pairs,), with `</s>`
    parts: list[Rows] = []
    for stretch in _alike(np.argsort(widths, kind="stable"), widths, WORTH_A_BATCH * devices):
        fitting = max(1, device_tokens // int(widths[stretch[-1]]))
        count = devices * _ceil(len(stretch), devices * fitting)
        parts += [stretch[first::count] for first in range(count)]
    return parts


def _alike(order: Rows, widths: Rows, worth: int) -> Iterator[Rows]:
    """Yield stretches of pairs in order of their widths, divided where that saves at least `worth` cells of padding."""
    own = widths[order]
    saved = np.arange(len(order)) * (own[-1] - np.roll(own, 1))  # (pairs,) by a cut before each
    cut = int(saved.argmax())
    if cut == 0 or saved[cut] < worth:
        yield order
    else:
        yield from _alike(order[:cut], widths, worth)
        yield from _alike(order[cut:], widths, worth)


def make_batch(corpus: Corpus | ChangedPairs, rows: Rows) -> Batch:
    """Read pairs into a padded batch; without pairs, return a dummy batch whose targets are all padding."""
    if not len(rows):
        no_tokens = torch.empty(0, dtype=torch.int64)
        return Batch(torch.tensor([[EOS]]), torch.tensor([[BOS]]), torch.tensor([[PAD]]), no_tokens)
    source = _with_end(*corpus.sources(rows))  # (pairs, source length + 1)
    target_ids, target_lengths = corpus.targets(rows)
    target_in = np.pad(target_ids, ((0, 0), (1, 0)), constant_values=BOS)  # (pairs, target length + 1)
    target_out = _with_end(target_ids, target_lengths)
    real = np.flatnonzero(target_out)  # (tokens,)
    return Batch(
        source=torch.from_numpy(source),
        target_in=torch.from_numpy(target_in),
        target_out=torch.from_numpy(target_out),
        real=torch.from_numpy(real),
    )


def _with_end(ids: Rows, lengths: Ids) -> Rows:
    """Append `</s>` to each row of padded ids (pairs, length), given the rows' lengths (pairs,)."""
    ended = np.pad(ids, ((0, 0), (0, 1)), constant_values=PAD)
    ended[np.arange(len(ids)), lengths] = EOS
    return ended


def prefetched(items: Iterator[T], ahead: int) -> Generator[T]:
    """Yield the items, computing up to `ahead` of them in advance in a background thread."""
    end = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    try:
        waiting: deque[Future[T | object]] = deque(pool.submit(next, items, end) for _ in range(ahead))
        item = waiting.popleft().result()
        while item is not end:
            waiting.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]
            item = waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class Packer:
    """Packer of micro-batches; appends filler sequences to each side to reach one of about `SIZES` sizes."""

    share: int  # tokens per update, side and device
    longest: int  # tokens in the longest sentence, with `</s>` or `<s>`
    tiles: Sequence[int] = ()  # most tokens of a group of sentences, if attention computes them so; smallest first

    def pack(self, batch: Batch, device_tokens: int) -> Batch:
        """Pack a padded batch with at most `device_tokens` tokens per side."""
        share = min(self.share, device_tokens)
        # A side is filled up to a multiple of `step` by `fillers` sequences of 1 to 1 + `most` tokens.
        most = max(1, min(self.longest, *self.tiles, TILE) - 1)  # filler needs no larger tile than sentences
        # The smallest step with SIZES · step ≥ share + fillers, where fillers ≤ step / most + 1
        step = _round_up(_ceil((share + 1) * most, SIZES * most - 1), ALIGNED)
        fillers = _ceil(step, most)
        real = batch.target_in != PAD  # (pairs, target length)
        target_in, target = self._side(batch.target_in, real, step, fillers)
        target_out = torch.zeros_like(target_in)
        target_out[0, : int(real.sum())] = batch.target_out[real]
        source, sources = self._side(batch.source, batch.source != PAD, step, fillers)
        sources, target = self._grouped(sources, target)
        return Batch(source, target_in, target_out, None, Packing(sources, target))

    def _side(self, ids: Tensor, real: Tensor, step: int, fillers: int) -> tuple[Tensor, Sequences]:
        """Return one side and its fillers as a row (1, tokens), and their sequences.

        Each filler has a token, because a softmax over no keys is NaN.
        """
        tokens = int(real.sum())
        size = _round_up(tokens + fillers, step)
        row = torch.full((1, size), PAD)
        row[0, :tokens] = ids[real]
        filler_bounds = torch.arange(fillers + 1) * (size - tokens) // fillers
        count = len(ids) + fillers
        entries = 1 << (count - 1).bit_length()  # a power of two, for few shapes
        lengths = torch.zeros(entries, dtype=torch.int64)  # trailing zero lengths have no effect
        lengths[:count] = torch.cat((real.sum(1), filler_bounds.diff()))
        ends = lengths.cumsum(0)
        positions = torch.arange(size) - (ends - lengths).repeat_interleave(lengths)
        bounds = torch.cat((torch.zeros(1, dtype=torch.int64), ends)).int()
        longest = self.longest
        if int(lengths.max()) <= TILE:  # one of two bounds, since each has graphs of its own
            longest = min(TILE, longest)
        return row, Sequences(bounds, positions[None], longest)

    def _grouped(self, *sides: Sequences) -> Sequence[Sequences]:
        """Add groups to both sides if every sentence fits a tile."""
        lengths = [side.bounds.diff() for side in sides]
        longest = max(int(each.max()) for each in lengths)
        fitting = [tile for tile in self.tiles if longest <= tile]
        if not fitting:
            return sides
        tile = fitting[0]
        firsts = group_firsts([side.bounds.tolist() for side in sides], tile)
        numbers = torch.arange(len(lengths[0]), dtype=torch.int32)
        grouped = []
        for side, each in zip(sides, lengths, strict=True):
            of_tokens = numbers.repeat_interleave(each)  # (tokens,), the sentence of each
            grouped.append(side._replace(groups=Groups(side.bounds[firsts], of_tokens, tile)))
        return grouped


def group_firsts(bounds: Sequence[Sequence[int]], tile: int) -> Ids:
    """Return the index of each group's first sentence, then the number of sentences; groups at the end may be empty.

    `bounds` (2, sentences + 1) are those of source and target, of which a group has at most `tile` tokens each. The
    number of groups is rounded up to a multiple of what one side alone could need at most, for few shapes.
    """
    firsts = [0]
    source_limit = tile
    target_limit = tile
    for index, (source, target) in enumerate(zip(*bounds, strict=True)):
        if source > source_limit or target > target_limit:  # sentence index − 1 no longer fits
            firsts.append(index - 1)
            source_limit = bounds[0][index - 1] + tile
            target_limit = bounds[1][index - 1] + tile
    step = 2 * max(bounds[0][-1], bounds[1][-1]) // tile + 1  # two neighbours have more than a tile
    ends = _round_up(len(firsts), step) + 1 - len(firsts)  # empty groups, and the end of the last
    return np.array(firsts + [len(bounds[0]) - 1] * ends)


def largest_batch(corpus: Corpus, tokens: int) -> Batch:
    """Return a synthetic padded batch of `tokens` tokens per side with as many pairs as the corpus allows.

    It needs the most memory, which grows with tokens and pairs.
    """
    lengths = np.maximum(corpus.source_lengths, corpus.target_lengths)
    # (pairs,) tokens of the shortest 1, 2, 3, … pairs, with `</s>`
    totals = np.sort(lengths).cumsum(dtype=np.int64) + np.arange(1, len(lengths) + 1)
    pairs = max(1, int(np.searchsorted(totals, tokens, side="right")))
    width = min(int(lengths.max()) + 1, _ceil(tokens, pairs))
    return _even_batch(tokens, width)


def _even_batch(tokens: int, width: int) -> Batch:
    """Return a synthetic padded batch of `tokens` tokens per side in pairs of `width` tokens."""
    ids = torch.ones(_ceil(tokens, width), width, dtype=torch.int64)
    return Batch(ids, ids, ids, torch.arange(ids.numel()))


def _ceil(number: int, divisor: int) -> int:
    """Return the quotient of two whole numbers, rounded up."""
    return -(-number // divisor)


def _round_up(number: int, step: int) -> int:
    """Round `number` up to a multiple of `step`."""
    return _ceil(number, step) * step


MEMORY_SHARE = 0.9  # fraction of GPU memory that an update may use; the rest allows for fragmentation
WIDEST_HEAD = 256  # maximum width of a head in the packed-attention kernel
HEAD_STEP = 8  # divisor of that width


class MicroBatches:
    """This rank's micro-batches, padded or packed."""

    def __init__(
        self, model: Model, corpus: Corpus, settings: Training, group: Group, augmenter: Augmenter | None = None
    ) -> None:
        """Read pairs of `corpus`, unless `augmenter` has changed them.

        Raise UserError if the device cannot pack sentences but `training.packing` requires it."""
        self._corpus = corpus
        self._settings = settings
        self._group = group
        self.longest = augmenter.longest if augmenter else corpus.longest()
        """Maximum subwords on either side of a pair, excluding `</s>`"""
        most_tokens = augmenter.most_tokens if augmenter else settings.batch_tokens
        self._share = _ceil(most_tokens, group.size)  # this rank's tokens per update and side
        self._precision = training_precision(settings.precision, group.device, model.d_model)
        self._packer: Packer | None = None
        if use_packing(model, settings, group.device):
            tiles = [] if settings.compile is False else attention_tiles(model, group.device)
            self._packer = Packer(self._share, self.longest + 1, tiles)
        self._copies = torch.cuda.Stream(group.device) if group.device.type == "cuda" else None

    @property
    def packed(self) -> bool:
        """Whether micro-batches are packed."""
        return self._packer is not None

    def of(self, update: Update, device_tokens: int) -> list[Batch]:
        """Return this rank's micro-batches of an update, of at most `device_tokens` tokens per side."""
        devices = self._group.size
        if update.changed is None or self.packed:
            parts = split_update(*update.lengths, device_tokens, devices, self.packed)
        else:
            parts = split_mixed(*update.lengths, device_tokens, devices)
        own = parts[self._group.rank :: devices]
        if update.changed is None:
            batches = [self._batch(self._corpus, update.rows[part], device_tokens) for part in own]
        else:
            batches = [self._batch(update.changed, part, device_tokens) for part in own]
        if self._group.device.type == "cuda":
            batches = [batch.joined(pinned=True) for batch in batches]
        return batches

    def empty(self) -> Batch:
        """Return a micro-batch without pairs."""
        return self._batch(self._corpus, np.empty(0, np.int64), 1)

    def _batch(self, pairs: Corpus | ChangedPairs, rows: Rows, device_tokens: int) -> Batch:
        """Read pairs into a padded or packed micro-batch."""
        batch = make_batch(pairs, rows)
        if self._packer is None:
            return batch
        return self._packer.pack(batch, device_tokens)

    def on_device(self, batch: Batch) -> Batch:
        """Copy a micro-batch to the device; on a GPU, on a separate stream that overlaps with computation."""
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
        """Return a synthetic micro-batch of `tokens` tokens per side on the device, for measuring memory.

        A padded one has at least two rows and sides of different lengths. Otherwise torch.compile would specialise
        graphs for a single row or equal lengths, which are rare.
        """
        if self._packer is not None:
            return self.on_device(self._packer.pack(largest_batch(self._corpus, tokens), tokens))
        longest = self.longest + 1
        ids = torch.ones(max(2, _ceil(tokens, longest)), longest, dtype=torch.int64)
        shorter = ids[:, 1:].clone()
        return self.on_device(Batch(shorter, ids, ids, torch.arange(ids.numel())))

    def probes(self) -> Iterator[Batch]:
        """Yield synthetic micro-batches on the device for which torch.compile compiles all that updates need.

        They have the usual size; one is half as large, so that token counts are dynamic. If packed, there is one for
        each bound on the longest sentence by which attention is computed: each has graphs of its own.
        """
        usual = min(self._settings.device_tokens or self._share, self._share)
        yield from map(self.probe, (usual, usual // 2))
        if self._packer is not None:
            longest = self._packer.longest
            widths = {min(limit, longest) for limit in (*self._packer.tiles, longest)}
            for width in sorted(widths):
                even = _even_batch(usual, width)
                yield self.on_device(self._packer.pack(even, usual))

    def place(self) -> str:
        """Return the devices of all ranks, such as 8 × NVIDIA H200, as far as memory and rounding depend on them."""
        own = device_name(self._group.device, False, self._precision)  # memory does not depend on threads
        names = Counter(name for (name,) in self._group.gather([own]))
        return " + ".join(f"{number} × {name}" for name, number in sorted(names.items()))

    def fitting(self, memory_of: Callable[[int], int], console: Console) -> int:
        """Return the largest micro-batch size, in tokens, that fits every device's memory, and say it of GPUs.

        `memory_of` returns the bytes that a GPU needs for a micro-batch of the given number of tokens.
        """
        device = self._group.device
        if device.type != "cuda":
            return cpu_device_tokens(self._group.size)
        least = 2 * (self.longest + 1)  # two rows, as in `probe`
        most = max(least, 2 * self._share)  # a whole share, allowing for padding
        free, _ = torch.cuda.mem_get_info(device)
        own_free = free + torch.cuda.memory_reserved(device)  # without memory held by other processes
        limit = int(MEMORY_SHARE * own_free)
        own = largest_fitting(memory_of, least, most, limit)
        (negative,) = self._group.largest(-own)  # the smallest of all devices'
        fitting = -negative
        console.say(f"micro-batches of {fitting:,} tokens fit the memory of the device")
        return fitting


def cpu_device_tokens(ranks: int) -> int:
    """Return the default micro-batch size of each of the ranks on a CPU, which share its memory."""
    return max(FEWEST_TOKENS, CPU_DEVICE_TOKENS // ranks)


def use_packing(model: Model, settings: Training, device: torch.device) -> bool:
    """Return whether to pack a model's micro-batches under `training.packing`; "auto" never packs on a CPU.

    Raise UserError if packing is required but not supported.
    """
    if device.type == "cpu" or not settings.packing:  # CPUs can pack any model, but train faster on padded batches
        return settings.packing is True
    obstacle = _packing_obstacle(model, settings, device)
    if obstacle is not None and settings.packing is True:
        reason, hint = obstacle
        raise UserError(f"training.packing: sentences cannot be packed, since {reason}", hint)
    return obstacle is None


def _packing_obstacle(model: Model, settings: Training, device: torch.device) -> tuple[str, str] | None:
    """Return why the packed-attention kernel cannot train the model on this GPU, and a hint; None if it can."""
    is_built = torch.backends.cuda.is_flash_attention_available() and torch.version.hip is None
    if not is_built or torch_internals.find("torch.nn.attention.varlen:varlen_attn") is None:
        return "this PyTorch has no FlashAttention of packed sequences", "--set training.packing=auto"
    if torch.cuda.get_device_capability(device) < OLDEST:
        return f"{torch.cuda.get_device_name(device)} is too old for it", "--set training.packing=auto"
    otherwise = ", or training.packing=auto"
    if training_precision(settings.precision, device, model.d_model) != "bf16":
        return f"training.precision is {settings.precision}", f"--set training.precision=bf16{otherwise}"
    if model.attention_dropout > 0.0:
        return f"model.attention_dropout is {model.attention_dropout}", f"--set model.attention_dropout=0{otherwise}"
    key = model.key_width
    value = model.value_width
    if key != value or key % HEAD_STEP or key > WIDEST_HEAD:
        rule = f"equally many, a multiple of {HEAD_STEP}, at most {WIDEST_HEAD}"
        reason = f"a head's keys have {key} numbers and its values {value}, which must be {rule}"
        return reason, f"change model.d_k, d_v or heads{otherwise}"
    return None
