"""Models beside Marian, those that it trains and those that we export, in an environment of its own.

Skipped where `make test-slow` could not install it.
"""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from random_bundle import sentence, tokenizer_of_words, write_bundle
from reference_search import random_model

from nmt.checkpoint.reading import Bundle
from nmt.exchange.resolve import resolve
from nmt.exchange.to_marian import export
from nmt.recipe import Decoding
from nmt.search.beam import SearchEngine
from nmt.search.sources import Pool, Source
from nmt.text.vocabulary import BOS, EOS

PYTHON = Path(__file__).parents[2] / ".venv-marian/bin/python"
RUN = "import sys, _pymarian; sys.exit(_pymarian.main(sys.argv[1:]))"
LINES = [sentence(seed) for seed in range(1000, 1200)]
FACTOR = 3  # --max-length-factor: symbols of an output for one of its source, `</s>` included
KINDS = {
    "one matrix": "--tied-embeddings-all --vocabs v.spm v.spm --dim-vocabs 120 120",
    "two vocabularies": "--tied-embeddings --vocabs s.spm t.spm --dim-vocabs 60 60 --transformer-depth-scaling "
    "--transformer-ffn-activation relu",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs pymarian in .venv-marian: make test-slow"),
]


class Pile:
    """A queue that holds all its sources from the beginning."""

    def __init__(self, sources: list[Source]) -> None:
        self._pool = Pool(sources)

    def take_sources(self, tokens: int, wait: bool) -> list[Source]:
        return self._pool.take_sources(tokens, at_least=int(wait))


def marian(folder: Path, command: str) -> None:
    done = subprocess.run([PYTHON, "-c", RUN, *command.split()], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def check_outputs(bundle: Bundle, folder: Path, beam: int, tolerance: float) -> None:
    """Outputs of 200 lines and their log-probabilities are Marian's; where outputs differ, ours are as probable.

    Marian's beam has one place less after each output that ends, so that ours may find a better one.
    """
    (folder / "lines").write_text("".join(f"{line}\n" for line in LINES))
    options = f"--cpu-threads 1 --mini-batch 1 --beam-size {beam} --normalize 0 --word-penalty 0 --n-best"
    decoder = next(folder.glob("*decoder.yml")).name
    marian(folder, f"decode --config {decoder} {options} --max-length-factor {FACTOR} --input lines --output found")
    best: dict[int, tuple[str, float]] = {}
    for line in (folder / "found").read_text().splitlines():
        fields = line.split(" ||| ")
        best.setdefault(int(fields[0]), (fields[1], float(fields[3])))
    tokenizer = bundle.tokenizer()
    encoded = tokenizer.source.encode_all(LINES)
    sources = [Source(n, ids, math.ceil(FACTOR * (len(ids) + 1))) for n, ids in enumerate(encoded)]
    engine = SearchEngine([bundle.model(torch.device("cpu"))], Decoding(beam=beam, alpha=0.0, precision="fp32"))
    same = 0
    for number, (found, *_) in engine.search(Pile(sources), 1):
        text, score = best[number]
        rounding = max(tolerance, 5e-5 * abs(score))  # Marian prints six digits, and both add up in fp32
        assert found.score >= score - rounding
        if text == tokenizer.target.decode(found.ids):
            assert found.score <= score + rounding
            same += 1
    assert same > 190
    assert len({text for text, _ in best.values()}) > 20


@pytest.fixture(scope="module", params=list(KINDS.values()), ids=list(KINDS))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that Marian has trained for 500 updates."""
    folder = tmp_path_factory.mktemp("marian")
    pairs = [(sentence(seed), sentence(seed).upper()) for seed in range(1000)]
    for side, name in enumerate(("source", "target")):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    shape = (
        "--type transformer --dim-emb 64 --enc-depth 2 --dec-depth 2 --transformer-heads 4 --transformer-dim-ffn 128"
    )
    updates = "--after-batches 500 --mini-batch 16 --learn-rate 0.002 --lr-warmup 100 --label-smoothing 0.1"
    machine = (
        "--cpu-threads 1 --workspace 256 --seed 1 --max-length 100 --sentencepiece-options=--hard_vocab_limit=false"
    )
    marian(folder, f"train --model model.npz --train-sets source target {shape} {updates} {machine} {request.param}")
    for file in folder.glob("model.iter*"):
        file.unlink()
    return folder


@pytest.mark.parametrize("beam", [1, 4])
def test_a_model_that_marian_trained_translates_as_there(trained: Path, beam: int) -> None:
    check_outputs(resolve(trained)[0], trained, beam, 1e-4)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize(
    "shape", [{"tie_embeddings": "all"}, {"tie_embeddings": "none", "activation": "silu", "decoder_layers": 1}]
)
def test_our_exports_translate_as_here(tmp_path: Path, shape: dict[str, Any], beam: int) -> None:
    shared = shape["tie_embeddings"] == "all"
    tokenizer = tokenizer_of_words(shared)
    model = random_model(len(tokenizer.source), len(tokenizer.target), EOS, 2.0, 3, positions="marian", **shape)
    with torch.no_grad():  # control symbols are unlikely in trained models, and Marian suppresses control characters
        model.output_embedding.weight[: BOS + 1] *= 0.5
        model.output_embedding.weight[EOS + 1 : EOS + 33] *= 0.5
    bundle = write_bundle(tmp_path / "bundle", model, shared)
    export(bundle, tmp_path / "out")
    check_outputs(bundle, tmp_path / "out", beam, 1e-3)  # norms over nearly equal numbers enlarge rounding
