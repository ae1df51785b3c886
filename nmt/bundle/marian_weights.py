"""The weights of a `MarianMTModel` as ours, so that both compute the same logits.

- Their sinusoids are all sines, then all cosines; ours alternate. So all that reads or writes the residual stream is
  permuted.
- They begin outputs with the row of `<pad>`, or of another symbol that the configuration names. Our `<s>` gets a copy
  of that row, and an output bias so low that it never comes.
- Without `scale_embedding`, embeddings are divided by √d_model, by which ours are multiplied, and if they are the
  softmax matrix as well, the states that it reads are multiplied by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.bundle.folder import NUMBERS, read_numbers
from nmt.errors import UserError
from nmt.files import remedy
from nmt.recipe import Model
from nmt.text.marian import ABSENT

if TYPE_CHECKING:
    from torch import Tensor

LAYER = {  # a module of one of our layers: the modules of theirs that its rows are shared out to
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.out_proj",),
    "attention_residual.norm": ("self_attn_layer_norm",),
    "cross.query": ("encoder_attn.q_proj",),
    "cross.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.out": ("encoder_attn.out_proj",),
    "cross_residual.norm": ("encoder_attn_layer_norm",),
    "feed_forward.inner": ("fc1",),
    "feed_forward.outer": ("fc2",),
    "feed_forward_residual.norm": ("final_layer_norm",),
}
READING = ("attention.qkv", "cross.query", "cross.key_value", "feed_forward.inner")
"""Modules whose columns belong to the numbers of a state; of the others these are the rows."""
NEVER = -100.0
"""What is added to the logit of a symbol that cannot come: e^-100 of a probability is nothing in fp32."""


def convert(
    path: Path, config: Model, origins: tuple[Sequence[int], Sequence[int]], start: int, scaled: bool
) -> dict[str, Tensor]:
    """Read a file of weights and return ours, by name, in fp32.

    `origins` are the rows of theirs for our ids of source and target, `ABSENT` where there is none; `start` is the row
    that outputs begin with, and `scaled` whether their embeddings are multiplied by √d_model. Their file is only mapped
    into memory. Raises UserError if a weight is missing, has another shape or cannot be one, or if there are others.
    """
    theirs = _Tensors(path)
    found = _embeddings(theirs, config, *origins, start)
    for side, depth in (("encoder", config.layers), ("decoder", config.decoder_depth)):
        for index in range(depth):
            found |= _layer(theirs, f"{side}.{index}", f"model.{side}.layers.{index}", config, side == "decoder")
        if config.norm == "pre":
            found |= _norm(theirs, f"{side}_norm", f"model.{side}.layer_norm", config.d_model)
    if not scaled:
        _unscale(found, config)
    theirs.check_rest(config.d_model)
    return {name: weight.float().contiguous() for name, weight in found.items()}


class _Tensors:
    """The tensors of a file, each of which is taken once."""

    def __init__(self, path: Path) -> None:
        self._path, self._tensors = path, read_numbers(path, NUMBERS)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor in its own type; raises UserError if it is missing or has another shape."""
        if name not in self._tensors:
            raise UserError(f"{self._path}: lacks the weight {name}", remedy(self._path))
        tensor = self._tensors.pop(name)
        if tuple(tensor.shape) != shape:
            raise UserError(
                f"{self._path}: weight {name} has shape {list(tensor.shape)}, but {list(shape)} by config.json",
                "take both files from the same copy of the model",
            )
        return tensor

    def take_one(self, names: Sequence[str], *shape: int) -> Tensor:
        """Return a matrix that is stored under one or more of these names; raises UserError if two differ."""
        stored = [name for name in names if name in self] or list(names[:1])
        matrix, *copies = [self.take(name, *shape) for name in stored]
        for name, copy in zip(stored[1:], copies, strict=True):
            if not copy.equal(matrix):
                raise UserError(
                    f"{self._path}: {stored[0]} and {name} differ, but are one matrix by config.json",
                    "correct tie_word_embeddings and share_encoder_decoder_embeddings there",
                )
        return matrix

    def check_rest(self, d_model: int) -> None:
        """Raise UserError if there are tensors left, except for the sinusoids of positions."""
        from nmt.model.layers import sinusoids

        for name, tensor in self._tensors.items():
            fits = name.endswith(".embed_positions.weight") and tensor.dim() == 2 and tensor.size(1) == d_model
            # Only a table of this width is computed: without columns, billions of rows take no byte of a file.
            if not fits or not tensor.float().allclose(
                sinusoids(len(tensor), d_model)[:, _order(d_model).argsort()], atol=1e-3
            ):
                raise UserError(
                    f"{self._path}: holds {name}, which is not as in Marian's models",
                    "use one of the OPUS-MT collection",
                )


def _order(d_model: int) -> Tensor:
    """Return where each number of a state of ours, a sine or a cosine in turn, stands in theirs: (d_model,)."""
    import torch

    return torch.arange(d_model).view(2, -1).T.flatten()


def _embeddings(
    theirs: _Tensors, config: Model, source: Sequence[int], target: Sequence[int], start: int
) -> dict[str, Tensor]:
    """Return the matrices of source, target and softmax, and the bias of the softmax."""
    inputs = [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    both, softmax = "model.shared.weight", "lm_head.weight"
    rows = [sum(origin != ABSENT for origin in side) for side in (source, target)]
    width, found = config.d_model, {}
    if config.tie_embeddings == "all" or both in theirs:
        names = [both, *inputs, *([softmax] if config.tie_embeddings == "all" else [])]
        matrices = [theirs.take_one(names, rows[0], width)] * 2
    else:
        tied = [softmax] if config.tie_embeddings == "target" else []
        matrices = [
            theirs.take_one(names, size, width)
            for names, size in zip(([inputs[0]], [inputs[1], *tied]), rows, strict=True)
        ]
    found["source_embedding.weight"] = _select(matrices[0], source, start)
    if config.tie_embeddings != "all":
        found["target_embedding.weight"] = _select(matrices[1], target, start)
    if config.tie_embeddings == "none":
        found["output_embedding.weight"] = _select(theirs.take(softmax, rows[1], width), target, start)
    name = "final_logits_bias"
    bias = theirs.take(name, 1, rows[1])[0].float() if name in theirs else matrices[1].new_zeros(rows[1]).float()
    if config.output_bias:
        added = bias.new_tensor([NEVER if origin == ABSENT else 0.0 for origin in target])
        found["output_bias"] = bias[_rows(target, start)] + added
    return found


def _rows(origins: Sequence[int], start: int) -> Tensor:
    """Return the row of theirs for each of our ids, that of `start` for those that have none."""
    import torch

    return torch.tensor([start if origin == ABSENT else origin for origin in origins])


def _select(matrix: Tensor, origins: Sequence[int], start: int) -> Tensor:
    """Return the rows of our ids, with the numbers of a state in our order."""
    index = _rows(origins, min(start, len(matrix) - 1))
    return matrix[index].index_select(1, _order(matrix.size(1)))


def _layer(theirs: _Tensors, ours: str, name: str, config: Model, has_cross: bool) -> dict[str, Tensor]:
    """Return the weights of a layer whose names begin with `ours` from those whose names begin with `name`."""
    import torch

    width, order = config.d_model, _order(config.d_model)
    found: dict[str, Tensor] = {}
    for module, parts in LAYER.items():
        if module.startswith("cross") and not has_cross:
            continue
        part, is_inner = f"{ours}.{module}", module.startswith("feed_forward.")
        if module.endswith("norm"):
            found |= _norm(theirs, part, f"{name}.{parts[0]}", width)
            continue
        shape = (config.d_ff if is_inner else width, width)
        shape = shape if module in READING else shape[::-1]
        weight = torch.cat([theirs.take(f"{name}.{each}.weight", *shape) for each in parts])
        bias = torch.cat([theirs.take(f"{name}.{each}.bias", shape[0]) for each in parts])
        found[f"{part}.weight"] = weight[:, order] if module in READING else weight[order]
        if is_inner or config.attention_bias:
            found[f"{part}.bias"] = bias if module in READING else bias[order]
    return found


def _norm(theirs: _Tensors, ours: str, name: str, width: int) -> dict[str, Tensor]:
    order = _order(width)
    return {f"{ours}.{kind}": theirs.take(f"{name}.{kind}", width)[order] for kind in ("weight", "bias")}


def _unscale(found: dict[str, Tensor], config: Model) -> None:
    """Let embeddings that our model multiplies by √d_model be as large as those that theirs takes as they are."""
    scale = math.sqrt(config.d_model)
    for name in ("source_embedding.weight", "target_embedding.weight"):
        if name in found:
            found[name] = found[name] / scale
    if config.tie_embeddings != "none":  # the softmax reads nothing but what this norm writes
        last = f"decoder.{config.decoder_depth - 1}.feed_forward_residual.norm"
        last = last if config.norm == "post" else "decoder_norm"
        for name in (f"{last}.weight", f"{last}.bias"):
            found[name] = found[name].double() * scale
