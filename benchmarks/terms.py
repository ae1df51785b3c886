"""Terms on Multi30k: whether they are there, what it costs in quality, and in time.

The table is made from the training pairs: the English words whose German companion is clearest (Dice coefficient), and
for a fifth of them a wrong companion. The lines are those of the test set that hold 1 to 3 of the terms.

    python benchmarks/terms.py ckpts/ FOLDER --lines 500 --pairs 7

A second table is that of fifteen nouns whose targets the model has never seen, in all test lines that hold them: with
the usual words put back, what is left of the translations without terms.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import time
from collections import Counter
from pathlib import Path
from statistics import median

import sacrebleu

import nmt
from nmt.decoding.engine import Request
from nmt.decoding.translator import Translation, Translator
from nmt.formats.terms import Term, Terms, missing

WORD = re.compile(r"[^\W\d_]+")
SIZE, WRONG, MOST = 100, 5, 3  # terms; every 5th is wrong; terms of a line


UNSEEN = [
    *(("dog", "Hund", "Bellhund"), ("woman", "Frau", "Weibsperson"), ("girl", "Mädchen", "Mägdlein")),
    *(("ball", "Ball", "Spielkugel"), ("street", "Straße", "Fahrgasse"), ("guitar", "Gitarre", "Klampfe")),
    *(("beach", "Strand", "Meergestade"), ("camera", "Kamera", "Lichtbildkasten"), ("horse", "Pferd", "Reitross")),
    *(("car", "Auto", "Kraftkarren"), ("bench", "Bank", "Sitzbrett"), ("tree", "Baum", "Laubriese")),
    *(("building", "Gebäude", "Bauwerkchen"), ("microphone", "Mikrofon", "Schallwandler")),
    ("helmet", "Helm", "Kopfschutz"),
]
"""English noun, its usual German noun, and one that Multi30k does not have."""


KEPT = ["https://example.org/a/b?c=1", "info@example.org", "{name}", "%s", "www.example.com/x", "{{user.id}}", "%1$d"]


def read(path: Path) -> list[str]:
    """The lines of a compressed file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def table(folder: Path) -> tuple[list[Term], set[str]]:
    """Terms, and the source words of those that are wrong on purpose."""
    both: Counter[tuple[str, str]] = Counter()
    ones: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for source, target in zip(read(folder / "train.en.gz"), read(folder / "train.de.gz"), strict=True):
        left = {word for word in WORD.findall(source) if word.islower() and len(word) > 2}
        right = {word for word in WORD.findall(target)[1:] if word[0].isupper()}  # nouns
        ones.update(left)
        others.update(right)
        both.update((one, other) for one in left for other in right)
    clear: dict[str, tuple[float, str]] = {}
    for (one, other), count in both.items():
        if count >= 30:
            clear[one] = max(clear.get(one, (0.0, "")), (2 * count / (ones[one] + others[other]), other))
    best = sorted(clear, key=lambda one: -clear[one][0])[:SIZE]
    wrong = best[::WRONG]
    companions = {one: clear[one][1] for one in best}
    companions |= {one: clear[wrong[(index + 1) % len(wrong)]][1] for index, one in enumerate(wrong)}
    return [Term(one, other) for one, other in companions.items()], set(wrong)


def unseen(model: Translator, folder: Path) -> None:
    """Print the second table."""
    terms = Terms(Term(source, target) for source, _, target in UNSEEN)
    pairs = zip(*(read(folder / f"test_2016_flickr.{side}.gz") for side in ("en", "de")), strict=True)
    sources, references = zip(*(pair for pair in pairs if terms.phrases(pair[0])), strict=True)
    plain = [result.texts[0] for result in model.stream(sources)]
    found = list(model.stream([Request(source, terms=terms) for source in sources]))
    back = [result.texts[0] for result in found]
    for _, usual, target in UNSEEN:
        back = [re.sub(rf"\b{target}\b", usual, text) for text in back]
    count, gone = sum(len(terms.phrases(source)) for source in sources), sum(len(each.missing) for each in found)
    before, after = (sacrebleu.corpus_bleu(texts, [references]).score for texts in (plain, back))
    equal = sum(map(str.__eq__, plain, back))
    print(
        f"unseen targets: {count - gone} of {count} terms in {len(sources)} lines; BLEU {before:.2f} without, ", end=""
    )
    print(f"{after:.2f} with the usual words put back; {equal / len(sources):.1%} of the lines are equal")


def keeping(model: Translator, folder: Path) -> None:
    """Print what becomes of text to keep at random places of 500 lines, and of the rest of these."""
    sources, references = (read(folder / f"test_2016_flickr.{side}.gz")[:500] for side in ("en", "de"))
    draw, given, lines = random.Random(1), [], []
    for source in sources:
        words, text = source.split(), draw.choice(KEPT)
        at = draw.randrange(1, len(words))
        given.append(text)
        lines.append(" ".join([*words[:at], text, *words[at:]]))
    plain, found = ([result.texts[0] for result in model.stream(each)] for each in (sources, lines))
    once = sum(text.count(wanted) == 1 for text, wanted in zip(found, given, strict=True))
    rest = [" ".join(text.replace(wanted, " ").split()) for text, wanted in zip(found, given, strict=True)]
    rest = [re.sub(r" ([.,])", r"\1", text) for text in rest]
    before, after = (sacrebleu.corpus_bleu(texts, [references]).score for texts in (plain, rest))
    print(f"text to keep: exactly once in {once} of 500 lines; BLEU of the rest {after:.2f}, without it {before:.2f}")


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path, help="of Multi30k")
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--pairs", type=int, default=0, help="timed pairs of runs without and with terms")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    model = nmt.load(given.model, threads=given.threads, beam=given.beam)
    assert isinstance(model, Translator)
    terms, wrong = table(given.folder)
    found = Terms(terms)
    pairs = [
        (source, reference)
        for source, reference in zip(
            read(given.folder / "test_2016_flickr.en.gz"), read(given.folder / "test_2016_flickr.de.gz"), strict=True
        )
        if 1 <= len(found.phrases(source)) <= MOST
    ][: given.lines]
    sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
    right = [all(phrase.source.lower() not in wrong for phrase in found.phrases(source)) for source in sources]

    def run(with_terms: bool) -> tuple[list[Translation], float]:
        began = time.process_time()
        results = list(model.stream([Request(source, terms=found if with_terms else None) for source in sources]))
        return results, time.process_time() - began

    phrases = [found.phrases(source) for source in sources]
    print(f"{len(sources)} lines, {sum(map(len, phrases))} terms, {sum(right)} lines without a wrong one")
    print("| | terms that are there | BLEU | BLEU, lines without wrong terms | length ratio |")
    print("|---|---:|---:|---:|---:|")
    for name, with_terms in (("without terms", False), ("with terms", True)):
        texts = [result.texts[0] for result in run(with_terms)[0]]
        gone = sum(len(missing(each, source, text)) for source, text, each in zip(sources, texts, phrases, strict=True))
        wanted = sum(len({phrase.targets for phrase in each}) for each in phrases)
        bleu = sacrebleu.corpus_bleu(texts, [references])
        kept = [index for index, each in enumerate(right) if each]
        clean = sacrebleu.corpus_bleu([texts[index] for index in kept], [[references[index] for index in kept]])
        ratio = bleu.sys_len / bleu.ref_len
        print(f"| {name} | {wanted - gone} of {wanted} | {bleu.score:.2f} | {clean.score:.2f} | {ratio:.3f} |")
    unseen(model, given.folder)
    keeping(model, given.folder)
    ratios = []
    for _ in range(given.pairs):
        without, with_ = run(False)[1], run(True)[1]
        ratios.append(without / with_)
    if ratios:
        spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"speed with terms over speed without, by processor seconds: {spread}")


if __name__ == "__main__":
    main()
