"""Padded batches of sentences that a test writes."""

from __future__ import annotations

from nmt.model.batch import Batch, pad_ids
from nmt.text.vocabulary import BOS, EOS

Ids = list[list[int]]


def padded(sources: Ids | None, targets: Ids) -> Batch:
    """Pairs as a padded batch; without sources, sentences of a language model."""
    out = pad_ids(targets, after=EOS)
    real = out.flatten().nonzero().squeeze(1)
    return Batch(None if sources is None else pad_ids(sources, after=EOS), pad_ids(targets, before=BOS), out, real)
