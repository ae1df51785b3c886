"""Tokenizers of Marian's models: the ids of `MarianTokenizer` in transformers, what is lost, and what is refused."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marian_folders import write_tokenizer

from nmt.system.errors import UserError
from nmt.text.marian import MarianVocabulary
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import BOS, EOS, PAD, UNK

SOURCE = ["a dog sees the small house", "the man and a woman walk to the red house", "two dogs run over green trees"]
TARGET = ["ein Hund sieht das kleine Haus", "der Mann und eine Frau gehen zum Haus", "zwei Hunde laufen über Bäume"]
ODD = ["</s>", "<pad>", "<unk>", "<s>", "<<", ">>", ">>fra<<", ">>deu<<", ">>xx<<", "pad>", " ", "  ", "a", "the dog"]
ODD += ["Hund", ".", "\u2581", "\u2581a", "\t", "\xa0", "\u200b", "\u2028", "\0", "\r", "\ufeff", "\u202e", "e\u0301"]
ODD += ["😀", "🇩🇪", "é", "ß", "ﬁ", "½", "漢字", "“", "’", "Ａ"]


@pytest.fixture(scope="module", params=[False, True], ids=["one vocabulary", "two"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("marian")
    write_tokenizer(made, SOURCE * 20, TARGET * 20, 60, request.param)
    return made


def sides(tokenizer: Tokenizer) -> tuple[MarianVocabulary, MarianVocabulary]:
    assert isinstance(tokenizer.source, MarianVocabulary)
    assert isinstance(tokenizer.target, MarianVocabulary)
    return tokenizer.source, tokenizer.target


def test_control_symbols_have_our_ids_and_the_others_follow_in_their_order(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    names = ["vocab.json", "vocab.json" if tokenizer.shared else "target_vocab.json"]
    for side, name in zip(sides(tokenizer), names, strict=True):
        ids = json.loads((folder / name).read_text())
        listing = side.listing()
        assert listing[: EOS + 1] == ["<pad>", "<unk>", "<s>", "</s>"]
        assert [ids.get(piece) for piece in listing] == [
            None if i == BOS else side.origins[i] for i in range(len(side))
        ]
        assert side.origins[EOS + 1 :] == sorted(ids[piece] for piece in listing[EOS + 1 :])
        assert len(side) == len(ids) + 1
    assert tokenizer.lossy


def test_texts_that_lose_a_character_are_not_spelled(folder: Path) -> None:
    (side, *_) = sides(Tokenizer.load(folder))
    kept = SOURCE[0]
    changed = {
        kept: True,
        kept.replace(" ", "\u00a0", 1): True,  # a space is a space
        kept.replace("e", "\uff45", 1): True,  # compatible: a wide e
        kept.replace("e", "e\u200c", 1): False,  # dropped by SentencePiece's rules
        kept.replace("e", "e\u2603", 1): False,  # without a piece
    }
    assert {text: side.spells(text, side.encode(text)) for text in changed} == changed


def test_text_comes_back_except_for_what_has_no_piece(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    for side, texts in zip(sides(tokenizer), (SOURCE, TARGET), strict=True):
        assert [side.decode(ids) for ids in side.encode_all(texts)] == texts
        assert side.encode_all(texts) == [side.encode(text) for text in texts]
        assert side.count_unknown(side.encode(texts[0])) == 0
        ids = side.encode(f"{texts[0]} 漢字 {texts[0]} 😀")
        assert side.count_unknown(ids) == ids.count(UNK) == 2  # pieces, of which the first are two characters
        assert "漢" not in side.decode(ids)


def test_literal_symbols_and_languages_are_symbols_of_their_own(folder: Path) -> None:
    source, _ = sides(tokenizer := Tokenizer.load(folder))
    words = source.encode("a dog")
    assert source.encode("a dog</s><pad>a dog<unk>") == [*words, EOS, PAD, *words, UNK]
    code, *rest = source.encode(">>fra<<a dog")
    assert rest == words
    assert source.pieces([code]) == ([">>fra<<"] if tokenizer.shared else ["<unk>"])
    assert source.encode_all([">>fra<<a dog", "a dog"]) == [[code, *words], words]
    assert source.encode("a >>fra<< dog")[: len(source.encode("a"))] == source.encode("a")
    assert code not in source.encode("a >>fra<< dog") or code == UNK


def test_words_begin_where_pieces_say(folder: Path) -> None:
    _, target = sides(Tokenizer.load(folder))
    ids = target.encode("ein Hund")
    assert target.starts()[ids[0]]
    spelled = target.spellings()
    assert "".join(spelled[i] for i in ids) == "\u2581ein\u2581Hund"
    assert [spelled[i] for i in (PAD, UNK, BOS, EOS)] == [""] * 4


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tokenizer_config.json", lambda c: {**c, "separate_vocabs": "maybe"}, "damaged: separate_vocabs: must be"),
        ("vocab.json", lambda ids: {**ids, "below": -3}, "damaged: below: must be greater than or equal to 0"),
        ("vocab.json", lambda ids: [1, 2], "damaged: must be an object"),
    ],
)
def test_what_is_not_as_published_is_refused(
    folder: Path, tmp_path: Path, name: str, change: Callable[[Any], Any], message: str
) -> None:
    for file, content in Tokenizer.load(folder).files().items():
        (tmp_path / file).write_bytes(content)
    (tmp_path / name).write_text(json.dumps(change(json.loads((tmp_path / name).read_text()))))
    with pytest.raises(UserError, match=message) as error:
        Tokenizer.load(tmp_path)
    assert error.value.hint


@pytest.mark.parametrize("name", ["source.spm", "vocab.json", "target.spm"])
def test_a_missing_file_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    for file, content in Tokenizer.load(folder).files().items():
        (tmp_path / file).write_bytes(b"" if file == name == "source.spm" else content)
    if name != "source.spm":  # without which it is no such folder
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match=name):
        Tokenizer.load(tmp_path)


def hard_lines() -> list[str]:
    draw = random.Random(1)
    odd = ["".join(draw.choices(ODD, k=draw.randint(1, 12))) for _ in range(200)]
    return [*SOURCE, *TARGET, *odd, "", " ", "a\tdog", " a  dog "]


@pytest.mark.slow
def test_ids_and_texts_are_those_of_transformers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    theirs, ours = transformers.MarianTokenizer.from_pretrained(folder), Tokenizer.load(folder)
    for side, key in zip(sides(ours), ("text", "text_target"), strict=True):
        for line in hard_lines():
            if key == "text_target" and not ours.shared and "<pad>" in line:
                continue  # theirs gets the id that <pad> has in the vocabulary of the source, which is another piece
            expected, found = theirs(**{key: line}).input_ids, side.encode(line)
            assert [side.origins[index] for index in (*found, EOS)] == expected, line
            if side is ours.target:
                text = theirs.decode(expected, skip_special_tokens=True)
                assert side.decode(found).strip() == re.sub(r">>(deu|fra)<<", "", text).strip(), line  # ours is no text
