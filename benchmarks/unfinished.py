"""`nmt translate --resume`: killed at random, shared by ranks, and of a million lines, against the run without it.

    python benchmarks/unfinished.py --model BUNDLE --text FILE [--lines 20000] [--block 500] [--kills 20]
        [--ranks 2 3] [--memory 100000 1000000] [--seed 1]

FILE is repeated up to so many lines. Kills are SIGKILL of a command at a random moment, from its start to the end of
its output, after which the same command goes on. Under torchrun, one random rank is killed, torchrun ends the others,
and the same command goes on. The outputs are compared byte by byte with one output of the command without --resume.
Blocks have --block lines so that there are many; the last part has blocks of the usual size and compares both outputs
and the peak resident sets of the largest process, with --resume and without.
"""

from __future__ import annotations

import argparse
import filecmp
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nmt.text.lines import read_lines

SMALL = "import nmt.terminal.making as making\nmaking.BLOCK_LINES = {}\nfrom nmt.cli import main\nmain()\n"
"""A program that is the command `nmt` with blocks of another size."""
USUAL = [sys.executable, "-m", "nmt"]


class Commands:
    """Commands that translate `in` to another file of a folder."""

    def __init__(self, folder: Path, model: Path, block: int) -> None:
        self.folder = folder
        self._arguments = ["translate", "--model", str(model), "--beam", "1", "--quiet", "--input", "in", "--output"]
        (folder / "small.py").write_text(SMALL.format(block))
        self.small = [sys.executable, "small.py"]

    def start(self, program: list[str], output: str, *options: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            command = [*program, *self._arguments, output, *options]
            return subprocess.Popen(command, cwd=self.folder, stderr=log, start_new_session=True)

    def finish(self, program: list[str], output: str, *options: str) -> None:
        if self.start(program, output, *options).wait():
            raise SystemExit((self.folder / "log").read_text())

    def peak(self, output: str, *options: str) -> int:
        """MiB of the largest process; forks one process to have its children's peak alone."""
        read, write = os.pipe()
        if not os.fork():
            self.finish(USUAL, output, *options)
            os.write(write, str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024).encode())
            os._exit(0)
        os.close(write)
        return int(os.read(read, 100))

    def write_input(self, text: Path, lines: int) -> None:
        with (self.folder / "in").open("w") as file:
            file.writelines(f"{line}\n" for line in itertools.islice(itertools.cycle(read_lines(text)), lines))

    def is_equal(self, output: str) -> bool:
        """Compares an output with the one that was never stopped, and removes it and nothing else."""
        same = filecmp.cmp(self.folder / output, self.folder / "plain", shallow=False)
        (self.folder / output).unlink()
        left = {path.name for path in self.folder.iterdir()} - {"in", "plain", "small.py", "log"}
        return same and not left


def kill_at_random(commands: Commands, kills: int, seconds: float, choose: random.Random) -> None:
    """Kills the command so many times; each time it ends by itself, its output is compared and another begins."""
    killed, outputs, equal, stops = 0, 0, 0, 0
    while killed < kills or stops:
        process = commands.start(commands.small, "out", "--resume")
        if killed < kills:
            try:
                process.wait(choose.uniform(0, seconds))
            except subprocess.TimeoutExpired:
                process.kill()
        if process.wait() == -signal.SIGKILL:
            killed, stops = killed + 1, stops + 1
            continue
        if process.returncode:
            raise SystemExit((commands.folder / "log").read_text())
        outputs, equal, stops = outputs + 1, equal + commands.is_equal("out"), 0
    print(f"{killed} kills: {equal} of {outputs} outputs equal", flush=True)


def ranks_of(launcher: subprocess.Popen[bytes]) -> list[int]:
    """The processes that a launcher has started."""
    return [int(pid) for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()]


def share(commands: Commands, ranks: int, choose: random.Random) -> None:
    """Translates by several ranks, once in peace and once with one of them killed."""
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", str(ranks), "small.py"]
    commands.finish(torchrun, "out", "--resume")
    print(f"{ranks} ranks: {'equal' if commands.is_equal('out') else 'DIFFERENT'}", flush=True)
    launcher = commands.start(torchrun, "out", "--resume")
    until = choose.randint(2, 15)
    while len(list(commands.folder.glob("out.parts/0*.json"))) < until and launcher.poll() is None:
        time.sleep(0.01)
    os.kill(choose.choice(ranks_of(launcher)), signal.SIGKILL)
    failed = launcher.wait()
    unfinished = not (commands.folder / "out").exists()
    commands.finish(torchrun, "out", "--resume")
    same = "equal" if commands.is_equal("out") and failed and unfinished else "DIFFERENT"
    print(f"{ranks} ranks, one killed after {until} blocks: {same}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a trained bundle")
    parser.add_argument("--text", type=Path, required=True, help="sentences for it")
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--block", type=int, default=500, help="lines of a block")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 3])
    parser.add_argument("--memory", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    choose = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        commands = Commands(Path(name), arguments.model.resolve(), arguments.block)
        if arguments.kills or arguments.ranks:
            commands.write_input(arguments.text, arguments.lines)
            began = time.monotonic()
            commands.finish(USUAL, "plain")
            kill_at_random(commands, arguments.kills, 1.2 * (time.monotonic() - began), choose)
        for ranks in arguments.ranks:
            share(commands, ranks, choose)
        for lines in arguments.memory:
            commands.write_input(arguments.text, lines)
            plain, resumed = commands.peak("plain"), commands.peak("out", "--resume")
            same = "equal" if commands.is_equal("out") else "DIFFERENT"
            print(f"{lines:,} lines: {plain} MiB without --resume, {resumed} MiB with it, {same}", flush=True)


if __name__ == "__main__":
    main()
