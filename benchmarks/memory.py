"""Numbers that a layer keeps for the backward pass, per pair of a source and a target token, beside the plan's formula.

python benchmarks/memory.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.model.batch import Batch
from nmt.model.transformer import Transformer
from nmt.recipe import Model
from nmt.training.loss import Objective
from nmt.training.plan import kept_per_token

VOCABULARY, SENTENCES, LENGTH = 1000, 8, 32


def kept(config: Model) -> float:
    """Numbers kept by a forward pass, per pair of tokens; parameters are not counted."""
    model = Transformer(config, VOCABULARY, VOCABULARY)
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.randint(4, VOCABULARY, (SENTENCES, LENGTH))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        _loss, _nll = Objective(model, 0.1)(Batch(ids, ids, ids, torch.arange(ids.numel())))
    return sum(storages.values()) / 4 / ids.numel()


def main() -> None:
    """Prints a line per model, for a layer of the encoder and one of the decoder together."""
    for d_model, d_ff, activation in (
        (256, 1024, "relu"),
        (512, 2048, "relu"),
        (512, 512, "relu"),
        (512, 2048, "silu"),
    ):
        config = {"d_model": d_model, "d_ff": d_ff, "activation": activation}
        one, two = (Model.model_validate({"layers": layers, **config}) for layers in (1, 2))
        counted, planned = kept(two) - kept(one), kept_per_token(two) - kept_per_token(one)
        print(f"d_model {d_model}, d_ff {d_ff}, {activation}: {counted:,.0f} numbers a layer pair, planned {planned:,}")


if __name__ == "__main__":
    main()
