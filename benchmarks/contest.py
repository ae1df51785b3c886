"""Engines that translate the same sources in turn, and a model of random weights for them to translate with."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from nmt import recipe as recipes
from nmt.checkpoint.reading import Bundle
from nmt.checkpoint.writing import save_bundle
from nmt.exchange import to_marian
from nmt.exchange.ctranslate2 import export
from nmt.exchange.from_marian import MODEL
from nmt.model.transformer import Transformer
from nmt.recipe import CPU_BATCH_TOKENS, Decoding
from nmt.search.sources import Engine, Pool, Source
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import BOS, EOS, PAD, SPACE_MARK, UNK, Vocabulary
from plain import PlainTransformer, translate

RIVAL_TOKENS = {"cpu": CPU_BATCH_TOKENS, "cuda": 16_384}  # of a batch of CTranslate2

Contestant = Callable[[], float]
"""Translates all sources once; target tokens/s."""


class Pile:
    """A queue that holds all its sources from the beginning."""

    def __init__(self, sources: list[Source]) -> None:
        self._pool = Pool(sources)

    def take_sources(self, tokens: int, wait: bool) -> list[Source]:
        return self._pool.take_sources(tokens, at_least=int(wait))


def ours(engine: Engine, sources: list[Source], alone: bool = False) -> Contestant:
    """Our engine; with `alone`, it gets one source after another."""

    def run() -> float:
        start, tokens = time.perf_counter(), 0
        for pile in [[source] for source in sources] if alone else [sources]:
            for _, (best,) in engine.search(Pile(pile), 1):
                tokens += len(best.ids) + best.finished
        return tokens / (time.perf_counter() - start)

    return run


def theirs(translator: Any, pieces: list[list[str]], options: Mapping[str, object], alone: bool = False) -> Contestant:
    """A `ctranslate2.Translator`; with `alone`, it gets one source after another."""

    def run() -> float:
        start, results = time.perf_counter(), []
        for batch in [[each] for each in pieces] if alone else [pieces]:
            results += translator.translate_batch(batch, **options)
        ends = "min_decoding_length" not in options
        return sum(len(result.hypotheses[0]) + ends for result in results) / (time.perf_counter() - start)

    return run


MARIAN = """
import json, sys, time
from _pymarian import Translator
translator = Translator(sys.argv[1])
print(flush=True)
for line in sys.stdin:
    start, outputs = time.perf_counter(), []
    for batch in json.loads(line):
        outputs += translator.translate(batch)
    print(json.dumps([time.perf_counter() - start, outputs]), flush=True)
"""
"""A program that translates lists of lists of sentences, and times it"""


class Marian:
    """Marian's decoder in a process of its own, started by a Python that has `pymarian`; for models with its positions.

    Without a length penalty of its own: a search that divides by n^p for n subwords, as decoder.yml says.
    """

    def __init__(
        self, python: str, bundle: Bundle, folder: Path, decoding: Decoding, threads: int, int8: bool, more: str = ""
    ) -> None:
        exported = folder / "marian"
        if not exported.exists():
            to_marian.export(bundle, exported)
        model = exported / MODEL
        if int8:
            run = "import sys, _pymarian; sys.exit(_pymarian.main(sys.argv[1:]))"
            packed = folder / "model.intgemm8.bin"
            convert = ["convert", "--from", str(model), "--to", str(packed), "--gemm-type", "intgemm8"]
            subprocess.run([python, "-c", run, *convert], check=True, capture_output=True)
            model = packed
        spms = sorted(map(str, exported.glob("*.spm")))  # source.spm and target.spm, or vocab.spm
        penalty = to_marian.decoder_settings(decoding, [])["normalize"]
        options = f"--models {model} --vocabs {spms[0]} {spms[-1]} --cpu-threads {threads} --beam-size {decoding.beam} "
        options += f"--normalize {penalty} --mini-batch 64 --mini-batch-words {CPU_BATCH_TOKENS} --maxi-batch 100 "
        options += f"--maxi-batch-sort src --quiet {more}"
        self._target = bundle.tokenizer().target
        self._process = subprocess.Popen(
            [python, "-c", MARIAN, options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("Marian ended; its messages: run nmt average --format marian and marian-decoder by hand")
        return line

    def contestant(self, texts: list[str], alone: bool = False, known: int | None = None) -> Contestant:
        """Marian over these texts; with `alone`, it gets one after another; `known`: tokens of the outputs."""
        request = json.dumps([[text] for text in texts] if alone else [texts]) + "\n"

        def run() -> float:
            assert self._process.stdin is not None
            self._process.stdin.write(request)
            self._process.stdin.flush()
            seconds, outputs = json.loads(self._answer())
            tokens = known or sum(len(ids) + 1 for ids in self._target.encode_all(outputs))
            return tokens / float(seconds)

        return run

    def __enter__(self) -> Marian:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def forced_lengths(length: int) -> dict[str, object]:
    """The options by which CTranslate2 makes every output as long, as `decoding.min_length` and caps do ours."""
    return {"min_decoding_length": length, "max_decoding_length": length}


def ctranslate2_engine(
    bundle: Bundle, sources: list[Source], decoding: Decoding, device: torch.device, length: int
) -> Contestant:
    """CTranslate2 in float16, on a CPU in float32; RuntimeError or ImportError where it cannot run there."""
    import ctranslate2

    if device.type == "cuda" and not ctranslate2.get_cuda_device_count():
        raise RuntimeError("the package ctranslate2 sees no GPU")
    folder = bundle.path.with_name("exported")
    if not folder.exists():
        export(bundle, folder, "float32")
    kind = "float16" if device.type == "cuda" else "float32"
    translator = ctranslate2.Translator(str(folder), device=device.type, compute_type=kind)
    options = {
        **forced_lengths(length),
        "beam_size": decoding.beam,
        "length_penalty": decoding.alpha,
        "max_batch_size": RIVAL_TOKENS[device.type] if decoding.batch_tokens == "auto" else decoding.batch_tokens,
        "batch_type": "tokens",
    }
    tokenizer = bundle.tokenizer().source
    return theirs(translator, [[*tokenizer.pieces(source.ids), "</s>"] for source in sources], options)


def plain_engine(model: Transformer, sources: list[Source], decoding: Decoding, tokens: int, length: int) -> Contestant:
    """The beam search of plain PyTorch, on a GPU in bf16."""
    device = model.output_embedding.weight.device
    plain = PlainTransformer(model.config, len(model.output_embedding.weight)).to(device).eval()
    plain.take(model.state_dict())
    if device.type == "cuda":
        plain.bfloat16()

    def run() -> float:
        start = time.perf_counter()
        return translate(plain, sources, tokens, decoding.beam, length) / (time.perf_counter() - start)

    return run


def series(title: str, contestants: dict[str, Contestant], against: str, pairs: int) -> list[dict[str, float]]:
    """Let all run in turn; print medians, and ratios to the one that they are compared with; return the speeds."""
    for run in contestants.values():
        run()  # allocates, compiles
    rounds = [{name: run() for name, run in contestants.items()} for _ in range(pairs)]
    print(f"{title}; {pairs} rounds, {datetime.now():%Y-%m-%d}")
    for name in contestants:
        speed = statistics.median(one[name] for one in rounds)
        print(
            f"  {name:34s} {speed:8,.0f} tokens/s   {spread([one[name] / one[against] for one in rounds])}", flush=True
        )
    return rounds


def spread(ratios: list[float]) -> str:
    """Their median, least and greatest."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def random_bundle(folder: Path, model: Mapping[str, object], vocabulary: int) -> Bundle:
    """An untrained model with a vocabulary of random words; `model` has the keys of a recipe's section of that name.

    With `output_bias`, its outputs end at their caps alone.
    """
    train = [{"source": "a", "target": "b"}]
    content = {"name": "random", "data": {"source": "en", "target": "de", "train": train}, "model": dict(model)}
    recipe_file = folder / "recipe.yaml"
    recipe_file.write_text(json.dumps(content))
    recipe = recipes.load(recipe_file)
    torch.manual_seed(1)
    transformer = Transformer(recipe.model, vocabulary, vocabulary)
    if transformer.output_bias is not None:
        with torch.no_grad():
            transformer.output_bias[EOS] = -1e4
    info = {"run": "random", "step": 0, "data": ""}
    words = random_vocabulary(vocabulary)
    save_bundle(folder / "bundle", dict(transformer.named_parameters()), recipe, Tokenizer(words, words), info)
    return Bundle.read(folder / "bundle")


def random_vocabulary(size: int) -> Vocabulary:
    """Control symbols, bytes and random words: a SentencePiece model that is written down, not trained."""
    letters = random.Random(1)
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    words = dict.fromkeys(SPACE_MARK + alphabet)
    while len(words) < size - 260:
        words[SPACE_MARK + "".join(letters.choices(alphabet, k=letters.randint(3, 9)))] = None
    kinds = [("<pad>", 3), ("<unk>", 2), ("<s>", 3), ("</s>", 3), *((f"<0x{byte:02X}>", 6) for byte in range(256))]
    pieces = [*kinds, *((word, 1) for word in words)]  # 1 normal, 2 unknown, 3 control, 6 a byte
    model = b"".join(message(1, message(1, piece.encode()) + number(3, kind)) for piece, kind in pieces)
    ids = number(35, 1) + number(40, UNK) + number(41, BOS) + number(42, EOS) + number(43, PAD)  # 35: bytes as fallback
    return Vocabulary(model + message(2, ids) + message(3, number(4, 0)), "random words")  # 4: extra spaces are kept


def message(field: int, content: bytes) -> bytes:
    """A field of Protocol Buffers that holds bytes."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def number(field: int, value: int) -> bytes:
    """A field of Protocol Buffers that holds a number."""
    return varint(field << 3) + varint(value)


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def random_sources(lengths: Iterable[int], cap: int, vocabulary: int) -> list[Source]:
    """Sources of random subwords, of these lengths."""
    pick = random.Random(2)
    return [
        Source(number, [pick.randrange(4, vocabulary) for _ in range(length)], cap)
        for number, length in enumerate(lengths)
    ]
