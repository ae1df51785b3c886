"""Padded batches of sentences that a test writes."""

from __future__ import annotations

from nmt.model.batch import Batch, pad_ids
from nmt.text.vocabulary import BOS, EOS

Ids = list[list[int]]


def padded(sources: Ids, targets: Ids) -> Batch:
    """Pairs as a padded batch."""
    out = pad_ids(targets, after=EOS)
    real = out.flatten().nonzero().squeeze(1)
    return Batch(pad_ids(sources, after=EOS), pad_ids(targets, before=BOS), out, real)
