"""Every string survives the round trip; the vocabulary is what the recipe asked for."""

from __future__ import annotations

import io
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import example, given, settings
from strategies import TEXT, TRICKY

from nmt.parsing.linearization import TreeVocabulary, load_tokenizer
from nmt.recipe import TokenizerSettings
from nmt.system.errors import UserError
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import BOS, EOS, PAD, PRINTABLE, UNK, Vocabulary, alphabet, cut_long

ENGLISH = "the quick dog cat sees likes tree big small red green house man woman walks jumps under over vexed"
GERMAN = "der die Hund Katze sieht mag Baum groß klein rot grün Haus Mann Frau geht läuft unter über"

TASKS = [(algorithm, shared) for algorithm in ("bpe", "unigram") for shared in (True, False)]


def sentences(words: str, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(words.split(), k=6)) for _ in range(200)]


PAIRS = list(zip(sentences(ENGLISH, 1), sentences(GERMAN, 2), strict=True))


def train(vocab_size: int, algorithm: str = "bpe", shared: bool = True, **settings: object) -> Tokenizer:
    values = {"vocab_size": vocab_size, "algorithm": algorithm, "shared": shared, **settings}
    return Tokenizer.train(PAIRS, TokenizerSettings.model_validate(values))


@pytest.fixture(scope="module", params=TASKS, ids=lambda kind: f"{kind[0]}, {'shared' if kind[1] else 'two'}")
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    algorithm, shared = request.param
    return train(300, algorithm, shared, normalization="none")


@settings(max_examples=150)
@given(text=TEXT | TRICKY)
@example(text="")
@example(text=" ")
@example(text="  two  spaces  ")
@example(text="\u2581\u2581 a \u2581b")
@example(text="the dog sees der Hund")
@example(text="👩‍👩‍👧‍👦 🇩🇪 e\u0301 \u00e9 ﬁ Å")
@example(text="<s> </s> <unk> <pad> <0x41> <0x0A>")
def test_every_string_survives_the_round_trip(tokenizer: Tokenizer, text: str) -> None:
    for vocabulary in (tokenizer.source, tokenizer.target):
        ids = vocabulary.encode(text)
        assert vocabulary.decode(ids) == text
        assert all(EOS < index < len(vocabulary) for index in ids)  # no unknown and no control symbols


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("the\u00a0dog\tsees\u202fit\u3000now", "the dog sees it now"),
        ("\ufeffthe do\u00adg\u200b", "the dog"),
        ("cafe\u0301, bie\u0323\u0302t, bi\u00ea\u0323t", "caf\u00e9, bi\u1ec7t, bi\u1ec7t"),
        ("bi\u1eb9\u0302t, \u1112\u1161\u11ab", "bi\u1ec7t, \ud55c"),
        ("a\u200cb 👩\u200d👧 ﬁ Å", "a\u200cb 👩\u200d👧 ﬁ Å"),
        ("  two  spaces  \u2581 x", "  two  spaces  \u2581 x"),
    ],
)
def test_what_a_reader_does_not_see_is_made_plain(text: str, plain: str) -> None:
    vocabulary = Tokenizer.train([*PAIRS, ("한", "x")], TokenizerSettings(vocab_size=400)).source
    assert vocabulary.decode(vocabulary.encode(text)) == vocabulary.plain(text) == plain
    assert vocabulary.encode_beginning(text) == vocabulary.encode_beginning(plain)


@pytest.mark.parametrize("space", [" ", ""])
def test_texts_longer_than_sentencepiece_takes_are_cut_and_not_left_out(space: str) -> None:
    text = space.join(sentences(GERMAN, 3)).replace(" ", space)
    assert len(text.encode()) > 4192
    tokenizer = Tokenizer.train([(text,)], TokenizerSettings(vocab_size=300, shared=True))
    assert len(tokenizer.source.encode("Katze")) < 5  # learned


def test_a_text_is_cut_only_if_it_is_too_long_and_at_spaces_if_there_are_any() -> None:
    texts = ["ß" * 2096, "x", f"{'wort ' * 900}ende", "語" * 1398, " " * 4193, ""]
    cut = list(cut_long(texts))
    assert [len(part) for part in cut[:2] + cut[-1:]] == [2096, 1, 0]
    assert all(len(part.encode()) <= 4192 for part in cut)
    assert all(re.fullmatch("(wort )*(wort|ende)", part) for part in cut if "wort" in part)
    assert "".join(cut).replace(" ", "") == "".join(texts).replace(" ", "")


def test_control_symbols_give_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.source.decode([BOS, *tokenizer.source.encode("the dog"), EOS, PAD, UNK]) == "the dog"
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)


def test_vocabularies_are_shared_or_not_as_asked(tokenizer: Tokenizer, request: pytest.FixtureRequest) -> None:
    _, shared = request.node.callspec.params["tokenizer"]
    assert tokenizer.shared is shared
    assert (tokenizer.source.serialized == tokenizer.target.serialized) is shared
    assert ({"w", "ß"} <= set(tokenizer.source.spellings())) is shared


def test_a_tokenizer_loads_from_its_files(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for name, content in tokenizer.files().items():
        (tmp_path / name).write_bytes(content)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.shared is tokenizer.shared
    assert loaded.files() == tokenizer.files()
    assert loaded.source.encode(PAIRS[0][0]) == tokenizer.source.encode(PAIRS[0][0])
    assert loaded.target.encode(PAIRS[0][1]) == tokenizer.target.encode(PAIRS[0][1])


def test_a_sample_is_the_same_in_every_process() -> None:
    program = """
from nmt.recipe import TokenizerSettings
from nmt.text.tokenizer import Tokenizer
pairs = [(f"the dog {n}", f"der Hund {n * n}") for n in range(2000)]
print(Tokenizer.train(pairs, TokenizerSettings(vocab_size=300, sample=500)).source.serialized)
"""
    outputs = {subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout for _ in "ab"}
    assert len(outputs) == 1


def test_characters_rarer_than_coverage_asks_are_spelled_in_bytes() -> None:
    pairs = [*PAIRS, ("a Ж dog", "ein Ж Hund")]
    for coverage, found in ((1.0, True), (0.9995, False)):
        settings = TokenizerSettings(vocab_size=310, character_coverage=coverage)
        vocabulary = Tokenizer.train(pairs, settings).source
        assert ("Ж" in vocabulary.spellings()) is found
        assert vocabulary.decode(vocabulary.encode("Ж")) == "Ж"


def test_automatic_coverage_keeps_an_alphabet_but_not_thousands_of_ideographs() -> None:
    draw = random.Random(1)
    noise = [("".join(draw.choices("abcdefgh ", k=3000)), "città | ж ") for _ in range(20)] + [("x", "ю " * 19)]
    vocabulary = Tokenizer.train([*noise, ("▅▁" * 20, "")], TokenizerSettings(vocab_size=520)).source
    assert set("bà|#~жю") - set(vocabulary.spellings()) == {"ю"}
    ideographs = "".join(chr(0x4E00 + number) for number in range(600))
    assert alphabet([ideographs] * 20, 1000) == PRINTABLE
    assert alphabet(["é" * 20], 350) == frozenset()  # no entry would be left for a longer piece


def test_pieces_are_spelled_out_with_the_spaces_before_them(tokenizer: Tokenizer) -> None:
    ids = tokenizer.source.encode("the dog")
    pieces = tokenizer.source.pieces(ids)
    assert pieces[0].startswith("\u2581")
    assert "".join(pieces) == "\u2581the\u2581dog"
    assert tokenizer.source.starts()[ids[0]]


def test_subwords_end_where_their_text_ends_and_bytes_with_their_character(tokenizer: Tokenizer) -> None:
    vocabulary, text = tokenizer.source, "the ✈ dog"
    ids = vocabulary.encode(text)
    ends = vocabulary.ends_in(text, ids)
    beginnings = [vocabulary.decode(ids[:count]).rstrip("\ufffd") for count in range(1, len(ids) + 1)]
    assert len(ids) >= len(beginnings) > len({*beginnings})  # bytes do not complete a character
    assert [text[:end] for end in ends] == beginnings


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@pytest.mark.parametrize("vocab_size", [265, 100_000], ids=["too low", "too high"])
def test_an_impossible_size_names_the_key_and_a_size_that_works(algorithm: str, vocab_size: int) -> None:
    with pytest.raises(UserError, match=f"tokenizer.vocab_size: {vocab_size}") as caught:
        train(vocab_size, algorithm)
    assert "\n" not in caught.value.message
    offered = re.search(r"--set tokenizer\.vocab_size=(\d+)", caught.value.hint or "")
    assert offered is not None
    assert offered[1] in caught.value.message
    assert len(train(int(offered[1]), algorithm).source) == int(offered[1])


def test_a_broken_model_file_is_a_user_error_naming_it(tmp_path: Path) -> None:
    whole = train(300).source.serialized
    no_text = whole.replace("\u2581".encode(), b"\xe2\x28\x81")
    for content in (b"", b"garbage", bytes(100), whole[: len(whole) // 2], whole[:-1], whole[100:], no_text):
        (tmp_path / "tokenizer.model").write_bytes(content)
        with pytest.raises(UserError, match=r"tokenizer\.model: is not a SentencePiece model"):
            Tokenizer.load(tmp_path)


def test_a_model_with_other_control_symbols_is_refused(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([source for source, _ in PAIRS]), model_writer=model, vocab_size=40, minloglevel=2
    )
    with pytest.raises(UserError, match=r"other: .*control symbols"):
        Vocabulary(model.getvalue(), "other")


# --- parsers ------------------------------------------------------------------------------------------------


def test_a_parsers_tokenizer_has_words_in_and_trees_out(tmp_path: Path) -> None:
    trees = [f"(TOP (S (NP (DT the) (NN {word})) (VP (VBZ sees)) (. .)))" for word in ENGLISH.split()]
    pairs = [(f"the {word} sees .", tree) for word, tree in zip(ENGLISH.split(), trees, strict=True)]
    said: list[str] = []
    values = TokenizerSettings(vocab_size=300, shared=False)
    tokenizer = Tokenizer.train([*pairs, ("", "")], values, said.append, TreeVocabulary.train)
    assert len(tokenizer.source) == 300
    assert isinstance(tokenizer.target, TreeVocabulary)
    assert tokenizer.target.labels == ("NP", "S", "VP")
    assert not tokenizer.shared
    assert len(said) == 2
    for name, content in tokenizer.files().items():
        (tmp_path / name).write_bytes(content)
    assert {path.name for path in tmp_path.iterdir()} == {"source.model", "tree.json"}
    again = load_tokenizer(tmp_path)
    assert again.equals(tokenizer)
    assert again.files() == tokenizer.files()
