"""Steps of a search on a GPU: their tensors stay where they are, so that CUDA graphs repeat them.

Keys and values lie in pages of 16 slots. A sentence has pages for its source, then for the places of its hypotheses,
as many as it needs; a table on the device lists them. Page 0 belongs to none: rows beyond the sentences write there.
When sentences come or go, only the table changes.

The host learns one step late which rows are finished and how many places each uses. Meanwhile the device computes the
next step, in which finished rows have no alive hypothesis.

Shapes: n rows, k hypotheses per row, h heads, c places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.compute.gpu import has_triton
from nmt.compute.recorded import Recorded
from nmt.model.operations import join_heads, split_heads
from nmt.model.transformer import Transformer
from nmt.search.plain import Plain, Step
from nmt.search.state import Past, Removal, State, hidden, joined, mapped, tensors_of, with_room
from nmt.system.device import Download, upload

PAGE = 16  # slots of a page
PLACES = 128  # of a row, for which there is room at first; a multiple of ROOM
PAGES = 15  # of a row, for which there is room at first
WIDEST = 64 * 64  # of a head times hypotheses; more would not fit the kernel's registers
SLOTS = 1 << 14  # up to which graphs repeat steps without the kernel: such steps read all slots, used or not
SMALL = 2048  # tokens of a batch whose encoder is repeated by a graph


class PagedRows(NamedTuple):
    """The places that each hypothesis attends to, and the pages of its sentence."""

    positions: Tensor
    """(n, 1) of the newest symbols, -1 before the first, and `end` in finished rows"""
    places: Tensor
    """(n, k) of the keys and values of the newest symbols"""
    extents: Tensor
    """(n,) int32, places up to the last visible one"""
    seen: Tensor
    """(n, c, k), visible places"""
    table: Tensor
    """(n, 1 + pages) int32, the source's length and its sentence's pages"""
    words: tuple[Tensor, ...]
    """(n, k) of each model, how many words have begun in each hypothesis"""
    listed: NDArray[np.int32]
    """`table` on the host"""
    ages: NDArray[np.int64]
    """(n,) symbols of each sentence's outputs so far, on the host"""
    bounds: NDArray[np.int64]
    """(n,), upper bounds on `extents`, on the host"""
    end: int
    """An upper bound on output positions"""


class Pools(NamedTuple):
    """Keys and values in pages."""

    caches: tuple[tuple[Tensor, ...], ...]
    """Of each model's layers, (slots, h · (d_k + d_v)), keys and values side by side; none before the first sentence"""
    free: NDArray[np.int32]
    """Pages that no sentence has"""
    pages: int
    """Number of all pages"""


class OnGPU(Plain):
    """Steps on a GPU; tests also take them on a CPU, without the kernel."""

    is_late = True

    def __init__(
        self,
        models: Sequence[Transformer],
        logits: Sequence[nn.Module],
        encoders: Sequence[EncoderGraphs],
        say: Callable[[str], None],
        beam: int,
    ) -> None:
        """Take steps as `Plain` does, by graphs, which also compute the `logits`; report with `say` if there are none.

        `encoders` are those of the models.
        """
        super().__init__(models, beam)
        self._encoders = encoders
        widest = 0  # of heads
        for model in models:
            widest = max(widest, model.config.key_width, model.config.value_width)
        self.has_kernel = beam * widest <= WIDEST and has_triton(self.device)
        self._is_whole = self.has_kernel  # whether a step is given all pages and places, not only those in use
        self._graphs = StepGraphs(models, logits, self.device, say)

    def begin(self) -> Past:
        rows = self._paged_rows([], 0, 1 + PAGES)
        pools = Pools(caches=(), free=np.empty(0, dtype=np.int32), pages=1)  # page 0
        return Past(rows, pools)

    # --- sentences come and go

    def source_states(self, index: int, ids: Tensor) -> Tensor:
        return self._encoders[index](ids)

    def admit(self, past: Past, ids: Tensor, lengths: Sequence[int], longest: int) -> Past:
        rows, pools = past
        start = len(rows.places)
        end = max(rows.end, longest)
        for model in self.models:  # before anything is recorded that reads the table of their encodings
            model.target_positions.reserve(end, self.device)
        _, columns = rows.listed.shape
        rows = joined(rows, self._paged_rows(lengths, end, columns))
        rows, pools = self._with_pages(Past(rows, pools))
        table = rows.table[start:]
        numbers = _numbers(table, ids.size(1))  # (m, s)
        is_token = numbers < table[:, :1]
        slots = torch.where(is_token, slots_of(table, numbers), 0)
        layers = []
        for index in range(len(self.models)):
            encoded = self.encode(index, ids)
            sources = [torch.cat((join_heads(keys), join_heads(values)), 2) for keys, values in encoded]
            if pools.caches:
                of_model = pools.caches[index]
            else:
                room = pools.pages * PAGE
                of_model = tuple(states.new_zeros((room, states.size(2))) for states in sources)
            for pool, states in zip(of_model, sources, strict=True):
                pool[slots] = states
            layers.append(of_model)
        return Past(rows, pools._replace(caches=tuple(layers)))

    def leave(self, past: Past, removal: Removal) -> Past:
        rows, pools = past
        pages = rows.listed[removal.leaving, 1:]
        free = np.append(pools.free, pages[pages > 0])
        return Past(removal.remaining(rows), pools._replace(free=free))

    def _paged_rows(self, lengths: Sequence[int], end: int, columns: int) -> PagedRows:
        """Return the rows of empty hypotheses of sources of these lengths; the table has so many columns."""
        count = len(lengths)
        none = torch.zeros((count, self.beam), dtype=torch.int64, device=self.device)
        listed = np.zeros((count, columns), dtype=np.int32)
        listed[:, 0] = lengths
        return PagedRows(
            positions=none.new_full((count, 1), -1),
            places=none,
            extents=none.new_zeros(count, dtype=torch.int32),
            seen=none.new_zeros((count, PLACES, self.beam), dtype=torch.bool),
            table=none.new_zeros((count, columns), dtype=torch.int32),
            words=(none,) * len(self.models),
            listed=listed,
            ages=np.zeros(count, dtype=np.int64),
            bounds=np.zeros(count, dtype=np.int64),
            end=end,
        )

    def _with_pages(self, past: Past) -> Past:
        """Give each sentence the pages that it lacks for its source and its places, and say so in the table."""
        rows, pools = past
        of_sources = -(-rows.listed[:, 0] // PAGE)
        of_places = -(-rows.bounds // PAGE)
        needed = of_sources + of_places
        owned = np.count_nonzero(rows.listed[:, 1:], axis=1)
        if not (needed > owned).any():
            return past
        columns = 1 + int(needed.max())
        before = torch.from_numpy(rows.listed)
        listed = with_room(before, 1, columns).numpy()
        numbers = np.arange(listed.shape[1] - 1)
        is_free = owned[:, None] <= numbers
        lacking = is_free & (numbers < needed[:, None])
        total = int(lacking.sum())
        if total > len(pools.free):
            # Seldom, for where memory moves, all graphs are recorded anew.
            pages = pools.pages + max(3 * total, pools.pages // 2)
            more = np.arange(pools.pages, pages, dtype=np.int32)
            free = np.append(pools.free, more)
            caches = mapped(lambda pool: with_room(pool, 0, pages * PAGE), pools.caches)
            pools = Pools(caches, free, pages)
        listed[:, 1:][lacking] = pools.free[:total]
        table = upload(listed, self.device)
        if table.shape == rows.table.shape:  # in place, where graphs read it
            table = rows.table.copy_(table)
        places = int(rows.bounds.max())
        seen = with_room(rows.seen, 1, places)
        rows = rows._replace(listed=listed, table=table, seen=seen)
        return Past(rows, pools._replace(free=pools.free[total:]))

    # --- steps

    def take_step(self, step: Step, state: State, is_on_device: bool) -> tuple[State, Tensor]:
        rows: PagedRows = state.past.rows
        ages = np.minimum(rows.ages + 1, rows.end)
        rows = rows._replace(ages=ages, bounds=rows.bounds + self.beam)
        past = self._with_pages(Past(rows, state.past.memory))
        state = state._replace(past=past)
        count = len(rows.places)
        room = graph_rows(count)
        slots = PAGE * (past.rows.table.size(1) - 1)
        widest = max(past.rows.seen.size(1), slots)
        is_light = self.has_kernel or room * widest <= SLOTS
        by_graph = self._graphs.active and is_light and is_on_device
        self._is_whole = self.has_kernel or by_graph

        def reported(before: State) -> tuple[State, Tensor]:
            after, done = step(before)
            told = (done, after.past.rows.extents)
            return after, torch.stack(told, 1)  # (n, 2)

        if by_graph:
            return self._graphs(reported, state, count, room)
        return reported(state)

    def finished(self, past: Past, report: Download | None) -> tuple[Past, list[int]]:
        if report is None:
            return past, []
        (told,) = report.read()
        done, extents = told.numpy().T
        bounds = past.rows.bounds.copy()
        bounds[: len(extents)] = extents + self.beam  # after one more step, which is under way
        rows = past.rows._replace(bounds=bounds)
        finished = np.flatnonzero(done)
        return past._replace(rows=rows), finished.tolist()

    def extend(self, past: Past, parents: Tensor, alive: Tensor) -> Past:
        rows: PagedRows = past.rows
        before = rows.seen
        of_parents = before.gather(2, parents[:, None].expand_as(before))
        seen = of_parents & alive[:, None]  # (n, c, k)
        # Choose the first free places by sorting: taken places come after all free ones.
        numbers = torch.arange(before.size(1), device=parents.device)
        is_taken = seen.any(2)  # (n, c)
        order = is_taken * len(numbers) + numbers
        places = order.topk(self.beam, largest=False).indices
        seen.scatter_(1, places[:, None], True)
        before.copy_(seen)
        is_finished = ~alive.any(1, keepdim=True)
        positions = (rows.positions + 1).masked_fill_(is_finished, rows.end)
        extents = (seen.any(2) * (numbers + 1)).amax(1)
        rows = rows._replace(positions=positions, places=places, extents=extents.int())
        return Past(rows, past.memory)

    def decode(self, index: int, x: Tensor, past: Past, alive: Tensor) -> tuple[tuple[Any, ...], Tensor]:
        model = self.models[index]
        rows: PagedRows = past.rows
        table = rows.table
        layers = past.memory.caches[index]
        seen = rows.seen
        if not self._is_whole:
            seen = seen[:, : int(rows.bounds.max())]
        own = (rows.places, seen, rows.extents)  # as `step_attention` takes it
        over_places: Callable[..., Tensor]
        over_source: Callable[..., Tensor]
        if self.has_kernel:
            from nmt.search.step_attention import step_attention

            over_places = partial(step_attention, table=table, own=own, page=PAGE)
            over_source = partial(step_attention, table=table, own=None, page=PAGE)
        else:
            over_places = gathered(table, own, layers[0].dtype)
            if not self._is_whole:
                longest = int(rows.listed[:, 0].max())
                table = table[:, : 1 + -(-longest // PAGE)]
            over_source = gathered(table, None, layers[0].dtype)
        for layer, pool in zip(model.decoder_layers(), layers, strict=True):
            to_places = partial(attend_to_pages, over_places, pool, layer.attention, layer.attention.qkv)
            to_source = partial(attend_to_pages, over_source, pool, layer.cross, layer.cross.query)
            x = layer.states(x, to_places, to_source)
        return layers, model.decoder_norm(x)


def attend_to_pages(compute: Callable[..., Tensor], pool: Tensor, attention: Any, project: Any, y: Tensor) -> Tensor:
    """Project y (n, k, d_model), attend to the keys and values of a pool by `compute`, and project the result."""
    projected = project(y)
    mixed = compute(projected, pool, heads=attention.heads, widths=attention.widths[-2:])
    return attention.out(mixed)  # type: ignore[no-any-return]


def gathered(table: Tensor, own: Any, dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return what computes `step_attention` by PyTorch, from copies of keys and values: of all pages, or places, given.

    All attentions of a step share it. Queries, keys and values have the given dtype.
    """
    lengths = table[:, :1]  # of sources, (n, 1)
    if own is None:
        pages = table.size(1) - 1
        numbers = _numbers(table, PAGE * pages)
        visible = (numbers < lengths)[:, :, None]
        slots = slots_of(table, numbers)
        newest = None
    else:
        places, visible, _ = own
        numbers = _numbers(table, visible.size(1))
        first = -(-lengths // PAGE) * PAGE
        slots = slots_of(table, first + numbers)
        newest = slots_of(table, first + places)
    unseen = ~visible.any(2, keepdim=True)
    hides = ~visible.transpose(1, 2)[:, None]  # (n, 1, k or 1, places)
    bias = torch.zeros(hides.shape, dtype=dtype, device=table.device)
    bias.masked_fill_(hides, hidden(dtype))

    def attention(query: Tensor, pool: Tensor, heads: int, widths: Sequence[int]) -> Tensor:
        if newest is not None:
            parts = [heads * widths[0], pool.size(1)]  # queries; keys and values
            query, new = query.split(parts, dim=-1)
            pool[newest] = new
        states = pool[slots].masked_fill_(unseen, 0.0)  # they may hold infinity, and 0 times that is not 0
        keys, values = split_heads(states, heads, widths)
        (queries,) = split_heads(query, heads, widths[:1])
        mixed = F.scaled_dot_product_attention(queries, keys, values, bias)
        return join_heads(mixed)

    return attention


def _numbers(table: Tensor, count: int) -> Tensor:
    """Return (n, count), the numbers from 0 for each row."""
    return torch.arange(count, device=table.device).expand(len(table), -1)


def slots_of(table: Tensor, places: Tensor) -> Tensor:
    """Return the slots (n, m) of rows' `places` (n, m); those beyond the table's pages are arbitrary."""
    of_places = (places // PAGE).clamp_max(table.size(1) - 2)
    pages = table[:, 1:].gather(1, of_places)
    return pages.long() * PAGE + places % PAGE


# --- graphs -----------------------------------------------------------------------------------------------------------


def by_graphs(device: torch.device) -> bool:
    """Return whether CUDA graphs repeat the work of a search."""
    return device.type == "cuda"


def tensors_in(parts: Iterable[nn.Module]) -> list[Tensor]:
    """Return the parameters and buffers of parts of a model."""
    found: list[Tensor] = []
    for part in parts:
        found += part.parameters()
        found += part.buffers()
    return found


def graph_rows(count: int) -> int:
    """Round up to one of the numbers of rows that have graphs, at most a quarter more: four between powers of 2."""
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step


class EncoderGraphs:
    """The encoder of a model, for batches so small that a GPU computes faster than its host launches kernels."""

    def __init__(self, model: Transformer, device: torch.device, say: Callable[[str], None]) -> None:
        """Compute on `device`; report with `say` if graphs cannot be recorded."""
        self._model = model
        self._weights = tensors_in([model.encoder, model.encoder_norm])
        self._recorded = Recorded(device, say, by_graphs(device))
        self._x = torch.empty(0, device=device)  # inputs, where graphs read them
        self._seen = torch.empty(0, dtype=torch.bool, device=device)  # their mask

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the states (n, s, d_model) of sources `ids` (n, s)."""
        model = self._model
        x = model.embed_source(ids)
        seen = model.operations.padding_mask(ids)
        assert seen is not None, "on a GPU there is always a mask, since finding out would make the host wait"
        n, s, width = x.shape
        rows = graph_rows(n)
        length = graph_rows(s)
        if not self._recorded.active or rows * length > SMALL:
            return model.encode_embedded(x, seen)
        if len(self._seen) < SMALL:
            self._x = x.new_empty(SMALL * width)
            self._seen = seen.new_empty(SMALL)
        padded = self._x[: rows * length * width].view(rows, length, width)
        mask = self._seen[: rows * length].view(rows, 1, 1, length)
        padded.zero_()[:n, :s] = x  # hidden places may hold anything but NaN
        mask.zero_()[:n, :, :, :s] = seen

        def work() -> None:
            padded.copy_(model.encode_embedded(padded, mask))

        reads = [self._x, self._seen]
        if not self._recorded.replay((rows, length), work, reads, weights=self._weights):
            work()
        return padded[:n, :s]


class StepGraphs:
    """Steps of a search by graphs, one for each number of rows; a batch is filled up with rows without hypotheses."""

    def __init__(
        self,
        models: Sequence[Transformer],
        logits: Sequence[nn.Module],
        device: torch.device,
        say: Callable[[str], None],
    ) -> None:
        """Record steps of `models`, and of their output projections; report with `say` if it cannot be done."""
        self._models = models
        parts = list(logits)
        for model in models:
            parts += [model.target_embedding, model.decoder, model.decoder_norm]
        self._weights = tensors_in(parts)
        self._recorded = Recorded(device, say, by_graphs(device))
        self._kept: list[Tensor] = []  # the rows of states, where graphs read and write them
        self._loaded = (0, 0)  # of the last step: rows with sentences, and all rows
        self._report = torch.zeros((0, 2), dtype=torch.int32, device=device)

    @property
    def active(self) -> bool:
        """Whether graphs are recorded."""
        return self._recorded.active

    def __call__(self, step: Step, state: State, count: int, rows: int) -> tuple[State, Tensor]:
        """Take a step of `rows` rows, of which `count` have sentences; return the state and the report of these."""
        self._load(state, count, rows)
        past = state.past
        reads = [self._report, *self._kept, state.penalties, *tensors_of(past.memory)]
        for model in self._models:
            reads += model.tables()
        work = partial(self._work, step, self._view(state, rows), rows)
        if not self._recorded.replay(rows, work, reads, past.rows.end, self._weights):
            return step(self._view(state, count))
        return self._view(state, count), self._report[:count]

    def _work(self, step: Step, before: State, rows: int) -> None:
        """Take a step whose results are where it began."""
        after, self._report[:rows] = step(before)
        self._store(list(tensors_of(_rows_of(after))), rows)

    def _store(self, new: Sequence[Tensor], rows: int) -> None:
        """Copy tensors to the first rows of where graphs expect them."""
        kept = [each[:rows] for each in self._kept]
        storages = {_storage(each) for each in kept}
        moving = []
        for to, each in zip(kept, new, strict=True):
            if _is_same(to, each):
                continue
            if _storage(each) in storages:  # another tensor may be copied over it first
                moving.append((to, each.clone()))
            else:
                moving.append((to, each))
        for to, each in moving:
            to.copy_(each)

    def _load(self, state: State, count: int, rows: int) -> None:
        """Bring the rows of a state to where graphs expect them; empty those without sentences."""
        found = list(tensors_of(_rows_of(state)))
        known = self._kept
        if len(known) != len(found):
            known = [each[:0] for each in found]
        pairs = zip(known, found, strict=True)
        self._kept = [_with_rows(kept, each, rows) for kept, each in pairs]
        self._store(found, count)
        for before, kept in zip(known, self._kept, strict=True):
            if kept is not before or self._loaded != (count, rows):
                kept[count:rows] = -math.inf if kept.is_floating_point() else 0
        self._report = with_room(self._report, 0, rows)
        self._loaded = (count, rows)

    def _view(self, state: State, rows: int) -> State:
        """Return a state whose rows are the first ones where graphs know them."""
        kept = iter(self._kept)

        def moved(each: Any) -> Any:
            return next(kept)[:rows] if isinstance(each, Tensor) else each

        beams, links, rules, of_past = mapped(moved, _rows_of(state))
        past = state.past._replace(rows=of_past)
        return state._replace(beams=beams, links=links, rules=rules, past=past)


def _rows_of(state: State) -> tuple[Any, ...]:
    """Return all that has a row for each sentence."""
    return state.beams, state.links, state.rules, state.past.rows


def _with_rows(kept: Tensor, new: Tensor, rows: int) -> Tensor:
    """Return a tensor with room for `rows` rows like those of `new`: `kept`, if it is one."""
    if kept.shape[1:] != new.shape[1:]:
        kept = new.new_empty((0, *new.shape[1:]))
    return with_room(kept, 0, rows)


def _storage(tensor: Tensor) -> int:
    """Return where the memory of a tensor begins, of which others may be views."""
    return tensor.untyped_storage().data_ptr()


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.data_ptr() != other.data_ptr():
        return False
    return one.shape == other.shape and one.stride() == other.stride()
