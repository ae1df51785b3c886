"""A step of a search on a CPU, by C kernels.

Between two matrix products, one kernel computes the rest in a single pass over memory. If the products are in C too,
one call computes all layers. If nothing but a length restricts what one model says, one call takes whole steps until a
sentence is finished: for a single short one, Python would take longer than the products.

Linear layers are those of `cpu_products`. Without C kernels, the layers take their steps by `model.operations`, and
`beams` chooses.

Shapes: n rows (sentences), k hypotheses per row, m live hypotheses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import CDLL, Array, c_int64, c_void_p
from ctypes import cast as address_of
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from nmt.compute.beams import BeamOperations, Beams, Candidates
from nmt.compute.cpu_products import LaidOut, Panels, in_tiles, pointer
from nmt.compute.native import threads
from nmt.model.cache import Ancestry, KVCache, LayerCache, Removal
from nmt.model.layers import DecoderLayer
from nmt.model.operations import Operations, PackedMask
from nmt.model.transformer import Transformer
from nmt.text.vocabulary import EOS

PLACES_AT_ONCE = 4  # the kernels read lists of places in groups of this size
STEPS_AHEAD = 16  # of a single sentence, for which buffers have room


class AncestryInC(Ancestry):
    """An ancestry that C kernels extend and move."""

    def __init__(self, functions: CDLL, beam: int, device: torch.device) -> None:
        super().__init__(beam, device)
        self._functions = functions

    def _extend(self) -> None:
        self._make_room(self.extent + self.beam)
        bias, parents = self._bias, self.parents.contiguous()
        self.places, before = torch.empty_like(parents), bias.new_empty((self.beam, self.extent))
        self.extent = self._functions.nmt_extend(
            *(self.count, self.beam, self.extent, parents.data_ptr(), bias.data_ptr(), bias.stride(0), bias.stride(1)),
            *(before.data_ptr(), self.places.data_ptr()),
        )

    def search(
        self, by: SearchInC, cache: KVCache, beams: Beams, links: Tensor, penalties: Tensor, n_best: int, least: int
    ) -> Tensor:
        """Take steps as `SearchInC.take` does."""
        places = self.extent + self.beam * max(1, STEPS_AHEAD // self.count)
        self._make_room(places)
        bias, longest = self._bias, int(self.lengths.max())
        buffers = [buffer for own in cache.layers for buffer in own.buffers(places)]
        room = min(bias.size(2), *(buffer.size(2) for buffer in buffers[::4] + buffers[1::4]))
        self.places, done = torch.empty_like(beams.parents), torch.empty(self.count, dtype=torch.bool)
        self.parents, table = beams.parents, by.encodings(longest + 1)
        members = (
            *(self.count, self.beam, n_best, self.extent, room, bias.data_ptr(), *bias.stride()[:2]),
            self.places.data_ptr(),
            *(self.positions.data_ptr(), cache.lengths.ctypes.data, self.parents.data_ptr(), beams.symbols.data_ptr()),
            *(beams.totals.data_ptr(), beams.ends.data_ptr(), beams.positions.data_ptr(), beams.scores.data_ptr()),
            *(beams.caps.data_ptr(), links.data_ptr(), links.stride(0), penalties.data_ptr(), done.data_ptr()),
            *(table.data_ptr(), EOS, least, *(each for buffer in buffers for each in _pointer_and_strides(buffer))),
        )
        state = (c_int64 * len(members))(*members)
        taken = by.search(state, min(links.size(1), len(table)) - longest)
        self.extent, self.lengths = state[3], self.lengths + taken
        return done

    def move_places(self, removal: Removal, buffer: Tensor, used: int) -> None:
        if removal.holes:
            last, holes = removal.moves
            self._functions.nmt_move_rows(
                *(len(holes), last.data_ptr(), holes.data_ptr(), buffer.size(1), used),
                *(buffer.data_ptr(), *buffer.stride()[:3]),
            )


class BeamOperationsInC(BeamOperations):
    """Operations on fp32 log-probabilities of a CPU."""

    def __init__(self, functions: CDLL) -> None:
        self._functions = functions

    def log_softmax_(self, logits: Tensor, vocabulary: int) -> Tensor:
        n, k, width = logits.shape
        self._functions.nmt_log_softmax(n * k, width, vocabulary, EOS, logits.data_ptr())
        return logits

    def best_extensions(self, log_probs: Tensor, alive: Tensor, count: int) -> Candidates:
        n, k, width = log_probs.shape
        totals = alive.new_empty((n, count))
        parents, symbols = torch.empty((2, n, count), dtype=torch.int64)
        found = (each.data_ptr() for each in (log_probs, alive, totals, parents, symbols))
        self._functions.nmt_best_extensions(n, k, width, count, *found)
        return Candidates(totals, parents, symbols)

    def choose_(
        self,
        beams: Beams,
        candidates: Candidates,
        links: Tensor,
        positions: Tensor,
        penalties: Tensor,
        n_best: int,
        vocabulary: int,
    ) -> tuple[Beams, Tensor]:
        (n, count), beam = candidates.totals.shape, beams.totals.size(1)
        chosen, alive = torch.empty((2, n, beam), dtype=torch.int64), torch.empty_like(beams.totals)
        done = torch.empty(n, dtype=torch.bool)
        given = penalties, beams.caps, positions, *candidates, links
        results = *chosen, alive, beams.ends, beams.positions, beams.scores, done
        self._functions.nmt_choose(
            *(n, beam, count, vocabulary, EOS, n_best, *(each.data_ptr() for each in given)),
            *(links.stride(0), *(each.data_ptr() for each in results)),
        )
        return beams._replace(parents=chosen[0], symbols=chosen[1], totals=alive), done


# --- the decoder ------------------------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """The positions that hypotheses attend to in self-attention and in cross-attention."""

    which: Tensor | None  # (m,): indices of live hypotheses among n · k; None means all
    newest: Tensor  # (n, k): place of each hypothesis's newest position
    places: Tensor  # (n, k, room): places that each hypothesis attends to
    counts: Tensor  # (n, k): number of these places
    lengths: Tensor  # (n,): source lengths


class SearchInC(Operations):
    """Operations of one decoder, whose weights are collected when they are made."""

    def __init__(self, model: Transformer, functions: CDLL, output: LaidOut) -> None:
        """Prepare steps of the decoder of `model`, whose linear layers are laid out, as is `output`, its logits'."""
        layers = cast("list[DecoderLayer]", list(model.decoder))
        self._functions, self._model, self._output = functions, model, output  # kept, for C has pointers into them
        self._heads, self._widths = layers[0].attention.heads, layers[0].attention.widths[1:]
        self._activate_in_place = getattr(functions, f"nmt_add_bias_{layers[0].feed_forward.activation}")
        # Collected once: looking up parts of modules takes as long as computing a few hypotheses.
        self._products = [cast("list[LaidOut]", _products(layer)) for layer in layers]
        self._inner_width = self._products[0][4].outputs
        self._first_norm, self._norms = _in_order(layers, model.decoder_norm)
        embedding, logits = model.target_embedding.weight, output.in_c()
        symbols = embedding.data_ptr(), len(model.output_embedding.weight), output.outputs
        self._epsilon = model.config.norm_epsilon
        self._encoder = None
        if isinstance(output, Panels):  # in 8 bits, rounding sums otherwise than PyTorch does would change outputs
            self._encoder = _packed(functions, list(model.encoder), model.encoder_norm)
        self._decoder = logits and _packed(functions, layers, model.decoder_norm, (*symbols, *logits))

    def encode(
        self, layers: Iterable[Any], norm: nn.Module, x: Tensor, seen: Tensor | PackedMask | None, record: Any = None
    ) -> Tensor:
        is_in_c = self._encoder is not None and not in_tiles(x.numel() * self._inner_width)
        if not is_in_c or isinstance(seen, PackedMask) or record is not None:
            return super().encode(layers, norm, x, seen, record)
        (rows, longest, _), y = x.shape, torch.empty_like(x)
        lengths = torch.full((rows,), longest) if seen is None else seen.sum((1, 2, 3))
        scratch = self._scratch(rows * longest, beyond=3)
        self._functions.nmt_encode(
            *(self._encoder, self._epsilon, rows, longest, lengths.data_ptr(), x.data_ptr(), y.data_ptr()),
            *(scratch.data_ptr(), *threads()),
        )
        return y

    def step(self, layers: Iterable[Any], norm: nn.Module, x: Tensor, cache: KVCache, alive: Tensor | None) -> Tensor:
        if alive is None or bool(alive.all()):
            return self._states(x.flatten(0, 1), self._seen(cache, None), cache).view_as(x)
        which = alive.flatten().nonzero()[:, 0]
        states = torch.zeros_like(x)
        flat = states.flatten(0, 1)
        flat[which] = self._states(x.flatten(0, 1)[which], self._seen(cache, which), cache)
        return states

    def is_in_c(self, rows: int) -> bool:
        """Return whether C alone computes a step of `rows` hypotheses."""
        return self._decoder is not None and not in_tiles(rows * self._model.config.d_model * self._inner_width)

    def _scratch(self, rows: int, beyond: int = 0) -> Tensor:
        """Return scratch space for the layers of `rows`, of which attention reads `beyond` more."""
        keys, values = (self._heads * width for width in self._widths)
        of_row = 1 + 2 * self._model.config.d_model + 2 * keys + 3 * values + 2 * self._inner_width
        return torch.empty(rows * of_row + beyond * (2 * keys + values))

    def encodings(self, end: int) -> Tensor:
        """Return the encodings of all positions below `end`, and maybe more, (positions, d_model)."""
        self._model.target_positions.extend_to(end, torch.device("cpu"))
        return self._model.target_positions.table

    def take(self, ancestry: Ancestry, cache: KVCache, *given: Any) -> Tensor:
        """Take steps of a search with one model until a sentence is finished or buffers are full.

        `given` are beams, links with room for one step, penalties and n_best, as for `BeamOperations.choose_`, and the
        least number of symbols before `</s>`. Update the beams in place. Return (n,), whether each sentence is
        finished.
        """
        assert isinstance(ancestry, AncestryInC)
        return ancestry.search(self, cache, *given)

    def search(self, state: Array[c_int64], most: int) -> int:
        """Take up to `most` steps from `state`, the C struct nmt_beams; return their number."""
        parallel = threads()
        taken = self._functions.nmt_search(self._decoder, self._epsilon, state, most, *parallel)
        if not taken:
            raise MemoryError("can't allocate memory for a step of the search")
        return int(taken)

    def _states(self, x: Tensor, seen: _Seen, cache: KVCache) -> Tensor:
        """Return the states (m, d_model) of inputs x (m, d_model)."""
        if self.is_in_c(len(x)):
            return self._decode(x, seen, cache)
        norms = iter(self._norms)
        y: Tensor = self._first_norm(x) if self._first_norm else x
        for (qkv, out, query, cross_out, inner, outer), own in zip(self._products, cache.layers, strict=True):
            mixed = self._attend_to_places(qkv.forward(y), own, seen)
            x, y = self._add(x, out.product(mixed), out.bias, next(norms))
            mixed = self._attend_to_rows(query.forward(y), own, seen)
            x, y = self._add(x, cross_out.product(mixed), cross_out.bias, next(norms))
            z = inner.product(y)
            self._activate_in_place(*z.shape, z.data_ptr(), pointer(inner.bias))
            x, y = self._add(x, outer.product(z), outer.bias, next(norms))
        return y

    def _decode(self, x: Tensor, seen: _Seen, cache: KVCache) -> Tensor:
        """Compute `_states` in a single call."""
        x, y, scratch = x.clone(), torch.empty_like(x), self._scratch(len(x))
        buffers = (buffer for own in cache.layers for buffer in own.buffers())
        caches = [number for buffer in buffers for number in _pointer_and_strides(buffer)]
        self._functions.nmt_decode(
            *(self._decoder, self._epsilon, len(x), pointer(seen.which), seen.places.size(1)),
            *((c_int64 * len(caches))(*caches), seen.newest.data_ptr(), seen.places.data_ptr()),
            *(seen.counts.data_ptr(), seen.places.size(2), seen.lengths.data_ptr(), x.data_ptr(), y.data_ptr()),
            *(scratch.data_ptr(), *threads()),
        )
        return y

    def _seen(self, cache: KVCache, which: Tensor | None) -> _Seen:
        n, _, k, extent = cache.bias.shape
        room = -(-extent // PLACES_AT_ONCE) * PLACES_AT_ONCE
        places, counts = torch.empty((n, k, room), dtype=torch.int32), torch.empty((n, k), dtype=torch.int32)
        self._functions.nmt_seen_places(
            *(n, k, extent, cache.bias.data_ptr(), cache.bias.stride(0), cache.bias.stride(2)),
            *(room, places.data_ptr(), counts.data_ptr()),
        )
        return _Seen(which, cache.ancestry.places, places, counts, torch.from_numpy(cache.lengths))

    def _attend_to_places(self, projected: Tensor, own: LayerCache, seen: _Seen) -> Tensor:
        """Return self-attention (m, heads · d_v); `projected` holds queries, keys and values side by side."""
        _, k, room = seen.places.shape
        keys, values = own.with_places()
        out = projected.new_empty((len(projected), self._heads * self._widths[1]))
        self._functions.nmt_attend_to_places(
            *(len(projected), pointer(seen.which), k, self._heads, *self._widths, projected.data_ptr()),
            *(seen.newest.data_ptr(), *_pointer_and_strides(keys), *_pointer_and_strides(values)),
            *(seen.places.data_ptr(), seen.counts.data_ptr(), room, self._widths[0] ** -0.5, out.data_ptr()),
        )
        return out

    def _attend_to_rows(self, queries: Tensor, own: LayerCache, seen: _Seen) -> Tensor:
        """Return cross-attention (m, heads · d_v) of queries (m, heads · d_k) to their rows' sources."""
        keys, values = own.memory()
        out = queries.new_empty((len(queries), self._heads * self._widths[1]))
        self._functions.nmt_attend_to_rows(
            *(len(queries), pointer(seen.which), seen.places.size(1), self._heads, *self._widths, queries.data_ptr()),
            *(queries.size(1), *_pointer_and_strides(keys), *_pointer_and_strides(values)),
            *(seen.lengths.data_ptr(), self._widths[0] ** -0.5, out.data_ptr()),
        )
        return out

    def _add(self, x: Tensor, z: Tensor, bias: Tensor | None, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        """Add a sublayer's output z + bias to the residual stream x; return it and the next sublayer's input."""
        y = torch.empty_like(x)
        self._functions.nmt_add_norm(
            *(*x.shape, x.data_ptr(), z.data_ptr(), pointer(bias), *_of_norm(norm), self._epsilon),
            *(z.data_ptr() if self._first_norm else None, y.data_ptr()),
        )
        return (z, y) if self._first_norm else (y, y)


def _packed(
    functions: CDLL, layers: Sequence[Any], last_norm: nn.Module, symbols: Sequence[int | None] = (None,) * 7
) -> Array[c_void_p] | None:
    """Return the C struct nmt_stack of an encoder or a decoder, or None if C alone cannot compute its layers.

    `symbols` are its members from `embedding` to `output`.
    """
    attention, feed_forward = layers[0].attention, layers[0].feed_forward
    first, norms = _in_order(layers, last_norm)
    activate = getattr(functions, f"nmt_add_bias_{feed_forward.activation}")
    packed = [len(layers), attention.heads, *attention.widths[1:], layers[0].attention_residual.norm.weight.numel()]
    packed += [feed_forward.inner.outputs, address_of(activate, c_void_p).value, *_of_norm(first), *symbols]
    for layer in layers:
        products = [product.in_c() if product else [None] * 4 for product in _products(layer)]
        if None in products:
            return None
        packed += [member for product in products for member in product or ()]
        packed += [member for norm in _norms(layer) for member in _of_norm(norm and norms.pop(0))]
    return (c_void_p * len(packed))(*packed)


def _of_norm(norm: Any) -> list[int | None]:
    """Return the members of the C struct nmt_norm."""
    return [pointer(norm and norm.weight), pointer(norm and norm.bias)]


def _products(layer: Any) -> list[LaidOut | None]:
    """Return what multiplies in a layer, in the order of computation; None for what an encoder has not."""
    own, cross, feed_forward = layer.attention, getattr(layer, "cross", None), layer.feed_forward
    return [own.qkv, own.out, cross and cross.query, cross and cross.out, feed_forward.inner, feed_forward.outer]


def _norms(layer: Any) -> list[nn.LayerNorm | None]:
    """Return the norms of the sublayers; None for what an encoder has not."""
    residuals = layer.attention_residual, getattr(layer, "cross_residual", None), layer.feed_forward_residual
    return [residual and residual.norm for residual in residuals]


def _in_order(layers: Sequence[Any], last_norm: Any) -> tuple[nn.LayerNorm | None, list[nn.LayerNorm]]:
    """Return the norm before the first sublayer, if any, and the norms after each."""
    norms = [norm for layer in layers for norm in _norms(layer) if norm]
    return (norms[0], [*norms[1:], last_norm]) if layers[0].attention_residual.pre else (None, norms)


def _pointer_and_strides(buffer: Tensor) -> tuple[int, ...]:
    """Return the address of keys or values (rows, h, places, d), and the strides of rows, heads and places."""
    return (buffer.data_ptr(), *buffer.stride()[:3])
