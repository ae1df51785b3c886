"""Decoding step by step, of small random models and hypotheses that replace each other, and the same at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nmt.model.transformer import Memory, Transformer
from nmt.recipe import Model
from nmt.search.plain import Plain
from nmt.search.state import Removal

BEAM, VOCABULARY = 3, 13
SOURCES = torch.tensor([[5, 7, 4, 9, 3], [6, 3, 0, 0, 0], [10, 8, 8, 3, 0]])


def tiny(**changes: Any) -> Transformer:
    torch.manual_seed(1)
    settings: dict[str, Any] = {"layers": 2, "d_model": 8, "d_ff": 12, "heads": 2, "d_k": 3, "d_v": 5} | changes
    source, target = ([index in words for index in range(VOCABULARY)] for words in ((5, 7, 10), (2, 3, 5, 7, 11)))
    model = Transformer(Model(**settings), VOCABULARY, VOCABULARY, (source, target)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases that are not the neutral ones they begin as
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


class Searched:
    """A search's past beside what each row of it stands for: a source and, for each hypothesis, its whole ids."""

    def __init__(self, model: Transformer, way: Plain | None = None) -> None:
        self.model = model
        self.way = way or Plain([model], BEAM)
        self.past = self.way.begin()
        self.sources: list[Tensor] = []
        self.ids: list[Tensor] = []  # ids: for each row (BEAM, length)

    def admit(self, sources: Tensor) -> None:
        lengths = sources.ne(0).sum(1).tolist()
        self.past = self.way.admit(self.past, sources, lengths, 80)
        self.sources += [source[:length] for source, length in zip(sources, lengths, strict=True)]
        self.ids += [torch.empty((BEAM, 0), dtype=torch.int64) for _ in lengths]

    def step(self, parents: Tensor, symbols: Tensor, alive: Tensor | None = None) -> Tensor:
        self.ids = [
            torch.cat((ids[of], new[:, None]), dim=1) for ids, of, new in zip(self.ids, parents, symbols, strict=True)
        ]
        alive = torch.ones_like(parents, dtype=torch.bool) if alive is None else alive
        self.past, (states,) = self.way.step(self.past, parents, symbols, alive)
        return states

    def leave(self, done: Sequence[int]) -> None:
        removal = Removal(done, len(self.sources))
        self.past = self.way.leave(self.past, removal)
        for hole, row in zip(removal.holes, removal.last, strict=True):
            self.sources[hole], self.ids[hole] = self.sources[row], self.ids[row]
        del self.sources[removal.count :], self.ids[removal.count :]

    def at_once(self) -> Tensor:
        """The newest state of each hypothesis, decoded from its beginning."""
        states = []
        for source, ids in zip(self.sources, self.ids, strict=True):
            memory = self.model.encode(source[None])
            repeated = Memory(memory.states.expand(BEAM, -1, -1), None)
            states.append(self.model.decode_states(ids, repeated)[:, -1])
        return torch.stack(states)
