"""Bundles and checkpoints: saved models. What other packages use is imported from here."""

from nmt.bundle.folder import (
    CHECKPOINT,
    LARGEST_FIGURE,
    MANIFEST,
    POSITION,
    WEIGHTS,
    Bundle,
    NewerFormat,
    add_info,
    load_weights,
    new_model,
    read_tensors,
    save_bundle,
)
from nmt.bundle.runs import (
    AVERAGED,
    Mean,
    average,
    averageable,
    best,
    checkpoint_folders,
    checkpoint_path,
    checkpoints,
    common_tokenizer,
    initial_bundle,
    mix,
    prune,
    ranked,
    resolve,
    survey,
    with_model_of,
)
