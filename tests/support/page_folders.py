"""Runs the blocks of a page in order, in a folder that holds what the page takes for granted."""

from __future__ import annotations

import contextlib
import doctest
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fork_server
import pytest
import shrunk_nmt
from documents import ROOT, Block, begins_with, blocks, commands, matches
from marian_folders import write_model, write_tokenizer
from moses_zip import moses_zip

INGREDIENTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "texts": ((), "python recipes/demo_corpus.py . --train 240 --valid 10 --test 8 && cp test.en input.en"),
    "translator": (("texts",), "nmt train recipes/demo.yaml --set data.root=. && nmt average ckpts"),
    "trees": ((), "python recipes/demo_treebank.py trees --train 200 --valid 10 --test 8"),
    "parser": (
        ("trees",),
        "nmt train recipes/demo_parse.yaml --set data.root=trees --out parser && nmt average parser",
    ),
    "demo": (
        ("translator", "parser"),
        "mkdir -p runs/demo/text && mv *.en *.de runs/demo/text && mv ckpts parser trees runs/demo",
    ),
    "hub": (("texts",), ""),
    "opus": ((), "python recipes/demo_corpus.py opus --train 4000 --valid 10 --test 8"),
}
"""What a page's comment `begins with` may name: other ingredients, and the commands that make it."""

CACHE = "huggingface"
HUB = Path(CACHE) / "hub"
HUB_MODEL = "Helsinki-NLP/opus-mt-en-de"
"""The model of the hub that the ingredient `hub` holds: random weights, in the layout of the real one."""
OPUS_CORPORA = "europarl", "ted2020"
"""The archives, from English to Italian, of the ingredient `opus`; their text is the demo's."""


def write_hub(folder: Path) -> None:
    """Write the cache of a hub as huggingface_hub keeps it, with one model that knows the subwords of the texts."""
    model = folder / HUB / f"models--{HUB_MODEL.replace('/', '--')}"
    revision = "0" * 40
    snapshot = model / "snapshots" / revision
    source, target = ((folder / f"train.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de"))
    write_model(snapshot, write_tokenizer(snapshot, source, target, 200))
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(revision)


def environment(home: Path) -> dict[str, str]:
    """The variables of commands of pages, for which this folder is made their home.

    The only hub there is is a folder in it. The first `nmt` on PATH is forked from a server and shrinks trainings, and
    `pip` installs nothing.
    """
    command = home / "bin" / "nmt"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-IS", shrunk_nmt.__file__])} "$@"\n')
    command.chmod(0o755)
    pip = command.with_name("pip")  # installs nothing, and refuses what no index has
    pip.write_text('#!/bin/sh\ncase "$*" in *nmtkit*) echo "no index has nmtkit" >&2; exit 1; esac\n')
    pip.chmod(0o755)
    known = {name: value for name, value in os.environ.items() if not name.startswith(("NMT_", "HF_", "SACREBLEU"))}
    ours = {
        "PATH": os.pathsep.join([str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(home),
        "COLUMNS": "100",
        "TERM": "dumb",
        "OMP_NUM_THREADS": "1",  # commands as tiny as these gain nothing by threads and workers
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HOME": str(home / CACHE),
        "HF_HUB_OFFLINE": "1",
    }
    server = {fork_server.ADDRESS: fork_server.start(known | ours).address} if fork_server.AVAILABLE else {}
    return known | ours | server


@dataclass
class PageFolder:
    """A folder in which blocks run one after another, Python's in one namespace."""

    path: Path
    environment: Mapping[str, str]
    """The variables of its commands"""
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def run(self, block: Block) -> None:
        """Run a block, or write it to its file; raises AssertionError if it fails or prints something else."""
        if name := block.marker("file"):
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            self._run_python(block)
        elif block.language == "console":
            for command, output in commands(block):
                found = self._run_shell(block, command)
                compared = block.marker("output not compared") is None
                assert not compared or matches(output, found), (
                    f"{block.where}: `{command}` prints\n{found}\ninstead of\n{output}"
                )
        else:
            self._run_shell(block, block.text)

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run commands as a user would, with stderr among the output."""
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )

    def _run_shell(self, block: Block, script: str) -> str:
        setup = block.marker("setup")
        done = self.shell(f"{setup}\n{script}" if setup else script)
        assert done.returncode == 0, f"{block.where}: ended with {done.returncode}:\n{script}\n{done.stdout}"
        return done.stdout

    def _run_python(self, block: Block) -> None:
        if setup := block.marker("setup"):
            self._run_shell(block, setup)
        with contextlib.chdir(self.path):
            if ">>> " in block.text:
                said: list[str] = []
                test = doctest.DocTestParser().get_doctest(
                    block.text, self.names, block.where, str(block.page), block.line
                )
                doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append, clear_globs=False)
                self.names.update(test.globs)
                assert not said, f"{block.where}: {''.join(said)}"
            else:
                exec(compile(block.text, block.where, "exec"), self.names)


Make = Callable[[str, Callable[[Path], None]], Path]
"""Gives the folder of a name, which is filled once in all processes that run tests."""


def ingredient(name: str, environment: Mapping[str, str], make: Make) -> Path:
    """The folder that an ingredient is made in; pages get a copy."""
    others, script = INGREDIENTS[name]

    def fill(folder: Path) -> None:
        prepare(folder, others, environment, make)
        if name == "hub":
            write_hub(folder)
        done = PageFolder(folder, environment).shell(script)
        assert done.returncode == 0, f"{name}: {script}\n{done.stdout}"

    return make(f"page-{name.replace(' ', '-')}", fill)


def prepare(folder: Path, names: Sequence[str], environment: Mapping[str, str], make: Make) -> None:
    """Fill a new folder with ingredients, and with links to the repository's own recipes and benchmarks."""
    for linked in ("recipes", "benchmarks"):
        if not (folder / linked).exists():
            (folder / linked).symlink_to(ROOT / linked)
    for name in names:
        shutil.copytree(ingredient(name, environment, make), folder, dirs_exist_ok=True, symlinks=True, ignore=_links)
    if "hub" in names:
        shutil.copytree(folder / CACHE, environment["HF_HOME"], dirs_exist_ok=True)


def _links(_folder: str, names: list[str]) -> set[str]:
    return {"recipes", "benchmarks"} & set(names)


def run_page(page: Path, folder: PageFolder, make: Make, slow: bool) -> int:
    """Run the blocks of a page in order, the slow ones among them only if `slow`; gives their number."""
    prepare(folder.path, begins_with(page), folder.environment, make)
    wanted = [block for block in blocks(page) if block.marker("file") or block.is_program]
    wanted = [block for block in wanted if block.speed == "quick" or (slow and block.speed == "slow")]
    if "opus" in begins_with(page):
        write_opus(folder.path)
    for block in wanted:
        if (needed := block.marker("needs")) and not shutil.which(needed):
            pytest.importorskip(needed)
        folder.run(block)
    return len(wanted)


def write_opus(folder: Path) -> None:
    """Write the halves of a text as archives."""
    sides = [(folder / f"opus/train.{side}").read_text(encoding="utf-8").splitlines(True) for side in ("en", "de")]
    for part, name in enumerate(OPUS_CORPORA):
        english, other = ("".join(side[part::2]) for side in sides)
        (folder / f"{name}.zip").write_bytes(moses_zip(f"{name}.en-it", {"en": english, "it": other}))
