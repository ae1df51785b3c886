"""What commands say of mistakes: one error and a hint; and that they then have done nothing."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from random_bundle import random_bundle
from recipe_files import RECIPES


@pytest.fixture(scope="module")
def made(reverse_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a bundle that cannot be exported, and short files."""
    path = tmp_path_factory.mktemp("errors")
    (path / "ckpts").symlink_to(reverse_run / "ckpts")
    (path / "dangling").symlink_to(path / "no" / "out")
    random_bundle(path / "learned", positions="learned")
    for name, text in {"one": "a\n", "two": "a\nb\n", "empty": "", "tree": "(TOP (NP (NN a)))\n"}.items():
        (path / name).write_text(text)
    os.mkfifo(path / "pipe")
    return path


@pytest.fixture
def folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder as the working directory."""
    monkeypatch.chdir(made)
    return made


def assert_nothing_done(nmt: Callable[..., Any], folder: Path, line: str, code: int) -> str:
    """Run a command that fails, and return what it says."""
    before = sorted(folder.rglob("*"))
    done = nmt(*shlex.split(line.format(recipes=RECIPES)), stdin=b"a b\n")
    assert (done.code, done.out) == (code, b""), done.err
    assert "Traceback" not in done.err
    assert sorted(folder.rglob("*")) == before
    return str(done.err)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("no-such-command", "no such command 'no-such-command'"),
        ("translate --no-such-flag", "no such option '--no-such-flag'"),
        ("trian", "hint: did you mean train?"),
        ("translate --beem 3", "hint: did you mean --beam?"),
        ("translate --beam x", "hint: --beam N: Beam size; 1 is greedy search. [x>=1]"),
        ("translate --beam", "hint: --beam N: Beam size"),  # the value is missing
        ("train", "hint: for example nmt train pairs.en-de.tsv; nmt train --help"),
        ("score", "hint: for example nmt score test.de output.de; nmt score --help"),
        ("--version=3", "hint: nmt --help"),
        (
            "translate 'I see a dog.'",
            "'I see a dog.' is an argument, but lines come from stdin or --input\nhint: for example",
        ),
        ("translate --devices 0", "'--devices': 0 is not in the range 1<=x<=256"),
        ("translate --sample 2 --n-best 2", "--n-best cannot be combined with --sample"),
        ("translate --sample 2 --terms one", "--terms cannot be combined with --sample"),
        ("translate --resume --output out", "--resume needs --input and --output"),
        ("translate --resume --input pipe --output out", "--resume needs regular files, but --input pipe is not one"),
        ("translate --resume --input one --output ckpts", "regular files, but --output ckpts is not one"),
        ("translate --attention page.png", "must end in .html"),
        ("translate --attention a.html --model other --model more", "goes with one --model"),
        ("translate --attention a.html --resume", "does not go with --resume"),
        ("translate --document --n-best 2", "--n-best cannot be combined with --document"),
        ("parse --pretty --json", "--json cannot be combined with --pretty\nhint: nmt parse --help"),
        ("parse --pretty --n-best 2", "--n-best cannot be combined with --pretty"),
        ("train missing.yaml --devices 1000000000000", "1000000000000 is not in the range 1<=x<=256"),
        ("score one --metric rouge", "brackets, the metrics without --model\nhint: --metric NAME,…: bleu, chrf, ter"),
        ("score one two --metric bleu,confidence", "--metric confidence needs --model\nhint: "),
        ("score one --source two", "--source needs --model, --show or --metric comet"),
        ("score one --show 3", "--show needs --baseline"),
        ("score one two tree --baseline empty --show 3", "--show compares --baseline with one HYP"),
        ("score one two --baseline tree --show 3 --model m", "--show with --model needs --source FILE"),
        ("score one two --baseline tree --show 3 --model m --model n --source one", "--show takes one --model"),
        (
            "score one two --baseline tree --show 3 --model m --metric logprob",
            "comet, brackets, the metrics with --show",
        ),
        ("score one two two", "two is given twice"),
        ("score one --metric comet", "--metric comet needs --source FILE, with the source of each line"),
        ("score one --metric comet --reference two", "--reference cannot be combined with --metric comet, which takes"),
        ("score one --baseline two --metric brackets", "--baseline needs --metric bleu, chrf"),
        ("score tree --metric brackets,bleu", "--metric brackets cannot be combined with others"),
        ("score tree --metric brackets --reference tree", "--reference cannot be combined with --metric brackets"),
        ("score one --paper --metric brackets", "--metric brackets cannot be combined with others"),
        ("score one --paper --model m --source two", "--paper cannot be combined with --model without --show"),
        ("score one --lowercase --model m --source two", "--lowercase cannot be combined with --model without --show"),
        (
            "score one --baseline two --model m --source two",
            "--baseline cannot be combined with --model",
        ),
        ("score one --metric brackets --lowercase", "--lowercase needs --metric bleu, chrf, ter, tokenised, paper"),
        ("score one --metric brackets --language de", "--language needs --metric bleu, chrf, ter"),
        ("score one two --language 5", "--language must be a code, such as de (got 5)"),
        ("score --runs ckpts --lowercase", "--lowercase cannot be combined with --runs"),
        ("score one --set batch_tokens=9", "--set needs --model"),
        ("score one two --model m --source two", "--model scores REF itself, so it takes no HYP"),
        ("score one --model m --source two --metric logprob --json", "cannot be combined"),
        ("score one two --html page.html", "--html needs --runs"),
        ("score one --robust", "--robust needs --model"),
        ("score one --robust --source two", "--robust needs --model"),
        ("score one --robust --model m", "--robust needs --source FILE"),
        ("score one two --robust --model m --source two", "--robust translates --source itself, so it takes no HYP"),
        (
            "score one --robust --model m --source two --metric bleu",
            "--metric must be chrf with --robust",
        ),
        ("score one --robust --model m --source two --paper", "--paper cannot be combined with --robust"),
        ("score one --robust --model m --source two --baseline two", "--baseline cannot be combined with --robust"),
        ("score one --robust --model m --source two --lowercase", "--lowercase cannot be combined with --robust"),
        ("score one --robust --model m --source two --reference two", "--reference cannot be combined with --robust"),
        ("score --runs ckpts --robust", "--robust cannot be combined with --runs"),
        ("score", "score takes REF and any number of HYP, but got no files"),
        ("score tree tree tree --metric brackets", "score takes REF and at most one HYP here, but got 3 files"),
        ("score --runs", "--runs needs runs: nmt score --runs CKPTS"),
        ("score --runs ckpts --html one", "--html one: must end in .html"),
        ("score --runs ckpts --metric bleu", "--metric cannot be combined with --runs"),
        ("score --runs ckpts --set beam=1", "--set cannot be combined with --runs"),
        ("score --runs ckpts --baseline one", "--baseline cannot be combined with --runs"),
        ("average ckpts --last 0", "0 is not in the range x>=1"),
        ("average ckpts --last auto --best 2", "--last cannot be combined with --best"),
        ("average ckpts --format huggingface", "--format huggingface needs --out, the folder to write"),
        ("average ckpts --format argos --out one", "--format argos needs --out FILE.argosmodel"),
        ("average ckpts --license mit", "--license needs --format huggingface, argos or html"),
        ("average ckpts --format marian --out o --license mit", "--license needs --format huggingface, argos or html"),
        ("average ckpts --license 'a: b'", "'a: b' is no identifier of a licence, such as cc-by-4.0"),
        ("average learned --format fairseq --out out", "'fairseq' is not one of 'nmt', 'huggingface'"),
        ("average learned learned --weights 1", "--weights has 1 number for 2 models"),
        ("average learned learned --weights 0,0", "'0,0' is not a list of non-negative numbers"),
        ("average learned learned --weights 1,x", "'1,x' is not a list of non-negative numbers"),
    ],
)
def test_usage(nmt: Callable[..., Any], folder: Path, line: str, problem: str) -> None:
    said = assert_nothing_done(nmt, folder, line, 2)
    assert re.search(r"^error: .+\nhint: .+\n\Z", said, re.MULTILINE)
    assert problem in said


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("parse --model none", "none: no such model", "name a bundle"),
        ("translate --input none", "none: cannot be read: No such file", ""),
        ("translate --input one --output one", "--output one: is also the file of --input", ""),
        ("translate --input empty --prefix one", "--prefix one: goes on after 0 lines, unlike the input", ""),
        ("translate --prefix empty", "--prefix empty: ends after 0 lines, unlike the input", ""),
        ("translate --terms one", "one:1: is no source term, tab, target term", "a line of its own"),
        ("translate --keep '('", "--keep: '(' is no regular expression: missing ), unterminated subpattern", ""),
        ("translate --attention no/a.html", "no/a.html: cannot be written", ""),
        ("translate --attention a.html --output ./a.html", "--attention a.html: is also the file of --output", ""),
        ("translate --prefix one --output ./one", "--output one: is also the file of --prefix", "another file"),
        ("translate --memory m.tsv --output m.tsv", "--output m.tsv: is also the file of --memory", ""),
        ("translate --prefix a.html --attention a.html", "--attention a.html: is also the file of --prefix", ""),
        ("translate --n-best 9", "n-best 9 needs a beam at least as wide", "beam"),
        ("translate --resume --input none --output out", "none: cannot be read: No such file or directory", ""),
        ("translate --resume --input two --output two", "--output two: is also the file of --input", ""),
        ("translate --resume --input two --output out --prefix one", "--prefix one: ends after 1 line, unlike", ""),
        ("translate --resume --input two --output out --n-best 9", "n-best 9 needs a beam at least as wide", ""),
        ("translate --resume --input two --output no/out", "no/out: cannot be written: No such file", ""),
        ("translate --output dangling", "/no/out: cannot be written: No such file", "/no and its permissions"),
        ("translate --resume --input two --output dangling", "dangling, a link to ", "/no and its permissions"),
        ("translate --set n='\udcff'", ": has bytes that are not UTF-8", "export LC_ALL=C.UTF-8"),
        ("score none", "none: cannot be read: No such file or directory", ""),
        ("score two", "two has 2 lines and <stdin> has 1", ""),
        ("score two --metric brackets", "two:1:1: 'a' stands outside of brackets", ""),
        ("score tree empty --metric brackets", "the gold has 1 tree and the hypothesis 0", ""),
        ("score one --model ckpts --source none", "none: cannot be read", ""),
        ("score two --model ckpts --source one", "one ends after 1 line and two goes on", ""),
        ("score one --model ckpts --source two", "one ends after 1 line and two goes on", ""),
        ("score empty --model ckpts --source empty", "source and reference have no lines", ""),
        ("score empty --model ckpts --source empty --robust", "source and reference have no lines", ""),
        ("score two -", "-: is no name of a file", "stdin is read"),
        ("translate --output -", "-: is no name of a file", "stdout written"),
        ("score two --model ckpts --source one --robust", "one ends after 1 line and two goes on", ""),
        ("score one --model none --source one --robust", "none: no such model", ""),
        ("score one --metric comet --source one --comet none", "none: is no COMET model", "--comet hf:Unbabel"),
        ("score --runs none", "none: no such model", ""),
        ("average none", "none: no such directory", ""),
        ("average ckpts --format huggingface --out learned", "learned: holds other files, which would be lost", ""),
        ("average learned --format huggingface --out out", "transformers has nothing like model.positions learned", ""),
        ("train none.yaml", "none.yaml: no such recipe", ""),
        ("train {recipes}/demo.yaml --device tpu", "--device tpu", ""),
        ("train {recipes}/demo.yaml --set modell.layers=2", "--set modell.layers=2: modell", "did you mean model?"),
    ],
)
def test_an_error_has_a_hint(nmt: Callable[..., Any], folder: Path, line: str, error: str, hint: str) -> None:
    *before, said, advice = assert_nothing_done(nmt, folder, line, 1).splitlines()
    assert [line for line in before if not re.match(r"(model|converting)\b", line)] == []
    assert said.startswith("error: ")
    assert error in said
    assert advice.startswith("hint: ")
    assert hint in advice
