"""The rules of demo_corpus.py: each builds an English tree and the German words side by side."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from demo_lexicon import (
    ADJECTIVES,
    ARTICLES,
    AUXILIARIES,
    CONJUNCTIONS,
    CONTRACTIONS,
    COORDINATORS,
    DEFINITE,
    DETERMINERS,
    DO,
    FREQUENCY_TABLE,
    HAVE,
    IN,
    NOUNS,
    PRONOUN_TABLE,
    RELATIVES,
    STRONG,
    TIME_TABLE,
    VERBS,
    WANT,
    WEAK,
    Slot,
    Verb,
    Words,
    entries,
    rows,
)

# ----------------------------------------------------------------------------------------------- phrases
# English trees are bracketed strings, "(NP (DT the) (NN dog))"; German is a tuple of words and commas.

# Fields of the German clause between its two verbal brackets, in their order.
KNOWN, TIME, PLACE, NEW, NEGATION, LAST = range(6)


@dataclass(frozen=True)
class Phrase:
    """A part of a clause; the German `tail` is a subordinate clause, which moves behind the right bracket."""

    english: str
    german: Words
    field: int
    tail: Words = ()


@dataclass(frozen=True)
class NounPhrase:
    """English subject and object form, German words by case, and what agreement and word order ask for."""

    english: str
    english_object: str
    german: Mapping[str, Words]
    kinds: str
    gender: str = "n"
    plural: bool = False
    person: int = 3
    definite: bool = True
    relative: Words = ()


def words_of(tree: str) -> list[str]:
    return re.findall(r" ([^() ]+)\)", tree)


def column(table: Mapping[str, str], case: str, gender: str) -> str:
    return table[case].split()["mfnp".index(gender)]


@cache
def inflect(determiner: str, case: str, gender: str) -> tuple[str, str]:
    """The German determiner, and the ending of an adjective after it: weak where the determiner has one."""
    stem, declension = DETERMINERS[determiner][4:]
    strong, weak = column(STRONG, case, gender), column(WEAK, case, gender)
    if declension == "article":
        return column(ARTICLES, case, gender), weak
    if determiner == "a" and gender == "p":
        return "", strong
    if declension == "fixed" or (declension == "mixed" and case + gender in ("nomm", "nomn", "accn")):
        return stem, strong
    return stem + strong, strong if declension == "parallel" else weak


def decline(noun: str, case: str, plural: bool) -> str:
    german, german_plural, gender = NOUNS[noun][2:5]
    if plural:
        return german_plural + ("n" if case == "dat" and german_plural[-1] not in "ns" else "")
    return german_plural if gender == "m!" and case != "nom" else german


def english_noun_phrase(determiner: str, noun: str, adjective: str, plural: bool) -> str:
    *modifiers, head = NOUNS[noun][plural].split()
    article, tag = DETERMINERS[determiner][1 + plural], DETERMINERS[determiner][3]
    if article == "a" and (adjective or noun)[0] in "aeiou":
        article = "an"
    tagged = [(tag, article), ("JJ", adjective), *(("NN", modifier) for modifier in modifiers)]
    tagged.append(("NNS" if plural else "NN", head))
    return f"(NP {' '.join(f'({tag} {word})' for tag, word in tagged if word not in ('-', ''))})"


def noun_phrase(determiner: str, noun: str, adjective: str = "", plural: bool = False) -> NounPhrase:
    gender, kinds = NOUNS[noun][4][0], NOUNS[noun][5]
    english, german = english_noun_phrase(determiner, noun, adjective, plural), {}
    for case in STRONG:
        article, ending = inflect(determiner, case, "p" if plural else gender)
        attribute = ADJECTIVES[adjective][2] + ending if adjective else ""
        german[case] = tuple(filter(None, (article, attribute, decline(noun, case, plural))))
    return NounPhrase(english, english, german, kinds, gender, plural, definite=determiner in DEFINITE)


def read_pronoun(row: list[str]) -> NounPhrase:
    english, english_object, *german, person, number = row
    forms = {case: (word,) for case, word in zip(STRONG, german, strict=True)}
    subject, object_form = f"(NP (PRP {english}))", f"(NP (PRP {english_object}))"
    kinds = "t" if english == "it" else "p"
    return NounPhrase(subject, object_form, forms, kinds, plural=number == "p", person=int(person))


def relative_pronoun(head: NounPhrase) -> NounPhrase:
    german = {case: (column(RELATIVES, case, "p" if head.plural else head.gender),) for case in RELATIVES}
    trees = ("(WHNP (WP who))", "(WHNP (WP whom))") if head.kinds == "p" else ("(WHNP (WDT that))",) * 2
    return NounPhrase(*trees, german, head.kinds, plural=head.plural)


def modify(head: NounPhrase, modifier: Phrase) -> NounPhrase:
    """A noun phrase with a prepositional phrase or a relative clause; German keeps the latter separable."""
    english = f"(NP {head.english} {modifier.english})"
    german = {case: head.german[case] + modifier.german for case in STRONG}
    return replace(head, english=english, english_object=english, german=german, relative=modifier.tail)


def complement(phrase: NounPhrase, slot: Slot) -> Phrase:
    """A noun phrase in one of the verb's slots."""
    english, german = phrase.english_object, phrase.german[slot.case]
    field = KNOWN if phrase.definite and not phrase.relative else NEW
    if slot.english:
        english = f"({'WHPP' if english.startswith('(WHNP') else 'PP'} (IN {slot.english}) {english})"
    if slot.german:
        preposition = CONTRACTIONS.get((slot.german, german[0]))
        field, german = LAST, (preposition, *german[1:]) if preposition else (slot.german, *german)
    return Phrase(english, german, field, phrase.relative)


def place(phrase: NounPhrase) -> Phrase:
    return replace(complement(phrase, IN), field=PLACE)


def predicate(adjective: str) -> Phrase:
    return Phrase(f"(ADJP (JJ {adjective}))", (ADJECTIVES[adjective][1],), LAST)


def read_adverbials(table: str) -> dict[str, tuple[Phrase, Words]]:
    """Phrases, with the tenses they go with, by their English words."""
    split = [row.split("; ") for row in rows(table)]
    phrases = [(Phrase(english, tuple(german.split()), TIME), tenses) for english, german, tenses in split]
    return {" ".join(words_of(phrase.english)): (phrase, tuple(tenses.split())) for phrase, tenses in phrases}


BE, NOT = VERBS["be"], Phrase("(RB not)", ("nicht",), NEGATION)
PRONOUNS = {name: read_pronoun(row) for name, row in entries(PRONOUN_TABLE).items()}
TIMES, FREQUENCIES = read_adverbials(TIME_TABLE), read_adverbials(FREQUENCY_TABLE)

# ----------------------------------------------------------------------------------------------- clauses


@dataclass(frozen=True)
class Clause:
    """Subject, verb and complements; these stand in English order, their fields give the German order."""

    subject: NounPhrase
    verb: Verb
    tense: str
    complements: tuple[Phrase, ...] = ()
    adverb: Phrase | None = None

    @property
    def agreement(self) -> int:
        """Column of the verb forms: I, you, he, we."""
        return 3 if self.subject.plural else self.subject.person - 1

    def english_verbs(self, inverted: bool) -> list[str]:
        """Tagged verb forms, the finite one first."""
        base, _, _, participle = self.verb.english
        if self.tense == "perfect":
            return [finite(HAVE, "present", self.agreement), f"(VBN {participle})"]
        if self.tense in ("will", "can", "must", "should"):
            return [f"(MD {self.tense})", f"(VB {base})"]
        forms, rest = (WANT, ["(TO to)", f"(VB {base})"]) if self.tense == "want" else (self.verb.english, [])
        if (inverted or self.adverb == NOT) and self.verb is not BE:
            return [finite(DO, self.tense, self.agreement), f"(VB {forms[0]})", *rest]
        return [finite(forms, self.tense, self.agreement), *rest]

    def english(self, inverted: bool = False) -> list[str]:
        """The constituents of the clause; an inverted one has its finite verb in front."""
        first, *verbs = self.english_verbs(inverted)
        rest = [phrase.english for phrase in self.complements]
        if self.verb.particle:  # behind a pronoun, before any other object
            position = 1 if rest and rest[0].startswith("(NP (PRP ") else 0
            rest.insert(position, f"(PRT (RP {self.verb.particle}))")
        for verb in reversed(verbs):
            verb_phrase = f"(VP {' '.join([verb, *rest])})"
            rest = [f"(S {verb_phrase})" if verb == "(TO to)" else verb_phrase]
        subject, adverb = self.subject.english, [self.adverb.english] if self.adverb else []
        if inverted:
            return [first, subject, *adverb, *rest]
        if self.verb is BE or words_of(first)[0] not in (*self.verb.english, *WANT):
            return [subject, f"(VP {' '.join([first, *adverb, *rest])})"]
        return [subject, *adverb, f"(VP {' '.join([first, *rest])})"]

    def german_verbs(self) -> tuple[str, str]:
        """The finite verb and the right bracket of a main clause."""
        infinitive, *present, past, auxiliary, participle = self.verb.german
        if self.tense == "present":
            plural = "sind" if infinitive == "sein" else infinitive
            return [*present, plural][self.agreement], self.verb.prefix
        if self.tense == "past":
            endings = ("", "st", "", "n" if past.endswith("e") else "en")
            return past + endings[self.agreement], self.verb.prefix
        is_perfect = self.tense == "perfect"
        forms = AUXILIARIES[auxiliary if is_perfect else self.tense].split()
        return forms[self.agreement], self.verb.prefix + (participle if is_perfect else infinitive)

    def german_parts(self) -> tuple[Words, Words, Words]:
        """The subject, the words between the brackets, and the clauses behind the right one."""
        fields = [*self.complements, *([self.adverb] if self.adverb else [])]
        words = [word for phrase in sorted(fields, key=lambda phrase: phrase.field) for word in phrase.german]
        if any(word.startswith("kein") for word in words):
            words.remove("nicht")
        tail = tuple(word for phrase in self.complements for word in phrase.tail)
        return self.subject.german["nom"] + self.subject.relative, tuple(words), tail

    def german_main(self, front: Words | None = None) -> Words:
        """Verb-second order, with the subject in front by default; an empty front makes a question."""
        (verb, bracket), (subject, words, tail) = self.german_verbs(), self.german_parts()
        start = (*subject, verb) if front is None else (*front, verb, *subject)
        return (*start, *words, *filter(None, (bracket,)), *tail)

    def german_subordinate(self) -> Words:
        """Verb-final order."""
        (verb, bracket), (subject, words, tail) = self.german_verbs(), self.german_parts()
        verbs = (bracket + verb,) if self.tense in ("present", "past") else (bracket, verb)
        return (*subject, *words, *verbs, *tail)


def finite(forms: Sequence[str], tense: str, agreement: int) -> str:
    """The tagged English verb form, of the present unless the tense is past."""
    is_past, base = tense == "past", forms[0]
    present = ("am", "are", "is", "are") if base == "be" else (base, base, forms[1], base)
    past = ("was", "were", "was", "were") if base == "be" else (forms[2],) * 4
    tag = "VBD" if is_past else "VBZ" if agreement == 2 else "VBP"
    return f"({tag} {(past if is_past else present)[agreement]})"


def subordinate(conjunction: str, clause: Clause) -> Phrase:
    english = f"(SBAR (IN {conjunction}) (S {' '.join(clause.english())}))"
    return Phrase(english, (), LAST, (",", CONJUNCTIONS[conjunction], *clause.german_subordinate(), ","))


def relative(clause: Clause, gap: Phrase | None = None) -> Phrase:
    """A relative clause; its pronoun is the subject, or fills the gap."""
    pronoun, *rest = [gap.english, *clause.english()] if gap else clause.english()
    german = (*(gap.german if gap else ()), *clause.german_subordinate())
    return Phrase(f"(SBAR {pronoun} (S {' '.join(rest)}))", (), LAST, (",", *german, ","))


# --------------------------------------------------------------------------------------------- sentences


class Sentence(NamedTuple):
    english: str
    german: str
    tree: str


def raw_text(words: Sequence[str], mark: str) -> str:
    """Ordinary text; commas that meet become one, and those at the edges go."""
    text = re.sub(r"( ,)+", ",", " ".join(words).strip(" ,")) + mark
    return text[0].upper() + text[1:]


def sentence(label: str, constituents: Sequence[str], german: Words, mark: str) -> Sentence:
    tree = f"(TOP ({label} {' '.join(constituents)} (. {mark})))"
    tree = re.sub(r" [^() ]+\)", lambda match: f" {match[0][1:2].upper()}{match[0][2:]}", tree, count=1)
    return Sentence(raw_text(words_of(tree)[:-1], mark), raw_text(german, mark), tree)


def statement(clause: Clause, front: Phrase | None = None) -> Sentence:
    if not front:
        return sentence("S", clause.english(), clause.german_main(), ".")
    comma = ["(, ,)"] if front.english.startswith(("(PP", "(SBAR")) else []
    german = clause.german_main(front.german + front.tail)
    return sentence("S", [front.english, *comma, *clause.english()], german, ".")


def question(clause: Clause) -> Sentence:
    return sentence("SQ", clause.english(inverted=True), clause.german_main(()), "?")


def compound(first: Clause, coordinator: str, second: Clause) -> Sentence:
    english = [f"(S {' '.join(clause.english())})" for clause in (first, second)]
    german = (*first.german_main(), *COORDINATORS[coordinator], *second.german_main())
    return sentence("S", [english[0], "(, ,)", f"(CC {coordinator})", english[1]], german, ".")
