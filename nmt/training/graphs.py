"""torch.compile of what takes time in training, with few graphs for shapes of any size."""

from __future__ import annotations

import logging

import torch

from nmt.console import Console
from nmt.training.loss import Objective

LIMIT = 16  # graphs of a part; usual data needs three, batches of one sentence and windows some more


def compile_parts(objective: Objective, console: Console, backend: str = "inductor") -> None:
    """Compiles embedding, layers and softmax for inputs of any size; layers of a stack share their graphs.

    Whoever watches is told when a part has so many graphs that further shapes are not compiled.
    """
    _allow_any_size()
    logging.getLogger("torch._dynamo.convert_frame").addFilter(_LimitNotice(console))
    model = objective.model
    for part in (model.embed, *model.encoder, *model.decoder):
        part.compile(dynamic=True, backend=backend)
    # Without dynamic=True, sizes are dynamic once they have changed: the number of tokens, never the vocabulary.
    objective.softmax = torch.compile(objective.softmax, backend=backend)


def _allow_any_size() -> None:
    """Makes graphs hold for more shapes, and allows as many as are needed for the rest."""
    dynamo, inductor = torch._dynamo.config, torch._inductor.config
    # Otherwise DistributedDataParallel has every layer cut into one graph per bucket of gradients. It exchanges buckets
    # whenever they are full, and each layer is compiled on its own, so backward passes overlap the exchange anyway.
    dynamo.optimize_ddp = False
    dynamo.recompile_limit = max(dynamo.recompile_limit, LIMIT)
    # Otherwise a graph made for a source as long as its target holds for no other.
    torch.fx.experimental._config.use_duck_shape = False
    # Otherwise small micro-batches get graphs of their own, in which two sums of a LayerNorm's gradient are not fused.
    inductor.triton.mix_order_reduction_non_strict_mode = True


class _LimitNotice(logging.Filter):
    """Says in our words, and once, what PyTorch warns of when a part has too many graphs."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console, self._said = console, False

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith("torch._dynamo hit config"):
            return True
        if not self._said:
            self._said = True
            self._console.say(
                f"torch.compile: a part of the model has {torch._dynamo.config.recompile_limit} graphs already; "
                "batches of other shapes are computed without it, which is slower"
            )
        return False
