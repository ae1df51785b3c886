"""Speed of updates on a GPU beside a plain loop: updates of sentences of 12, 37 and 90 tokens, and of WMT's.

    python benchmarks/gpu_train.py [--size base|big] [--plain eager|compiled|none]
    python benchmarks/gpu_train.py --size tiny --vocabulary 1000 --batch-tokens 1000 --device cpu  # whether it works

Runs the updates of `nmt train`, on one device, of about 24,000 tokens a side with 37,000 subwords, and in turn with
them a plain loop (`benchmarks/plain.py`). A row has the median milliseconds of an update: `ours`; `plain`; `floor`, its
matrix products at the speed of a large one; `host`, an update with as many launches and a sixteenth of the pairs;
`making`, the host's work to make its micro-batches. Then come launches, the host's waits and kernels of these updates,
and a trace of two.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from counts import add_kernels, graphs, host_waits, large_size, product_flops, profiler
from nmt.compute.choice import set_precision
from nmt.compute.recorded import Recorded
from nmt.data.corpus import Corpus
from nmt.data.epochs import Update
from nmt.model.transformer import Transformer
from nmt.recipe import Training
from nmt.system.console import Console
from nmt.system.device import choose_device
from nmt.training.flops import training_flops
from plain import PlainTraining, PlainTransformer
from results import Results, parser, section, settings_of
from synthetic import CLASSES, MODELS, VOCABULARY, write_classes
from updates import Ours, again

MIDDLE = "37 tokens"  # of which a profile is made
ROUNDS, PART = 3, 16


def time_class(
    results: Results, row: str, ours: Ours, plain: PlainTraining | None, rows: list[range], limit: float
) -> tuple[float, list[Update]]:
    """Add milliseconds of a class's updates; return one's seconds, and the updates.

    `limit` is the FLOP/s of a large product.
    """

    def median(run: Callable[[], float]) -> float:
        run()  # compiles, allocates
        run()  # records graphs of shapes that come again
        return 1000 * statistics.median(run() for _ in range(ROUNDS))

    def made(rows: list[range]) -> Iterator[Update]:
        return ours.updates(again(rows), len(rows))

    model, beforehand = ours.trainer.model, list(made(rows))
    flops = [training_flops(model.config, model.output_embedding.num_embeddings, *each.lengths) for each in beforehand]
    results.add(row, floor=1000 * statistics.mean(flops) / limit, ours=(own := median(lambda: ours.train(made(rows)))))
    if plain is not None:
        arrays = [np.array(each) for each in rows]
        results.add(row, plain=median(lambda: plain.train(arrays)))
    few = [each[: max(1, len(each) // PART)] for each in rows]
    operations = ours.trainer.model.operations
    chunk = operations.chunk_rows(ours.trainer.model.output_embedding.num_embeddings)
    with patch.object(operations, "chunk_rows", lambda vocabulary: max(1, chunk // PART)):  # as many chunks
        results.add(row, host=median(lambda: ours.train(made(few))))
    results.add(row, making=median(lambda: ours.make(beforehand)))
    return own / 1000, beforehand


@contextmanager
def timed_captures(seconds: list[float]) -> Iterator[None]:
    """Add the seconds that each CUDA graph takes to record within the block."""
    record = Recorded._record

    def timed(self: Recorded, work: Callable[[], object]) -> Any:
        began = time.perf_counter()
        graph = record(self, work)
        seconds.append(time.perf_counter() - began)
        return graph

    with patch.object(Recorded, "_record", timed):
        yield


def look(results: Results, size: str, ours: Ours, updates: list[Update], seconds: float) -> None:
    """Add launches, waits and kernels of updates that take so many seconds without a profiler."""
    device, waits = ours.trainer.device, Counter[str]()
    with host_waits(device, waits):
        ours.perform(updates)
    results.add(f"{size}, an update", waits=waits.total() / len(updates), **graphs())
    with (watch := profiler(device)):
        ours.perform(updates)
    add_kernels(results, f"{size}, an update", watch, len(updates), seconds)
    if results.folder is not None and not results.variant:
        with (trace := profiler(device, host=True)):
            ours.perform(updates[:2])
        trace.export_chrome_trace(str(results.folder / f"trace_{size}.json.gz"))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size", choices=MODELS, default="base")
    options.add_argument("--plain", choices=["eager", "compiled", "none"], default="eager")
    options.add_argument("--batch-tokens", type=int, default=25_000)
    options.add_argument("--vocabulary", type=int, default=VOCABULARY)
    options.add_argument("--variant", default="", metavar="NAME=VALUE", help="training.packing=false, or a constant")
    given = options.parse_args()
    began = time.perf_counter()
    device, results = choose_device(given.device, None), Results(given.out, given.variant)
    fixed = {"updates": 10**6, "log_updates": 10**6, "checkpoint_minutes": None, "batch_tokens": given.batch_tokens}
    settings = Training(**fixed | section(settings_of(given.variant), "training"))
    torch.manual_seed(settings.seed)
    model = Transformer(MODELS[given.size], given.vocabulary, given.vocabulary).to(device)
    set_precision(model, settings.precision, device)
    plain_model = PlainTransformer(MODELS[given.size], given.vocabulary).to(device)
    plain_model.take(model.state_dict())
    limit = product_flops(device, 3 * (large_size(device),))
    with tempfile.TemporaryDirectory() as folder:
        classes = write_classes(Path(folder) / "train.arrow", settings.batch_tokens, given.vocabulary)
        corpus = Corpus(Path(folder) / "train.arrow")
        ours, plain = Ours(model, corpus, settings, device, console=Console()), None
        first = ours.perform(ours.updates(again(classes[1]), 1))
        results.add(f"{given.size}, an update", first_after_s=time.perf_counter() - began, first_ms=1000 * first)
        if given.plain != "none" and not given.variant:
            tokens = ours.trainer.state.device_tokens
            plain = PlainTraining(plain_model, corpus, settings, tokens, device, given.plain == "compiled")
        named = {f"{tokens} tokens": rows for tokens, rows in zip((*CLASSES, "WMT's"), classes, strict=True)}
        with timed_captures(captures := list[float]()):
            for name in (MIDDLE, *(name for name in reversed(named) if name != MIDDLE)):

                def measure(name: str = name) -> None:
                    seconds, updates = time_class(results, f"{given.size}, {name}, ms", ours, plain, named[name], limit)
                    if name == MIDDLE:
                        look(results, given.size, ours, updates, seconds)

                results.attempt(f"{given.size}, {name}", measure)
            results.add(f"{given.size}, an update", captures=len(captures), captures_s=sum(captures))


if __name__ == "__main__":
    main()
