"""Whether a search finds the same in any batch, by the C kernels and without them: random sentences, a random model.

    python benchmarks/search_agreement.py [--sentences 2000] [--beam 4] [--precision fp32]

The reference is the search in fp64 by PyTorch alone, one sentence at a time. Every other search runs in fp32, by each
C library that this processor can run and by PyTorch, in batches of about 1, 7 and 64 sentences. A text that differs is
a tie if the reference itself gives both outputs scores that differ by less than TIE: what is found then depends on
rounding. The difference of scores is the largest of all outputs whose texts are equal.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Iterator, Sequence

import torch

from contest import Pile
from nmt.compute import choice
from nmt.compute.native import INSTRUCTION_SETS, NEEDED, Kernels, find, open_library
from nmt.model.transformer import Transformer
from nmt.parsing.linearization import ANY, TreeVocabulary
from nmt.recipe import Decoding, Model
from nmt.search.beam import SearchEngine
from nmt.search.choosing import length_penalty
from nmt.search.constraints import MakeConstraint
from nmt.search.sources import Hypothesis, Source
from nmt.system.device import choose_device
from nmt.text.vocabulary import BOS, EOS

VOCABULARY, LONGEST, EXTRA = 1000, 24, 16
LIKING = 1.5  # of </s>, in nats
TIE = 1e-5  # of scores, which are length-normalised log-probabilities
BATCHES = (1, 7, 64)


def random_model() -> Transformer:
    """In fp64. Its outputs differ, depend on the source and end at different lengths."""
    torch.manual_seed(1)
    config = Model(layers=2, d_model=64, d_ff=128, heads=4, tie_embeddings="none")
    model = Transformer(config, VOCABULARY, VOCABULARY).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embedding" not in name:
                weight.mul_(2.0)
        model.output_embedding.weight.mul_(2.0)
        direction = torch.nn.functional.normalize(torch.randn(config.d_model).double(), dim=0)
        rows = model.output_embedding.weight
        rows.sub_(torch.outer(rows @ direction, direction))
        rows[EOS] += 2.0 * direction  # raises the logit of </s> by LIKING
        model.get_parameter(f"decoder.{config.layers - 1}.feed_forward_residual.norm.bias").add_(
            direction * LIKING / 2.0
        )
    return model


def random_sources(count: int) -> list[Source]:
    pick = random.Random(1)
    lists = [[pick.randrange(EOS + 1, VOCABULARY) for _ in range(pick.randint(1, LONGEST))] for _ in range(count)]
    return [Source(number, ids, len(ids) + EXTRA) for number, ids in enumerate(lists)]


def random_parser() -> tuple[Transformer, TreeVocabulary, list[Source]]:
    """An untrained parser of 32 labels, and 70 sentences of 22 words and 28 subwords for it."""
    labels = [f"L{n}" for n in range(32)]
    content = {"tags": [], "labels": labels, "longest_run": 8, "punctuation": {}, "ambiguous": []}
    vocabulary = TreeVocabulary(json.dumps(content).encode(), "random labels")
    torch.manual_seed(1)
    config = Model(layers=4, d_model=256, d_ff=1024, heads=4, tie_embeddings="target")
    pick = random.Random(1)
    sources = [Source(number, [pick.randrange(4, 8000) for _ in range(28)], 91, [ANY] * 22) for number in range(70)]
    return Transformer(config, 8000, len(vocabulary)).eval(), vocabulary, sources


def libraries() -> Iterator[Kernels | None]:
    """Those that were compiled and that this processor can run; then None, which stands for PyTorch."""
    capability = torch.backends.cpu.get_cpu_capability()
    for name, instruction_set in INSTRUCTION_SETS.items():
        path = find(name) if capability in NEEDED.get(name, {capability}) else None
        if path is not None and (functions := open_library(path)) is not None:
            yield Kernels(functions, instruction_set)
    yield None


def use(library: Kernels | None) -> None:
    """Make engines use a library from now on, or PyTorch alone."""
    setattr(choice, "kernels", lambda: library)  # noqa: B010


@torch.inference_mode()
def score(model: Transformer, source: Source, found: Hypothesis, alpha: float) -> float:
    """The length-normalised log-probability that a model gives to an output."""
    target = torch.tensor([[BOS, *found.ids, *([EOS] if found.finished else [])]])
    logits = model(torch.tensor([[*source.ids, EOS]]), target[:, :-1])
    total = logits.log_softmax(-1)[0].gather(1, target[0, 1:, None]).sum()
    return float(total / length_penalty(torch.tensor(target.size(1) - 1.0), alpha))


def found_by(
    model: Transformer, sources: list[Source], decoding: Decoding, constraints: Sequence[MakeConstraint] = ()
) -> list[Hypothesis]:
    """The best output of each source, in order."""
    engine = SearchEngine([model], decoding, constraints)
    found = {number: best for number, (best,) in engine.search(Pile(sources), 1)}
    return [found[source.number] for source in sources]


def compare(
    model: Transformer, sources: list[Source], exact: list[Hypothesis], found: list[Hypothesis], alpha: float
) -> str:
    """What is equal, and by how much the reference prefers its own output where it is not."""
    same = [(a, b) for a, b in zip(exact, found, strict=True) if (a.ids, a.finished) == (b.ids, b.finished)]
    gaps = [
        score(model, source, a, alpha) - score(model, source, b, alpha)
        for source, a, b in zip(sources, exact, found, strict=True)
        if (a.ids, a.finished) != (b.ids, b.finished)
    ]
    ties = sum(abs(gap) < TIE for gap in gaps)
    largest = max((abs(a.score - b.score) for a, b in same), default=0.0)
    text = f"{len(same):5,} equal, {ties} ties, {len(gaps) - ties} others; scores differ by {largest:.1e} at most"
    return text + (f"; the reference's own is better by up to {max(gaps):.1e}" if gaps else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--precision", choices=["fp32", "bf16", "int8"], default="fp32")
    arguments = parser.parse_args()
    choose_device("cpu", 1)
    model, sources = random_model(), random_sources(arguments.sentences)
    single = random_model().float()
    decoding = Decoding(beam=arguments.beam, batch_tokens=1)
    use(None)
    exact = found_by(model, sources, decoding)
    lengths = [len(each.ids) for each in exact]
    print(
        f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}; beam {arguments.beam}, "
        f"{arguments.precision}; {len(sources):,} sentences, outputs of {min(lengths)} to {max(lengths)} symbols, "
        f"{sum(each.finished for each in exact):,} finished, {len({tuple(each.ids) for each in exact}):,} different"
    )
    for library in libraries():
        use(library)
        for rows in BATCHES:
            settings = {"batch_tokens": 1 if rows == 1 else rows * (LONGEST + 1), "precision": arguments.precision}
            start = time.perf_counter()
            found = found_by(single, sources, decoding.model_copy(update=settings))
            seconds = time.perf_counter() - start
            name = "PyTorch" if library is None else library.instruction_set
            print(
                f"  {name:8s} batches of {rows:2d}: {compare(model, sources, exact, found, decoding.alpha)}; "
                f"{seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
