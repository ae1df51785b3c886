"""Training speed of the paper's models on a GPU, with random subwords in sentences of WMT's lengths.

    python benchmarks/gpu_train.py [--size base|big] [--updates 300] [--device cuda] [--profile]
    python benchmarks/gpu_train.py --size tiny --updates 20 --device cpu     # whether the script itself works

Runs the training loop itself, on one device, over updates of 25,000 + 25,000 tokens with 37,000 subwords. Prints, of
the second half of the updates, the median time of an update in stretches of ten, target tokens/s and MFU; with
--profile a table of the heaviest kernels of ten updates. The paper's 100 K updates of base in one hour are 36 ms an
update, the 300 K of big in ten hours are 120 ms.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from nmt.console import Console
from nmt.data.corpus import Corpus
from nmt.data.epochs import EpochPlan, plan_epoch
from nmt.device import choose_device
from nmt.model.transformer import Transformer
from nmt.place import Place
from nmt.recipe import Model, Training
from nmt.training.distributed import Group
from nmt.training.loop import Loop
from nmt.training.loss import Objective
from nmt.training.optimizer import Optimizer
from nmt.training.precision import compile_layers, set_precision
from nmt.training.progress import Progress
from nmt.training.state import RunState
from synthetic import VOCABULARY, wmt_lengths, write_corpus

MODELS = {
    "base": Model(),
    "big": Model(d_model=1024, d_ff=4096, heads=16, dropout=0.3),
    "tiny": Model(layers=1, d_model=32, d_ff=64, heads=2),
}
PAIRS = 200_000
LOGGED = 10  # updates timed together; to time each would make the device wait for the host
KERNELS = 20


class Hooks:
    """What the loop needs of a run; profiles the last updates if told to."""

    def __init__(self, corpus: Corpus, settings: Training, profiler: profile | None) -> None:
        self._corpus, self._settings, self._profiler = corpus, settings, profiler
        self.first_done: float | None = None

    def plan(self, epoch: int) -> EpochPlan:
        lengths = self._corpus.source_lengths, self._corpus.target_lengths
        return plan_epoch(*lengths, self._settings.batch_tokens, self._settings.seed, epoch)

    def save(self, state: RunState, progress: Progress, *, validate: bool) -> None:
        """Keeps nothing."""

    def check(self) -> None:
        """Finds no error, since nothing is written."""

    def is_done(self, state: RunState) -> bool:
        self.first_done = self.first_done or time.perf_counter()
        if self._profiler is not None and state.step == self._settings.updates - LOGGED:
            self._profiler.start()
        return state.step >= self._settings.updates


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=MODELS, default="base")
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--batch-tokens", type=int, default=25_000)
    parser.add_argument("--device-tokens", type=int, help="what fits the device's memory unless given")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    device, model = choose_device(arguments.device, None), MODELS[arguments.size]
    settings = Training(
        updates=arguments.updates + LOGGED * arguments.profile,
        batch_tokens=arguments.batch_tokens,
        device_tokens=arguments.device_tokens,
        log_updates=LOGGED,
        checkpoint_minutes=None,
    )
    torch.manual_seed(settings.seed)
    transformer = Transformer(model, arguments.vocabulary, arguments.vocabulary).to(device)
    set_precision(transformer, settings.precision, device)
    optimizer = Optimizer(transformer, model.d_model, settings)
    if device.type == "cuda" and not arguments.no_compile:
        compile_layers(transformer)
    activities = {ProfilerActivity.CPU} | ({ProfilerActivity.CUDA} if device.type == "cuda" else set())
    profiler = profile(activities=activities) if arguments.profile else None
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder) / "train.arrow", *wmt_lengths(PAIRS), vocabulary=arguments.vocabulary)
        corpus = Corpus(Path(folder) / "train.arrow")
        console, records = Console(), io.StringIO()
        objective = Objective(transformer, settings.label_smoothing)
        loop = Loop(objective, optimizer, corpus, settings, Group(Place(), timeout_minutes=10), device, console)
        hooks, state = Hooks(corpus, settings, profiler), RunState(step=0, epoch=0, offset=0)
        began = time.perf_counter()
        loop.run(state, Progress(console, records, settings.updates, lambda more, figures=None: None), hooks)
        if profiler is not None:
            profiler.stop()
    assert hooks.first_done is not None
    rows = [json.loads(line) for line in records.getvalue().splitlines()]
    counted = [row for row in rows if arguments.updates / 2 < row["step"] <= arguments.updates]
    times = sorted(1000 * row["seconds_per_update"] for row in counted)

    def median(key: str) -> float:
        return float(statistics.median(row[key] for row in counted))

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    mfu = f", MFU {median('mfu'):.1%}" if "mfu" in counted[0] else ""
    print(
        f"{arguments.size} on {name}, torch {torch.__version__}: {statistics.median(times):,.1f} ms an update "
        f"({times[0]:,.1f} to {times[-1]:,.1f}), {median('tokens_per_update'):,.0f} target tokens each, "
        f"{median('tokens_per_second'):,.0f} a second, {median('flops_per_second') / 1e12:,.3g} TFLOP/s{mfu}, "
        f"padding {median('padding'):.1%}, data wait {median('data_wait'):.1%}, memory "
        f"{median('memory_bytes') / 2**30:.1f} GiB at most, micro-batches of {state.device_tokens:,} tokens, "
        f"{hooks.first_done - began:.0f} s to the first update"
    )
    if profiler is not None:
        sort = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
        print(profiler.key_averages().table(sort_by=sort, row_limit=KERNELS, max_name_column_width=90))


if __name__ == "__main__":
    main()
