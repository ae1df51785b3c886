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
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

Words = tuple[str, ...]

# ----------------------------------------------------------------------------------------------- lexicon
# Kinds, by letter: person, animal, thing to carry, written thing, machine, opening, location.

# English singular and plural, German singular and plural, gender (m! declines weakly), kinds.
NOUN_TABLE = """
man men Mann Männer m p            | woman women Frau Frauen f p      | child children Kind Kinder n p
boy boys Junge Jungen m! p         | girl girls Mädchen Mädchen n p   | doctor doctors Arzt Ärzte m p
teacher teachers Lehrer Lehrer m p | friend friends Freund Freunde m p | sister sisters Schwester Schwestern f p
student students Student Studenten m! p | dog dogs Hund Hunde m a     | cat cats Katze Katzen f a
horse horses Pferd Pferde n a      | book books Buch Bücher n tw      | letter letters Brief Briefe m tw
key keys Schlüssel Schlüssel m t   | bag bags Tasche Taschen f to     | apple apples Apfel Äpfel m t
lamp lamps Lampe Lampen f tm       | chair chairs Stuhl Stühle m t    | table tables Tisch Tische m t
car cars Auto Autos n m            | bicycle bicycles Fahrrad Fahrräder n m | door doors Tür Türen f o
window windows Fenster Fenster n o | garden gardens Garten Gärten m l | house houses Haus Häuser n l
kitchen kitchens Küche Küchen f l  | city cities Stadt Städte f l     | school schools Schule Schulen f l
park parks Park Parks m l          | room rooms Zimmer Zimmer n l
"""
# English modifier, German first element, heads.
COMPOUND_TABLE = """
kitchen Küchen table chair lamp door window | garden Garten table chair lamp door
school Schul book bag garden | car Auto key door window | house Haus key | city Stadt park
"""
# English, German predicative form, stem before endings, kinds.
ADJECTIVE_TABLE = """
old alt alt patmol | big groß groß patmol | small klein klein patmol | beautiful schön schön patmol
new neu neu tmol | young jung jung pa | expensive teuer teur tm | heavy schwer schwer t
red rot rot tmo | green grün grün tmo | black schwarz schwarz atmo
tired müde müd pa | sad traurig traurig pa | happy glücklich glücklich p | friendly freundlich freundlich p
"""
MOODS = ("tired", "sad", "happy", "friendly")
# English forms (base_particle); German infinitive (prefix-stem), ich, du, er, past, auxiliary, participle; kinds
# of subject; whether a place fits; frames of slots English/German/case:kinds. No frame: takes a clause or adjective.
VERB_TABLE = """
see sees saw seen sehen sehe siehst sieht sah hat gesehen pa in //acc:patmol
find finds found found finden finde findest findet fand hat gefunden pa in //acc:atm
buy buys bought bought kaufen kaufe kaufst kauft kaufte hat gekauft p in //acc:tm //acc:t,for/für/acc:p
write writes wrote written schreiben schreibe schreibst schreibt schrieb hat geschrieben p in //acc:w
look looks looked looked suchen suche suchst sucht suchte hat gesucht pa in for//acc:patmol
open opens opened opened auf-machen mache machst macht machte hat gemacht p - //acc:o
close closes closed closed zu-machen mache machst macht machte hat gemacht p - //acc:o
call calls called called an-rufen rufe rufst ruft rief hat gerufen p - //acc:p
invite invites invited invited ein-laden lade lädst lädt lud hat geladen p - //acc:p
pick_up picks picked picked ab-holen hole holst holt holte hat geholt p - //acc:p
throw_away throws threw thrown weg-werfen werfe wirfst wirft warf hat geworfen p - //acc:t
help helps helped helped helfen helfe hilfst hilft half hat geholfen p in //dat:pa
follow follows followed followed folgen folge folgst folgt folgte ist gefolgt pa - //dat:pa
give gives gave given geben gebe gibst gibt gab hat gegeben p - //dat:p,//acc:t
show shows showed shown zeigen zeige zeigst zeigt zeigte hat gezeigt p - //dat:p,//acc:patmol
wait waits waited waited warten warte wartest wartet wartete hat gewartet pa in for/auf/acc:p
speak speaks spoke spoken sprechen spreche sprichst spricht sprach hat gesprochen p in with/mit/dat:p
sleep sleeps slept slept schlafen schlafe schläfst schläft schlief hat geschlafen pa in -
work works worked worked arbeiten arbeite arbeitest arbeitet arbeitete hat gearbeitet p in - for/für/acc:p
play plays played played spielen spiele spielst spielt spielte hat gespielt pa in - with/mit/dat:pa
arrive arrives arrived arrived an-kommen komme kommst kommt kam ist gekommen p in -
go goes went gone gehen gehe gehst geht ging ist gegangen pa - into/in/acc:l
stay stays stayed stayed bleiben bleibe bleibst bleibt blieb ist geblieben pa - in/in/dat:l
know knows knew known wissen weiß weißt weiß wusste hat gewusst p -
say says said said sagen sage sagst sagt sagte hat gesagt p -
think thinks thought thought denken denke denkst denkt dachte hat gedacht p -
be is was been sein bin bist ist war ist gewesen patmol -
"""
CLAUSAL_VERBS = ("know", "say", "think")
# English subject and object form; German nominative, accusative, dative; person and number.
PRONOUN_TABLE = """
I me ich mich mir 1 s | you you du dich dir 2 s | he him er ihn ihm 3 s | she her sie sie ihr 3 s
it it es es ihm 3 s   | we us wir uns uns 1 p   | they them sie sie ihnen 3 p
"""
# Name; English singular, plural and tag; German stem and declension. "kein" is "a" in a clause with "not".
DETERMINER_TABLE = """
the the the DT d article  | this this these DT dies strong | my my my PRP$ mein mixed
your your your PRP$ dein mixed | his his his PRP$ sein mixed | her her her PRP$ ihr mixed
our our our PRP$ unser mixed | their their their PRP$ ihr mixed | a a - DT ein mixed | kein a - DT kein mixed
some - some DT einig parallel | many - many JJ viel parallel | two - two CD zwei fixed
"""
DEFINITE = (*["the"] * 10, *["this"] * 3, "my", "your", "his", "her", "our", "their")
PLURAL = ("some", "many", "two")
ANY = (*DEFINITE, *["a"] * 7, *PLURAL)
PLACE_DETERMINERS = (*DEFINITE, "a", "a")
# English, German, and the tenses an adverbial goes with; "not" if it may stand before "nicht".
TIME_TABLE = """
(NP (NN today)); heute; present past perfect will can must want should not
(NP (NN yesterday)); gestern; past not       | (NP (NN tomorrow)); morgen; will can must want should not
(ADVP (RB now)); jetzt; present can must want not | (ADVP (RB soon)); bald; will must
(NP (DT every) (NN day)); jeden Tag; present past can must
(PP (IN on) (NP (NNP Monday))); am Montag; past will must not
(PP (IN on) (NP (NNP Sunday))); am Sonntag; past will want should not
"""
FREQUENCY_TABLE = """
(ADVP (RB often)); oft; present past can must should | (ADVP (RB always)); immer; present past want should
(ADVP (RB never)); nie; present past perfect will can want should
(ADVP (RB sometimes)); manchmal; present past can must | (ADVP (RB already)); schon; perfect
"""
CONJUNCTIONS = {"because": "weil", "if": "wenn", "although": "obwohl", "that": "dass"}
COORDINATORS = {"and": ("und",), "but": (",", "aber")}
DO, HAVE, WANT = ("do", "does", "did"), ("have", "has", "had"), ("want", "wants", "wanted")
# Forms for ich, du, er and wir of the German auxiliaries; the tenses among the names take an infinitive.
AUXILIARIES = {
    "hat": "habe hast hat haben",
    "ist": "bin bist ist sind",
    "will": "werde wirst wird werden",
    "can": "kann kannst kann können",
    "must": "muss musst muss müssen",
    "want": "will willst will wollen",
    "should": "sollte solltest sollte sollten",
}
# Tenses to draw from; what is repeated comes up more often.
PAST = ("past",)
NONPAST = (*["present"] * 6, *["perfect"] * 4, *["will"] * 2, "can", "must", "want", "should")
MIXED = (*NONPAST, *PAST * 7)
RELATIVE_TENSES = (*["present"] * 2, *["past"] * 2, "perfect", "can")
IF_TENSES = (*["present"] * 3, "perfect", "can", "want")
THEN_TENSES = ("present", "will", "can", "must", "should")
# Articles and endings by case, in the columns m f n and plural.
ARTICLES = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"}
RELATIVES = ARTICLES | {"dat": "dem der dem denen"}
STRONG = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"}
WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"}
CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins"}


class Slot(NamedTuple):
    """An object that a verb takes: its preposition in each language, if any, its case and the fitting kinds."""

    english: str
    german: str
    case: str
    kinds: str


@dataclass(frozen=True)
class Verb:
    """Four English forms; German infinitive, ich, du, er, past, auxiliary and participle without the prefix."""

    english: Words
    particle: str
    german: Words
    prefix: str
    subjects: str
    takes_place: bool
    frames: tuple[tuple[Slot, ...], ...]


def rows(table: str) -> list[str]:
    return [row.strip() for row in table.replace("\n", "|").split("|") if row.strip()]


def entries(table: str) -> dict[str, list[str]]:
    """Rows by their first word."""
    return {row.split()[0]: row.split() for row in rows(table)}


def read_nouns() -> dict[str, list[str]]:
    nouns = entries(NOUN_TABLE)
    for modifier, prefix, *heads in entries(COMPOUND_TABLE).values():
        for english, plural, german, german_plural, *rest in [nouns[head] for head in heads]:
            forms = [f"{modifier} {english}", f"{modifier} {plural}"]
            nouns[forms[0]] = [*forms, prefix + german.lower(), prefix + german_plural.lower(), *rest]
    return nouns


def read_slot(text: str) -> Slot:
    return Slot(*re.split("[/:]", text))


def read_verb(row: list[str]) -> Verb:
    base, _, particle = row[0].partition("_")
    prefix, _, infinitive = row[4].rpartition("-")
    english, german = (base, *row[1:4]), (infinitive, *row[5:11])
    frames = tuple(tuple(read_slot(slot) for slot in frame.split(",") if slot != "-") for frame in row[13:])
    return Verb(english, particle, german, prefix, row[11], row[12] == "in", frames)


NOUNS, ADJECTIVES, DETERMINERS = read_nouns(), entries(ADJECTIVE_TABLE), entries(DETERMINER_TABLE)
VERBS = {name.partition("_")[0]: read_verb(row) for name, row in entries(VERB_TABLE).items()}
Frame = tuple[Verb, tuple[Slot, ...]]
FRAMES: list[Frame] = [(verb, frame) for verb in VERBS.values() for frame in verb.frames]
IN, WITH = read_slot("in/in/dat:l"), read_slot("with/mit/dat:ta")

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


# --------------------------------------------------------------------------------------------- sampling


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
