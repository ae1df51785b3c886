"""Steps of a search on a CPU, by C kernels.

Between two matrix products, one kernel computes the rest in a single pass over memory. If the products are in C too,
one call computes all layers. If nothing but a minimum length restricts the outputs of a single model, one call takes
whole steps until a sentence is finished: for a single short one, Python would take longer than the products.

Linear layers are those of `cpu_products`. What C reads is in structures, whose members nmt_kernels.h names.

Shapes: n rows (sentences), k hypotheses per row, m live hypotheses.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, Array, Structure, addressof, byref, c_void_p
from ctypes import cast as address_of
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from nmt.compute.cpu_products import LaidOut, Panels, in_tiles, pointer, pointers
from nmt.compute.header import constant, structure
from nmt.compute.native import threads
from nmt.model.batch import PADDING
from nmt.model.layers import DecoderLayer
from nmt.model.transformer import MakeLinear, Transformer
from nmt.search.choosing import BeamOperations, Beams, Candidates
from nmt.search.plain import Plain
from nmt.search.state import (
    HIDDEN,
    Ancestry,
    Caches,
    LayerCache,
    Past,
    Removal,
    State,
    with_newest,
    with_places,
    with_room,
)
from nmt.text.vocabulary import EOS

STEPS_AHEAD = 16  # steps of a single sentence for which `take_steps` makes room; fewer for several sentences


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
        given = pointers(log_probs, alive, totals, parents, symbols)
        self._functions.nmt_best_extensions(n, k, width, count, *given)
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
        n, count = candidates.totals.shape
        beam = beams.totals.size(1)
        parents, symbols = torch.empty((2, n, beam), dtype=torch.int64)
        alive = torch.empty_like(beams.totals)
        done = torch.empty(n, dtype=torch.bool)
        sizes = (n, beam, count, vocabulary, EOS, n_best)
        given = pointers(penalties, beams.caps, positions, *candidates, links)
        results = pointers(parents, symbols, alive, beams.ends, beams.positions, beams.scores, done)
        self._functions.nmt_choose(*sizes, *given, links.stride(0), *results)
        return beams._replace(parents=parents, symbols=symbols, totals=alive), done


# --- a model's layers -------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """The positions that hypotheses attend to in self-attention and in cross-attention."""

    which: Tensor | None
    """(m,) indices of live hypotheses among n · k; None means all"""
    newest: Tensor
    """(n, k) place of each hypothesis's newest position"""
    places: Tensor
    """(n, k, room) places that each hypothesis attends to"""
    counts: Tensor
    """(n, k) number of these places"""
    lengths: Tensor
    """(n,) source lengths"""


class LayersInC:
    """The layers of one model, whose weights are collected when they are made."""

    def __init__(self, model: Transformer, functions: CDLL, output: LaidOut, layout: MakeLinear) -> None:
        """Prepare the layers of `model`, which are laid out by `layout`, as is `output`, the layer of its logits."""
        layers = model.decoder_layers()
        self.functions = functions
        self.model = model
        self.output = output  # kept, for C has pointers into it
        self.vocabulary = len(model.output_embedding.weight)
        self._layout = layout
        self._heads = layers[0].attention.heads
        self._widths = layers[0].attention.widths[1:]  # of keys and values
        self._activate_in_place = _activation(functions, layers[0])
        # Collected once: looking up parts of modules takes as long as computing a few hypotheses.
        self._products = [cast("list[LaidOut]", _products(layer)) for layer in layers]
        *_, inner, _ = self._products[0]
        self._inner_width = inner.outputs
        self._first_norm, self._norms = _in_order(layers, model.decoder_norm)
        self._epsilon = model.config.norm_epsilon
        self._in_panels = isinstance(output, Panels)
        self._encoder = None
        if self._in_panels:  # in 8 bits, rounding sums otherwise than PyTorch does would change outputs
            self._encoder = _stack(functions, list(model.encoder), model.encoder_norm)
        self._decoder = None
        logits = output.in_c()
        if logits is not None:
            symbols = {
                "embedding": model.target_embedding.weight.data_ptr(),
                "vocabulary": self.vocabulary,
                "outputs": output.outputs,
                "output": logits,
            }
            self._decoder = _stack(functions, layers, model.decoder_norm, **symbols)

    def encode(self, ids: Tensor) -> Tensor:
        """Return the states (n, s, d_model) of sources `ids` (n, s)."""
        x = self.model.embed_source(ids)
        if self._encoder is None:
            return self.model.encode_embedded(x, self.model.operations.padding_mask(ids))
        rows, longest, _ = x.shape
        lengths = ids.ne(PADDING).sum(1)
        y = torch.empty_like(x)
        beyond = constant("PLACES_AT_ONCE") - 1
        scratch = self._scratch(rows * longest, beyond)
        encoder = byref(self._encoder)
        given = pointers(lengths, x, y, scratch)
        self.functions.nmt_encode(encoder, self._epsilon, rows, longest, *given, *threads())
        return y

    @property
    def can_search(self) -> bool:
        """Whether C alone can take whole steps of a search."""
        return self._decoder is not None and self.model.config.positions != "words"

    def is_in_c(self, rows: int) -> bool:
        """Return whether C alone computes a step of `rows` hypotheses."""
        if self._decoder is None:
            return False
        return self._in_panels or not in_tiles(rows * self.model.config.d_model * self._inner_width)

    def outputs_of(self, symbols: Tensor) -> LaidOut:
        """Return the layer of the logits of some symbols (n,)."""
        bias = self.model.output_bias
        chosen = None if bias is None else bias[symbols]
        return cast(LaidOut, self._layout(self.model.output_embedding.weight[symbols], chosen))

    def search(self, beams: Structure, most: int) -> int:
        """Take up to `most` steps from `beams`, the structure nmt_beams; return their number."""
        assert self._decoder is not None
        given = (byref(self._decoder), self._epsilon, byref(beams))
        taken = self.functions.nmt_search(*given, most, *threads())
        if not taken:
            raise MemoryError("can't allocate memory for a step of the search")
        return int(taken)

    def states(self, x: Tensor, seen: Seen, caches: Caches, in_c: Array[Structure]) -> Tensor:
        """Return the states (m, d_model) of inputs x (m, d_model); `in_c` are the caches by `cache_in_c`."""
        if self.is_in_c(len(x)):
            return self._decode(x, seen, in_c)
        norms = iter(self._norms)
        y: Tensor = self._first_norm(x) if self._first_norm else x
        for (qkv, out, query, cross_out, inner, outer), cache in zip(self._products, caches, strict=True):
            mixed = self._attend_to_places(qkv.forward(y), cache, seen)
            x, y = self._add(x, mixed, out, next(norms))
            mixed = self._attend_to_rows(query.forward(y), cache, seen)
            x, y = self._add(x, mixed, cross_out, next(norms))
            hidden = inner.product(y)
            self._activate_in_place(*hidden.shape, *pointers(hidden, inner.bias))
            x, y = self._add(x, hidden, outer, next(norms))
        return y

    def _decode(self, x: Tensor, seen: Seen, in_c: Array[Structure]) -> Tensor:
        """Compute `states` in a single call."""
        assert self._decoder is not None
        _, k, room = seen.places.shape
        x = x.clone()
        y = torch.empty_like(x)
        scratch = self._scratch(len(x))
        self.functions.nmt_decode(
            byref(self._decoder),
            self._epsilon,
            len(x),
            pointer(seen.which),
            k,
            in_c,
            *pointers(seen.newest, seen.places, seen.counts),
            room,
            *pointers(seen.lengths, x, y, scratch),
            *threads(),
        )
        return y

    def _scratch(self, rows: int, beyond: int = 0) -> Tensor:
        """Return the scratch space that nmt_decode asks for, for `rows`; attention reads `beyond` more."""
        keys, values = (self._heads * width for width in self._widths)
        projected = 2 * keys + values
        attention = projected + 2 * values
        of_row = 1 + 2 * self.model.config.d_model + attention + 2 * self._inner_width
        return torch.empty(rows * of_row + beyond * projected)

    def _attend_to_places(self, projected: Tensor, cache: LayerCache, seen: Seen) -> Tensor:
        """Return self-attention (m, heads · d_v); `projected` holds queries, keys and values side by side."""
        _, k, room = seen.places.shape
        key_width, value_width = self._widths
        keys = _pointer_and_strides(cache.keys)
        values = _pointer_and_strides(cache.values)
        out = projected.new_empty((len(projected), self._heads * value_width))
        self.functions.nmt_attend_to_places(
            len(projected),
            pointer(seen.which),
            k,
            self._heads,
            key_width,
            value_width,
            *pointers(projected, seen.newest),
            *keys,
            *values,
            *pointers(seen.places, seen.counts),
            room,
            key_width**-0.5,
            out.data_ptr(),
        )
        return out

    def _attend_to_rows(self, queries: Tensor, cache: LayerCache, seen: Seen) -> Tensor:
        """Return cross-attention (m, heads · d_v) of queries (m, heads · d_k) to their rows' sources."""
        rows, width = queries.shape
        key_width, value_width = self._widths
        keys = _pointer_and_strides(cache.memory_keys)
        values = _pointer_and_strides(cache.memory_values)
        out = queries.new_empty((rows, self._heads * value_width))
        self.functions.nmt_attend_to_rows(
            rows,
            pointer(seen.which),
            seen.places.size(1),
            self._heads,
            key_width,
            value_width,
            queries.data_ptr(),
            width,
            *keys,
            *values,
            seen.lengths.data_ptr(),
            key_width**-0.5,
            out.data_ptr(),
        )
        return out

    def _add(self, x: Tensor, inner: Tensor, last: LaidOut, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        """Add the output of a sublayer, of which `last` is the last layer, to the residual stream x.

        Return the stream and the next sublayer's input.
        """
        z = last.product(inner)
        y = torch.empty_like(x)
        total = z if self._first_norm else None  # the residual stream, where that is not the normalised sum
        given = pointers(x, z, last.bias, norm.weight, norm.bias)
        self.functions.nmt_add_norm(*x.shape, *given, self._epsilon, *pointers(total, y))
        if total is None:
            return y, y
        return total, y


def _stack(functions: CDLL, layers: Sequence[Any], last_norm: nn.Module, **symbols: Any) -> Structure | None:
    """Return the structure nmt_stack of an encoder or a decoder, or None if C alone cannot compute its layers.

    `symbols` are its members that a decoder has for its inputs and outputs.
    """
    attention = layers[0].attention
    residual = layers[0].attention_residual
    first, norms = _in_order(layers, last_norm)
    following = iter(norms)
    weights = []
    for layer in layers:
        products = []
        for product in _products(layer):
            in_c = structure("nmt_linear")() if product is None else product.in_c()
            if in_c is None:
                return None
            products.append(in_c)
        qkv, out, query, cross_out, inner, outer = products
        after = [None if norm is None else next(following) for norm in _norms(layer)]
        of_layer = structure("nmt_layer_weights")(
            qkv=qkv, out=out, query=query, cross_out=cross_out, inner=inner, outer=outer
        )
        of_layer.norms[:] = [_norm(norm) for norm in after]
        weights.append(of_layer)
    activation = address_of(_activation(functions, layers[0]), c_void_p)
    stack = structure("nmt_stack", len(layers))(
        layers=len(layers),
        heads=attention.heads,
        key_width=attention.widths[1],
        value_width=attention.widths[2],
        width=residual.norm.weight.numel(),
        inner_width=layers[0].feed_forward.inner.outputs,
        activate=activation.value,
        first_norm=_norm(first),
        **symbols,
    )
    stack.weights[:] = weights
    return stack


def _activation(functions: CDLL, layer: Any) -> Any:
    """Return the C function that adds a bias and applies a layer's activation, in place."""
    return getattr(functions, f"nmt_add_bias_{layer.feed_forward.activation}")


def _norm(norm: nn.LayerNorm | None) -> Structure:
    """Return the structure nmt_norm."""
    if norm is None:
        return structure("nmt_norm")()
    return structure("nmt_norm")(weight=pointer(norm.weight), shift=pointer(norm.bias))


def _products(layer: Any) -> list[LaidOut | None]:
    """Return a layer's matrix products, in the order of computation; None for those that an encoder lacks."""
    own = layer.attention
    feed_forward = layer.feed_forward
    cross = [layer.cross.query, layer.cross.out] if isinstance(layer, DecoderLayer) else [None, None]
    return [own.qkv, own.out, *cross, feed_forward.inner, feed_forward.outer]


def _norms(layer: Any) -> list[nn.LayerNorm | None]:
    """Return the norms of the sublayers; None for the one that an encoder lacks."""
    cross = layer.cross_residual.norm if isinstance(layer, DecoderLayer) else None
    return [layer.attention_residual.norm, cross, layer.feed_forward_residual.norm]


def _in_order(layers: Sequence[Any], last_norm: Any) -> tuple[nn.LayerNorm | None, list[nn.LayerNorm]]:
    """Return the norm before the first sublayer, if any, and the norms after each."""
    norms = [norm for layer in layers for norm in _norms(layer) if norm is not None]
    if not layers[0].attention_residual.pre:
        return None, norms
    first, *others = norms
    return first, [*others, last_norm]


def _pointer_and_strides(buffer: Tensor) -> tuple[int, ...]:
    """Return the address of keys or values (rows, h, places, d), and the strides of rows, heads and places."""
    return (buffer.data_ptr(), *buffer.stride()[:3])


def cache_in_c(cache: LayerCache) -> Structure:
    """Return the structure nmt_layer_states."""

    def states(buffer: Tensor) -> Structure:
        row, head, place, _ = buffer.stride()
        return structure("nmt_states")(first=buffer.data_ptr(), row=row, head=head, place=place)

    return structure("nmt_layer_states")(
        keys=states(cache.keys),
        values=states(cache.values),
        memory_keys=states(cache.memory_keys),
        memory_values=states(cache.memory_values),
    )


# --- steps ------------------------------------------------------------------------------------------------------------


class InC(Plain):
    """Steps by the C kernels, of models whose layers they compute."""

    def __init__(self, layers: Sequence[LayersInC], beam: int) -> None:
        super().__init__([each.model for each in layers], beam)
        self._layers = layers
        self._functions = layers[0].functions
        self._caches: list[Caches] = [()] * len(layers)
        self._caches_in_c: list[Any] = [None] * len(layers)

    def source_states(self, index: int, ids: Tensor) -> Tensor:
        return self._layers[index].encode(ids)

    def move(self, removal: Removal, buffer: Tensor, used: int) -> None:
        if removal.holes:
            last, holes = removal.moves
            rows = pointers(last, holes)
            heads = buffer.size(1)
            self._functions.nmt_move_rows(len(holes), *rows, heads, used, *_pointer_and_strides(buffer))

    def extend(self, past: Past, parents: Tensor, alive: Tensor) -> Past:
        rows: Ancestry = past.rows
        extent = past.memory.extent
        bias = with_room(rows.bias, 2, extent + self.beam, HIDDEN)
        parents = parents.contiguous()
        places = torch.empty_like(parents)
        scratch = bias.new_empty((self.beam, extent))
        sizes = (len(bias), self.beam, extent)
        given = pointers(parents, bias)
        strides = bias.stride()[:2]
        extent = self._functions.nmt_extend(*sizes, *given, *strides, *pointers(scratch, places))
        return with_newest(past, places, bias, extent)

    def decode(self, index: int, x: Tensor, past: Past, alive: Tensor) -> tuple[Caches, Tensor]:
        layers = self._layers[index]
        memory = past.memory
        caches = with_places(memory.caches[index], len(x), memory.extent)
        in_c = self._in_c(index, caches)
        flat = x.flatten(0, 1)  # (n · k, d_model)
        if bool(alive.all()):
            seen = self._seen(past, None)
            return caches, layers.states(flat, seen, caches, in_c).view_as(x)
        which = alive.flatten().nonzero()[:, 0]  # (m,)
        seen = self._seen(past, which)
        of_living = layers.states(flat[which], seen, caches, in_c)
        states = torch.zeros_like(x)
        states.flatten(0, 1)[which] = of_living
        return caches, states

    def _in_c(self, index: int, caches: Caches) -> Any:
        """Return an array of the structures nmt_layer_states, which is made anew only for other buffers."""
        if caches is not self._caches[index]:
            self._caches[index] = caches
            array = structure("nmt_layer_states") * len(caches)
            self._caches_in_c[index] = array(*map(cache_in_c, caches))
        return self._caches_in_c[index]

    def _seen(self, past: Past, which: Tensor | None) -> Seen:
        rows: Ancestry = past.rows
        bias = rows.bias
        n, k, _ = bias.shape
        extent = past.memory.extent
        at_once = constant("PLACES_AT_ONCE")
        room = -(-extent // at_once) * at_once
        places = torch.empty((n, k, room), dtype=torch.int32)
        counts = torch.empty((n, k), dtype=torch.int32)
        strides = bias.stride()[:2]
        results = pointers(places, counts)
        self._functions.nmt_seen_places(n, k, extent, bias.data_ptr(), *strides, room, *results)
        lengths = torch.from_numpy(rows.source_lengths)
        return Seen(which, rows.places, places, counts, lengths)

    def can_take_steps(self, rows: int) -> bool:
        """Return whether `take_steps` takes steps of `rows` hypotheses."""
        return len(self._layers) == 1 and self._layers[0].can_search and self._layers[0].is_in_c(rows)

    def take_steps(self, state: State, n_best: int, least: int, shortlists: Any = None) -> tuple[State, Tensor]:
        """Take steps until a sentence is finished or buffers are full; return what `take_step` does.

        `n_best` is as for `BeamOperations.choose_`, `least` the least number of symbols before `</s>`. `shortlists` are
        those that `Shortlists.in_c` returns, if any. There is room for a link of one more step.
        """
        beams, links, _, penalties, past = state
        rows: Ancestry = past.rows
        count = len(rows.places)
        longest = rows.end
        steps = max(1, STEPS_AHEAD // count)
        places = past.memory.extent + self.beam * steps
        bias = with_room(rows.bias, 2, places, HIDDEN)
        caches = with_places(past.memory.caches[0], count, places)
        keys, values, *_ = caches[0]
        newest = torch.empty_like(beams.parents)
        done = torch.empty(count, dtype=torch.bool)
        positions = self.models[0].target_positions
        positions.extend_to(longest + 1, self.device)
        given = structure("nmt_beams", len(caches))(
            rows=count,
            beam=self.beam,
            n_best=n_best,
            extent=past.memory.extent,
            room=min(bias.size(2), keys.size(2), values.size(2)),
            bias=bias.data_ptr(),
            bias_row=bias.stride(0),
            bias_hypothesis=bias.stride(1),
            newest=newest.data_ptr(),
            positions=rows.positions.data_ptr(),
            lengths=rows.source_lengths.ctypes.data,
            parents=beams.parents.data_ptr(),
            symbols=beams.symbols.data_ptr(),
            alive=beams.totals.data_ptr(),
            ends=beams.ends.data_ptr(),
            ends_at=beams.positions.data_ptr(),
            scores=beams.scores.data_ptr(),
            caps=beams.caps.data_ptr(),
            links=links.data_ptr(),
            links_row=links.stride(0),
            penalties=penalties.data_ptr(),
            done=done.data_ptr(),
            encodings=positions.table.data_ptr(),
            end=EOS,
            least=least,
            shortlists=shortlists and addressof(shortlists),
            caches=self._in_c(0, caches),
        )
        most = min(links.size(1), len(positions.table)) - longest
        taken = self._layers[0].search(given, most)
        rows = rows._replace(places=newest, bias=bias, ages=rows.ages + taken)
        memory = past.memory._replace(extent=given.extent, caches=(caches,))
        return state._replace(past=Past(rows, memory)), done
