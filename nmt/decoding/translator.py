"""Lines in, translations out, in order: tokenise, batch by length, search, detokenise.

Knows no files and prints nothing. A sentence's translation does not depend on what shares its batch.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from nmt.bundle import resolve
from nmt.data.batches import pad_ids
from nmt.decoding.search import Hypothesis, beam_search
from nmt.device import choose_device
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, override_decoding
from nmt.text.lines import one_line
from nmt.text.tokenizer import BOS, EOS, PAD, UNK, Tokenizer

# Lines that are sorted and searched together: few at first, for an early answer.
FIRST_CHUNK, LARGEST_CHUNK = 32, 2048


@dataclass(frozen=True)
class Translation:
    """What became of one line."""

    texts: list[str]
    """Best first; one unless more were asked for."""
    scores: list[float]
    """Length-normalised log-probability of each, in nats; of a line split into parts their sum."""
    parts: int
    """How many pieces the line was split into; more than one where it exceeds decoding.max_source."""
    capped: bool
    """Whether the best output was cut off at its cap."""


class Translator:
    """A model with its tokenizer and its way of searching."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, decoding: Decoding) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.decoding = decoding
        config = model.config
        if config.positions == "learned" and decoding.max_source >= config.max_positions:
            raise UserError(
                f"decoding.max_source: must be below model.max_positions {config.max_positions} of this model "
                f"(got {decoding.max_source})",
                "longer inputs are split",
            )

    def translate(self, texts: Sequence[str]) -> list[str]:
        """Translates raw sentences; one for each, in order. Blank gives blank."""
        if isinstance(texts, str):
            raise TypeError("translate takes a list of sentences; for one: translate([sentence])")
        return [translation.texts[0] for translation in self.stream(texts)]

    def stream(self, lines: Iterable[str], n_best: int = 1) -> Iterator[Translation]:
        """Translates lines as they come, chunk by chunk in constant memory; one for each, in order."""
        if n_best > self.decoding.beam:
            raise UserError(f"n-best {n_best} needs a beam at least as wide (got {self.decoding.beam})", "raise --beam")
        return self._stream(iter(lines), n_best)

    def _stream(self, iterator: Iterator[str], n_best: int) -> Iterator[Translation]:
        size = FIRST_CHUNK
        while chunk := list(islice(iterator, size)):
            yield from self._translate_chunk(chunk, n_best)
            size = min(2 * size, LARGEST_CHUNK)

    def _translate_chunk(self, lines: list[str], n_best: int) -> Iterator[Translation]:
        texts = [line.strip().encode(errors="replace").decode() for line in lines]  # a lone surrogate is no text
        inputs = [self._split(self.tokenizer.source.encode(text)) for text in texts]
        hypotheses = iter(self._search([part for parts in inputs for part in parts], n_best))
        for parts in inputs:
            yield self._join([next(hypotheses) for _ in parts], n_best)

    def _split(self, ids: list[int]) -> list[list[int]]:
        """Cuts an input beyond decoding.max_source into parts, at words' beginnings where there are any."""
        limit, parts = self.decoding.max_source, []
        while len(ids) > limit:
            words = (i for i in range(limit, limit // 2, -1) if self.tokenizer.source.starts_word(ids[i]))
            cut = next(words, limit)
            parts.append(ids[:cut])
            ids = ids[cut:]
        return [*parts, ids] if ids else parts

    def _join(self, parts: list[list[Hypothesis]], n_best: int) -> Translation:
        """One translation from those of a line's parts; blank lines have none."""
        if not parts:
            return Translation([""] * n_best, [0.0] * n_best, parts=0, capped=False)
        ranks = range(min(map(len, parts)))
        decode = self.tokenizer.target.decode
        return Translation(
            texts=[" ".join(one_line(decode(part[rank].ids)) for part in parts) for rank in ranks],
            scores=[sum(part[rank].score for part in parts) for rank in ranks],
            parts=len(parts),
            capped=any(not part[0].finished for part in parts),
        )

    def _search(self, sources: list[list[int]], n_best: int) -> list[list[Hypothesis]]:
        """Hypotheses of each source, searched in batches of similar length, longest first."""
        device = next(self.model.parameters()).device
        by_length = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        results: list[list[Hypothesis]] = [[] for _ in sources]
        while by_length:
            longest = len(sources[by_length[0]]) + 1
            size = max(1, self.decoding.batch_tokens // longest)
            batch, by_length = by_length[:size], by_length[size:]
            found = beam_search(
                ModelStep(self.model, pad_ids([sources[i] for i in batch], after=EOS).to(device)),
                [self._cap(len(sources[i])) for i in batch],
                beam=self.decoding.beam,
                alpha=self.decoding.alpha,
                bos=BOS,
                eos=EOS,
                device=device,
                n_best=n_best,
            )
            for index, hypotheses in zip(batch, found, strict=True):
                results[index] = hypotheses
        return results

    def _cap(self, source_length: int) -> int:
        """Most symbols of an output, `</s>` counted."""
        cap = source_length + self.decoding.max_extra
        if self.model.config.positions == "learned":
            cap = min(cap, self.model.config.max_positions)
        return cap


class ModelStep:
    """A Transformer as the step function of a search."""

    def __init__(self, model: Transformer, source: Tensor) -> None:
        """`source` (sentences, length) is encoded once."""
        self._model = model
        with torch.inference_mode():
            self._memory = model.encode(source)
            self._cache = model.start(self._memory)

    def __call__(self, ids: Tensor, parents: Tensor | None, sentences: Tensor | None) -> Tensor:
        """See `search.Step`."""
        count, beam = ids.shape
        if parents is not None:
            stood_at = torch.arange(count, device=ids.device) if sentences is None else sentences
            self._cache.reorder((stood_at[:, None] * beam + parents).flatten(), sentences)
        logits = self._model.decode(ids.reshape(-1, 1), self._memory, self._cache)[:, 0].float()
        logits[:, [PAD, UNK, BOS]] = -math.inf  # control symbols are never output
        return logits.log_softmax(-1).view(count, beam, -1)


def load(path: str | os.PathLike[str], device: str = "auto", **decoding: object) -> Translator:
    """A translator from a bundle or a run's directory, as `nmt.load("ckpts/", beam=8)`.

    Keywords replace keys of the bundle's decoding settings; `device` is auto, cpu, cuda or cuda:N. Raises UserError
    where there is no such model, key, value or device.
    """
    bundle, _ = resolve(Path(path))
    settings = override_decoding(bundle.recipe.decoding, [f"{key}={json.dumps(v)}" for key, v in decoding.items()])
    return Translator(bundle.model(choose_device(device, None)), bundle.tokenizer(), settings)
