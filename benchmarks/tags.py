"""Where tags of --markup go, by the demo's grammar, which knows the translations of words.

    python benchmarks/tags.py MODEL FOLDER [--lines 500]

MODEL is the demo's, FOLDER has its text (test.en). One to three elements go around random words of each line, which may
be nested. Counted are lines whose tags are all there and nested, texts equal to those of the lines without tags, tags
inside words, and of the elements around nouns, adjectives and verbs whose translation the output has just once, those
that hold this and nothing else.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import nmt
from nmt.text.lines import read_lines

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
import demo_lexicon

TAG = re.compile(r"<[^>]*>")
WORD = re.compile(r"\w+")
SHARE_KNOWN = 0.75  # elements around words whose translation the grammar knows; the others go around one to three words


def translations() -> dict[str, set[str]]:
    """German forms, in lower case, by English noun, adjective or verb."""
    found: dict[str, set[str]] = {}
    for singular, plural, german, germans, *rest in demo_lexicon.NOUNS.values():
        weak = {f"{german}n", f"{german}en"} if "m!" in rest else set()
        for english in (singular, plural):
            found.setdefault(english, set()).update({german, germans, f"{germans}n"} | weak)
    for english, predicative, stem, *_ in demo_lexicon.ADJECTIVES.values():
        found[english] = {predicative, *(stem + ending for ending in ("e", "en", "em", "er", "es"))}
    for verb in demo_lexicon.VERBS.values():
        if not (verb.prefix or verb.particle or "be" in verb.english or "look" in verb.english):
            for english in verb.english:
                found.setdefault(english, set()).update({*verb.german, *(f"{form}en" for form in verb.german)})
    return {english: {form.lower() for form in forms} for english, forms in found.items()}


def tag(line: str, known: dict[str, set[str]], choose: random.Random) -> tuple[str, dict[str, list[str]]]:
    """Put tags into a line; return it and, by element, the words inside whose translation is known."""
    words = line.split(" ")
    bare = [re.sub(r"\W", "", word).lower() for word in words]
    compounds = {
        at for at in range(len(bare)) for pair in (bare[at - 1 : at + 1], bare[at : at + 2]) if " ".join(pair) in known
    }
    single = [at for at, word in enumerate(bare) if word in known and bare.count(word) == 1 and at not in compounds]
    spans: list[tuple[int, int]] = []
    truth = {}
    for _ in range(choose.randint(1, 3)):
        is_known = bool(single) and choose.random() < SHARE_KNOWN
        if is_known:
            end = choose.choice(single) + 1
            start = end - 2 if end - 2 in single and choose.random() < 0.5 else end - 1
        else:
            start = choose.randrange(len(words))
            end = min(len(words), start + choose.randint(1, 3))
        is_nested = all(
            end <= first or last <= start or (start <= first and last <= end) or (first <= start and end <= last)
            for first, last in spans
        )
        if is_nested and (start, end) not in spans:
            if is_known:
                truth[f"t{len(spans)}"] = bare[start:end]
            spans.append((start, end))
    outer_first = sorted(range(len(spans)), key=lambda each: (spans[each][0], -spans[each][1]))
    tagged = []
    for at, word in enumerate(words):
        opening = "".join(f"<t{each}>" for each in outer_first if spans[each][0] == at)
        closing = "".join(f"</t{each}>" for each in reversed(outer_first) if spans[each][1] == at + 1)
        text = word.rstrip(".,?!")
        tagged.append(opening + text + closing + word[len(text) :])
    return " ".join(tagged), truth


class Nesting(HTMLParser):
    """Whether all tags have their pairs, nested."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self._open: list[str] = []
        self._is_nested = True
        self.feed(line)

    @property
    def is_whole(self) -> bool:
        return self._is_nested and not self._open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self._is_nested &= bool(self._open) and self._open.pop() == tag


def main() -> None:
    """Translate and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lines", type=int, default=500)
    arguments = parser.parse_args()
    known, choose, model = translations(), random.Random(3), nmt.load(arguments.model)
    lines = list(read_lines(arguments.folder / "test.en"))[: arguments.lines]
    tagged, truths = zip(*(tag(line, known, choose) for line in lines), strict=True)
    found, plain = model.translate(tagged, markup=True), model.translate([TAG.sub("", line) for line in tagged])
    whole = sum(
        Nesting(text).is_whole and sorted(TAG.findall(text)) == sorted(TAG.findall(line))
        for text, line in zip(found, tagged, strict=True)
    )
    equal = sum(TAG.sub("", text) == other for text, other in zip(found, plain, strict=True))
    inside = sum(bool(re.search(r"\w(?:<[^>]*>)+\w", text)) for text in found)
    right = total = 0
    for text, other, truth in zip(found, plain, truths, strict=True):
        output = WORD.findall(other.lower())
        for name, words in truth.items():
            hits = [[word for word in output if word in known[each]] for each in words]
            if all(len(each) == 1 for each in hits):
                content = re.search(f"<{name}>(.*)</{name}>", text)
                assert content, "the tags are there"
                total += 1
                right += set(WORD.findall(TAG.sub("", content[1]).lower())) == {word for each in hits for word in each}
    print(
        f"{len(lines)} lines, {sum(line.count('</') for line in tagged)} elements: {whole} whole, {equal} equal texts"
    )
    print(f"{inside} lines with tags inside words; around the right words {right} of {total} ({right / total:.1%})")


if __name__ == "__main__":
    main()
