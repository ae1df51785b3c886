"""Lexical shortlists: a step computes the logits only of symbols that a source may be translated by (Marian's idea).

Those are the most frequent symbols, which all sources share, and a few for each symbol of a source. So a sentence's
result does not depend on what else is in its batch.
"""

from __future__ import annotations

from ctypes import Structure
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nmt.compute.cpu_products import CACHE_LINE, LaidOut
from nmt.compute.header import structure
from nmt.model.transformer import Lexicon
from nmt.search.in_c import LayersInC
from nmt.search.sources import Source

NONE = -1  # pads lists of symbols


@dataclass(frozen=True)
class Shortlist:
    """The symbols that a source may be translated by, in order of their logits."""

    symbols: Tensor
    """(s,), padded with NONE to the outputs of its layer"""
    in_c: Structure
    """The structure nmt_shortlist, without those symbols that all sources share"""
    kept: Any
    """What C has pointers into"""


class Shortlists:
    """The shortlists of sources for one model."""

    def __init__(self, layers: LayersInC, lexicon: Lexicon, count: int) -> None:
        """Take up to `count` translations of each source symbol from a lexicon."""
        self._layers = layers
        self._vocabulary = layers.vocabulary
        translations = lexicon.translations[:, : 1 + count]
        # A model may output only part of its vocabulary; `of` ignores NONE.
        self._translations = translations.where(translations < self._vocabulary, NONE).numpy()
        frequent = lexicon.frequent
        self._frequent = frequent[frequent < self._vocabulary].long().numpy()
        self.shared = self._chosen(self._frequent)
        self._whole = _listed(_padded(np.arange(self._vocabulary), layers.output.outputs), layers.output, is_whole=True)

    def of(self, source: Source) -> Shortlist:
        """Return the shortlist of a source: with a prefix, the whole vocabulary."""
        if source.prefix:
            return self._whole
        chosen = np.zeros(self._vocabulary + 1, dtype=bool)
        chosen[self._translations[source.ids]] = True  # NONE is the last one
        chosen[list(source.first)] = True
        chosen[self._frequent] = False
        own = self._chosen(chosen[:-1].nonzero()[0])
        return replace(own, symbols=torch.cat((self.shared.symbols, own.symbols)))

    def _chosen(self, symbols: NDArray[Any]) -> Shortlist:
        """Return the shortlist of some symbols (n,), with a layer of their own."""
        padded = _padded(symbols, max(1, -(-len(symbols) // CACHE_LINE)) * CACHE_LINE)
        return _listed(padded, self._layers.outputs_of(padded.clamp_min(0)))

    def in_c(self, rows: NDArray[Any]) -> Any:
        """Return the array of structures nmt_shortlist that a search in C takes, given the shortlists of its rows."""
        lists = [self.shared.in_c, *[row.in_c for row in rows]]
        return (structure("nmt_shortlist") * len(lists))(*lists)


def _padded(symbols: NDArray[Any], size: int) -> Tensor:
    padded = torch.full((size,), NONE)
    padded[: len(symbols)] = torch.from_numpy(symbols)
    return padded


def _listed(symbols: Tensor, output: LaidOut, is_whole: bool = False) -> Shortlist:
    """Return the shortlist of the symbols (s,) of a layer's outputs."""
    in_c = structure("nmt_shortlist")(
        output=output.in_c(), outputs=output.outputs, symbols=symbols.data_ptr(), is_whole=is_whole
    )
    return Shortlist(symbols, in_c, (symbols, output))


def listed(rows: NDArray[Any]) -> Tensor:
    """Return the symbols of shortlists (rows, longest), padded with NONE."""
    return pad_sequence([row.symbols for row in rows], batch_first=True, padding_value=NONE)
