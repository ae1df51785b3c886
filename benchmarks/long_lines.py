"""Several sentences on a line, against the same sentences one by one: what splitting keeps, and what is lost without.

    python benchmarks/long_lines.py MODEL SOURCE REFERENCE [--together 20]

SOURCE and REFERENCE hold one sentence a line, plain or .gz. N successive sentences are joined by spaces to a line.
Every way of `decoding.split` translates these lines; "one by one" translates the sentences and joins the translations.
The second half of the table is of the same lines with every other full stop at the end of a sentence left out.
Printed are sacreBLEU (13a, cased) on the joined lines, the words of all outputs, how many lines were split, and how
many have outputs of unusual length.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import nmt
from nmt.api import Translator
from nmt.metrics.bleu import score
from nmt.tasks.translating import Translation
from nmt.text.lines import read_lines


def joined(lines: list[str], together: int) -> list[str]:
    return [" ".join(lines[first : first + together]) for first in range(0, len(lines), together)]


def without_stops(lines: Iterable[str]) -> list[str]:
    """The same lines, every other one without its full stop."""
    return [line.rstrip(".").rstrip() if number % 2 else line for number, line in enumerate(lines)]


def translated(path: Path, lines: list[str], how: str = "auto") -> list[Translation]:
    with nmt.load(path, split=how) as model:
        assert isinstance(model, Translator), f"{path} is no translator"
        return list(model.stream(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "source", "reference"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--together", type=int, default=20, help="sentences on a line")
    arguments = parser.parse_args()
    sources = [line.strip() for line in read_lines(arguments.source)]
    references = joined([line.strip() for line in read_lines(arguments.reference)], arguments.together)
    words = sum(len(line.split()) for line in references)
    print(f"{len(sources)} sentences, {len(references)} lines, {words} words in the references")
    print(f"{'':28}{'BLEU':>7}{'words':>8}{'split':>7}{'unusual':>9}")

    def show(name: str, texts: list[str], split: int, unusual: int) -> None:
        bleu = score(texts, [references], ["bleu"])["bleu"].score
        print(f"{name:28}{bleu:7.2f}{sum(len(text.split()) for text in texts):8}{split:7}{unusual:9}", flush=True)

    for kind, given in (("", sources), (", half the stops", without_stops(sources))):
        single = translated(arguments.model, given)
        texts = joined([result.texts[0] for result in single], arguments.together)
        show(f"one by one{kind}", texts, sum(r.parts > 1 for r in single), sum(r.unusual_length for r in single))
        for how in ("auto", "sentences", "length", "none"):
            results = translated(arguments.model, joined(given, arguments.together), how)
            found = [result.texts[0] for result in results]
            show(f"{how}{kind}", found, sum(r.parts > 1 for r in results), sum(r.unusual_length for r in results))


if __name__ == "__main__":
    main()
