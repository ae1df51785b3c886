"""What int8 changes on this processor: errors of products, and translations of a trained model beside those in fp32.

    python benchmarks/int8_agreement.py --model BUNDLE --text test.en --reference test.de
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 python ...

The second line computes as a processor with AVX2 alone does. Products are of 64 x 512 rows and 256 x 512 weights; the
error is the norm of the difference over the norm of the exact product. A translation that differs is a tie where fp32
finds both texts equally good: their scores in fp32 differ by at most twice what int8 changes in the score of one text
(95th percentile over the lines whose texts are equal). int8 is taken here whether or not it is faster.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch

from nmt.bundle import Bundle, resolve
from nmt.device import choose_device
from nmt.metrics.translation import score
from nmt.model.inference import Int8, largest_exact_weight
from nmt.search import engine as engines
from nmt.search.engine import SearchEngine, length_penalty
from nmt.search.feed import Hypothesis, Source
from nmt.search.forced import ForcedDecoder
from nmt.text.lines import one_line, read_lines
from nmt.text.symbols import EOS
from translate_speed import Pile


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


def translate(bundle: Bundle, sources: list[Source], precision: str) -> list[Hypothesis]:
    """The best hypothesis of each source, in order."""
    decoding = bundle.recipe.decoding.model_copy(update={"precision": precision})
    engine = SearchEngine([bundle.model(torch.device("cpu"))], decoding)
    assert engine.precision == precision
    found = {number: best for number, (best,) in engine.search(Pile(sources), 1)}
    return [found[source.number] for source in sources]


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
    tokenizer, alpha, extra = bundle.tokenizer(), bundle.recipe.decoding.alpha, bundle.recipe.decoding.max_extra
    lists = tokenizer.source.encode_all([line.strip() for line in read_lines(arguments.text)])
    sources = [Source(number, ids, len(ids) + extra) for number, ids in enumerate(lists)]
    exact, rough = (translate(bundle, sources, precision) for precision in ("fp32", "int8"))

    forced = ForcedDecoder([bundle.model(torch.device("cpu"))], tokenizer, bundle.recipe.decoding)

    def scores(hypotheses: list[Hypothesis]) -> list[float]:
        targets = [[*hypothesis.ids, EOS] for hypothesis in hypotheses]
        totals = torch.tensor(forced.log_probabilities(lists, targets))
        lengths = torch.tensor([len(target) for target in targets])
        return (totals / length_penalty(lengths, alpha)).tolist()

    pairs = list(zip(exact, rough, scores(exact), scores(rough), strict=True))
    noise = statistics.quantiles([abs(a.score - b.score) for a, b, _, _ in pairs if a.ids == b.ids], n=20)[-1]
    gaps = [second - first for a, b, first, second in pairs if a.ids != b.ids]
    better, worse = (sum(sign * gap > 2 * noise for gap in gaps) for sign in (1, -1))
    texts = [[one_line(tokenizer.target.decode(best.ids)) for best in found] for found in (exact, rough)]
    references = [list(read_lines(arguments.reference))]
    bleu, rough_bleu = (score(found, references, ["bleu"])["bleu"] for found in texts)
    print(
        f"{len(sources):,} lines: {len(gaps)} differ; by more than a tie, {2 * noise:.4f} of score in fp32, "
        f"{worse} are worse in int8 and {better} better"
    )
    print(f"BLEU {bleu.score:.2f} in fp32, {rough_bleu.score:.2f} in int8")


if __name__ == "__main__":
    main()
