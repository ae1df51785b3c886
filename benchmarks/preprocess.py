"""Speed and memory of `nmt preprocess` beside a bare SentencePiece loop: it reads both files, encodes, keeps nothing.

    python benchmarks/preprocess.py --data FOLDER [--pairs 7] [speed large memory]

FOLDER holds train, val .en.gz and .de.gz (Multi30k), whose 29,000 pairs are repeated with a number at the end, so that
all are different. Every run is a process of its own, bound to one core or two; loop and encoding alternate, since a
shared machine's speed drifts. "Encoding" is everything that `nmt preprocess` does with a given tokenizer, hashing,
filters, search for leaks and writing included, after the imports; "command" is the whole of it from the shell,
tokenizer training and most imports included. Memory is the peak of the one process there is (VmHWM).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import sentencepiece

from nmt import recipe as recipes
from nmt.console import Console
from nmt.data.prepare import prepare
from nmt.recipe import TokenizerSettings
from nmt.text.lines import read_lines
from nmt.text.tokenizer import Tokenizer

CHUNK = 10_000
LANGUAGES = ("en", "de")
SAMPLE = "tokenizer.sample=400000"


def write_corpus(data: Path, lines: int) -> None:
    """So many different pairs made of the real ones, as LINES.en and LINES.de, and a recipe for them, LINES.yaml."""
    for language in LANGUAGES:
        real = list(read_lines(data / f"train.{language}.gz"))
        with Path(f"{lines}.{language}").open("w", encoding="utf-8", newline="\n") as stream:
            for number in range(lines):
                turn, row = divmod(number, len(real))
                stream.write(real[row] + (f" {turn}\n" if turn else "\n"))
    content = {
        "name": "speed",
        "data": {
            "source": "en",
            "target": "de",
            "train": [{"source": f"{lines}.en", "target": f"{lines}.de"}],
            "valid": [{"source": str(data / "val.en.gz"), "target": str(data / "val.de.gz")}],
        },
        "tokenizer": {"vocab_size": 8000},
    }
    Path(f"{lines}.yaml").write_text(json.dumps(content))  # JSON is YAML


def write_tokenizer(data: Path) -> None:
    """A tokenizer of 8,000 pieces as `tokenizer.model`."""
    pairs = list(zip(*(read_lines(data / f"train.{language}.gz") for language in LANGUAGES), strict=True))
    for name, content in Tokenizer.train(pairs, TokenizerSettings(vocab_size=8000)).files().items():
        Path(name).write_bytes(content)


def loop(lines: int) -> float:
    """Seconds of the bare loop."""
    processor = sentencepiece.SentencePieceProcessor(model_file="tokenizer.model")
    start = time.perf_counter()
    for language in LANGUAGES:
        with open(f"{lines}.{language}", encoding="utf-8", newline="\n") as stream:
            while chunk := [line.rstrip("\n") for line in islice(stream, CHUNK)]:
                processor.encode(chunk, out_type=int, num_threads=1)
    return time.perf_counter() - start


def encoding(lines: int, threads: int) -> float:
    """Seconds of preparing with the given tokenizer."""
    import datasets.arrow_writer  # noqa: F401  # seconds that do not grow with the data

    recipe = recipes.load(f"{lines}.yaml", [f"data.name=encoding{os.getpid()}"])
    start = time.perf_counter()
    prepare(recipe, Console(quiet=True), threads, tokenizer_from=Path("."))
    return time.perf_counter() - start


def peak() -> int:
    """MiB that this process had resident at most."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) // 1024


def start(kind: str, lines: int, cores: int, *options: str) -> subprocess.Popen[str]:
    """Begins a measurement in a process of its own."""
    command = [sys.executable, __file__, "--measure", kind, str(lines), str(cores), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> tuple[float, int]:
    """Seconds and peak MiB of a measurement."""
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(process.returncode)
    seconds, memory = json.loads(out)
    return seconds, memory


def measure(kind: str, lines: int, cores: int, options: list[str]) -> None:
    """What such a process does: measures on the first `cores` cores, and prints seconds and peak MiB."""
    os.sched_setaffinity(0, range(cores))
    begin = time.perf_counter()
    if kind == "loop":
        seconds = loop(lines)
    elif kind == "encoding":
        seconds = encoding(lines, cores)
    else:
        sys.argv = ["nmt", "preprocess", f"{lines}.yaml", "--quiet", "--threads", str(cores)]
        for setting in (f"data.name=command{os.getpid()}", *options):
            sys.argv += ["--set", setting]
        try:
            runpy.run_module("nmt", run_name="__main__")
        except SystemExit as done:
            if done.code:
                raise
        seconds = time.perf_counter() - begin
    print(json.dumps([seconds, peak()]))


def spread(values: list[float], form: str = ",.0f") -> str:
    """Median, least and greatest."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def compare(lines: int, pairs: int) -> None:
    """Sentences/s of loop and encoding in turn, on one core and on two; on two there are two loops at a time."""
    for cores in (1, 2):
        loops, ours = [], []
        for _ in range(pairs):
            both = [start("loop", lines, cores) for _ in range(cores)]
            loops.append(sum(2 * lines / end(process)[0] for process in both))
            ours.append(2 * lines / end(start("encoding", lines, cores))[0])
        ratios = [our / bare for our, bare in zip(ours, loops, strict=True)]
        print(f"{lines:,} pairs, cores: {cores}, {pairs} in turn: loop {spread(loops)} sentences/s", end="")
        print(f", encoding {spread(ours)}, ratio {spread(ratios, '.3f')}", flush=True)


def main() -> None:
    """Prints what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["speed", "large", "memory"], help="speed, large, memory")
    parser.add_argument("--data", type=Path, default=Path("data/raw/multi30k"))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        kind, lines, cores, *options = arguments.measure
        measure(kind, int(lines), int(cores), options)
        return
    data = arguments.data.resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_tokenizer(data)
        if "speed" in arguments.parts:
            write_corpus(data, 200_000)
            compare(200_000, arguments.pairs)
        if "large" in arguments.parts:
            write_corpus(data, 1_000_000)
            compare(1_000_000, 1)
            for cores in (1, 2):
                seconds, memory = end(start("command", 1_000_000, cores))
                print(f"1,000,000 pairs, cores: {cores}, command {seconds:.1f} s, {memory:,} MiB", flush=True)
        for size in (250_000, 1_000_000, 4_000_000) if "memory" in arguments.parts else ():
            write_corpus(data, size)
            (_, encode), (_, whole) = end(start("encoding", size, 2)), end(start("command", size, 2, SAMPLE))
            print(f"{size:,} pairs: encoding {encode:,} MiB, command with {SAMPLE} {whole:,} MiB", flush=True)


if __name__ == "__main__":
    main()
