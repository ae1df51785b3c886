"""The modules of our Transformer's stacks, with their names in transformers and in CTranslate2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nmt.recipe import Model

LAYER = (  # of one layer: the modules of transformers that hold the rows of ours in turn, and the scope in CTranslate2
    ("attention.qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attention/linear_0"),
    ("attention.out", ("self_attn.out_proj",), "self_attention/linear_1"),
    ("attention_residual.norm", ("self_attn_layer_norm",), "self_attention/layer_norm"),
    ("cross.query", ("encoder_attn.q_proj",), "attention/linear_0"),
    ("cross.key_value", ("encoder_attn.k_proj", "encoder_attn.v_proj"), "attention/linear_1"),
    ("cross.out", ("encoder_attn.out_proj",), "attention/linear_2"),
    ("cross_residual.norm", ("encoder_attn_layer_norm",), "attention/layer_norm"),
    ("feed_forward.inner", ("fc1",), "ffn/linear_0"),
    ("feed_forward.outer", ("fc2",), "ffn/linear_1"),
    ("feed_forward_residual.norm", ("final_layer_norm",), "ffn/layer_norm"),
)
READING = ("attention.qkv", "cross.query", "cross.key_value", "feed_forward.inner")


class Module(NamedTuple):
    """A module of a stack."""

    name: str
    transformers: list[str]
    """Modules that hold its rows in turn"""
    ctranslate2: str
    """Scope in a specification"""
    reads: bool
    """Whether it reads states, so that the columns of its weight are in their order; else it writes them by rows"""
    has_bias: bool


def modules(config: Model) -> Iterator[Module]:
    """Yield the modules of both stacks."""
    for side, depth in (("encoder", config.layers), ("decoder", config.decoder_depth)):
        for index in range(depth):
            for name, theirs, scope in LAYER:
                if side == "decoder" or not name.startswith("cross"):
                    paths = [f"model.{side}.layers.{index}.{each}" for each in theirs]
                    has_bias = config.attention_bias or name.endswith("norm") or name.startswith("feed_forward")
                    place = f"{side}/layer_{index}/{scope}"
                    yield Module(f"{side}.{index}.{name}", paths, place, name in READING, has_bias)
        if config.norm == "pre":
            yield Module(f"{side}_norm", [f"model.{side}.layer_norm"], f"{side}/layer_norm", False, True)
