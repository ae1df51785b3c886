"""Dev perplexity and dev BLEU of a model in training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from nmt.data.batches import make_batch, plan_epoch, split_update
from nmt.data.corpus import Corpus
from nmt.decoding.translator import Translator
from nmt.metrics.translation import score
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Training
from nmt.text.tokenizer import Tokenizer
from nmt.training.loss import Objective

VALID_TOKENS = 4096  # padded, per side of a batch


@dataclass(frozen=True)
class DevScores:
    """How good the model is on the development set."""

    perplexity: float
    """Per target subword, `</s>` counted, from the unsmoothed negative log-likelihood."""
    bleu: float
    """sacreBLEU of the raw text, searched by the recipe's own decoding settings."""
    signature: str


class Validation:
    """The development set and how to score a model on it."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, training: Training, decoding: Decoding) -> None:
        self._corpus = corpus
        self._tokenizer = tokenizer
        self._decoding = decoding.model_copy(update={"beam": training.valid_beam or decoding.beam})
        self._sources, self._references = corpus.texts()

    def __call__(self, model: Transformer) -> DevScores:
        """Scores the model as it is; it is back in its mode afterwards."""
        was_training = model.training
        model.eval()
        try:
            hypotheses = Translator(model, self._tokenizer, self._decoding).translate(self._sources)
            bleu = score(hypotheses, [self._references], ["bleu"])["bleu"]
            return DevScores(perplexity(model, self._corpus), bleu.score, bleu.signature)
        finally:
            model.train(was_training)


@torch.no_grad()
def perplexity(model: Transformer, corpus: Corpus) -> float:
    """Exponential of the mean negative log-likelihood of the corpus's target subwords, `</s>` counted."""
    objective = Objective(model, smoothing=0.0)
    device = next(model.parameters()).device
    sources, targets = corpus.source_lengths, corpus.target_lengths
    longest = int(max(sources.max(), targets.max())) + 1
    plan = plan_epoch(sources, targets, max(VALID_TOKENS, longest), seed=0, epoch=0)
    total, tokens = 0.0, 0
    for update in range(len(plan)):
        for rows in split_update(plan.rows(update), sources, targets, VALID_TOKENS):
            batch = make_batch(corpus, rows).to(device)
            total += float(objective(batch)[1])
            tokens += batch.num_tokens
    return math.exp(min(total / tokens, 700.0))  # e^700 is about the largest float
