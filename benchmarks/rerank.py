"""Which weights rerank best: candidates of a translator, judged by a translator of the other direction besides.

    python benchmarks/rerank.py NBEST FORWARD REVERSE REFERENCE

The noisy channel of Yee et al. (2019), "Simple and Effective Noisy Channel Modeling for Neural Machine Translation":
of a line's candidates y the one with the most log p(y | x) + reverse · log p(x | y) + length · |y| is taken, |y| in
subwords. NBEST is what `nmt translate --n-best` prints; FORWARD and REVERSE are a line for each of its lines, what `nmt
score --metric logprob` prints of candidates given sources and of sources given candidates; docs/recipes.md has the
commands. Printed is BLEU (13a, lowercased) for every pair of weights, with the brevity penalty of the best, and of the
candidates ranked first.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from sacrebleu import BLEU

REVERSE = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
LENGTH = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)


@dataclass(frozen=True)
class Candidate:
    text: str
    forward: float
    """log p(y | x), nats"""
    reverse: float
    """log p(x | y), nats"""
    subwords: int
    """Of y, `</s>` counted"""


def read_candidates(nbest: Path, forward: Path, reverse: Path) -> list[list[Candidate]]:
    """The candidates of each line, best first."""
    lines: dict[int, list[Candidate]] = {}
    files = [path.read_text(encoding="utf-8").removesuffix("\n").split("\n") for path in (nbest, forward, reverse)]
    for ranked, given_source, given_candidate in zip(*files, strict=True):
        number, _, _, text = ranked.split("\t", 3)
        probability, subwords = given_source.split("\t")
        candidate = Candidate(text, float(probability), float(given_candidate.split("\t")[0]), int(subwords))
        lines.setdefault(int(number), []).append(candidate)
    return [lines[number] for number in sorted(lines)]


def choose(candidates: list[Candidate], reverse: float, length: float) -> str:
    """The text of the best by these weights."""
    return max(candidates, key=lambda c: c.forward + reverse * c.reverse + length * c.subwords).text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("nbest", "forward", "reverse", "reference"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    lines = read_candidates(arguments.nbest, arguments.forward, arguments.reverse)
    references = arguments.reference.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    bleu = BLEU(lowercase=True)
    first = bleu.corpus_score([candidates[0].text for candidates in lines], [references])
    print(f"ranked first: {first.score:.2f}, brevity penalty {first.bp:.3f}")
    print("reverse \\ length" + "".join(f"{length:8.2f}" for length in LENGTH))
    scores = {}
    for reverse in REVERSE:
        for length in LENGTH:
            texts = [choose(candidates, reverse, length) for candidates in lines]
            scores[reverse, length] = bleu.corpus_score(texts, [references])
        print(f"{reverse:16.2f}" + "".join(f"{scores[reverse, length].score:8.2f}" for length in LENGTH), flush=True)
    (reverse, length), best = max(scores.items(), key=lambda entry: entry[1].score)
    print(f"best: reverse {reverse}, length {length}: {best.score:.2f}, brevity penalty {best.bp:.3f}")


if __name__ == "__main__":
    main()
