"""What a run trains and a checkpoint holds: a model, its optimizer, and how many updates both have had."""

from __future__ import annotations

import torch

from nmt.compute.choice import dtype_of, for_training, training_precision
from nmt.data.augment import Augmenter
from nmt.data.corpus import Corpus
from nmt.model.transformer import Transformer, computed_by
from nmt.recipe import Training
from nmt.training.loss import Objective, compile_parts
from nmt.training.optimizer import Optimizer
from nmt.training.run_state import RunState


class Learner:
    """A model with its loss and its optimizer, the corpus that it learns from, and the state of its run."""

    def __init__(self, model: Transformer, corpus: Corpus, settings: Training, device: torch.device) -> None:
        """Begin anew with the weights of `model`; compile it if `settings` ask for that, by default on a GPU."""
        on_gpu = device.type == "cuda"
        self.is_compiled = on_gpu if settings.compile is None else settings.compile
        self.precision = training_precision(settings.precision, device, model.config.d_model)
        self.dtype = dtype_of(self.precision)
        self.model = computed_by(model, for_training(device, self.dtype, compiled=self.is_compiled))
        self.objective = Objective(self.model, settings.label_smoothing)
        if self.is_compiled:
            compile_parts(self.objective)
        self.optimizer = Optimizer(self.model, model.config.d_model, settings)
        self.corpus = corpus
        self.augmenter: Augmenter | None = None
        self.settings = settings
        self.state = RunState(step=0, epoch=0, offset=0)
