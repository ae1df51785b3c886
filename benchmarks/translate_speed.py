"""Translation speed on a CPU beside CTranslate2: the same weights, subwords, beam and threads.

    python benchmarks/translate_speed.py --model BUNDLE --text FILE [--pairs 7] [--beam 4]     # real text
    python benchmarks/translate_speed.py --model BUNDLE --text FILE --alone 60                 # sentence by sentence
    python benchmarks/translate_speed.py --model BUNDLE --text FILE [--alone 60] --peer marian=PYTHON
        [--threads 1] [--beam 1]                                                               # and beside Marian
    python benchmarks/translate_speed.py --forced small|base [--pairs 7]                       # equal work
    python benchmarks/translate_speed.py --lengths small|base                                  # cost against length
    python benchmarks/translate_speed.py --bergamot [--symbols 32000] [--peer marian=PYTHON]   # as Bergamot measures

Real text: sentences of FILE by a trained bundle, converted for CTranslate2, which searches in batches of as many
padded tokens. Sentence by sentence: the first 60, each alone, on one thread. Equal work: 128 random sources of 16
subwords, random weights, every output forced to 30 symbols, batches of 32 sentences. Tokens are those of the outputs,
`</s>` counted where it was searched. As Bergamot measures: int8 and fp32, greedy, one thread, a model of 6 + 2 layers
of width 256 with random weights, 512 sources of newstest's lengths (a mean of 24 words of 1.3 symbols), every output
1.1 times as long; a source word is 1.3 symbols; ours also with shortlists by a random lexicon. Start-up is not timed.
Otherwise both sides have the same two threads:
CTranslate2 within operations, as it does by default, and as two workers; ours as two workers that `nmt translate`
forks, and within operations. Marian has as many threads, in a process that PYTHON, which has pymarian, runs; the model
needs `model.positions: marian`. One alternating series: a shared machine's speed drifts, and only ratios of neighbours
compare.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import ctranslate2
import torch

from contest import Contestant, Marian, forced_lengths, ours, random_bundle, random_sources, series, spread, theirs
from nmt.checkpoint.reading import Bundle
from nmt.decoding.workers import Workers
from nmt.exchange.ctranslate2 import export
from nmt.exchange.resolve import resolve
from nmt.model.transformer import Lexicon, Transformer
from nmt.recipe import CPU_BATCH_TOKENS, Decoding, Model
from nmt.search.beam import SearchEngine
from nmt.search.sources import Engine, Source
from nmt.system.device import choose_device
from nmt.text.lines import read_lines
from nmt.training.lexicon import FREQUENT

THREADS = 2
SIZES = {
    "small": {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4},
    "base": {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8},
}
VOCABULARY, LENGTH, FORCED, SENTENCES, BATCH = 8000, 16, 30, 128, 32
TINY = {
    "layers": 6,
    "decoder_layers": 2,
    "d_model": 256,
    "d_ff": 1536,
    "heads": 8,
    "norm": "post",
    "positions": "marian",
    "output_bias": True,
}
SHORTLIST, RARE = 50, 0.21  # measured on 32,000 symbols of English and Italian descriptions of Debian's packages
WORDS, SYMBOLS_PER_WORD, TARGET_PER_SOURCE = 24, 1.3, 1.1  # of newstest2019 from English to German, about


def best_beside_best(rounds: list[dict[str, float]]) -> None:
    """Prints the ratio of our best setting to each peer's, by their medians, in fp32 and in int8."""
    peers = (
        ("fp32", "CTranslate2 float32"),
        ("int8", "CTranslate2 int8"),
        ("fp32", "Marian fp32"),
        ("int8", "Marian int8"),
    )
    for kind, other in peers:
        sides = [[name for name in rounds[0] if name.startswith(each)] for each in (f"ours {kind}", other)]
        if all(sides):
            best, rival = (
                max(names, key=lambda name: statistics.median(one[name] for one in rounds)) for names in sides
            )
            print(f"  {best} / {rival}: {spread([one[best] / one[rival] for one in rounds])}", flush=True)


def contest(
    title: str,
    bundle: Bundle,
    sources: list[Source],
    decoding: Decoding,
    options: Mapping[str, object],
    pairs: int,
    threads: int = THREADS,
    marian: str | None = None,
) -> None:
    """Every engine over the same sources."""
    tokenizer = bundle.tokenizer().source
    pieces = [[*tokenizer.pieces(source.ids), "</s>"] for source in sources]
    options = {"beam_size": decoding.beam, "length_penalty": decoding.alpha, **options}
    choose_device("cpu", 1)  # before the forks, which would lack the threads of operations
    contestants: dict[str, Contestant] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()), "exported")
        export(bundle, folder, "float32")
        for precision in ("fp32", "int8", "bf16"):
            engine = SearchEngine(
                [bundle.model(torch.device("cpu"))], decoding.model_copy(update={"precision": precision})
            )
            if engine.precision != precision:
                print(f"  {precision} is no faster than fp32 on this processor, so it is left out")
                continue
            forks = stack.enter_context(Workers(Share(engine, threads), threads, fork=True))
            contestants[f"ours {precision}, {threads} workers"] = ours(forks, sources)
            if precision == "fp32":
                within = engine
        torch.set_num_threads(threads)
        contestants[f"ours fp32, {threads} threads within"] = ours(within, sources)
        for kind in ("float32", "int8"):
            for name, workers in (("", 1), (f", {threads} workers", threads)):
                translator = ctranslate2.Translator(
                    str(folder), compute_type=kind, inter_threads=workers, intra_threads=threads // workers
                )
                contestants[f"CTranslate2 {kind}{name}"] = theirs(translator, pieces, options)
        if marian:
            for name, int8 in (("fp32", False), ("int8", True)):
                peer = stack.enter_context(Marian(marian, bundle, folder.parent, decoding, threads, int8))
                contestants[f"Marian {name}"] = peer.contestant([source.text for source in sources])
        best_beside_best(series(title, contestants, "CTranslate2 float32", pairs))


def alone(bundle: Bundle, sources: list[Source], decoding: Decoding, pairs: int, marian: str | None = None) -> None:
    """One sentence after another, as a person types them, on one thread."""
    choose_device("cpu", 1)
    tokenizer = bundle.tokenizer().source
    pieces = [[*tokenizer.pieces(source.ids), "</s>"] for source in sources]
    options = {"beam_size": decoding.beam, "length_penalty": decoding.alpha}
    contestants: dict[str, Contestant] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()), "exported")
        export(bundle, folder, "float32")
        for precision, kind in (("fp32", "float32"), ("int8", "int8")):
            settings = decoding.model_copy(update={"precision": precision})
            engine = SearchEngine([bundle.model(torch.device("cpu"))], settings)
            contestants[f"ours {precision}"] = ours(engine, sources, alone=True)
            translator = ctranslate2.Translator(str(folder), compute_type=kind, intra_threads=1)
            contestants[f"CTranslate2 {kind}"] = theirs(translator, pieces, options, alone=True)
            if marian:
                peer = stack.enter_context(Marian(marian, bundle, folder.parent, decoding, 1, precision == "int8"))
                contestants[f"Marian {precision}"] = peer.contestant([source.text for source in sources], alone=True)
        title = f"{len(sources)} sentences, each alone, one thread, beam {decoding.beam}"
        best_beside_best(series(title, contestants, "CTranslate2 float32", pairs))


class Share:
    """Gives every worker the engine that its fork has."""

    def __init__(self, engine: Engine, threads: int) -> None:
        self._engine = engine
        self._threads = threads

    def __call__(self, number: int, count: int) -> Engine:
        torch.set_num_threads(self._threads // count)
        return self._engine


def real_text(
    path: Path, text: Path, beam: int, count: int | None, pairs: int, threads: int, marian: str | None
) -> None:
    """A trained model on real sentences."""
    bundle, _ = resolve(path)
    decoding = bundle.recipe.decoding.model_copy(update={"beam": beam})
    lines = [line.strip() for line in read_lines(text)]
    lists = bundle.tokenizer().source.encode_all(lines)
    sources = [Source(n, ids, len(ids) + decoding.max_extra, text=lines[n]) for n, ids in enumerate(lists) if ids]
    if count:
        alone(bundle, sources[:count], decoding, pairs, marian)
        return
    batches = {"max_batch_size": CPU_BATCH_TOKENS, "batch_type": "tokens"}
    title = f"{text.name}, {len(sources):,} sentences, beam {beam}"
    contest(title, bundle, sources, decoding, batches, pairs, threads, marian)


def forced(size: str, pairs: int) -> None:
    """The same work for all: every output is as long."""
    with tempfile.TemporaryDirectory() as folder:
        decoding = Decoding(min_length=FORCED, batch_tokens=BATCH * (LENGTH + 1))
        options = {**forced_lengths(FORCED), "max_batch_size": BATCH, "batch_type": "examples"}
        sources = random_sources([LENGTH] * SENTENCES, FORCED, VOCABULARY)
        title = f"{size.upper()}, {SENTENCES} sentences forced to {FORCED} symbols, batches of {BATCH}"
        contest(title, random_bundle(Path(folder), SIZES[size], VOCABULARY), sources, decoding, options, pairs)


def lengths(size: str, pairs: int) -> None:
    """Time for each token of outputs of 10 to 200 symbols, one thread; what a beam of that length takes of memory."""
    torch.manual_seed(1)
    choose_device("cpu", 1)
    model = Transformer(Model.model_validate(SIZES[size]), VOCABULARY, VOCABULARY).eval()
    contestants = {}
    for length in (10, 25, 50, 100, 200):
        engine = SearchEngine([model], Decoding(min_length=length, max_extra=length, batch_tokens=BATCH * (LENGTH + 1)))
        contestants[f"{length} symbols"] = ours(engine, random_sources([LENGTH] * 2 * BATCH, length, VOCABULARY))
    series(
        f"{size.upper()}, cost against length, one thread, beam 4, batches of {BATCH}", contestants, "10 symbols", pairs
    )


def random_lexicon(symbols: int) -> Lexicon:
    """The first symbols as frequent ones, and translations of each symbol, as many of them rare as in real text."""
    frequent = torch.arange(FREQUENT, dtype=torch.int32)
    shape = (symbols, 1 + SHORTLIST)
    rare = torch.randint(FREQUENT, symbols, shape, dtype=torch.int32)
    others = torch.randint(FREQUENT, shape, dtype=torch.int32)
    return Lexicon(rare.where(torch.rand(shape) < RARE, others), frequent)


def bergamot(symbols: int, pairs: int, marian: str | None) -> None:
    """Source words a second in the conditions of Bergamot's own figures; outputs are as long as references."""
    torch.manual_seed(1)
    choose_device("cpu", 1)
    pick = random.Random(1)
    spread_of_lengths = statistics.NormalDist(math.log(WORDS) - 0.5**2 / 2, 0.5)  # of their logarithms: a mean of WORDS
    words = [math.exp(spread_of_lengths.inv_cdf((eighth + 0.5) / 8)) for eighth in range(8)]
    # A batch of Marian's ends where its longest source lets it: 64 sources are as long as one another.
    lengths = [round(SYMBOLS_PER_WORD * count) for count in words for _ in range(64)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bundle = random_bundle(Path(folder), TINY, symbols)
        tokenizer = bundle.tokenizer().source
        sources = [
            Source(number, ids, int(TARGET_PER_SOURCE * (len(ids) + 1)) + 1, text=tokenizer.decode(ids))
            for number, ids in enumerate([pick.randrange(300, symbols) for _ in range(length)] for length in lengths)
        ]
        assert tokenizer.encode_all([source.text for source in sources]) == [source.ids for source in sources]
        outputs = sum(source.cap for source in sources)
        contestants: dict[str, Contestant] = {}
        for precision in ("fp32", "int8"):
            decoding = Decoding(beam=1, precision=precision)
            model = bundle.model(torch.device("cpu"))
            contestants[f"ours {precision}"] = ours(SearchEngine([model], decoding), sources)
            model.lexicon = random_lexicon(symbols)
            shortened = SearchEngine([model], decoding.model_copy(update={"shortlist": SHORTLIST}))
            contestants[f"ours {precision}, shortlist of {SHORTLIST}"] = ours(shortened, sources)
            if marian:
                longest = f"--max-length-factor {TARGET_PER_SOURCE}"
                peer = Marian(marian, bundle, Path(folder), decoding, 1, precision == "int8", longest)
                texts = [source.text for source in sources]
                contestants[f"Marian {precision}"] = stack.enter_context(peer).contestant(texts, known=outputs)
        share = sum(lengths) / SYMBOLS_PER_WORD / outputs
        title = f"6 + 2 layers of width 256, {symbols:,} symbols, one thread, greedy"
        rounds = series(title, contestants, "ours fp32", pairs)
        for name in contestants:
            speed = statistics.median(one[name] for one in rounds)
            print(f"  {name}: {share * speed:,.0f} source words/s")
        best_beside_best(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a trained bundle")
    parser.add_argument("--text", type=Path, help="sentences for it")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--alone", type=int, metavar="N", help="only the first N sentences, one at a time")
    parser.add_argument("--forced", choices=SIZES)
    parser.add_argument("--lengths", choices=SIZES)
    parser.add_argument("--bergamot", action="store_true")
    parser.add_argument("--symbols", type=int, default=32_000, help="of --bergamot")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=THREADS, help="of --model and --text in batches")
    parser.add_argument("--peer", metavar="marian=PYTHON", help="PYTHON is one that has pymarian")
    arguments = parser.parse_args()
    kind, _, python = (arguments.peer or "marian=").partition("=")
    if kind != "marian":
        raise SystemExit(f"--peer {arguments.peer}: the only peer is marian=PYTHON")
    if arguments.bergamot:
        bergamot(arguments.symbols, arguments.pairs, python or None)
    if arguments.model:
        count, pairs, threads = arguments.alone, arguments.pairs, arguments.threads
        real_text(arguments.model, arguments.text, arguments.beam, count, pairs, threads, python or None)
    if arguments.forced:
        forced(arguments.forced, arguments.pairs)
    if arguments.lengths:
        lengths(arguments.lengths, arguments.pairs)


if __name__ == "__main__":
    main()
