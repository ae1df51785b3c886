"""Translation speed on a GPU beside CTranslate2 in float16 and plain PyTorch: the same weights, subwords and beam.

    python benchmarks/gpu_translate.py [--size base|big] [--sentences 4096] [--beam 4]
    python benchmarks/gpu_translate.py --size tiny --sentences 32 --rounds 2 --device cpu    # whether the script works

Random weights of the paper's shapes with 37,000 subwords, random sources of WMT's lengths, every output forced to 30
symbols, so that all do equal work. One alternating series: ours in `decoding.precision` auto, CTranslate2 in batches of
similar lengths, and the beam search of `benchmarks/plain.py`. Without the package ctranslate2, or where it sees no GPU,
it is left out. Prints, of each, output tokens/s, and the ratio to CTranslate2 or else to plain PyTorch; then, of ours,
the time of a step, MFU, and, for a single batch, how often the host waits for the GPU, the graphs that were compiled
and the heaviest kernels.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from contest import Contestant, Pile, forced_lengths, ours, random_bundle, random_sources, series, theirs
from counts import host_waits, print_graphs, print_profile, print_waits, profiler
from nmt.checkpoint.reading import Bundle
from nmt.decoding.engine import Source
from nmt.decoding.search import SearchEngine
from nmt.exchange.ctranslate2 import export
from nmt.model.transformer import Transformer
from nmt.recipe import CPU_BATCH_TOKENS, Decoding
from nmt.system.device import choose_device
from nmt.training.arithmetic import device_name, peak_flops, training_flops
from plain import PlainTransformer, translate
from synthetic import MODELS, VOCABULARY, wmt_lengths

RIVAL_TOKENS = {"cpu": CPU_BATCH_TOKENS, "cuda": 16_384}  # of a batch of CTranslate2


def ctranslate2_engine(
    bundle: Bundle, sources: list[Source], decoding: Decoding, device: torch.device, length: int
) -> Contestant | None:
    """CTranslate2 in float16, on a CPU in float32; None where it cannot run there."""
    try:
        import ctranslate2
    except ImportError:
        print("  CTranslate2 is left out: the package ctranslate2 is not installed")
        return None
    if device.type == "cuda" and not ctranslate2.get_cuda_device_count():
        print("  CTranslate2 is left out: the package ctranslate2 sees no GPU")
        return None
    kind = "float16" if device.type == "cuda" else "float32"
    folder = bundle.path.with_name("exported")
    export(bundle, folder, "float32")
    translator = ctranslate2.Translator(str(folder), device=device.type, compute_type=kind)
    tokens = RIVAL_TOKENS[device.type] if decoding.batch_tokens == "auto" else decoding.batch_tokens
    options = {
        **forced_lengths(length),
        "beam_size": decoding.beam,
        "length_penalty": decoding.alpha,
        "max_batch_size": tokens,
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


def search_flops(model: Transformer, sources: list[Source], beam: int, length: int) -> float:
    """Of the matrix products of a search in which every output has so many symbols: forward passes, once for a source
    and its keys, and `beam` times for its hypotheses.
    """
    lengths = np.array([len(source.ids) for source in sources], np.int32)
    targets = np.full_like(lengths, length - 1)  # `</s>` is counted too
    vocabulary = len(model.output_embedding.weight)
    encoder = training_flops(model.config, vocabulary, lengths, np.full_like(lengths, -1))
    both = training_flops(model.config, vocabulary, lengths, targets)
    return (encoder + beam * (both - encoder)) / 3


def count(engine: SearchEngine, sources: list[Source], length: int, kernels: int) -> None:
    """Prints what the search of one batch, which takes `length` steps, makes the device do."""
    contestant, waits = ours(engine, sources), Counter[str]()
    contestant()
    with host_waits(engine.device, waits):
        speed = contestant()
    steps = f"one batch of {len(sources):,} sentences, {length} steps"
    print(f"{steps}: {1000 * len(sources) / speed:,.2f} ms a step")
    print_waits(steps, waits)
    print_graphs()
    with (watch := profiler(engine.device)):
        contestant()
    print_profile(steps, watch, engine.device, kernels)


def main() -> None:
    """Translates and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=MODELS, default="base")
    parser.add_argument("--sentences", type=int, default=4096)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--length", type=int, default=30, help="symbols of an output")
    parser.add_argument("--batch-tokens", type=int, help="of every engine; what each chooses by itself unless given")
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16", "fp16"], default="auto", help="of ours")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kernels", type=int, default=15, help="rows of the table of kernels")
    given = parser.parse_args()
    device, length = choose_device(given.device, None), given.length
    decoding = Decoding(
        beam=given.beam,
        min_length=length,
        max_extra=max(length, 50),
        batch_tokens=given.batch_tokens or "auto",
        precision=given.precision,
    )
    sources = random_sources(wmt_lengths(given.sentences)[0].tolist(), length, given.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        bundle = random_bundle(Path(folder), MODELS[given.size].model_dump(), given.vocabulary)
        model = bundle.model(device)
        engine = SearchEngine([model], decoding)
        name = f"ours {engine.precision}"
        contestants = {name: ours(engine, sources)}
        rival = ctranslate2_engine(bundle, sources, decoding, device, length)
        if rival is not None:
            contestants["CTranslate2"] = rival
        contestants["plain PyTorch"] = plain_engine(model, sources, decoding, engine.batch_tokens, length)
        title = (
            f"{given.size} on {device_name(device)}, torch {torch.__version__}: {given.sentences:,} sentences forced "
            f"to {length} symbols, beam {given.beam}, batches of {engine.batch_tokens:,} tokens"
        )
        speeds = series(title, contestants, "CTranslate2" if rival else "plain PyTorch", given.rounds)
    flops, symbols = search_flops(model, sources, given.beam, length), given.sentences * length
    rate = flops * statistics.median(each[name] for each in speeds) / symbols
    peak = peak_flops(device)
    print(f"{name}: {rate / 1e12:,.3g} TFLOP/s" + (f", MFU {rate / peak:.1%}" if peak else ""))
    batch = Pile(sources).take(engine.batch_tokens, wait=True)
    count(engine, batch, length, given.kernels)


if __name__ == "__main__":
    main()
