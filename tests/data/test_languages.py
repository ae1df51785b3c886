"""Pairs that look like another language than declared."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from prepared import recipe, report, write

from nmt.data import languages
from nmt.data.duplicates import hash_pairs
from nmt.data.languages import JUDGED, LanguageJudge, LanguageSample, label_of
from nmt.data.pairs import Pair
from nmt.data.prepare import prepare
from nmt.system.console import Console

PAIRS = [
    ("The boy follows an old dog through the garden.", "Der Junge folgt einem alten Hund durch den Garten."),
    ("We have never seen such a large tree.", "Wir haben noch nie einen so großen Baum gesehen."),
    ("Please close the window before you leave.", "Bitte schließen Sie das Fenster, bevor Sie gehen."),
    ("This program shows the files of a folder.", "Dieses Programm zeigt die Dateien eines Ordners."),
]
FRENCH = [
    ("The boy follows an old dog through the garden.", "Le garçon suit un vieux chien à travers le jardin."),
    ("We have never seen such a large tree.", "Nous n’avons jamais vu un arbre aussi grand."),
]


@pytest.fixture
def judge() -> LanguageJudge:
    pytest.importorskip("py3langid", reason="needs the package py3langid")
    found = LanguageJudge.load()
    assert found is not None
    return found


def found(judge: LanguageJudge, pairs: list[tuple[str, str]], *ways: str) -> tuple[int, list[str]]:
    sample = LanguageSample()
    sample.add(1, [Pair(*pair) for pair in pairs], hash_pairs(pairs, ways))
    count, odd = sample.judged(judge, ways)
    return count, [f"{line}: {why}" for line, _, why in odd]


@pytest.mark.parametrize("codes", [("en", "de"), ("eng_Latn", "deu_Latn"), ("en-GB", "ger"), ("EN", "de_AT")])
def test_true_pairs_are_judged_and_none_looks_like_another_language(
    judge: LanguageJudge, codes: tuple[str, str]
) -> None:
    assert found(judge, PAIRS, *codes) == (4, [])
    assert found(judge, FRENCH, codes[0], "fr") == (2, [])


def test_wrong_languages_are_named_with_their_sides(judge: LanguageJudge) -> None:
    assert found(judge, [PAIRS[0], FRENCH[0], PAIRS[1]], "en", "de") == (3, ["2: target looks like fr, not de"])
    swapped = [(target, source) for source, target in PAIRS]
    both = "source looks like de, not en, target looks like en, not de"
    assert found(judge, swapped, "en", "de") == (4, [f"{line}: {both}" for line in (1, 2, 3, 4)])
    copied = [(source, source) for source, _ in PAIRS]
    assert [why for _, why in [each.split(": ") for each in found(judge, copied, "en", "de")[1]]] == [
        "target looks like en, not de"
    ] * 4


def test_short_texts_and_unknown_languages_are_not_judged(judge: LanguageJudge) -> None:
    assert found(judge, [("Ja, ja.", "Yes, yes."), ("12 345 678 901 (2.0)", "§§ 99–101, 2024-01-02")], "en", "de") == (
        0,
        [],
    )
    assert found(judge, PAIRS, "tlh", "tree") == (0, [])
    assert found(judge, FRENCH, "tlh", "de") == (2, [f"{line}: target looks like fr, not de" for line in (1, 2)])
    assert found(judge, [("这是一棵树。", "我们没有看见。")], "zh_Hans", "ja")[1] == ["1: target looks like zh, not ja"]


def test_codes_of_three_letters_are_known() -> None:
    assert [label_of(code) for code in ("spa_Latn", "por", "zho_Hant", "nb", "ltg", "tree")] == [
        *("es", "pt", "zh", "no", "ltg", "tree")
    ]


def test_a_sample_has_each_pair_once_in_any_order() -> None:
    pairs = [Pair(f"source {number % 3000}", "target") for number in range(6000)]
    hashes = hash_pairs(pairs, ("en", "de"))
    whole, shuffled = LanguageSample(), LanguageSample()
    for first in range(0, 6000, 500):
        whole.add(first + 1, pairs[first : first + 500], hashes[first : first + 500])
    order = random.Random(1).sample(range(6000), 6000)
    shuffled.add(1, [pairs[row] for row in order], hashes[order])
    chosen = [{pair for _, pair in each._chosen.values()} for each in (whole, shuffled)]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == len(whole._chosen) == JUDGED
    assert all(pairs[line - 1] == pair and line <= 3000 for line, pair in whole._chosen.values())  # the first of equals


@pytest.mark.usefixtures("workplace")
def test_the_report_counts_and_shows_them_by_set(
    judge: LanguageJudge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, pairs in (("good", PAIRS), ("odd", [PAIRS[0], *FRENCH])):
        write(f"{name}.tsv", [f"{source}\t{target}" for source, target in pairs])
    train = [
        {"file": "good.tsv"},
        {"file": "odd.tsv"},
        {"file": "odd.tsv", "target": "fr"},
        {"source": "a.en", "target": "a.de"},
    ]
    own = recipe(
        data={"train": train, "test": {"take": 1, "languages": ["en", "fr"]}, "valid": []},
        tokenizer={"vocab_size": 340},
    )
    prepare(own, Console(), 1)
    assert report("train")["judged by language"] == [4, 3, 3, 120]
    assert report("train")["looking like another language"][:3] == [0, 2, 1]  # a pair of German in French
    assert report("test")["judged by language"] == [0]
    found = "odd.tsv: 2 of 3 pairs judged look like another language than en-de"
    assert f"  {found}: odd.tsv:2: target looks like fr, not de: The boy follows" in capsys.readouterr().err
    assert not [key for key in report("train") if key.startswith("dropped")]
    monkeypatch.setattr(languages.LanguageJudge, "load", lambda: None)  # where it is not installed
    Path("good.tsv").write_text("changed\tgeändert\n")
    prepare(own, Console(), 1)
    assert "judged by language" not in report("train")
