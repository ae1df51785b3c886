"""Models and text to text: what `nmt.load` gives, and the reference engine.

Knows no files and prints nothing. A sentence's translation does not depend on what shares its batch.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from nmt.bundle import resolve
from nmt.data.batches import pad_ids
from nmt.decoding.pipeline import Feed, Hypothesis, Pipeline, Translation, longest_served
from nmt.decoding.search import Step, beam_search
from nmt.device import choose_device
from nmt.model.transformer import Transformer
from nmt.recipe import CPU_BATCH_TOKENS, Decoding, override_decoding
from nmt.text.tokenizer import BOS, EOS, PAD, UNK, Tokenizer


class Translator:
    """A model, or an ensemble of several, with its tokenizer and its way of searching."""

    def __init__(self, model: Transformer | Sequence[Transformer], tokenizer: Tokenizer, decoding: Decoding) -> None:
        """Raises UserError where decoding.max_source is beyond what a model serves."""
        models = [model] if isinstance(model, Transformer) else list(model)
        positions = longest_served(model.config for model in models)
        self.pipeline = Pipeline(tokenizer, decoding, ReferenceEngine(models, decoding), positions)

    def translate(self, texts: Sequence[str]) -> list[str]:
        """Translates raw sentences; one for each, in order. Blank gives blank."""
        if isinstance(texts, str):
            raise TypeError("translate takes a list of sentences; for one: translate([sentence])")
        return [translation.texts[0] for translation in self.stream(texts)]

    def stream(self, lines: Iterable[str], n_best: int = 1) -> Generator[Translation, None, None]:
        """Translates lines as they come, in bounded memory; one for each, in order."""
        return self.pipeline.stream(lines, n_best)


class ReferenceEngine:
    """The plain search, batch by batch."""

    def __init__(self, models: Sequence[Transformer], decoding: Decoding) -> None:
        self._models, self._decoding = models, decoding

    def search(self, feed: Feed, n_best: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """See `pipeline.Engine`."""
        settings = self._decoding
        device = next(self._models[0].parameters()).device
        tokens = CPU_BATCH_TOKENS if settings.batch_tokens == "auto" else settings.batch_tokens
        while batch := feed.take(tokens, wait=True):
            sources = pad_ids([source.ids for source in batch], after=EOS).to(device)
            found = beam_search(
                EnsembleStep([ModelStep(model, sources) for model in self._models]),
                [source.cap for source in batch],
                beam=settings.beam,
                alpha=settings.alpha,
                bos=BOS,
                eos=EOS,
                device=device,
                n_best=n_best,
                min_length=settings.min_length,
            )
            yield from zip((source.number for source in batch), found, strict=True)


class EnsembleStep:
    """Several step functions as one: the mean of their probabilities."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    def __call__(self, ids: Tensor, parents: Tensor | None, sentences: Tensor | None) -> Tensor:
        """See `search.Step`."""
        log_probs = torch.stack([step(ids, parents, sentences) for step in self._steps])
        return log_probs.logsumexp(0) - math.log(len(self._steps))


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
