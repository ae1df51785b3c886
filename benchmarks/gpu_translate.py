"""Speed of a search on a GPU beside CTranslate2 in float16 and plain PyTorch: the same weights, subwords and beam.

    python benchmarks/gpu_translate.py [--size base|big] [--beam 4]
    python benchmarks/gpu_translate.py --ctranslate2                    # it alone; a fault of its own ends no other row
    python benchmarks/gpu_translate.py --size tiny --vocabulary 1000 --sentences 32 --device cpu  # whether it works

Random weights of the paper's shapes with 37,000 subwords, random sources of WMT's lengths, every output forced to 30
symbols, so that all do equal work; then outputs forced to 10 to 60 symbols, and one sentence. A row has output
tokens/s. Others have the host's seconds by work, of which `waits` are those for the device, and the milliseconds of a
step for some numbers of sentences, the share of it in which the `host` works, and the kernels of the device.
"""

from __future__ import annotations

import statistics
import tempfile
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from contest import Contestant, ctranslate2_engine, ours, plain_engine, random_bundle, random_sources
from counts import add_kernels, host_seconds, host_waits, profiler
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding
from nmt.search.beam import SearchEngine
from nmt.search.sources import Source
from nmt.system.device import choose_device
from results import Results, parser, section, settings_of
from synthetic import MODELS, VOCABULARY, wmt_lengths

LENGTH, CAPS = 30, (10, 60)  # symbols of outputs
ROWS = (1, 16, 128, 1024, 2048)
ROUNDS = 3


class Contest:
    """What all measurements share: the bundle, its model, sources and settings."""

    def __init__(self, given: Namespace, folder: Path) -> None:
        self.results, self.device = Results(given.out, given.variant), choose_device(given.device, None)
        self.bundle = random_bundle(folder, MODELS[given.size].model_dump(), given.vocabulary)
        fixed = {"beam": given.beam, "min_length": LENGTH, "max_extra": 60}
        self.decoding = Decoding(**fixed | section(settings_of(given.variant), "decoding"))
        self.name = f"{given.size}, {{}}, tokens/s"
        lengths = wmt_lengths(given.sentences)[0].tolist()
        self.sources = random_sources(lengths, LENGTH, given.vocabulary)

    def speed(self, row: str, key: str, engine: Contestant) -> None:
        """Add the median speed after a first run."""
        engine()
        self.results.add(self.name.format(row), **{key: statistics.median(engine() for _ in range(ROUNDS))})

    def theirs(self) -> None:
        for row, sources in self.workloads():
            self.speed(row, "CTranslate2", ctranslate2_engine(self.bundle, sources, self.decoding, self.device, LENGTH))

    def workloads(self) -> list[tuple[str, list[Source]]]:
        """Equal ones for every engine."""
        return [(f"{len(self.sources):,} sentences", self.sources), ("one sentence", self.sources[:1])]

    def ours(self, with_plain: bool) -> None:
        model, attempt = self.bundle.model(self.device), self.results.attempt
        engine = SearchEngine([model], self.decoding)
        for row, sources in self.workloads():
            attempt(f"{row}, ours", partial(self.speed, row, "ours", ours(engine, sources)))
        attempt("different caps", partial(self.caps, model))
        attempt("host's seconds", partial(self.work, engine))
        for rows in ROWS:
            attempt(f"a step of {rows:,} sentences", partial(self.step, model, rows))
        for row, sources in self.workloads() if with_plain else []:
            plain = plain_engine(model, sources, self.decoding, engine.batch_tokens, LENGTH)
            attempt(f"{row}, plain", partial(self.speed, row, "plain", plain))

    def work(self, engine: SearchEngine) -> None:
        """Add where the host's time goes."""
        spent: dict[str, float] = {}
        with host_seconds(spent):
            ours(engine, self.sources)()
        self.results.add(f"{len(self.sources):,} sentences, host's seconds", **spent)

    def caps(self, model: Transformer) -> None:
        """Outputs of different lengths: the least length is above all caps, so that caps alone end them."""
        pick = Random(1)
        sources = [replace(source, cap=pick.randint(*CAPS)) for source in self.sources]
        engine = SearchEngine([model], self.decoding.model_copy(update={"min_length": CAPS[1]}))
        self.speed(f"{len(sources):,} of 10 to 60 symbols", "ours", ours(engine, sources))

    def step(self, model: Transformer, rows: int) -> None:
        """Add the milliseconds of a step of one batch, and its kernels, those of the encoder included."""
        sources = random_sources([28] * rows, LENGTH, len(model.output_embedding.weight))
        engine = SearchEngine([model], self.decoding.model_copy(update={"batch_tokens": 29 * rows}))
        run, waits, spent = ours(engine, sources), Counter[str](), dict[str, float]()
        with host_waits(self.device, waits):
            run()
        with host_seconds(spent):
            for _ in range(ROUNDS):
                run()
        host, waited = (1000 * spent[work] / LENGTH / ROUNDS for work in ("steps", "waits"))
        row = f"a step of {rows:,} sentences"
        self.results.add(row, ms=host + waited, host_ms=host, syncs=waits.total() / LENGTH)
        with (watch := profiler(self.device)):
            run()
        add_kernels(self.results, row, watch, LENGTH, (host + waited) / 1000)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size", choices=MODELS, default="base")
    options.add_argument("--sentences", type=int, default=4096)
    options.add_argument("--beam", type=int, default=4)
    options.add_argument("--vocabulary", type=int, default=VOCABULARY)
    options.add_argument("--ctranslate2", action="store_true")
    options.add_argument("--variant", default="", metavar="NAME=VALUE", help="decoding.precision=fp32, or a constant")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        contest = Contest(given, Path(folder))
        if given.ctranslate2:
            contest.results.attempt("search, CTranslate2", contest.theirs)
        else:
            contest.ours(with_plain=not given.variant)


if __name__ == "__main__":
    main()
