"""Models that transformers writes, beside transformers: logits, greedy outputs, and the round trip of a bundle."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from marian_folders import write_tokenizer

from nmt.exchange.resolve import resolve
from nmt.model.batch import pad_ids
from nmt.text.tokenizer import ABSENT
from nmt.text.vocabulary import BOS, EOS, PAD

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
SHAPES: dict[str, dict[str, Any]] = {
    "as OPUS-MT": {},
    "two vocabularies": {"share_encoder_decoder_embeddings": False, "activation_function": "gelu"},
    "embeddings are not scaled": {"scale_embedding": False, "activation_function": "relu"},
    "no matrix is shared": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
}


def sentences(language: str, count: int) -> list[str]:
    """So many sentences of made-up words."""
    draw = random.Random(language)
    words = ["".join(draw.choices("aeiou" + language * 2 + "nrstlkmb", k=draw.randint(2, 7))) for _ in range(400)]
    return [" ".join(draw.choices(words, k=draw.randint(3, 12))) for _ in range(count)]


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A folder that `save_pretrained` has written, ids laid out as OPUS-MT's, and the model; no weight is 0 or 1."""
    separate = request.param.get("share_encoder_decoder_embeddings") is False
    sizes = write_tokenizer(tmp_path, sentences("en", 3000), sentences("de", 3000), 800, separate)
    config = transformers.MarianConfig(
        **{"vocab_size": sizes[0], "decoder_vocab_size": sizes[1], "d_model": 64, "encoder_layers": 2},
        **{"decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_attention_heads": 4},
        **{"decoder_attention_heads": 4, "max_position_embeddings": 512, "max_length": 512, "num_beams": 1},
        **{"pad_token_id": min(sizes) - 1, "decoder_start_token_id": sizes[1] - 1, "eos_token_id": 0},
        **{"activation_function": "swish", "scale_embedding": True, **request.param},
    )
    torch.manual_seed(1)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.add_(0.1 * torch.randn_like(weight))
            elif "embed_positions" not in name:
                weight.mul_(15.0 if "proj" in name or "fc" in name else 10.0 if config.scale_embedding else 50.0)
        model.final_logits_bias.normal_(std=0.3)
        model.final_logits_bias[0, 0] += 2.0  # so that outputs end
    model.save_pretrained(tmp_path)
    return tmp_path, model


@torch.inference_mode()
def test_logits_are_those_of_transformers(written: tuple[Path, Any]) -> None:
    folder, theirs = written
    bundle, _ = resolve(folder)
    tokenizer, model = bundle.tokenizer(), bundle.model(torch.device("cpu"))
    source = pad_ids(tokenizer.source.encode_all(sentences("en", 40)), after=EOS)
    target_in = pad_ids(tokenizer.target.encode_all(sentences("de", 40)), before=BOS)
    inputs, outputs = (torch.tensor(side.origins) for side in (tokenizer.source, tokenizer.target))
    known = outputs != ABSENT
    begin = torch.where(known, outputs, theirs.config.decoder_start_token_id)
    found = theirs(input_ids=inputs[source], attention_mask=source != PAD, decoder_input_ids=begin[target_in]).logits
    words = target_in != PAD
    difference = model(source, target_in)[words][:, known] - found[words][:, outputs[known]]
    assert float(difference.abs().max()) < 1e-4
