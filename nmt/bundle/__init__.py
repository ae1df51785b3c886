"""Bundles and checkpoints: saved models. What other packages use is imported from here."""

from nmt.bundle.averages import Mean, average, averageable
from nmt.bundle.reading import (
    CHECKPOINT,
    POSITION,
    Bundle,
    NewerFormat,
    check_numbers,
    is_figure,
    load_weights,
    new_model,
    read_tensors,
)
from nmt.bundle.runs import (
    base,
    best,
    checkpoint_folders,
    checkpoint_path,
    checkpoints,
    common_tokenizer,
    prune,
    ranked,
    resolve,
    survey,
)
from nmt.bundle.writing import add_info, save_bundle

__all__ = [
    "CHECKPOINT",
    "POSITION",
    "Bundle",
    "Mean",
    "NewerFormat",
    "add_info",
    "average",
    "averageable",
    "base",
    "best",
    "check_numbers",
    "checkpoint_folders",
    "checkpoint_path",
    "checkpoints",
    "common_tokenizer",
    "is_figure",
    "load_weights",
    "new_model",
    "prune",
    "ranked",
    "read_tensors",
    "resolve",
    "save_bundle",
    "survey",
]
