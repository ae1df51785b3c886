"""Lexical shortlists: a step computes the logits only of symbols that a source may be translated by (Marian's idea).

Those are the most frequent symbols, which all sources share, and a few for each symbol of a source. So a sentence's
result does not depend on what else is in its batch.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """(s,), padded to whole cache lines"""
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
        # Of a model that outputs a part of its vocabulary; what is left out goes where `of` ignores it.
        self._translations = translations.where(translations < self._vocabulary, NONE).numpy()
        frequent = lexicon.frequent
        self._frequent = frequent[frequent < self._vocabulary].long().numpy()
        self.shared = self._listed(self._frequent, layers.outputs_of)
        self._whole = self._listed(np.arange(self._vocabulary), lambda symbols: layers.output, is_whole=True)

    def of(self, source: Source) -> Shortlist:
        """Return the shortlist of a source: with a prefix, the whole vocabulary."""
        if source.prefix:
            return self._whole
        chosen = np.zeros(self._vocabulary + 1, dtype=bool)
        chosen[self._translations[source.ids]] = True  # NONE is the last one
        chosen[list(source.first)] = True
        chosen[self._frequent] = False
        own = self._listed(chosen[:-1].nonzero()[0], self._layers.outputs_of)
        return replace(own, symbols=torch.cat((self.shared.symbols, own.symbols)))

    def _listed(
        self, symbols: NDArray[Any], output_of: Callable[[Tensor], LaidOut], is_whole: bool = False
    ) -> Shortlist:
        size = max(1, -(-len(symbols) // CACHE_LINE)) * CACHE_LINE
        padded = torch.full((size,), NONE)
        padded[: len(symbols)] = torch.from_numpy(symbols)
        output = output_of(padded.clamp_min(0))
        in_c = structure("nmt_shortlist")(
            output=output.in_c(), outputs=output.outputs, symbols=padded.data_ptr(), is_whole=is_whole
        )
        return Shortlist(padded, in_c, (padded, output))

    def in_c(self, rows: NDArray[Any]) -> Any:
        """Return the array of structures nmt_shortlist that a search in C takes, given the shortlists of its rows."""
        lists = [self.shared.in_c, *[row.in_c for row in rows]]
        return (structure("nmt_shortlist") * len(lists))(*lists)


def listed(rows: NDArray[Any]) -> Tensor:
    """Return the symbols of shortlists (rows, longest), padded with NONE."""
    return pad_sequence([row.symbols for row in rows], batch_first=True, padding_value=NONE)
