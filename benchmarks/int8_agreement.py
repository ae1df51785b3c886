"""What int8 changes on this processor: errors of products, and translations of a trained model beside those in fp32.

    python benchmarks/int8_agreement.py --model BUNDLE --text test.en --reference test.de
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 python ...

The second line computes as a processor with AVX2 alone does. Products are of 64 x 512 rows and 256 x 512 weights; the
error is the norm of the difference over the norm of the exact product. Texts are compared twice. In greedy search, a
text differs by more than a tie where, at the first symbol that differs, fp32 finds its own choice clearly likelier than
that of int8: by more than TIE. In beam search, where a tie may decide what follows, differing lines are counted.
int8 is taken here whether or not it is faster.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from contest import Pile
from nmt.bundle import Bundle, resolve
from nmt.device import choose_device
from nmt.metrics.bleu import score
from nmt.model.inference import Int8, largest_exact_weight
from nmt.model.transformer import Transformer
from nmt.search import engine as engines
from nmt.search.engine import SearchEngine
from nmt.search.feed import Hypothesis, Source
from nmt.text.lines import one_line, read_lines
from nmt.text.symbols import BOS, EOS

TIE = 0.1  # nats: one symbol is 1.1 times as likely as the other


def products() -> None:
    """Prints the largest relative error of a product for each kind of rows."""
    torch.manual_seed(1)
    shapes = {"rows": (64, 512), "weights": (256, 512)}
    kinds = {
        name: {
            "uniform": 2 * torch.rand(shape) - 1,
            "constant": torch.ones(shape),
            "extreme": torch.randn(shape).sign(),
            "normal": torch.randn(shape),
        }
        for name, shape in shapes.items()
    }
    print(f"8-bit weights up to {largest_exact_weight()} on {torch.backends.cpu.get_cpu_capability()}")
    for name, rows in kinds["rows"].items():
        errors = []
        for weight in kinds["weights"].values():
            expected = rows @ weight.t()
            errors.append(float((Int8(weight, None)(rows) - expected).norm() / expected.norm()))
        print(f"  product of {name:8s} rows: relative error at most {max(errors):.4f}")


def translate(bundle: Bundle, sources: list[Source], precision: str, beam: int) -> list[Hypothesis]:
    """The best hypothesis of each source, in order."""
    decoding = bundle.recipe.decoding.model_copy(update={"precision": precision, "beam": beam})
    engine = SearchEngine([bundle.model(torch.device("cpu"))], decoding)
    assert engine.precision == precision
    found = {number: best for number, (best,) in engine.search(Pile(sources), 1)}
    return [found[source.number] for source in sources]


@torch.inference_mode()
def preference(model: Transformer, source: list[int], exact: list[int], rough: list[int]) -> float:
    """How much likelier, in nats, `exact` is by fp32 than `rough` at the first symbol that differs."""
    first, second = [*exact, EOS], [*rough, EOS]
    at = next(i for i, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    memory = model.encode(torch.tensor([[*source, EOS]]))
    scores = model.decode(torch.tensor([[BOS, *first[:at]]]), memory)[0, -1].log_softmax(-1)
    return float(scores[first[at]] - scores[second[at]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a trained translator")
    parser.add_argument("--text", type=Path, help="sentences for it")
    parser.add_argument("--reference", type=Path, help="their translations")
    arguments = parser.parse_args()
    choose_device("cpu", 1)
    products()
    if not arguments.model:
        return
    setattr(engines, "pays", lambda precision: True)  # noqa: B010
    bundle, _ = resolve(arguments.model)
    tokenizer, extra, beam = bundle.tokenizer(), bundle.recipe.decoding.max_extra, bundle.recipe.decoding.beam
    lists = tokenizer.source.encode_all([line.strip() for line in read_lines(arguments.text)])
    sources = [Source(number, ids, len(ids) + extra) for number, ids in enumerate(lists)]
    model = bundle.model(torch.device("cpu"))

    exact, rough = (translate(bundle, sources, precision, beam=1) for precision in ("fp32", "int8"))
    differing = [(ids, a.ids, b.ids) for ids, a, b in zip(lists, exact, rough, strict=True) if a.ids != b.ids]
    gaps = [preference(model, *triple) for triple in differing]
    print(
        f"greedy, {len(sources):,} lines: {len(gaps)} differ, {sum(gap > TIE for gap in gaps)} of them by more than a "
        f"tie of {TIE} nats; the largest preference is {max(gaps, default=0.0):.3f}"
    )
    exact, rough = (translate(bundle, sources, precision, beam) for precision in ("fp32", "int8"))
    texts = [[one_line(tokenizer.target.decode(best.ids)) for best in found] for found in (exact, rough)]
    references = [list(read_lines(arguments.reference))]
    bleu, rough_bleu = (score(found, references, ["bleu"])["bleu"] for found in texts)
    differ = sum(a != b for a, b in zip(*texts, strict=True))
    print(f"beam {beam}: {differ} differ; BLEU {bleu.score:.2f} in fp32, {rough_bleu.score:.2f} in int8")


if __name__ == "__main__":
    main()
