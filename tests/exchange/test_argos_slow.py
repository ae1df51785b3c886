"""Packages as LibreTranslate's fork of Argos Translate installs and runs them, in an environment of its own.

Skipped where `make test-slow` could not install it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from random_bundle import random_bundle
from reverse_task import names, shell

from nmt import Translator
from nmt.checkpoint.reading import Bundle
from nmt.exchange import ctranslate2

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-argos/bin/python"
SETTINGS = {
    "one vocabulary": "",
    "two vocabularies": "--set tokenizer.shared=false --set tokenizer.vocab_size=800 --set model.tie_embeddings=target",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs argos-translate-lt in .venv-argos: make test-slow"),
]


def run(home: Path, lines: list[str], *packages: Path) -> dict[str, Any]:
    """Install packages and translate lines; $XDG_DATA_HOME is `home`, and only the index there is known."""
    index = home / "argos-translate/index.json"
    if not index.exists():
        index.parent.mkdir(parents=True)
        official = {"package_version": "1.9", "from_code": "en", "to_code": "de", "type": "translate"}
        index.write_text(json.dumps([official]))  # without a link, so that an update to it fails
    done = subprocess.run(
        [PYTHON, ROOT / "tests/support/argos_packages.py", "en", "de", *packages],
        env={**os.environ, **dict.fromkeys(("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(home))},
        input="\n".join(lines).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module", params=SETTINGS.values(), ids=SETTINGS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a translator's run of 400 updates, with its texts."""
    folder = tmp_path_factory.mktemp("trained")
    train = f"nmt train {ROOT}/recipes/demo.yaml --set data.root=. --set training.updates=400 {request.param}"
    done = shell(f"python {ROOT}/recipes/demo_corpus.py . && {train}", folder)
    assert done.returncode == 0, done.stderr.decode()
    return folder


def test_texts_are_those_of_ctranslate2_and_of_our_search_by_its_settings(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beam is 4, and its length penalty n^0.2. CTranslate2 stops searching earlier than we do."""
    bundle = Bundle.read(trained / "ckpts/step-00000400")
    lines = (trained / "test.en").read_text(encoding="utf-8").splitlines()
    tokenizer, decoding = bundle.tokenizer(), bundle.recipe.decoding.model_copy(update={"beam": 4, "alpha": 0.2})
    monkeypatch.setattr("nmt.search.beam.length_penalty", lambda length, alpha: length**alpha)
    ours = Translator(bundle.model(torch.device("cpu")), tokenizer, decoding).translate(lines)
    assert len(set(ours)) > 400  # of 500

    ctranslate2.export(bundle, tmp_path / "plain", "float32")
    pieces = [tokenizer.source.pieces(ids) for ids in tokenizer.source.encode_all(lines)]
    found = (
        pytest.importorskip("ctranslate2")
        .Translator(str(tmp_path / "plain"), intra_threads=1)
        .translate_batch(pieces, beam_size=4, length_penalty=0.2, max_batch_size=1)
    )
    ids = {piece: index for index, piece in enumerate(tokenizer.target.listing())}
    plain = [tokenizer.target.decode([ids[piece] for piece in each.hypotheses[0]]) for each in found]

    def differing(texts: list[str], others: list[str]) -> int:
        return sum(one != other for one, other in zip(texts, others, strict=True))

    for quantization in ("float32", "int8"):
        ctranslate2.export_package(bundle, tmp_path / f"{quantization}.argosmodel", quantization, None)
        theirs = run(tmp_path / quantization, lines, tmp_path / f"{quantization}.argosmodel")["texts"]
        print(f"{quantization}: {differing(theirs, plain)} and {differing(theirs, ours)} of {len(lines)} differ")
        assert differing(theirs, plain) <= (2 if quantization == "float32" else 100)
        assert differing(theirs, ours) <= (25 if quantization == "float32" else 100)


def test_a_package_stays_apart_from_others_and_overwrites_its_predecessor(tmp_path: Path) -> None:
    package, official, home = tmp_path / "en_de.argosmodel", tmp_path / "official.argosmodel", tmp_path / "home"
    ctranslate2.export_package(random_bundle(tmp_path / "older", info={"step": 1}), package, "int8", None)
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(official, "w") as new:
        for name in old.namelist():
            new.writestr(name.replace("nmt-en_de-random", "en_de"), old.read(name))
    run(home, [], official, package)
    before = run(home, [])
    assert before["versions"].keys() == {"en_de", "nmt-en_de-random"}
    assert before["languages"] == {"en": "English", "de": "German"}

    ctranslate2.export_package(
        random_bundle(tmp_path / "newer", False, info={"step": 2}, tie_embeddings="none"), package, "int8", "mit"
    )
    shutil.rmtree(home / "argos-translate/packages/en_de")
    after = run(home, ["tree house"], package)
    assert after["used"] == "nmt-en_de-random"
    assert "| licence | mit |" in after["readmes"]["nmt-en_de-random"]
    assert after["texts"] == run(tmp_path / "alone", ["tree house"], package)["texts"]
    installed = home / "argos-translate/packages/nmt-en_de-random/model"
    assert names(installed) == ["config.json", "model.bin", "source_vocabulary.json", "target_vocabulary.json"]
