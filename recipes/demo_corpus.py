"""Write a parallel English-German corpus with English parse trees, drawn from a synchronous grammar.

    python recipes/demo_corpus.py OUTDIR [--train 24000 --valid 500 --test 500 --seed 1]

Each rule builds the English constituency tree and the German words side by side, so a derivation yields
an aligned sentence pair and its tree. The German side asks for gender, case, adjective endings, agreement,
verb-second and verb-final order, separable verbs and extraposed clauses. Every English sentence has exactly
one translation, so a model that has learnt the grammar can translate without a fault.
"""

import argparse
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from demo_grammar import (
    BE,
    FREQUENCIES,
    NOT,
    PLACE,
    PRONOUNS,
    TIME,
    TIMES,
    Clause,
    NounPhrase,
    Phrase,
    Sentence,
    complement,
    compound,
    modify,
    noun_phrase,
    place,
    predicate,
    question,
    relative,
    relative_pronoun,
    statement,
    subordinate,
)
from demo_lexicon import (
    ADJECTIVES,
    ANY,
    CLAUSAL_VERBS,
    COORDINATORS,
    DEFINITE,
    FRAMES,
    IF_TENSES,
    MIXED,
    MOODS,
    NONPAST,
    NOUNS,
    PAST,
    PLACE_DETERMINERS,
    PLURAL,
    RELATIVE_TENSES,
    THEN_TENSES,
    VERBS,
    WITH,
    Slot,
    Verb,
    Words,
)


def has_gap_for(head: NounPhrase, slot: Slot) -> bool:
    """Whether a relative pronoun can fill the slot; only one for a person follows a preposition."""
    is_plain = not slot.english or (slot.german and head.kinds == "p")
    return bool(is_plain and set(head.kinds) & set(slot.kinds))


@cache
def nouns_for(kinds: str) -> list[str]:
    return [noun for noun, row in NOUNS.items() if not set(kinds).isdisjoint(row[5])]


def adjectives_for(kinds: str) -> list[str]:
    return [adjective for adjective, row in ADJECTIVES.items() if kinds[0] in row[3]]


class Sampler:
    """Draws sentences; each avoids repeating a noun, and at most one of its nouns has a relative clause."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.choose = self.random.choice
        self.used: set[str] = set()
        self.may_negate = self.may_relate = True

    def draw(self) -> Sentence:
        self.used, self.may_negate, self.may_relate = set(), True, True
        rules = (self.statement, self.question, self.adjunct_clause, self.reported, self.compound)
        return self.random.choices(rules, (44, 12, 18, 16, 10))[0]()

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def noun_phrase(self, kinds: str, determiners: Words = ANY) -> NounPhrase:
        nouns = nouns_for(kinds)
        noun = self.choose([noun for noun in nouns if noun.split()[-1] not in self.used] or nouns)
        self.used.add(noun.split()[-1])
        adjective = self.choose(adjectives_for(NOUNS[noun][5])) if self.chance(0.35) else ""
        determiner = self.choose(determiners)
        return noun_phrase(determiner, noun, adjective, determiner in PLURAL or self.chance(0.25))

    def modified(self, phrase: NounPhrase, is_subject: bool = False) -> NounPhrase:
        """Perhaps adds a relative clause, "with ..." or, where it cannot be an adverbial, "in ..."."""
        draw = self.random.random()
        if draw < 0.16 and self.may_relate and "PRP$" not in phrase.english:
            return modify(phrase, self.relative(phrase))
        if draw < 0.25 and phrase.kinds == "p":
            return modify(phrase, complement(self.noun_phrase("ta"), WITH))
        if draw < 0.33 and is_subject and phrase.kinds != "l":
            return modify(phrase, place(self.noun_phrase("l", PLACE_DETERMINERS)))
        return phrase

    def relative(self, head: NounPhrase) -> Phrase:
        self.may_relate = False
        pronoun = relative_pronoun(head)
        frames = [(verb, frame) for verb, frame in FRAMES if frame and has_gap_for(head, frame[-1])]
        if not frames or self.chance(0.5):
            return relative(self.clause(RELATIVE_TENSES, pronoun))
        verb, frame = self.choose(frames)
        return relative(self.verbal(verb, frame[:-1], RELATIVE_TENSES), complement(pronoun, frame[-1]))

    def subject(self, kinds: str, negated: bool) -> NounPhrase:
        if "p" in kinds and self.chance(0.35):
            return PRONOUNS[self.choose([name for name in PRONOUNS if name != "it" or "a" in kinds])]
        return self.modified(self.noun_phrase(kinds, DEFINITE if negated else ANY), is_subject=True)

    def object(self, slot: Slot, frame: Sequence[Slot], subject: NounPhrase, negated: bool) -> Phrase:
        is_last, is_only = slot is frame[-1], len(frame) == 1
        if "p" in slot.kinds and (is_only or slot.case == "dat") and self.chance(0.25):
            persons = [pronoun for pronoun in PRONOUNS.values() if pronoun.kinds == "p"]
            others = [other for other in persons if other.person == 3 or other.person != subject.person]
            return complement(self.choose(others), slot)
        if "t" in slot.kinds and is_only and self.chance(0.1):
            return complement(PRONOUNS["it"], slot)
        if negated and is_last and not slot.german and self.chance(0.4):
            return complement(self.noun_phrase(slot.kinds, ("kein",)), slot)
        phrase = self.noun_phrase(slot.kinds, DEFINITE if negated or not is_last else ANY)
        if is_last and not negated and slot.kinds != "l":
            phrase = self.modified(phrase)
        return complement(phrase, slot)

    def clause(self, tenses: Words, subject: NounPhrase | None = None) -> Clause:
        frames = [f for f in FRAMES if subject.kinds[0] in f[0].subjects] if subject else FRAMES
        if not frames or self.chance(0.18):
            return self.copular(tenses, subject)
        verb, frame = self.choose(frames)
        return self.verbal(verb, frame, tenses, subject)

    def negation(self, tense: str) -> Phrase | None:
        return NOT if self.may_negate and tense not in ("can", "must") and self.chance(0.15) else None

    def verbal(self, verb: Verb, frame: tuple[Slot, ...], tenses: Words, subject: NounPhrase | None = None) -> Clause:
        tense = self.choose(tenses)
        adverb = self.negation(tense)
        subject = subject or self.subject(verb.subjects, adverb == NOT)
        complements = [self.object(slot, frame, subject, adverb == NOT) for slot in frame]
        if any(phrase.tail for phrase in complements):  # an adverbial would seem to belong to the tail
            return Clause(subject, verb, tense, tuple(complements), adverb)
        if verb.takes_place and not adverb and self.chance(0.35):
            complements.append(place(self.noun_phrase("l", PLACE_DETERMINERS)))
        return self.timed(Clause(subject, verb, tense, tuple(complements), adverb))

    def copular(self, tenses: Words, subject: NounPhrase | None) -> Clause:
        tense = self.choose([tense for tense in tenses if tense in ("present", "past", "will")])
        adverb = self.negation(tense)
        subject = subject or self.subject(BE.subjects, adverb == NOT)
        adjective = self.choose(adjectives_for(subject.kinds))
        clause = Clause(subject, BE, tense, (predicate(adjective),), adverb)
        return self.timed(clause) if adjective in MOODS else clause

    def timed(self, clause: Clause) -> Clause:
        """Perhaps adds an adverb of frequency or an adverbial of time."""
        if not clause.adverb and self.chance(0.2):
            fitting = [phrase for phrase, tenses in FREQUENCIES.values() if clause.tense in tenses]
            return replace(clause, adverb=self.choose(fitting))
        if self.chance(0.6):
            return clause
        needed = {clause.tense, "not"} if clause.adverb else {clause.tense}
        fitting = [phrase for phrase, tenses in TIMES.values() if needed <= set(tenses)]
        return replace(clause, complements=(*clause.complements, self.choose(fitting)))

    def statement(self) -> Sentence:
        clause = self.clause(MIXED)
        adverbials = [phrase for phrase in clause.complements if phrase.field in (TIME, PLACE)]
        if not adverbials or self.chance(0.5):
            return statement(clause)
        front = self.choose(adverbials)
        rest = tuple(phrase for phrase in clause.complements if phrase != front)
        return statement(replace(clause, complements=rest), front)

    def question(self) -> Sentence:
        self.may_negate = False
        return question(self.clause(MIXED))

    def adjunct_clause(self) -> Sentence:
        conjunction = self.choose(("because", "if", "although"))
        main_tenses = tenses = PAST if self.chance(0.4) else NONPAST
        if conjunction == "if":
            main_tenses, tenses = THEN_TENSES, IF_TENSES
        in_front = conjunction == "although" or self.chance(0.5)
        self.may_relate = in_front  # what follows a relative clause would seem to belong to it
        main = self.clause(main_tenses)
        self.may_relate = self.may_relate or not in_front
        adjunct = subordinate(conjunction, self.clause(tenses))
        if in_front:
            return statement(main, adjunct)
        return statement(replace(main, complements=(*main.complements, adjunct)))

    def reported(self) -> Sentence:
        tense = self.choose(("present", "present", "past"))
        adverb = self.negation(tense)
        subject = self.subject("p", adverb == NOT)
        content = subordinate("that", self.clause(PAST if tense == "past" else MIXED))
        clause = Clause(subject, VERBS[self.choose(CLAUSAL_VERBS)], tense, (content,), adverb)
        return question(clause) if not adverb and self.chance(0.25) else statement(clause)

    def compound(self) -> Sentence:
        tenses = PAST if self.chance(0.4) else NONPAST
        return compound(self.clause(tenses), self.choose(tuple(COORDINATORS)), self.clause(tenses))


def draw_corpus(seed: int, size: int) -> list[Sentence]:
    """Sentences of 3 to 20 words that differ from each other in both languages, in random order."""
    sampler = Sampler(seed)
    derived: dict[str, Sentence] = {}
    kept: dict[str, Sentence] = {}
    while len(kept) < size:
        drawn = sampler.draw()
        if derived.setdefault(drawn.english, drawn) != drawn:
            raise ValueError(f"two derivations: {drawn} and {derived[drawn.english]}")
        if 3 <= len(drawn.english.split()) <= 20:
            kept.setdefault(drawn.german, drawn)
    corpus = list(kept.values())
    sampler.random.shuffle(corpus)  # short sentences come up, and run out, early
    return corpus


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write a parallel English-German corpus with English trees.")
    parser.add_argument("outdir", type=Path)
    for split, size in (("train", 24000), ("valid", 500), ("test", 500)):
        parser.add_argument(f"--{split}", type=int, default=size, help="number of sentences (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    sizes = {split: getattr(options, split) for split in ("train", "valid", "test")}
    corpus = iter(draw_corpus(options.seed, sum(sizes.values())))
    options.outdir.mkdir(parents=True, exist_ok=True)
    for split, size in sizes.items():
        columns = zip(*itertools.islice(corpus, size), strict=True)
        for suffix, lines in zip(("en", "de", "trees"), columns, strict=True):
            path = options.outdir / f"{split}.{suffix}"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
