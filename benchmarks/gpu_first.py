"""The first ten minutes on a GPU as one command: what matters most comes first, and nothing else stops it.

    python benchmarks/gpu_first.py [--minutes 8.5] [--parts base,search] [--out runs/gpu_first]
    python benchmarks/gpu_first.py --minutes 9.5 --parts machine,updates,base,big --vary base \\
      --variants nmt.compute.gpu.WIDEST=0 nmt.training.graphs.MOST=0
    python benchmarks/gpu_first.py --device cpu --minutes 4                  # whether the script itself works

Each part runs in a process of its own, whose limit is its share of the time that is left; one that fails or hangs costs
no other. Figures go to results.jsonl as soon as they are known, kernels to kernels.jsonl, traces of two updates to
trace_*.json.gz, and what the processes print to log.txt. At the end comes a table, each figure with the last one that
was measured (`--last`) in brackets. benchmarks/gpu.md says what its rows mean. `--variants` times the parts base, big
and search again, after all parts, for each value of a setting, of a constant in the module that uses it, such as
nmt.search.beam.REFILL=4,16, or of an option of PyTorch's compiler.

A machine with torch 2.11 for CUDA and the usual packages may still lack a network, `datasets` and `pydantic`, and its
sentencepiece may be older than 0.2.3, which aborts where it trains our tokenizers. Fetch 46 MiB of wheels where there
is a network, carry them there with the repository, and install them beside the others:

    pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64 \\
      --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d wheels \\
      datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 pydantic==2.14.4 pydantic-core==2.50.5 sentencepiece==0.2.3 \\
      annotated-types==0.8.0 typing-extensions==4.16.0 typing-inspection==0.4.5 ctranslate2==4.8.5
    pip install --no-index --no-deps --target site wheels/*.whl && PYTHONPATH=$PWD/site python benchmarks/gpu_first.py
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from results import KERNELS, NAME, Results, parser, read, table

ROOT = Path(__file__).parents[1]
LAST = ROOT / "benchmarks" / "gpu_last.jsonl"
LINES = 60  # of the table
LEFT = 3.0  # seconds for it


class Part(NamedTuple):
    """A process: its seconds of 8.5 minutes, its command, and what makes it small enough for a CPU."""

    seconds: int
    command: tuple[str, ...]
    small: tuple[str, ...] = ()
    varied: bool = False


TINY = ("--vocabulary", "1000", "--size", "tiny")
UPDATE, FEW = ("--batch-tokens", "1000"), ("--sentences", "32")
PARTS = {
    "machine": Part(15, ("ceilings.py",)),
    "updates": Part(60, ("gpu_check.py", "--only", "updates")),
    "base": Part(75, ("gpu_train.py",), (*TINY, *UPDATE), True),
    "big": Part(90, ("gpu_train.py", "--size", "big"), (*TINY[:-1], "small", *UPDATE), True),
    "search": Part(75, ("gpu_translate.py",), (*TINY, *FEW), True),
    "ctranslate2": Part(35, ("gpu_translate.py", "--ctranslate2"), (*TINY, *FEW)),
    "check": Part(60, ("gpu_check.py", "--only", "searches")),
    "demo": Part(120, ()),
}


def run(
    command: list[str], seconds: float, log: Path, until: Callable[[], bool] = lambda: False, cwd: Path = ROOT
) -> str:
    """Run a command, and kill it and all that it started when its time is over or `until` says so.

    What it prints goes to the log. Return why it did not end well, or nothing.
    """
    paths = filter(None, (str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH")))
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as file, tempfile.TemporaryDirectory() as links:
        if "--ctranslate2" in command:
            own["LD_LIBRARY_PATH"] = os.pathsep.join([*cublas(Path(links)), own.get("LD_LIBRARY_PATH", "")])
        begin, end, done = file.tell(), time.monotonic() + seconds, False
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=cwd, env=own, start_new_session=True)
        try:
            while process.poll() is None and time.monotonic() < end and not (done := until()):
                time.sleep(0.1)
        finally:
            code = process.poll()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # a process within the driver may outlive the signal
                process.wait(2)
    if code == 0 or done:
        return ""
    last = next(filter(str.strip, reversed(log.read_bytes()[begin:].decode(errors="replace").split("\n"))), "")
    return f"{f'stopped after its {seconds:.0f} s' if code is None else f'ended with {code}'}: {last[:120]}"


def cublas(folder: Path) -> list[str]:
    """Fill a folder with CUDA 13's cuBLAS by the names of CUDA 12's, which CTranslate2 asks for."""
    torch, folders = find_spec("torch"), [folder]
    site = Path(torch.origin or "").parents[1] if torch else ROOT
    for name in ("libcublas", "libcublasLt"):
        for place in (site / "nvidia", Path("/usr/local/cuda/lib64")):
            if found := next(place.rglob(f"{name}.so.13"), None):
                (folder / f"{name}.so.12").symlink_to(found)
                folders.append(found.parent)
                break
    return [str(each) for each in folders]


def demo(results: Results, log: Path, seconds: float, device: str) -> str:
    """Train the demo's translator by commands, kill it once, resume it, and translate; return why it failed."""
    end, nmt = time.monotonic() + seconds, [sys.executable, "-m", "nmt"]
    few = device == "cpu"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = [sys.executable, str(ROOT / "recipes" / "demo_corpus.py"), "text"]
        corpus += ["--train", "2000", "--valid", "50", "--test", "50"] if few else []
        train = [*nmt, "train", str(ROOT / "recipes" / "demo.yaml"), "--device", device, "--set", "data.root=text"]
        train += ["--set", "training.updates=40", "--set", "training.checkpoint_updates=20"] if few else []
        translate = [*nmt, "translate", "--input", "text/test.en", "--output", "hyp", "--device", device]
        steps = {
            "corpus_s": corpus,
            "until_killed_s": train,
            "resumed_s": train,
            "average_s": [*nmt, "average", "ckpts"],
            "translate_s": translate,
            "score_s": [*nmt, "score", "text/test.de", "hyp"],
        }
        for key, command in steps.items():
            began, printed, killed = time.monotonic(), log.stat().st_size, key == "until_killed_s"
            until = lambda: killed and any(folder.glob("ckpts/step-*"))  # noqa: B023, E731
            if reason := run(command, max(1.0, end - began), log, until, folder):
                return f"{key}: {reason}"
            results.add("demo", **{key: time.monotonic() - began})
            said = log.read_bytes()[printed:].decode(errors="replace")
            if key == "resumed_s" and (found := re.search(r"resuming at update (\d+)", said)):
                results.add("demo", resumed_at=int(found[1]))
            if key == "score_s" and (found := re.search(r"BLEU\D*([\d.]+)", said)):
                results.add("demo", BLEU=float(found[1]))
    return ""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=8.5)
    options.add_argument("--parts", default=",".join(PARTS), help="%(default)s")
    options.add_argument("--variants", nargs="*", default=[], metavar="NAME=VALUE,…")
    options.add_argument("--vary", default="base,big,search", help="parts to time with each variant: %(default)s")
    options.add_argument("--last", type=Path, default=LAST, help="results.jsonl of another run")
    options.set_defaults(out=ROOT / "runs" / "gpu_first")
    given = options.parse_args()
    if unknown := set(given.parts.split(",")) - set(PARTS):
        options.error(f"--parts: no {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    end, out = time.monotonic() + 60 * given.minutes - LEFT, given.out.resolve()
    log, results = out / "log.txt", Results(out)
    for old in (out / NAME, out / KERNELS, log, *out.glob("trace_*.json.gz")):
        old.unlink(missing_ok=True)
    log.touch()
    named = [each.partition("=") for each in given.variants]
    variants = [f"{name}={value}" for name, _, values in named for value in values.split(",")]
    chosen = [(name, PARTS[name]) for name in given.parts.split(",")]
    jobs = [(name, part, "") for name, part in chosen]
    varied = [(name, part) for name, part in chosen if part.varied and name in given.vary.split(",")]
    jobs += [(name, part, each) for each in variants for name, part in varied]
    for number, (name, part, variant) in enumerate(jobs):
        began = time.monotonic()
        limit = max(1.0, (end - began) * part.seconds / sum(each.seconds for _, each, _ in jobs[number:]))
        small = part.small if given.device == "cpu" else ()
        command = [sys.executable, f"benchmarks/{part.command[0]}", *part.command[1:], *small] if part.command else []
        command += ["--device", given.device, "--out", str(out)] + (["--variant", variant] if variant else [])
        work = partial(run, command, limit, log) if part.command else partial(demo, results, log, limit, given.device)
        if reason := work():
            results.add(f"{name} {variant}".strip(), failed=reason)
        print(f"{name} {variant}: {time.monotonic() - began:.0f} of {limit:.0f} s", flush=True)
    print(f"\n{out}/{NAME}; in brackets {given.last.name}")
    print(*table(read(out / NAME), read(given.last), LINES - 2), sep="\n")


if __name__ == "__main__":
    main()
