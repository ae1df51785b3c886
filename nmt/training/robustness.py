"""Robustness of a translator: its chrF on lines in capitals, in title case, without final punctuation, with typos.

It knows lines and scores, but no model. The report's process starts often, so importing this module loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

from nmt.data.variants import with_typos, without_final_mark
from nmt.formats.letter_case import in_capitals, in_title_case
from nmt.metrics.string_metrics import Score, score

PLAIN = "plain"
TYPOS = "typos"
ALIKE = {"capitals": in_capitals, "title_case": in_title_case, "unpunctuated": without_final_mark}
"""What changes a source and, in the same way, its reference, by name"""
LABELS = {
    PLAIN: "plain",
    "capitals": "in capitals",
    "title_case": "in title case",
    "unpunctuated": "no final punctuation",
    TYPOS: "a typo in eight words",
}
LINES = "lines"
"""The name under which a bundle's scores have the number of lines"""

Pairs = Sequence[tuple[str, str]]
"""Sources and references, or their languages"""


def robustness(
    translate: Callable[[list[str]], list[str]], pairs: Pairs, languages: Pairs
) -> Iterator[tuple[str, Score]]:
    """Translate sources as they are and changed in each way; yield each chrF and its name in `LABELS`."""
    for name, lines in changed(pairs, languages).items():
        hypotheses = translate([source for source, _ in lines])
        yield name, score(hypotheses, [[reference for _, reference in lines]], ["chrf"])["chrf"]


def changed(pairs: Pairs, languages: Pairs) -> dict[str, Pairs]:
    """Return the lines as they are, and changed in each way that changes any source, by name.

    A reference is changed as its source is. It stays as it is if its source does, as capitals leave Chinese, and with
    typos, which are in sources alone and always the same.
    """
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in LABELS}
    found[PLAIN] += pairs
    for number, (source, reference) in enumerate(pairs):
        of_source, of_reference = languages[number]
        for name, change in ALIKE.items():
            text = change(source, of_source)
            expected = reference if text == source else change(reference, of_reference)
            found[name].append((text, expected))
        found[TYPOS].append((with_typos(source, Random(number)), reference))
    return {name: lines for name, lines in found.items() if name == PLAIN or lines != found[PLAIN]}


def figures(scores: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return each `score` and its `share` of the plain one, 0 if that is 0, by name in `LABELS`."""
    plain = scores[PLAIN]
    found = {}
    for name in LABELS:
        if name in scores:
            share = scores[name] / plain if plain else 0.0
            found[name] = {"score": scores[name], "share": share}
    return found


def table(scores: Mapping[str, float], signature: str) -> str:
    """Format chrF as a table with a line for each way to change lines, followed by the signature."""
    lines = [f"{'source':21}   chrF2  share"]
    for name, each in figures(scores).items():
        lines.append(f"{LABELS[name]:21}  {each['score']:6.2f}  {each['share']:.3f}")
    return "\n".join([*lines, f"  {signature}"])
