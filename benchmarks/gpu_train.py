"""Training speed of the paper's models on a GPU beside plain PyTorch: random subwords in sentences of WMT's lengths.

    python benchmarks/gpu_train.py [--size base|big] [--plain eager|compiled|none]
    python benchmarks/gpu_train.py --size tiny --rounds 2 --updates 20 --device cpu    # whether the script itself works

Runs the training loop itself, on one device, over updates of 25,000 + 25,000 tokens with 37,000 subwords. A plain loop
(`benchmarks/plain.py`) makes the same updates of the same model, in turn with ours: padded micro-batches, bf16
autocast, PyTorch's attention, cross-entropy and fused Adam. A round is 50 updates of each, of which the first ten are
not counted; the first round is not counted at all. Prints, of both, the median time of an update in stretches of ten,
target tokens/s and MFU; then, of ours, how often the host waits for the GPU in eight updates between two log lines,
the graphs that were compiled, and the heaviest kernels of ten updates. The paper's 100 K updates of base in one hour
are 36 ms an update, the 300 K of big in ten hours are 120 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice, pairwise
from pathlib import Path

import torch

from counts import host_waits, print_graphs, print_profile, print_waits, profiler
from nmt.data.corpus import Corpus
from nmt.data.epochs import AHEAD, EpochPlan, plan_epoch
from nmt.model.transformer import Transformer
from nmt.recipe import Training
from nmt.system.console import Console, unseen
from nmt.system.device import World, choose_device
from nmt.system.files import JsonLines
from nmt.training.arithmetic import device_name, peak_flops, set_precision
from nmt.training.batches import prefetched
from nmt.training.budget import Requests
from nmt.training.distributed import Group
from nmt.training.progress import Progress
from nmt.training.trainer import Trainer
from plain import PlainTraining, PlainTransformer
from synthetic import MODELS, VOCABULARY, wmt_lengths, write_corpus

PAIRS = 200_000
LOGGED = 10  # updates timed together; to time each would make the device wait for the host

Figures = Mapping[str, float]
"""A line of metrics.jsonl."""


class Ours:
    """The updates of `nmt train`."""

    def __init__(
        self, model: Transformer, corpus: Corpus, settings: Training, device: torch.device, console: Console
    ) -> None:
        group = Group(World(), timeout_minutes=10, device=device)
        self._trainer = Trainer(model, corpus, settings, group, console)
        self.optimizer, self.state = self._trainer.optimizer, self._trainer.state
        self._folder = tempfile.TemporaryDirectory()
        self._records = JsonLines(Path(self._folder.name) / "metrics.jsonl", console.say)
        self._progress = Progress(console, self._records, "", unseen)
        self.after: dict[int, Callable[[], object]] = {}  # what to do after some updates
        self.first_done: float | None = None

    def train(self, updates: int) -> list[Figures]:
        """So many further updates; figures of each stretch of ten but the first, for which nothing is prefetched."""
        begin = self.state.step
        self._trainer.start(self._progress)
        further = islice(self._trainer.micro_batches.updates(self._plan, self.state), updates)
        with closing(prefetched(further, AHEAD)) as ahead:
            for update in self._trainer.meter.waiting(ahead):
                self._trainer.update(update, Requests())
                self.first_done = self.first_done or time.perf_counter()
                self.after.get(self.state.step, lambda: None)()
        rows = [json.loads(line) for line in self._records.path.read_text().splitlines()]
        return [row for row in rows if row["step"] > begin + LOGGED]

    def _plan(self, epoch: int) -> EpochPlan:
        corpus, settings = self._trainer.corpus, self._trainer.settings
        return plan_epoch(corpus.source_lengths, corpus.target_lengths, settings.batch_tokens, settings.seed, epoch)

    def count(self, device: torch.device, kernels: int) -> None:
        """Prints what thirty further updates make the device do."""
        after, start, waits = self.after, self.state.step, Counter[str]()
        with ExitStack() as stack:
            after[start + 1] = lambda: stack.enter_context(host_waits(device, waits))
            after[start + LOGGED - 1] = stack.close
            self.train(LOGGED)
        print_waits(f"{LOGGED - 2} updates between log lines", waits)
        print_graphs()
        watch = profiler(device)
        after[start + 2 * LOGGED], after[start + 3 * LOGGED] = watch.start, watch.stop
        self.train(2 * LOGGED)
        print_profile(f"{LOGGED} updates", watch, device, kernels)


def plain_seconds(plain: PlainTraining, updates: int) -> list[float]:
    """Seconds of an update in each stretch of ten but the first."""
    ends = [time.perf_counter()]
    for _ in range(updates // LOGGED):
        plain.train(LOGGED)
        ends.append(time.perf_counter())
    return [(end - begin) / LOGGED for begin, end in pairwise(ends)][1:]


def describe(seconds: Sequence[float], rows: Sequence[Figures], device: torch.device) -> str:
    """The speed of one side; `rows` are our figures of the same updates."""
    times = sorted(1000 * each for each in seconds)
    tokens = statistics.median(row["tokens_per_update"] / each for row, each in zip(rows, seconds, strict=True))
    flops = statistics.median(
        row["flops_per_second"] * row["seconds_per_update"] / each for row, each in zip(rows, seconds, strict=True)
    )
    peak = peak_flops(device)
    return (
        f"{statistics.median(times):,.1f} ms an update ({times[0]:,.1f} to {times[-1]:,.1f}), {tokens:,.0f} target "
        f"tokens a second, {flops / 1e12:,.3g} TFLOP/s" + (f", MFU {flops / peak:.1%}" if peak else "")
    )


def report(ours: Ours, rows: Sequence[Figures], plain: Sequence[float], device: torch.device) -> None:
    """Prints the speed of both sides over the updates that were counted."""

    def median(key: str) -> float:
        return statistics.median(row[key] for row in rows)

    seconds = [row["seconds_per_update"] for row in rows]
    print(f"  ours:  {describe(seconds, rows, device)}")
    print(
        f"         {median('tokens_per_update'):,.0f} target tokens an update, padding {median('padding'):.1%}, data "
        f"wait {median('data_wait'):.1%}, memory {median('memory_bytes') / 2**30:.1f} GiB at most, micro-batches of "
        f"{ours.state.device_tokens:,} tokens"
    )
    if plain:
        ratios = sorted(other / own for other, own in zip(plain, seconds, strict=True))
        print(f"  plain: {describe(plain, rows, device)}")
        print(f"  plain / ours: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)


def alternate(ours: Ours, plain: PlainTraining | None, rounds: int, updates: int) -> tuple[list[Figures], list[float]]:
    """Our figures of further rounds, and plain PyTorch's seconds of the same updates."""
    rows: list[Figures] = []
    seconds: list[float] = []
    for _ in range(rounds):
        rows += ours.train(updates)
        torch.cuda.empty_cache()  # either side may need all of the memory
        if plain is not None:
            seconds += plain_seconds(plain, updates)
            torch.cuda.empty_cache()
    return rows, seconds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=MODELS, default="base")
    parser.add_argument("--plain", choices=["eager", "compiled", "none"], default="eager")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=50, help="of a round")
    parser.add_argument("--batch-tokens", type=int, default=25_000)
    parser.add_argument("--device-tokens", type=int, help="what fits the device's memory unless given")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--packing", choices=["auto", "true", "false"], default="auto")
    parser.add_argument("--kernels", type=int, default=15, help="rows of the table of kernels")
    given = parser.parse_args()
    if given.rounds < 2 or given.updates % LOGGED or given.updates < 2 * LOGGED:
        parser.error("there must be at least 2 rounds, of 20, 30, 40, … updates")
    return given


def main() -> None:
    """Trains and prints."""
    given = arguments()
    device, model = choose_device(given.device, None), MODELS[given.size]
    settings = Training(
        updates=given.rounds * given.updates + 3 * LOGGED,
        batch_tokens=given.batch_tokens,
        device_tokens=given.device_tokens,
        log_updates=LOGGED,
        checkpoint_minutes=None,
        compile=device.type == "cuda" and not given.no_compile,
        packing={"true": True, "false": False}.get(given.packing, "auto"),
    )
    torch.manual_seed(settings.seed)
    transformer = Transformer(model, given.vocabulary, given.vocabulary).to(device)
    set_precision(transformer, settings.precision, device)
    plain_model = PlainTransformer(model, given.vocabulary).to(device)
    plain_model.take(transformer.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder) / "train.arrow", *wmt_lengths(PAIRS), vocabulary=given.vocabulary)
        corpus = Corpus(Path(folder) / "train.arrow")
        ours, began = Ours(transformer, corpus, settings, device, Console()), time.perf_counter()
        ours.train(given.updates)
        assert ours.first_done is not None
        print(
            f"{given.size} on {device_name(device)}, torch {torch.__version__}: {ours.first_done - began:.0f} s "
            "to the first update",
            flush=True,
        )
        plain = None
        if given.plain != "none":
            tokens, compiled = ours.state.device_tokens, given.plain == "compiled"
            plain = PlainTraining(plain_model, corpus, settings, tokens, device, compiled)
            plain.train(given.updates)
        report(ours, *alternate(ours, plain, given.rounds - 1, given.updates), device)
        ours.count(device, given.kernels)


if __name__ == "__main__":
    main()
