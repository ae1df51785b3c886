"""Dev perplexity and dev BLEU of a model in training."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nmt.data.batches import make_batch, split_update
from nmt.data.corpus import Corpus
from nmt.data.epochs import plan_epoch
from nmt.decoding.forced import token_log_probabilities
from nmt.decoding.translator import Translator
from nmt.metrics.translation import score
from nmt.model import likelihood
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Training
from nmt.text.linear import TreeVocabulary
from nmt.text.tokenizer import Tokenizer
from nmt.training.distributed import Group

VALID_TOKENS = 4096  # padded, per side of a batch


@dataclass(frozen=True)
class DevScores:
    """How good the model is on the development set."""

    perplexity: float
    """Per target subword, `</s>` counted, from the unsmoothed negative log-likelihood."""
    score: float | None
    """sacreBLEU of the raw text, searched by the recipe's own decoding settings; None of trees."""
    signature: str


class Validation:
    """The development set and how to score a model on it; the ranks of a group share the work."""

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, training: Training, decoding: Decoding, group: Group
    ) -> None:
        self._corpus, self._tokenizer, self._group = corpus, tokenizer, group
        self._decoding = decoding.model_copy(update={"beam": training.valid_beam or decoding.beam})
        self._sources, self._references = corpus.texts()

    def __call__(self, model: Transformer) -> DevScores:
        """Scores the model as it is; it is back in its mode afterwards."""
        was_training = model.training
        model.eval()
        try:
            with torch.compiler.set_stance("force_eager"):  # search has shapes of its own, a graph each
                if isinstance(self._tokenizer.target, TreeVocabulary):
                    return DevScores(perplexity(model, self._corpus, self._group), None, "")
                hypotheses = self._translate(model)
                bleu = score(hypotheses, [self._references], ["bleu"])["bleu"]
                return DevScores(perplexity(model, self._corpus, self._group), bleu.score, bleu.signature)
        finally:
            model.train(was_training)

    def _translate(self, model: Transformer) -> list[str]:
        rank, size = self._group.rank, self._group.size
        own = Translator(model, self._tokenizer, self._decoding).translate(self._sources[rank::size])
        hypotheses = [""] * len(self._sources)
        for other, texts in enumerate(self._group.gather(own)):
            hypotheses[other::size] = texts
        return hypotheses


@torch.no_grad()
def perplexity(model: Transformer, corpus: Corpus, group: Group) -> float:
    """Exponential of the mean negative log-likelihood of the corpus's target subwords, `</s>` counted."""
    device = next(model.parameters()).device
    sources, targets = corpus.source_lengths, corpus.target_lengths
    plan = plan_epoch(sources, targets, max(VALID_TOKENS, corpus.longest() + 1), seed=0, epoch=0)
    nll = tokens = 0.0
    for update in range(group.rank, len(plan), group.size):
        rows = plan.rows(update)
        for part in split_update(sources[rows], targets[rows], VALID_TOKENS):
            batch = make_batch(corpus, rows[part]).to(device)
            nll -= float(token_log_probabilities([model], batch).sum(dtype=torch.float64))
            tokens += batch.num_tokens
    nll, tokens = group.total(nll, tokens)
    return likelihood.perplexity(nll, tokens)
