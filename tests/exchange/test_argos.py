"""Packages for Argos Translate: what is in the zip, that it replaces an older one, and what is refused."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from marian_folders import write_model, write_tokenizer
from random_bundle import random_bundle, sentence
from reverse_task import names, reseal

from nmt.checkpoint.reading import Bundle
from nmt.exchange.ctranslate2 import export_package as export
from nmt.recipe import Decoding
from nmt.system.errors import UserError

ctranslate2 = pytest.importorskip("ctranslate2")

TEXTS = [*map(sentence, range(30)), "Ein Hund bellt 😀"]


def install(package: Path, folder: Path) -> Path:
    """Unpack a package as Argos Translate does; returns the one folder."""
    with zipfile.ZipFile(package) as file:
        (name,) = {member.split("/")[0] for member in file.namelist()}
        file.extractall(folder)
    return folder / name


def translations(model: Path, tokenizer: Path, texts: list[str], decoder: Path | None = None) -> list[str]:
    encoder = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer))
    decode = sentencepiece.SentencePieceProcessor(model_file=str(decoder)).decode_pieces if decoder else None
    found = ctranslate2.Translator(str(model), intra_threads=1).translate_batch(
        encoder.encode(texts, out_type=str), beam_size=4, length_penalty=0.2, max_decoding_length=40
    )
    texts = [(decode or encoder.decode_pieces)(each.hypotheses[0]) for each in found]
    return [text.replace("\u2581", " ").strip() for text in texts]  # as Argos Translate does


@pytest.mark.parametrize("shared", [True, False])
def test_a_package_translates_as_the_export_for_ctranslate2(
    nmt: Callable[..., Any], tmp_path: Path, shared: bool
) -> None:
    info = {"scores": {"bleu": 33.25, "perplexity": 4.5}}
    bundle = random_bundle(tmp_path / "bundle", shared, info=info, tie_embeddings="all" if shared else "target")
    package, plain = tmp_path / "en_de.argosmodel", tmp_path / "plain"
    done = nmt("average", bundle.path, "--format", "argos", "--out", package, "--license", "CC-BY-4.0")
    assert done.code == 0, done.err
    assert f"exported for Argos Translate and LibreTranslate, in int8: {package}; " in done.err
    assert nmt("average", bundle.path, "--format", "ctranslate2", "--quantization", "int8", "--out", plain).code == 0

    folder = install(package, tmp_path / "packages")
    assert folder.name == "nmt-en_de-random"
    assert names(folder) == ["README.md", "metadata.json", "model", "sentencepiece.model"]
    assert names(folder / "model") == ["config.json", "model.bin", "source_vocabulary.json", "target_vocabulary.json"]
    assert json.loads((folder / "metadata.json").read_text()) == {
        "package_version": date.today().strftime("%Y.%m.%d"),
        "argos_version": "1.9.0",
        "from_code": "en",
        "from_name": "English",
        "to_code": "de",
        "to_name": "German",
    }
    readme = (folder / "README.md").read_text()
    for row in ("| dev bleu | 33.25 |", "| train data | `a.en`, `b.de` |", "| licence | cc-by-4.0 |"):
        assert row in readme
    encoder, decoder = ("tokenizer.model", None) if shared else ("source.model", plain / "target.model")
    theirs = translations(plain, plain / encoder, TEXTS, decoder)
    assert translations(folder / "model", folder / "sentencepiece.model", TEXTS) == theirs
    assert len(set(theirs)) > 5


def test_inputs_as_long_as_argos_translate_takes_them_have_positions(tmp_path: Path) -> None:
    bundle = random_bundle(tmp_path / "bundle", decoding=Decoding(max_source=70, max_extra=9))
    export(bundle, tmp_path / "en_de.argosmodel", "float32", None)
    folder = install(tmp_path / "en_de.argosmodel", tmp_path)
    assert translations(folder / "model", folder / "sentencepiece.model", ["tree house " * 2000]) != [""]


def test_a_newer_package_replaces_an_older_one_with_another_vocabulary(tmp_path: Path) -> None:
    found = []
    for shared in (True, False):
        bundle = random_bundle(tmp_path / f"{shared}", shared, tie_embeddings="target")
        export(bundle, tmp_path / "en_de.argosmodel", "int8", None)
        for place in (tmp_path / f"alone {shared}", tmp_path / "both"):
            folder = install(tmp_path / "en_de.argosmodel", place)
            found.append(translations(folder / "model", folder / "sentencepiece.model", TEXTS))
    assert found[0] == found[1] != found[2] == found[3]
    assert len(names(tmp_path / "both")) == 1


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("pt-BR", "zh-Hant", ("pb", "Portuguese (Brazil)", "zt", "Chinese (traditional)")),
        ("pt_BR", "zho_Hant", ("pb", "Portuguese (Brazil)", "zt", "Chinese (traditional)")),
        ("zh", "hsb", ("zh", "Chinese", "hsb", "hsb")),
        ("../../en", "/de", ("../../en", "../../en", "/de", "/de")),
    ],
)
def test_languages_have_the_codes_of_libretranslate(
    tmp_path: Path, source: str, target: str, expected: tuple[str, ...]
) -> None:
    bundle = random_bundle(tmp_path / "bundle")
    data = bundle.recipe.data.model_copy(update={"source": source, "target": target})
    (bundle.path / "recipe.yaml").write_text(bundle.recipe.model_copy(update={"data": data}).to_yaml())
    reseal(bundle.path)
    export(Bundle.read(bundle.path), tmp_path / "package.argosmodel", "int8", None)
    folder = install(tmp_path / "package.argosmodel", tmp_path / "packages")  # one folder, whatever the codes
    metadata = json.loads((folder / "metadata.json").read_text())
    assert tuple(metadata[key] for key in ("from_code", "from_name", "to_code", "to_name")) == expected
    assert folder.name.startswith("nmt-")


def test_a_model_from_opus_mt_keeps_the_tokenizer_of_its_sources(nmt: Callable[..., Any], tmp_path: Path) -> None:
    opus = tmp_path / "opus-mt-en-de"
    opus.mkdir()
    size = write_tokenizer(opus, [sentence(seed) for seed in range(50)], [sentence(seed) for seed in range(50)], 60)
    write_model(opus, size)
    assert nmt("average", opus, "--weights", "1", "--out", tmp_path / "bundle").code == 0
    export(Bundle.read(tmp_path / "bundle"), tmp_path / "en_de.argosmodel", "int8", None)
    folder = install(tmp_path / "en_de.argosmodel", tmp_path)
    assert (folder / "sentencepiece.model").read_bytes() == (opus / "source.spm").read_bytes()
    assert len(set(translations(folder / "model", folder / "sentencepiece.model", TEXTS))) > 1


@pytest.mark.parametrize("problem", ["damaged", r"up to 1,024 subwords, but model\.max_positions is 512"])
def test_an_export_that_fails_leaves_the_older_package(tmp_path: Path, problem: str) -> None:
    shape = {} if problem == "damaged" else {"positions": "learned", "max_positions": 512}
    bundle = random_bundle(tmp_path / "bundle", **shape)
    (tmp_path / "en_de.argosmodel").write_text("older")
    if not shape:
        (bundle.path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=problem):
        export(bundle, tmp_path / "en_de.argosmodel", "int8", None)
    assert names(tmp_path) == ["bundle", "en_de.argosmodel"]
    assert (tmp_path / "en_de.argosmodel").read_text() == "older"
