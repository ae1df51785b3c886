"""What the constraint takes of a parser's search, and what its small vocabulary saves.

    python benchmarks/constraint_cost.py [--pairs 3] [--precision fp32]      # random weights
    python benchmarks/constraint_cost.py --model BUNDLE --text FILE                        # a parser, its sentences

Searches with and without a constraint find other outputs of other lengths, so they cannot be compared: the clock runs
while the constraint is asked, and its time is given as a share of the search that asks. The same search with the
vocabulary filled up to blocks of 1,024, as large ones are, finds the same outputs; these two run in turn. All times
are processor times of one thread, as each worker of `nmt parse` has it. Without a bundle: 4 layers, d_model 256, 32
labels, sentences of 22 words and 28 subwords, outputs of 90 symbols at most. FILE holds a tokenised sentence on each
line. Start-up is not timed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from nmt.bundle import resolve
from nmt.device import choose_device
from nmt.model.rows import Removal
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model
from nmt.search import choosing
from nmt.search import engine as engine_module
from nmt.search.constraints import TreeConstraint
from nmt.search.engine import SearchEngine
from nmt.search.feed import Pool, Source
from nmt.text.linear import TreeVocabulary, escape
from nmt.text.lines import read_lines

SUBWORDS, WORDS, CAP, LABELS, SOURCE_VOCABULARY = 28, 22, 91, 32, 8000
AT_ONCE = choosing.AT_ONCE


class Clocked(TreeConstraint):
    """A constraint that measures how long it takes, all of them together."""

    seconds = 0.0

    def admit(self, sources: Sequence[Source]) -> None:
        self._clocked(super().admit, sources)

    def restrict(self, log_probs: Tensor, rows: slice) -> None:
        self._clocked(super().restrict, log_probs, rows)

    def advance(self, parents: Tensor, symbols: Tensor) -> None:
        self._clocked(super().advance, parents, symbols)

    def leave(self, removal: Removal) -> None:
        self._clocked(super().leave, removal)

    def _clocked(self, call: Callable[..., None], *arguments: object) -> None:
        start = time.process_time()
        call(*arguments)
        Clocked.seconds += time.process_time() - start


class Pile:
    """A feed that holds all its sources from the beginning."""

    def __init__(self, sources: list[Source]) -> None:
        self._pool = Pool(sources)

    def take(self, tokens: int, wait: bool) -> list[Source]:
        return self._pool.take(tokens, at_least=int(wait))


def compare_whole(symbols: int) -> None:
    """Makes searches compare a vocabulary up to so many symbols whole."""
    for module in (choosing, engine_module):
        module.AT_ONCE = symbols  # type: ignore[attr-defined]


def measure(
    title: str, model: Transformer, vocabulary: TreeVocabulary, decoding: Decoding, sources: list[Source], pairs: int
) -> None:
    """Prints the constraint's share of a search, and how much longer one by blocks of a vocabulary takes."""
    engines = {}
    for at_once in (AT_ONCE, 0):
        compare_whole(at_once)
        engines[at_once] = SearchEngine([model], decoding, partial(Clocked, vocabulary))
    times: dict[int, list[float]] = {AT_ONCE: [], 0: []}
    shares, symbols = [], 0
    for number in range(pairs + 1):
        for at_once, engine in engines.items():
            compare_whole(at_once)
            Clocked.seconds = 0.0
            start = time.process_time()
            symbols = sum(len(best.ids) + 1 for _, (best,) in engine.search(Pile(sources), 1))
            seconds = time.process_time() - start
            if number:  # the first allocates
                times[at_once].append(seconds)
                shares += [Clocked.seconds / seconds] if at_once else []
    ratios = [blocks / whole for whole, blocks in zip(*times.values(), strict=True)]
    seconds = statistics.median(times[AT_ONCE])
    print(f"{title}: {len(sources):,} sentences, {symbols:,} symbols, {symbols / seconds:,.0f} symbols/s")
    print(
        f"  constraint {spread(shares, '.2%')} of the search; by blocks of 1,024 {spread(ratios, '.3f')} times as long"
    )


def spread(values: Iterable[float], form: str) -> str:
    """Median, least and greatest."""
    values = sorted(values)
    return f"{statistics.median(values):{form}} ({values[0]:{form}} to {values[-1]:{form}})"


def random_parser() -> tuple[Transformer, TreeVocabulary, list[Source]]:
    """Untrained, and sentences for it."""
    labels = [f"L{n}" for n in range(LABELS)]
    content = {"tags": [], "labels": labels, "longest_run": 8, "punctuation": {}, "ambiguous": []}
    vocabulary = TreeVocabulary(json.dumps(content).encode(), "random labels")
    torch.manual_seed(1)
    config = Model(layers=4, d_model=256, d_ff=1024, heads=4, tie_embeddings="target")
    pick = random.Random(1)
    ids = [[pick.randrange(4, SOURCE_VOCABULARY) for _ in range(SUBWORDS)] for _ in range(70)]
    sources = [Source(number, each, CAP, WORDS) for number, each in enumerate(ids)]
    return Transformer(config, SOURCE_VOCABULARY, len(vocabulary)).eval(), vocabulary, sources


def trained_parser(path: Path, text: Path) -> tuple[Transformer, TreeVocabulary, list[Source]]:
    """A bundle's model, and real sentences for it."""
    bundle, _ = resolve(path)
    tokenizer = bundle.tokenizer()
    if not isinstance(tokenizer.target, TreeVocabulary):
        raise SystemExit(f"{path} is not a parser")
    lines = [line.strip() for line in read_lines(text) if line.strip()]
    extra, lists = bundle.recipe.decoding.max_extra, tokenizer.source.encode_all([escape(line) for line in lines])
    numbered = enumerate(zip(lines, lists, strict=True))
    sources = [Source(number, ids, len(ids) + extra, len(line.split())) for number, (line, ids) in numbered]
    return bundle.model(torch.device("cpu")), tokenizer.target, sources


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a parser's bundle")
    parser.add_argument("--text", type=Path, help="sentences for it")
    parser.add_argument("--beam", type=int, default=21)
    parser.add_argument("--precision", choices=["fp32", "bf16", "int8"], default="fp32")
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    choose_device("cpu", 1)
    if arguments.model:
        model, vocabulary, sources = trained_parser(arguments.model, arguments.text)
    else:
        model, vocabulary, sources = random_parser()
    print(f"beam {arguments.beam}, {arguments.precision}, {len(vocabulary)} symbols, {datetime.now():%Y-%m-%d}")
    for title, tokens, count in (("full batches", 2048, len(sources)), ("one sentence at a time", 1, 10)):
        decoding = Decoding(beam=arguments.beam, alpha=0.3, batch_tokens=tokens, precision=arguments.precision)
        measure(title, model, vocabulary, decoding, sources[:count], arguments.pairs)


if __name__ == "__main__":
    main()
