"""SentencePiece's training in a child: what ends the child, and what its end means; places in a normalised text."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from types import FrameType

import pytest

from nmt.recipe import TokenizerSettings
from nmt.system.errors import Interrupted, UserError
from nmt.system.processes import Child
from nmt.text import vocabulary
from nmt.text.tokenizer import Tokenizer

PAIRS = [(f"the dog sees {number} cats", f"der Hund sieht {number} Katzen") for number in range(200)]

# Trains for ever as soon as it has its text, in the process that has the module, and tells that process and its cores.
ENDLESS = """\
import os, time
import sentencepiece
def train(sentence_iterator, **options):
    count = sum(1 for text in sentence_iterator)
    with open("begun.part", "w") as file:
        file.write(f"{os.getpid()} {count} {len(os.sched_getaffinity(0))}")
    os.rename("begun.part", "begun")
    time.sleep(600)
sentencepiece.SentencePieceTrainer.train = train
"""
PARENT = """\
from nmt.recipe import TokenizerSettings
from nmt.text.tokenizer import Tokenizer
Tokenizer.train([("a b", "b a")] * 5000, TokenizerSettings(vocab_size=266), threads=1)
"""


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which training does not end; children tell there that they have begun."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(ENDLESS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{os.environ['PYTHONPATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "begun"


def test_a_child_ends_with_its_parent_even_while_it_trains(endless: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT]) as parent:
        while not endless.exists():
            time.sleep(0.01)
        parent.kill()
    child, count, cores = map(int, endless.read_text().split())
    assert (count, cores) == (10_000, 1)
    while Path(f"/proc/{child}").exists():
        with suppress(ChildProcessError):  # an orphan becomes a child of this process
            os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)


def test_a_signal_ends_the_training_and_the_child(endless: Path) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        if endless.exists():
            raise Interrupted("terminated", signal.SIGTERM)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with pytest.raises(Interrupted, match="terminated"):
            Tokenizer.train(PAIRS, TokenizerSettings(vocab_size=300))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not Path(f"/proc/{endless.read_text().split()[0]}").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_child_that_dies_is_one_error(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    children: list[Child] = []

    def start(module: str) -> Child:
        children.append(Child(module))
        return children[0]

    def texts() -> Iterator[str]:
        yield from ["a b c"] * 5000
        os.kill(children[0].pid, number)

    monkeypatch.setattr(vocabulary, "Child", start)
    with pytest.raises(UserError, match=f"tokenizer: SentencePiece was killed by {number.name}") as caught:
        vocabulary.train_model(texts(), None, vocab_size=300)
    assert "tokenizer.sample" in caught.value.hint


def test_what_sentencepiece_refuses_before_it_reads_is_told_as_it_says_it() -> None:
    answer = vocabulary.train_model(iter(["a b c"] * 500_000), None, no_such_option=1)
    assert isinstance(answer, str)
    assert "no_such_option" in answer


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_a_model_does_not_depend_on_threads(algorithm: str) -> None:
    settings = TokenizerSettings.model_validate({"vocab_size": 300, "algorithm": algorithm})
    one, many = (Tokenizer.train(PAIRS, settings, threads=threads) for threads in (1, 64))
    assert one.files() == many.files()


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("Wait|… it |is| \ufb01ne, |1\xbd cups", " Wait|... it |is| fine, |11\u20442 cups"),
        ("ab|  \xa0  cd\u200b|ef  ", " ab| cd|ef"),
        ("\uff21\uff22| e\u0301te\u0301|.", "AB| \xe9t\xe9|."),
        ("a \U0001f642\U0001f642| dog|s", " a <unk>| dog|s"),
        ("Wait…\xa0|\ufb01ne|½", " Wait… |\ufb01ne|½"),  # where these stay as they are
    ],
)
def test_places_in_a_normalised_text_are_those_of_its_own_however_long_it_is(text: str, spelled: str) -> None:
    for times in (1, 500):
        parts, pieces = (text * times).split("|"), (spelled * times).split("|")
        offsets = vocabulary._offsets("".join(pieces), "".join(parts))
        found = [offsets[end] for end in accumulate(map(len, pieces[:-1]))]
        assert found == [*accumulate(map(len, parts[:-1]))]
