"""What data sets say of their languages, against what the model is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from marian_folders import write_m2m, write_model, write_tokenizer
from prepared import OUT, QUIET, recipe, report, write

from nmt.data.corpus import Corpus
from nmt.data.directions import check_directions
from nmt.data.prepare import prepare
from nmt.exchange.opus_mt import MarianBundle
from nmt.recipe import Data
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.system.launchers import World
from nmt.text.tokenizer import Tokenizer
from nmt.training.distributed import Group
from nmt.training.validation import Validation

TEXTS = ["one two three", "four five six. seven eight", "nine ten"] * 9
ONE, TWO = [{"file": "a.tsv"}], [{"file": "a.tsv"}, {"file": "b.tsv", "target": "fr"}]
BACK = {"file": "c.tsv", "source": "de", "target": "en"}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer | None]:
    """Tokenizers of models to start from: none, one direction, OPUS-MT with deu and fra, NLLB-200."""
    folder = tmp_path_factory.mktemp("tokenizers")
    write_tokenizer(folder / "opus", TEXTS, TEXTS, 60)
    write_m2m(folder / "nllb", TEXTS, is_nllb=True, size=60)
    settings = recipe(tokenizer={"vocab_size": 290}).tokenizer
    one = Tokenizer.train([(text, text) for text in TEXTS], settings)
    return {"new": None, "one": one, **{name: Tokenizer.load(folder / name) for name in ("opus", "nllb")}}


def check(tokenizer: Tokenizer | None, source: str, target: str, new: list[str], **sets: Any) -> list[str]:
    """What is said of a recipe's data sets."""
    said: list[str] = []
    data = Data.model_validate({"name": "x", "source": source, "target": target, **sets})
    check_directions(data, tokenizer, new, said.append)
    return said


FRENCH = {"file": "v.tsv", "target": "fr"}


@pytest.mark.parametrize(
    ("start", "sets", "message"),
    [
        ("new", {"train": ONE, "valid": [FRENCH]}, "data.valid.0: is en-fr, but the model is trained on en-de"),
        (
            "new",
            {"train": ONE, "test": [{"take": 9}, BACK]},
            "data.test.1: is de-en, but the model is trained on en-de",
        ),
        ("one", {"train": ONE, "valid": [BACK]}, "data.valid.0: is de-en"),
        ("new", {"train": ONE, "test": [{"sacrebleu": "wmt13", "target": "fr"}]}, "data.test.0: is en-fr"),
        ("new", {"train": ONE, "test": [{"hub": "a/b", "source": "de", "target": "en"}]}, "data.test.0: is de-en"),
        ("new", {"train": ONE, "valid": [{"take": 9, "languages": ["en", "fr"]}]}, "data.valid.0: is en-fr"),
        ("new", {"train": [FRENCH], "valid": [FRENCH]}, "data.source and data.target: are en-de, but data.train is"),
        ("one", {"train": TWO}, "data.train: has the target languages de, fr, but the model has one"),
        (
            "new",
            {"train": TWO, "valid": {"take": 9, "languages": ["de", "fr"]}},
            "data.valid.0: no training set has its",
        ),
        ("new", {"train": TWO, "valid": [BACK]}, "data.valid.0: en: this model has no symbol for this language"),
        ("opus", {"train": ONE, "valid": [FRENCH]}, "data.valid.0: fr: this model has no symbol for this language"),
        ("nllb", {"train": ONE}, "data.train.0: en: this model has no symbol for this language"),
    ],
)
def test_a_set_of_another_direction_than_the_model_is_refused_by_name(
    tokenizers: dict[str, Tokenizer | None], start: str, sets: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        check(tokenizers[start], "en", "de", [], **sets)
    assert error.value.message.startswith(message)
    assert error.value.hint


def test_directions_that_only_the_languages_of_the_model_make_possible_are_said(
    tokenizers: dict[str, Tokenizer | None],
) -> None:
    assert check(None, "en", "de", [], train=[*TWO, BACK], valid=[{"take": 9}, FRENCH, BACK]) == []
    said = check(None, "en", "de", [], train=[*TWO, BACK], test=[{**FRENCH, "source": "de"}])
    assert said == ["data.test.0: no training set has its direction, de-fr"]
    codes: list[str] = ["eng_Latn", "zul_Latn"]
    assert check(tokenizers["nllb"], *codes, [], train=ONE, valid=[{"file": "v.tsv", "target": "swh_Latn"}]) == [
        "data.valid.0: no training set has its direction, eng_Latn-swh_Latn"
    ]
    named = [{"file": "a.tsv", "target": "lis_Lisu"}]
    assert check(tokenizers["nllb"], *codes, ["lis_Lisu"], train=named, valid=named) == []
    typed = {"file": "v.tsv"}
    assert check(tokenizers["opus"], "en", "de", [], train=ONE, valid=[typed, {**typed, "target": "fra"}]) == [
        "data.valid.1: no training set has its direction, en-fra"
    ]


@pytest.mark.parametrize(
    ("given", "meant"), [("eng", "eng_Latn"), ("en", "eng_Latn"), ("EN", "eng_Latn"), ("zho", "zho_Hans or zho_Hant")]
)
def test_a_code_that_is_almost_right_is_answered_by_those_like_it(
    tokenizers: dict[str, Tokenizer | None], given: str, meant: str
) -> None:
    with pytest.raises(UserError) as error:
        check(tokenizers["nllb"], given, "zul_Latn", [], train=ONE)
    assert f"did you mean {meant}" in error.value.hint


def opus(folder: Path) -> Path:
    write_model(folder, write_tokenizer(folder, TEXTS, TEXTS, 60))
    return folder


@pytest.mark.usefixtures("workplace")
def test_dev_sets_with_and_without_languages_are_scored_by_direction(tmp_path: Path) -> None:
    """Of a model of OPUS-MT, where a text may begin with the language of its translation."""
    bundle = MarianBundle.read(opus(tmp_path / "opus"))
    write("typed.en", [f">>deu<< {text}" for text in TEXTS])
    write("plain.en", TEXTS)
    write("x.de", [text[::-1] for text in TEXTS])
    typed, plain = ({"source": f"{name}.en", "target": "x.de"} for name in ("typed", "plain"))
    named = {**plain, "languages": ["en", "fra"]}
    given = recipe(data={"target": "deu", "train": [typed, named], "valid": [typed, named], "test": [named, typed]})
    prepare(given, QUIET, 1, bundle.tokenizer())
    model, tokenizer = bundle.model(torch.device("cpu")), bundle.tokenizer()
    validation = Validation(Corpus(OUT / "valid.arrow"), tokenizer, given, Group(World(), 1.0), None)
    scores = validation(model).scores
    assert {f"chrf en-{target}" for target in ("deu", "fra")} < scores.keys()
    assert scores["chrf"] == pytest.approx((scores["chrf en-deu"] + scores["chrf en-fra"]) / 2)


@pytest.mark.usefixtures("workplace")
def test_sources_without_a_language_are_counted_for_a_model_that_is_told_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("a.en", [">>deu<< one", ">>xxx<< two", "three"])
    write("a.de", ["eins", "zwei", "drei"])
    start = MarianBundle.read(opus(tmp_path / "opus")).tokenizer()
    prepare(recipe(data={"target": "deu"}), Console(quiet=False), 1, start)
    assert report("train")["sources without a target language"] == 2
    said = capsys.readouterr().err
    assert "2 sources without a target language" in said
    assert "such as >>deu<<, which data sets can name: {file: pairs.tsv, target: deu}" in said
    named = [{"source": "a.en", "target": "a.de", "languages": ["en", "fra"]}]
    prepare(recipe(data={"target": "fra", "train": named}), QUIET, 1, start)
    assert report("train")["sources with a second target language"] == 1
    assert "sources without a target language" not in report("train")
