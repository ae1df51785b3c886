"""Files of strangers: what they can make a process allocate, read and show. docs/testing.md lists all attacks."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit, setrlimit
from typing import Any

import pytest
import torch
from marian_folders import write_model, write_tokenizer
from random_bundle import random_bundle
from reverse_task import reseal

from nmt.checkpoint.reading import Bundle
from nmt.commands.process import open_output
from nmt.exchange.ctranslate2 import specification
from nmt.exchange.resolve import resolve
from nmt.parsing.tree import read_trees
from nmt.recipe import TASKS, Decoding, validated
from nmt.report.record import read_figures
from nmt.search.beam import SearchEngine
from nmt.system.errors import UserError
from nmt.system.integrity import replace_manifest
from nmt.text.lines import LONGEST as LONGEST_LINE
from nmt.text.lines import read_lines
from nmt.training.dev_outputs import read_samples

ROOM = 3 << 29
"""Bytes of memory, 1.5 GiB, that no attack may make a process ask for."""


@contextmanager
def little_memory() -> Iterator[None]:
    """Refuse this process memory beyond ROOM while the block runs; what asks for more raises MemoryError."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("only Linux tells how much memory a process has")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before, hard = getrlimit(RLIMIT_AS)
    limit = pages * os.sysconf("SC_PAGE_SIZE") + ROOM
    setrlimit(RLIMIT_AS, (limit if hard == RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        setrlimit(RLIMIT_AS, (before, hard))


def refused(read: Callable[[], Any], message: str) -> None:
    """With little memory, the call is refused with this message, a regular expression, and a hint."""
    with little_memory(), pytest.raises(UserError, match=message) as caught:
        read()
    assert caught.value.hint


@pytest.fixture
def hostile(tmp_path: Path) -> Bundle:
    """A bundle of a stranger, who has made all hashes fit."""
    return random_bundle(tmp_path / "hostile")


def read_all(path: Path) -> None:
    """Reads all of a model, as a command does."""
    bundle, _ = resolve(path)
    assert bundle.recipe
    bundle.model(torch.device("cpu"))


@pytest.mark.parametrize("name", ["bundle.json", "tokenizer.model", "recipe.yaml"])
def test_a_file_that_is_read_whole_has_a_limit(hostile: Bundle, name: str) -> None:
    """It may be sparse: a terabyte that takes no place on a disk, and hours to hash."""
    manifest = {key: value for key, value in hostile.written.items() if key != "hashes"}
    (hostile.path / "bundle.json").write_text(json.dumps(manifest))
    os.truncate(hostile.path / name, 1 << 40)
    refused(lambda: read_all(hostile.path), rf"{name}: (damaged: )?has (more than 1,000,000 char|{1 << 40:,} bytes)")


HEADERS: dict[str, tuple[dict[str, Any], int, str]] = {
    "longer than the file": ({}, 1 << 20, "invalid header length"),
    "longer than any": ({}, 1 << 62, "header too large"),
    "overlapping": (
        {"a": {"shape": [2], "data_offsets": [0, 8]}, "b": {"shape": [2], "data_offsets": [4, 12]}},
        0,
        "invalid offset",
    ),
    "beyond the file": ({"a": {"shape": [2**40], "data_offsets": [0, 2**42]}}, 0, "damaged or not readable"),
    "of a size that overflows": ({"a": {"shape": [2**40, 2**40], "data_offsets": [0, 8]}}, 0, "overflow"),
    "negative": ({"a": {"shape": [-1], "data_offsets": [0, -4]}}, 0, "invalid JSON in header"),
    "of no bytes": (
        {"a": {"shape": [2**62, 0], "data_offsets": [0, 0]}},
        0,
        "weight a has shape .* none by the recipe",
    ),
    "of more than any shape": ({"a": {"shape": [0, 2**63], "data_offsets": [0, 0]}}, 0, "readable: [^\\\\]+$"),
    "of bits": ({"a": {"shape": [2], "data_offsets": [0, 1], "dtype": "F4"}}, 0, "holds numbers of type|readable"),
}
"""By name: tensors of a file of 12 bytes, how much more its header claims to have, and what is said of it."""


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_of_weights_that_lies_is_named(hostile: Bundle, name: str) -> None:
    tensors, more, message = HEADERS[name]
    header = json.dumps({key: {"dtype": "F32"} | value for key, value in tensors.items()}).encode()
    size = max((value["data_offsets"][1] for value in tensors.values()), default=0)
    content = struct.pack("<Q", len(header) + more) + header + bytes(sorted((0, size, 12))[1])
    (hostile.path / "model.safetensors").write_bytes(content)
    reseal(hostile.path)
    refused(lambda: read_all(hostile.path), message)


@pytest.fixture
def marian(tmp_path: Path) -> Path:
    """A folder of a stranger with a model of transformers."""
    texts = ["a dog sees the house", "the cat likes trees"] * 20
    write_model(tmp_path / "marian", write_tokenizer(tmp_path / "marian", texts, texts, 60))
    return tmp_path / "marian"


@pytest.mark.parametrize(
    ("key", "value"),
    [("vocab_size", 10**10), ("vocab_size", "x"), ("decoder_layers", 10**10), ("d_model", 10**6), ("num_beams", 10**10),
     ("max_position_embeddings", "x"), ("length_penalty", [1]), ("activation_function", [1]), ("model_type", {})],
)  # fmt: skip
def test_a_config_of_transformers_that_lies_is_named(marian: Path, key: str, value: object) -> None:
    config = json.loads((marian / "config.json").read_text()) | {key: value}
    (marian / "config.json").write_text(json.dumps(config))
    refused(lambda: read_all(marian), "marian")


@pytest.mark.parametrize("special", ["pipe", "device"])
def test_what_a_run_has_recorded_is_no_pipe_and_no_device(tmp_path: Path, special: str) -> None:
    path = tmp_path / "records.jsonl"
    os.mkfifo(path) if special == "pipe" else path.symlink_to("/dev/zero")
    assert not len(read_figures(path, TASKS["translate"])[0]["step"])
    assert read_samples(path, list) == ([], [], [])


@pytest.mark.parametrize("line", [b"a" * 64, b'{"a": "' * 8], ids=["text", "JSON"])
def test_a_line_without_an_end_is_not_read_to_its_end(tmp_path: Path, line: bytes) -> None:
    """Two megabytes that stand for two gigabytes."""
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"a line\n") + gzip.compress(line * 500_000, 1) * 64)
    refused(lambda: list(read_lines(path)), f"bomb.gz:2: is longer than {LONGEST_LINE:,} bytes")


@pytest.mark.parametrize("end", ["", "\n"], ids=["one line", "many lines"])
def test_a_tree_that_is_never_closed_is_not_read_to_its_end(tmp_path: Path, end: str) -> None:
    path = tmp_path / "bomb.mrg.gz"
    path.write_bytes(gzip.compress(("(A " * 4000 + end).encode() * 500, 1))
    refused(lambda: list(read_trees(path)), "bomb.mrg.gz:[0-9]+:1: a tree has at most 4,194,304 characters")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_a_model_says_cannot_steer_a_terminal(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    class Output(io.StringIO):
        buffer = io.BytesIO()

        def isatty(self) -> bool:
            return is_terminal

    monkeypatch.setattr(sys, "stdout", output := Output())
    open_output(None, ExitStack())("a\x1b[2J\tb\nשלום \u200f\x9b1m")
    shown = r"\x1b[2J", r"\x9b1m"
    expected = "a{}\tb\nשלום \u200f{}\n".format(*(shown if is_terminal else ("\x1b[2J", "\x9b1m")))
    assert output.buffer.getvalue().decode() == expected


@pytest.mark.parametrize("there", [10**12, 10**5])
def test_a_search_that_fits_into_no_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, hostile: Bundle, there: int
) -> None:
    """Memory that a beam of a bundle's own settings needs for a vocabulary of a million symbols, say."""
    monkeypatch.setattr("nmt.search.beam.available_memory", lambda device: there)
    models, decoding = [hostile.model(torch.device("cpu"))], Decoding(beam=1000)
    if there == 10**12:
        assert SearchEngine(models, decoding).decoding.beam == 1000
    else:
        refused(lambda: SearchEngine(models, decoding), "decoding.beam: the logits of 1000 hypotheses over 320 symbols")


def test_tables_of_positions_that_fit_into_no_memory_are_refused(
    monkeypatch: pytest.MonkeyPatch, hostile: Bundle
) -> None:
    pytest.importorskip("ctranslate2")
    problem = "decoding.max_source and max_extra: encodings of 110,000 positions need"
    monkeypatch.setattr("nmt.exchange.ctranslate2.host_memory", lambda: 10**7)
    refused(lambda: specification(hostile, 110_000, "float32"), problem)
    monkeypatch.setattr("nmt.exchange.ctranslate2.host_memory", lambda: 10**12)
    assert specification(hostile, 80, "float32") is not None


# --- paths and the network ----------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["../outside.yaml", "/etc/passwd", "recipe.yaml"])
def test_the_recipe_of_a_bundle_extends_no_other_file(hostile: Bundle, base: str) -> None:
    with (hostile.path / "recipe.yaml").open("a") as file:
        file.write(f"extends: {base}\n")
    reseal(hostile.path)
    refused(lambda: read_all(hostile.path), r"recipe.yaml:\d+: extends: the recipe of a model has all its keys")


@pytest.mark.parametrize("name", ["../outside", "/dev/zero", "sub/file"])
def test_a_manifest_names_no_files_of_other_folders(hostile: Bundle, name: str) -> None:
    (hostile.path.parent / "outside").write_text("a secret")
    values = json.loads((hostile.path / "bundle.json").read_text())
    values["hashes"][name] = "0" * 16
    replace_manifest(hostile.path / "bundle.json", values)
    refused(lambda: Bundle.read(hostile.path), "bundle.json: damaged: hashes: .*String should match pattern")


def test_a_bundle_reaches_no_network(
    nmt: Callable[..., Any], hostile: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recipe may name models and data of the hub, which only training would ask for."""
    values = hostile.recipe.model_dump()
    values["training"] |= {"init_from": "hf:stranger/model"}
    values["data"]["train"] = [{"hub": "stranger/data", "split": "train"}, {"file": "https://stranger.org/a.tsv"}]
    (hostile.path / "recipe.yaml").write_text(validated(values, "recipe.yaml").to_yaml())
    reseal(hostile.path)
    asked: list[object] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("socket.socket.connect", lambda self, address: asked.append(address))
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *others, **more: asked.append(host))
    done = nmt("translate", "--model", hostile.path, "--device", "cpu", stdin=b"the dog sees the cat .\n")
    assert (done.code, done.out.count(b"\n"), asked) == (0, 1, [])
    # For files of translators, its training files are a memory, if they are here.
    Path("app.po").write_text('msgid ""\nmsgstr "Language: de\\n"\n\nmsgid "the dog"\nmsgstr ""\n')
    done = nmt("translate", "--model", hostile.path, "--device", "cpu", "--input", "app.po", "--output", "de.po")
    assert (done.code, asked) == (0, []), done.err
    assert "1 of 1 training files are not here (data/_downloads/" in done.err
