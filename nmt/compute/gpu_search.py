"""A search on a GPU: its state does not move between steps, so that CUDA graphs repeat them.

Keys and values lie in pages. A sentence has pages for its source, then for the places of its hypotheses, as many as it
needs; a table on the device lists them. Page 0 belongs to none: rows beyond the sentences write there. When sentences
come or go, only the table changes.

The host learns one step late which rows are finished and how many places each uses. Meanwhile the device computes the
next step, in which finished rows have no alive hypothesis.

Shapes: n rows, k hypotheses per row, h heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.compute import search_graphs
from nmt.compute.gpu import GPU, has_triton
from nmt.compute.search_graphs import EncoderGraphs, StepGraphs
from nmt.model.cache import Ancestry, KVCache, Removal, hidden, with_room
from nmt.model.operations import join_heads, split_heads
from nmt.recipe import Model
from nmt.system.device import Download, upload

STEPS = "graphs"  # how steps reach a GPU: by "graphs", kernels "singly", or "plainly", which is without pages, too
PAGE = 16  # slots of a page
PLACES, PAGES = 128, 15  # of a row, for which there is room at first; PLACES is a multiple of ROOM
WIDEST = 64 * 64  # of a head times hypotheses; more would not fit the kernel's registers
SLOTS = 1 << 14  # up to which graphs repeat steps without the kernel, which read all for which there is room


def ancestry_on_gpu(model: Model, say: Callable[[str], None], beam: int, device: torch.device) -> Ancestry:
    """Return an ancestry in pages, or one whose every step waits for the device if `STEPS` says so."""
    if STEPS == "plainly":
        return Ancestry(beam, device)
    fits = beam * max(model.key_width, model.value_width) <= WIDEST
    return PagedAncestry(say, beam, device, has_kernel=fits and has_triton(device))


def _by_graphs(device: torch.device) -> bool:
    return STEPS == "graphs" and device.type == "cuda"


class PagedAncestry(Ancestry):
    """An ancestry whose tensors keep their places, and the pages of its sentences."""

    late = True
    replaced = ("positions", "parents", "places", "alive", "rows", "extents")  # as `KVCache.replaced`

    def __init__(self, say: Callable[[str], None], beam: int, device: torch.device, has_kernel: bool) -> None:
        """Start as `Ancestry` does; report with `say` if graphs cannot be recorded."""
        super().__init__(beam, device)
        self.has_kernel = self.whole = has_kernel  # `whole`: a step is given all pages and places
        self.graphs = StepGraphs(device, say, _by_graphs(device))
        self.pools: list[list[Tensor]] = []  # of the layers of each cache
        self.pages = 1
        self.alive = torch.zeros((0, beam), dtype=torch.bool, device=device)  # (n, k): before the step
        self.extents = torch.zeros(0, dtype=torch.int32, device=device)  # (n,): places up to the last visible one
        self.table = torch.zeros((0, 1 + PAGES), dtype=torch.int32, device=device)  # (rows, 1 + pages): source length
        self._seen = torch.zeros((0, PLACES, beam), dtype=torch.bool, device=device)  # (rows, c, k): visible places
        self._listed = torch.zeros((0, 1 + PAGES), dtype=torch.int32)  # the same on the host
        self._uploaded = 0  # rows of `table` that are those of `_listed`
        self._free = np.empty(0, dtype=np.int32)  # pages
        self._bounds = np.empty(0, dtype=np.int64)  # (n,): upper bounds on `extents`
        self._end = 0

    @property
    def end(self) -> int:
        """An upper bound on output positions, which finished rows have as their position."""
        return self._end

    @property
    def room(self) -> int:
        return search_graphs.graph_rows(self.count)

    def cache(self) -> KVCache:
        made = PagedCache(self)
        self.pools.append(made.layers)
        return made

    def admit(self, count: int, lengths: Sequence[int] = (), longest: int = 0) -> None:
        self._end, self.count, start = max(self._end, longest), self.count + count, self.count
        for name in self.replaced:
            rows = getattr(self, name)
            setattr(self, name, F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, count), value=-(name == "positions")))
        none = np.zeros(count, dtype=np.int64)
        self.lengths, self._bounds = np.append(self.lengths, none), np.append(self._bounds, none)
        self._grow(PAGES, PLACES)
        self._seen[start : self.count] = False
        self._listed[start : self.count, 0] = torch.tensor(lengths)
        self._give_pages()

    def leave(self, removal: Removal) -> None:
        listed = self._listed.numpy()
        pages = listed[removal.leaving, 1:]
        self._free = np.append(self._free, pages[pages > 0])
        removal.move(self._seen)
        removal.move(listed)
        listed[removal.count :] = 0
        for name in (*self.replaced, "lengths", "_bounds"):
            setattr(self, name, removal.keep(getattr(self, name)))
        self.count, self._uploaded = removal.count, 0

    def upload_table(self, rows: int) -> None:
        """Bring the first `rows` of the table up to date."""
        if rows > self._uploaded:
            self.table[:rows] = upload(self._listed[:rows], self.table.device)
            self._uploaded = rows

    def _give_pages(self) -> None:
        """Give each sentence the pages that it lacks for its source and its places."""
        listed = self._listed.numpy()[: self.count]
        needed, owned = -(-listed[:, 0] // PAGE) - (-self._bounds // PAGE), np.count_nonzero(listed[:, 1:], axis=1)
        if not (needed > owned).any():
            return
        self._grow(int(needed.max()), int(self._bounds.max()))
        pages = self._listed.numpy()[: self.count, 1:]
        numbers = np.arange(pages.shape[1])
        lacking = (owned[:, None] <= numbers) & (numbers < needed[:, None])
        total, self._uploaded = int(lacking.sum()), 0
        if total > len(self._free):
            before, self.pages = self.pages, self.pages + max(3 * total, self.pages // 2)
            self._free = np.append(self._free, np.arange(before, self.pages, dtype=np.int32))
            for pools in self.pools:
                pools[:] = [with_room(pool, 0, self.pages * PAGE) for pool in pools]
        pages[lacking], self._free = self._free[:total], self._free[total:]

    def _grow(self, pages: int, places: int) -> None:
        """Make room for all rows, and so many pages and places of each."""
        for name, size in (("_listed", 1 + pages), ("table", 1 + pages), ("_seen", places)):
            setattr(self, name, with_room(with_room(getattr(self, name), 0, self.room), 1, size))

    def take(self, step: Callable[[], Tensor], owners: Sequence[Any], rules: Sequence[Any]) -> Tensor:
        def reported() -> Tensor:
            return torch.stack((step(), self.extents), 1)  # (n, 2)

        self._bounds += self.beam
        self.lengths = np.minimum(self.lengths + 1, self._end)
        self._give_pages()
        room = max(self._seen.size(1), PAGE * (self.table.size(1) - 1))
        is_light = self.has_kernel or self.room * room <= SLOTS
        by_graph = self.graphs.active and is_light and all(rule.is_on_device() for rule in rules)
        self.whole = self.has_kernel or by_graph
        self.upload_table(self.room if by_graph else self.count)
        return self.graphs(reported, [self, *owners, *rules], self.count, self.room) if by_graph else reported()

    def finished(self, report: Download | None) -> list[int]:
        if report is None:
            return []
        done, extents = report.read()[0].numpy().T
        self._bounds[: len(extents)] = extents + self.beam  # after one more step, which is under way
        return np.flatnonzero(done).tolist()

    def extend(self, parents: Tensor, alive: Tensor | None = None) -> None:
        assert alive is not None
        self.parents, self.alive, self.rows = parents, alive, torch.arange(self.count, device=parents.device)[:, None]
        before = self._seen[: self.count]
        seen = before.gather(2, parents[:, None].expand_as(before)) & alive[:, None]
        # Choose the first free places by sorting: taken places come after all free ones.
        numbers = torch.arange(before.size(1), device=parents.device)
        self.places = (seen.any(2) * len(numbers) + numbers).topk(self.beam, largest=False).indices
        before.copy_(seen.scatter_(1, self.places[:, None], True))
        self.positions = (self.positions + 1).masked_fill_(~alive.any(1, keepdim=True), self._end)
        self.extents = (seen.any(2) * (numbers + 1)).amax(1).int()

    @property
    def seen(self) -> Tensor:
        """Which places each hypothesis attends to: (n, c, k)."""
        return self._seen[: self.count, : None if self.whole else int(self._bounds.max())]


class PagedCache(KVCache):
    """A cache in pages; a layer is a pool of keys and values side by side, (slots, h · (d_k + d_v))."""

    ancestry: PagedAncestry
    layers: list[Any]

    def admit(self, memory: Sequence[Sequence[Tensor]], lengths: Sequence[int]) -> None:
        start, ancestry = len(self.lengths), self.ancestry
        if not self.layers:
            wide = sum(each.size(1) * each.size(3) for each in memory[0])
            self.layers += [keys.new_zeros((ancestry.pages * PAGE, wide)) for keys, _ in memory]
        self.lengths, self.longest = np.append(self.lengths, lengths), max(self.longest, *lengths)
        self._words = F.pad(self._words, (0, 0, 0, len(lengths)))
        ancestry.upload_table(len(self.lengths))
        table = ancestry.table[start : len(self.lengths)]
        numbers = torch.arange(memory[0][0].size(2), device=table.device).expand(len(table), -1)
        slots = torch.where(numbers < table[:, :1], slots_of(table, numbers), 0)
        for pool, states in zip(self.layers, memory, strict=True):
            pool[slots] = torch.cat(list(map(join_heads, states)), 2)

    def leave(self, removal: Removal) -> None:
        self._words, self.lengths = removal.keep(self._words), removal.keep(self.lengths)
        self.longest = int(self.lengths.max(initial=0))

    def count_words(self, begins: Tensor) -> Tensor:
        return super().count_words(begins & self.ancestry.alive)  # those of finished rows must not go on

    def advance(self) -> None:
        """Do nothing: what changes is in the ancestry."""


# --- the decoder ------------------------------------------------------------------------------------------------------


class SearchOnGPU(GPU):
    """Operations of a search: the encoder by graphs, and a step that reads keys and values from pages."""

    def __init__(self, device: torch.device, say: Callable[[str], None]) -> None:
        """Compute on `device`; report with `say` if graphs cannot be recorded."""
        super().__init__()
        self._graphs = EncoderGraphs(device, say, _by_graphs(device))

    def encode(self, layers: Iterable[Any], norm: nn.Module, x: Tensor, seen: Any, record: Any = None) -> Tensor:
        return self._graphs(partial(super().encode, layers, norm, record=record), x, seen)

    def step(self, layers: Iterable[Any], norm: nn.Module, x: Tensor, cache: Any, alive: Tensor | None) -> Tensor:
        if not isinstance(ancestry := cache.ancestry, PagedAncestry):
            return super().step(layers, norm, x, cache, alive)
        own, table = (ancestry.places, ancestry.seen, ancestry.extents), ancestry.table[: len(x)]
        if ancestry.has_kernel:
            from nmt.compute.step_attention import step_attention

            ways: list[Any] = [partial(step_attention, table=table, own=each, page=PAGE) for each in (own, None)]
        else:
            pages = table.size(1) - 1 if ancestry.whole else -(-cache.longest // PAGE)
            dtype = cache.layers[0].dtype
            ways = [gathered(table, own, dtype), gathered(table[:, : 1 + pages], None, dtype)]

        def attend(compute: Any, pool: Tensor, attention: Any, project: Any, y: Tensor) -> Tensor:
            mixed = compute(project(y), pool, heads=attention.heads, widths=attention.widths[-2:])
            return attention.out(mixed)  # type: ignore[no-any-return]

        for layer, pool in zip(layers, cache.layers, strict=True):
            to_own = partial(attend, ways[0], pool, layer.attention, layer.attention.qkv)
            x = layer.states(x, to_own, partial(attend, ways[1], pool, layer.cross, layer.cross.query))
        return norm(x)  # type: ignore[no-any-return]


def gathered(table: Tensor, own: Any, dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return what computes `step_attention` by PyTorch, from copies of keys and values: of all pages, or places, given.

    All attentions of a step share it. Queries, keys and values have the given dtype.
    """
    size = PAGE * (table.size(1) - 1) if own is None else own[1].size(1)
    numbers, first, newest = torch.arange(size, device=table.device).expand(len(table), -1), table.new_zeros(()), None
    visible = (numbers < table[:, :1])[:, :, None]
    if own is not None:
        first = -(-table[:, :1] // PAGE) * PAGE
        newest, visible = slots_of(table, first + own[0]), own[1]
    slots, unseen = slots_of(table, first + numbers), ~visible.any(2, keepdim=True)
    visible = visible.transpose(1, 2)[:, None]
    bias = torch.zeros(visible.shape, dtype=dtype, device=table.device).masked_fill_(~visible, hidden(dtype))

    def attention(query: Tensor, pool: Tensor, heads: int, widths: Sequence[int]) -> Tensor:
        if newest is not None:
            query, new = query.split([heads * widths[0], pool.size(1)], dim=-1)
            pool[newest] = new
        states = pool[slots].masked_fill_(unseen, 0.0)  # they may hold infinity, and 0 times that is not 0
        keys, values = split_heads(states, heads, widths)
        (queries,) = split_heads(query, heads, widths[:1])
        return join_heads(F.scaled_dot_product_attention(queries, keys, values, bias))

    return attention


def slots_of(table: Tensor, places: Tensor) -> Tensor:
    """Return the slots (n, m) of rows' `places` (n, m); those beyond the table's pages are arbitrary."""
    pages = table[:, 1:].gather(1, (places // PAGE).clamp_max(table.size(1) - 2))
    return pages.long() * PAGE + places % PAGE
