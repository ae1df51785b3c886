"""Memory of a long stream, and time from a cold start to the first line.

    python benchmarks/translate_stream.py --model BUNDLE --text FILE [--lines 5000 100000]    # memory
    python benchmarks/translate_stream.py --cold [--repeat 7]                                 # start-up

Memory is the peak resident set of the largest process of `nmt translate`, which repeats FILE up to so many lines.
Start-up is that of a base model with random weights and 8,000 subwords: a sentence of three words by `nmt translate`,
up to the first byte of its translation, beside a process that imports torch and loads the same weights.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contest import random_bundle
from nmt.text.lines import read_lines
from translate_speed import SIZES, VOCABULARY

LOAD = "import sys, torch; from safetensors.torch import load_file; load_file(sys.argv[1]); print()"
TRANSLATE = [sys.executable, "-m", "nmt", "translate"]


def peak(model: Path, text: Path, lines: int) -> float:
    """MiB of the largest process; forks one process to have its children's peak alone."""
    read, write = os.pipe()
    if not os.fork():
        command = [*TRANSLATE, "--model", str(model), "--quiet"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            assert process.stdin
            for line in itertools.islice(itertools.cycle(read_lines(text)), lines):
                process.stdin.write(line.encode() + b"\n")
            process.stdin.close()
        assert process.returncode == 0
        os.write(write, str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss).encode())
        os._exit(0)
    return int(os.read(read, 100)) / 1024


def first_byte(command: list[str]) -> float:
    """Seconds from the start of a process to its first output."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"some three words\n")
        process.stdin.close()
        assert process.stdout.read(1)
        return time.perf_counter() - start


def cold(repeat: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bundle = random_bundle(Path(folder), SIZES["base"], VOCABULARY).path
        translate = [*TRANSLATE, "--model", str(bundle), "--set", "decoding.max_extra=10"]
        commands = {
            "import torch, load weights": [sys.executable, "-c", LOAD, str(bundle / "model.safetensors")],
            "nmt translate": translate,
            "nmt translate --precision int8": [*translate, "--precision", "int8"],
            "nmt translate --engine ctranslate2": [*translate, "--engine", "ctranslate2"],
        }
        for command in commands.values():
            first_byte(command)  # the disk's cache, the conversion
        rounds = [{name: first_byte(command) for name, command in commands.items()} for _ in range(repeat)]
        for name in commands:
            times = [one[name] for one in rounds]
            ratio = statistics.median(one[name] / one["import torch, load weights"] for one in rounds)
            print(f"{name:36s} {statistics.median(times):5.2f} s ({min(times):.2f} to {max(times):.2f})   {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a trained bundle")
    parser.add_argument("--text", type=Path, help="sentences for it")
    parser.add_argument("--lines", type=int, nargs="+", default=[5_000, 100_000])
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.model:
        for lines in arguments.lines:
            print(f"{lines:,} lines: {peak(arguments.model, arguments.text, lines):,.0f} MiB", flush=True)
    if arguments.cold:
        cold(arguments.repeat)


if __name__ == "__main__":
    main()
