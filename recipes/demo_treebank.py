"""Write a treebank of English sentences, drawn from a context-free grammar with word classes.

    python recipes/demo_treebank.py OUTDIR [--train 24000 --valid 500 --test 500 --seed 1]

Trees stand one per line in {train,valid,test}.trees as in the Penn Treebank, with functional tags and traces, and
the words of the test set in test.words. What a tag sequence leaves open, the classes of the words decide: a man is
seen with a telescope, but a man with a beard is seen. No sentence has two trees, and none is in two files.
"""

import argparse
import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

MAX_WORDS, MAX_DEPTH = 35, 16

# ----------------------------------------------------------------------------------------------- lexicon
# Irregular forms follow: of nouns the plural, of verbs past and participle.

NOUNS = """
person: man men, woman women, child children, boy, girl, doctor, teacher, farmer, king, sister, neighbour
animal: dog, cat, horse, bird, fox
text: book, letter, story, poem, song, report
thing: box, cup, ball, ring, clock, bottle
food: cake, apple, potato potatoes, egg
tool: knife knives, telescope, hammer, stick, camera
trait: beard, scar, smile, moustache
clothes: hat, coat, dress, uniform
device: lamp, radio, engine, heater
entry: word, name, number, address
furniture: table, shelf shelves, bench, bed
place: park, garden, city, kitchen, school, house, village
way: road, street, hill, path
route: road, path, door, bridge
aspect: price, colour, size, shape
keeper: owner, friend, mother
claim: claim, rumour, idea, story
crime: crime, murder, theft, lie
event: lesson, war, party, storm
period: day, week, month, year
"""
VERBS = """
intransitive: sleep slept slept, laugh, smile, sing sang sung, work, dance
move: walk, run ran run, travel
act: see saw seen, hit hit hit, watch, hide hid hidden, paint, catch caught caught
state: know knew known, love, like, remember
lay: put put put, leave left left, drop
give: give gave given, send sent sent, show showed shown
tell: tell told told, warn
charge: accuse, suspect
perceive: see saw seen, watch, hear heard heard
talk: talk, laugh, dream
turn: turn, switch
look: look
lift: pick, bring brought brought, take took taken
say: say said said, think thought thought, believe
ask: ask, force, teach taught taught
want: want, need, expect
try: try, start
let: let let let, make made made
enjoy: enjoy, avoid
wonder: wonder, learn
seem: seem, become became become
"""
CLOSED = """
DT/NN: the the the a a a this that every, DT/NNS: the the the these some, CD/some: two three four ten
PRP$/own: my his her our their, NNP/name: Mary John Anna Peter, NNP/day: Monday Friday Sunday
JJ/any: old small big red black strange young new, JJ/mood: tired happy sad angry quiet rich
JJ/of: proud afraid fond, JJ/sure: sure glad, JJ/ready: ready eager, JJ/hard: hard easy good
JJR/more: older smaller happier richer, RB/very: very rather quite, RB/how: quickly quietly badly
RB/often: often never always, RB/when: soon now again, NN/when: yesterday today tomorrow
CC/or: and or, CC/but: and but, MD/can: can will must should, UH/oh: oh well yes no, UH/answer: yes no
IN/because: because although if when while, IN/on: on under behind, IN/along: up over across, RP/off: off on, RP/up: up
IN/before: before after, IN/that: that, PRP/NN: he she it, PRP/NNS: they we you
PRP/object: him them me us her, PRP/I: I we they
"""
GROUPS = {"being": "person animal", "any": "person animal text thing food tool", "holdable": "text thing food"}

# ----------------------------------------------------------------------------------------------- grammar
# A symbol is LABEL/class, and its label may have a functional tag; one in small letters has no bracket of its own.
# `#` stands for NN and NNS, the number of a phrase; `@` for the tags of verbs; `%` for the classes of nouns. On the
# right alone it means any of them. `*3`: three times as likely. What follows a clause is part of that clause,
# so only phrases that end in none ("light" ones) are followed by others.
GRAMMAR = """
TOP: S/main *40 | S/front *6 | S/quoted *3 | SINV *3 | S/joined *6 | S/command *6 | SQ/asked *6 | SBARQ *9
TOP: FRAG *2 | INTJ
S/main: clause (. .)
S/front: front (, ,) clause (. .) | (INTJ UH/oh ) (, ,) clause (. .)
S/quoted: (`` ``) (S-TPC-1 clause ) (, ,) ('' '') NP-SBJ/person VP/quoting (. .)
SINV: (`` ``) (S-TPC-1 clause ) (, ,) ('' '') VP/quoting NP-SBJ/person (. .)
VP/quoting: VBD/say (S (-NONE- *T*-1) )
S/joined: S/short (CC and) S/short (. .) *2 | (S clause ) (, ,) CC/but (S clause ) (. .)
S/joined: (S clause ) (: ;) (S clause ) (. .)
S/command: (NP-SBJ (-NONE- *) ) VP/VB (. !) | (INTJ (UH please) ) (NP-SBJ (-NONE- *) ) VP/VB (. .)
SQ/asked: (VBZ does) NP-SBJ/NN VP/VB (. ?) | (VBP do) NP-SBJ/NNS VP/VB (. ?) | (VBD did) NP-SBJ/# VP/VB (. ?)
SQ/asked: MD/can NP-SBJ/# VP/VB (. ?) | (VBZ has) NP-SBJ/NN VP/VBN (. ?) | (VBZ is) NP-SBJ/NN ADJP-PRD/any (. ?)
SBARQ: (WHNP-1 (WP who) ) (SQ (NP-SBJ (-NONE- *T*-1) ) VP/NN ) (. ?) | WHNP-1/what SQ/gap (. ?) *2
SBARQ: (WHADVP-1 (WRB where) ) (SQ (VBD did) NP-SBJ/# (VP VB/act NP/any (ADVP-LOC (-NONE- *T*-1) ) ) ) (. ?)
SBARQ: (WHADJP-1 (WRB how) JJ/any ) (SQ (VBZ is) NP-SBJ/NN (ADJP-PRD (-NONE- *T*-1) ) ) (. ?)
SBARQ: (WHPP-1 (IN about) WHNP/what ) (SQ (VBD did) NP-SBJ/# (VP VB/talk (PP-CLR (-NONE- *T*-1) ) ) ) (. ?)
WHNP/what: (WP what) | (WDT which) #/any
SQ/gap: (VBD did) NP-SBJ/# (VP gap/VB ) | (VBZ does) NP-SBJ/NN (VP gap/VB ) | MD/can NP-SBJ/# (VP gap/VB )
FRAG: NP/any (. .) | (RB not) ADVP-TMP/when (. .) | (RB not) PP-LOC/in (. !)
INTJ: UH/answer (. !) | UH/answer (. .)

S/short: NP-SBJ/who/# VP/past
VP/past: light/VBD
clause: NP-SBJ/# VP/# *15 | NP-SBJ/# (ADVP-TMP RB/often ) VP/# | NP-SBJ/who/# PRN/aside VP/#
clause: S-NOM-SBJ/ing (VP (VBZ is) (ADJP-PRD JJ/hard ) )
clause: (NP-SBJ (NP (PRP it) ) (S (-NONE- *EXP*-1) ) ) (VP (VBZ is) (ADJP-PRD JJ/hard ) S-1/to )
clause: (NP-SBJ (EX there) ) (VP (VBD was) (NP-PRD full/NN ) )
PRN/aside: (, ,) (S (NP-SBJ PRP/I ) (VP VBP/say (SBAR (-NONE- 0) (S (-NONE- *T*-1) ) ) ) ) (, ,)
front: PP-LOC/in *2 | PP-TMP/when *2 | ADVP-TMP/when | NP-TMP/when | SBAR-ADV/because *3

VP/NN: verb/VBZ *3 | (VBZ has) VP/VBN | (VBZ is) VP/VBG | (VBZ does) (RB not) VP/VB | both/NN *6
VP/NN: VP/third CC/or VP/third | (VBZ 's) predicate/NN | (VBZ is) predicate/NN | (VBD was) VP/passive
VP/NNS: verb/VBP *3 | (VBP have) VP/VBN | (VBP are) VP/VBG | (VBP do) (RB not) VP/VB | both/NNS *6
VP/NNS: (VBP are) predicate/NNS | (VBD were) (RB not) predicate/NNS | (VBD were) VP/passive
both/#: verb/VBD *3 | MD/can VP/VB | (VBD did) (RB not) VP/VB | VP/past (CC and) VP/past
VP/third: light/VBZ
VP/@: verb/@
verb/@: light/@ *12 | light/@ tail *3 | heavy/@ *4
light/@: @/intransitive *3 | @/intransitive PP-LOC/in | @/intransitive ADVP-MNR/how | @/move PP-DIR/to | @/state NP/any
light/@: @/act NP/any *2 | @/act NP/any PP-MNR/tool *2 | @/act NP/any PP-LOC/in *2 | @/act NP/any ADVP-MNR/how
light/@: @/act NP/with *2 | @/act (NP NP/text PP/topic ) | @/act (NP NP/thing PP-LOC/on ) | @/state (NP local/# ) *2
light/@: @/lay NP/holdable PP-PUT/on *2 | @/lay (NP NP/thing (CC and) NP/the/text ) PP-PUT/on
light/@: @/give NP/holdable PP-DTV/to | @/give NP/whom NP/holdable | @/tell NP/whom PP-CLR/about *2
light/@: @/charge NP/person PP-CLR/crime | @/talk PP-CLR/about | @/seem (ADJP-PRD adjective )
light/@: @/turn (PRT RP/off ) NP/device *2 | @/turn NP/device (PRT RP/off ) | @/turn (PP-DIR (IN off) NP/way ) *2
light/@: @/look (PRT RP/up ) NP/entry *2 | @/look NP/entry (PRT RP/up ) | @/look (PP-DIR IN/along NP/way ) *2
light/@: @/lift (PRT RP/up ) NP/holdable | @/lift (NP PRP/object ) (PRT RP/up ) | @/state (NP NP/aspect PP/of )
heavy/@: @/act NP/full *3 | @/state NP/full *2 | @/give NP/whom NP/full | @/talk (PP-CLR (IN about) NP/full )
heavy/@: @/say SBAR/that *4 | @/state SBAR/known *2 | @/wonder SBAR/asked *2 | @/want S/to *2 | @/want S/whoto *2
heavy/@: @/ask NP-1/whom S/to *2 | @/try S/to *2 | @/let S/bare | @/enjoy S/ing *2 | @/perceive S/bare
tail: PP-TMP/when *3 | NP-TMP/when *2 | ADVP-TMP/when *2 | SBAR-ADV/because *3
predicate/#: ADJP-PRD/any *2 | PP-LOC-PRD/in | NP-PRD/#/person
VP/passive: VBN/act (NP (-NONE- *-1) ) | VBN/act (NP (-NONE- *-1) ) PP/by *2 | VBN/act (NP (-NONE- *-1) ) PP-LOC/in
VP/passive: VBN/charge (NP (-NONE- *-1) ) PP-CLR/crime | VBN/give (NP (-NONE- *-1) ) PP-DTV/to
gap/@: @/act (NP (-NONE- *T*-1) ) *3 | @/state (NP (-NONE- *T*-1) ) *2 | @/act (NP (-NONE- *T*-1) ) PP-LOC/in
gap/@: @/lay (NP (-NONE- *T*-1) ) PP-PUT/on | @/give (NP (-NONE- *T*-1) ) PP-DTV/to
gap/@: @/say (SBAR (-NONE- 0) (S NP-SBJ/# (VP gap/VBD ) ) )

SBAR/that: IN/that (S clause ) *3 | (-NONE- 0) (S clause ) *2 | IN/that (S S/short CC/or S/short )
SBAR/known: IN/that (S clause ) | (-NONE- 0) (S NP-SBJ/who/# VP/# ) *2
SBAR/asked: (IN whether) (S clause ) | WHNP-1/what S/gap | (WHADVP (WRB why) ) (S clause )
SBAR/because: IN/because S/short *3 | IN/before S/short
SBAR/who/#: (WHNP-1 (WP who) ) (S (NP-SBJ (-NONE- *T*-1) ) VP/# )
SBAR/that/#: (WHNP-1 (WDT that) ) (S (NP-SBJ (-NONE- *T*-1) ) VP/# ) | (WHNP-1 (WDT that) ) S/gap
SBAR/that/#: (WHNP-1 (-NONE- 0) ) S/gap
S/gap: NP-SBJ/# (VP gap/VBD ) *2 | NP-SBJ/# (VP MD/can (VP gap/VB ) )
S/to: (NP-SBJ (-NONE- *) ) (VP (TO to) VP/VB )
S/whoto: NP-SBJ/whom (VP (TO to) VP/VB )
S/bare: NP-SBJ/whom VP/VB
S/ing: (NP-SBJ (-NONE- *) ) VP/VBG

NP/#: PRP/# *9 | np/#/person *9 | np/#/animal *6 | full/# *2 | local/#
NP/NN: NNP/name *3 | NNP/name (, ,) NP/person (, ,)
NP/%: np/#/%
NP/#/%: np/#/%
np/#/%: DT/# #/% *15 | DT/# JJ/any #/% *4 | PRP$/own #/% *2 | NP/owner #/% | DT/# (ADJP RB/very JJ/any ) #/%
np/NNS/%: NNS/% *5 | JJ/any NNS/% *2 | CD/some NNS/% *2 | QP NNS/% *3 | DT/NNS NNS/% CC/or NNS/%
NP/owner: DT/NN NN/person (POS 's) | NNP/name (POS 's)
QP: (JJR more) (IN than) CD/some | (RB about) CD/some | (IN at) (JJS least) CD/some
NP/the/%: DT/# #/%
NP/who/#: np/#/person *2 | np/#/animal | PRP/#
NP/whom: DT/# #/being *2 | PRP$/own #/being | PRP/object | NNP/name
NP/full: full/#
full/#: NP/#/person PP/trait | NP/#/text PP/topic | NP/#/thing PP-LOC/on | NP/#/aspect PP/of | NP/#/route PP/to
full/#: NP/#/person SBAR/who/# *2 | NP/#/any SBAR/that/# *3 | NP/#/any VP/passive | NP/#/person VP/VBG
full/#: kept/# | (NP kept/# ) SBAR/who/# | NP/#/keeper (PP (IN of) (NP NP/#/animal SBAR/that/# ) )
full/#: NP/#/any (PRN (-LRB- -LRB-) NP/any (-RRB- -RRB-) ) | NP/#/claim (SBAR IN/that (S clause ) )
full/NNS: NP/any CC/or NP/the/any *4 | NP/any (, ,) NP/the/any (CC and) NP/the/any *2 | NP/with (CC and) NP/the/being *2
full/NNS: (NP NP/aspect (PP (IN of) NP/thing ) ) (CC and) NP/the/aspect *2
full/NNS: NP/any (CONJP (RB as) (RB well) (IN as) ) NP/the/any *2
full/NNS: (CONJP (RB not) (RB only) ) NP/any (CONJP (CC but) (RB also) ) NP/the/any *2
NP/with: NP/person PP/trait
local/#: NP/#/being PP-LOC/in *2 | NP/#/person (PP (IN with) NP/tool )
kept/#: NP/#/keeper (PP (IN of) NP/animal )

PP/trait: (IN with) NP/trait *2 | (IN in) NP/clothes | (IN with) (NP NP/trait (CC and) NP/the/trait )
PP/topic: (IN about) NP/any | (IN by) NP/person
PP/of: (IN of) NP/any | (IN of) (NP NP/thing (CC and) NP/the/thing )
PP/to: (TO to) NP/place
PP/by: (IN by) NP-LGS/being
PP/in: (IN in) NP/place *4 | (IN near) NP/place | (PP (IN in) NP/place ) CC/or (PP (IN at) NP/place )
PP/on: IN/on NP/furniture
PP/tool: (IN with) NP/tool
PP/about: (IN about) NP/any
PP/crime: (IN of) NP/crime
PP/when: (IN on) (NP NNP/day ) *2 | (IN at) (NP (NN night) ) | IN/before NP/event | (IN for) (NP CD/some NNS/period )
NP/when: NN/when *3 | (JJ last) NN/period | (DT every) NN/period
ADVP/when: RB/when *2 | (NP CD/some NNS/period ) (RB ago)
ADVP/how: RB/how *2 | RB/very RB/how
ADJP/any: adjective *4 | JJ/sure SBAR/that | JJ/ready S/to
adjective: JJ/mood *3 | RB/very JJ/mood | JJ/of (PP (IN of) NP/any ) | JJ/mood CC/but JJ/mood
adjective: JJR/more (PP (IN than) NP/any )
"""

VERB_TAGS = ("VB", "VBZ", "VBP", "VBD", "VBN", "VBG")
# Ways to write each symbol: symbols and literal pieces of bracketing, as often as they are to be drawn.
Rules = dict[str, list[tuple[str, ...]]]


def rows(table: str) -> Iterator[tuple[str, list[str]]]:
    """Each entry of a table, as words, with the name before the colon."""
    for line in table.strip().splitlines():
        name, _, entries = line.partition(": ")
        yield from ((name, entry.split()) for entry in entries.split(", "))


def with_s(word: str) -> str:
    return re.sub(r"([^aeiou])y$", r"\1ie", word) + ("es" if word.endswith(("ch", "x")) else "s")


def noun_forms(noun: str, plural: str = "") -> tuple[str, str]:
    return noun, plural or with_s(noun)


def verb_forms(verb: str, past: str = "", participle: str = "") -> tuple[str, ...]:
    """In the order of VERB_TAGS."""
    stem = re.sub(r"^([^aeiou]*[aeiou]([bdgmnprt]))$|(?<!e)e$", r"\1\2", verb)  # put, putting; hide, hiding
    past = past or re.sub(r"([^aeiou])y$", r"\1i", stem) + "ed"
    return verb, with_s(verb), verb, past, participle or past, f"{stem}ing"


def read_lexicon() -> dict[str, list[str]]:
    """Words by TAG/class; what is listed twice is drawn twice as often."""
    lexicon: dict[str, list[str]] = {}
    for name, noun in rows(NOUNS):
        groups = [group for group, classes in GROUPS.items() if name in classes.split()]
        for tag, form in zip(("NN", "NNS"), noun_forms(*noun), strict=True):
            for key in (name, *groups):
                lexicon.setdefault(f"{tag}/{key}", []).append(form)
    for name, verb in rows(VERBS):
        for tag, form in zip(VERB_TAGS, verb_forms(*verb), strict=True):
            lexicon.setdefault(f"{tag}/{name}", []).append(form)
    for line in CLOSED.strip().splitlines():
        for entry in line.split(", "):
            key, _, words = entry.partition(": ")
            lexicon[key] = words.split()
    return lexicon


def read_grammar(lexicon: Iterable[str]) -> Rules:
    """The grammar with all values put in for its variables."""
    classes = sorted({key.partition("/")[2] for key in lexicon if key.startswith("NNS/")})
    variables = {"#": ("NN", "NNS"), "@": VERB_TAGS, "%": classes}
    rules: Rules = {}
    for line in filter(None, GRAMMAR.splitlines()):
        symbol, _, alternatives = line.partition(": ")
        for text in alternatives.split(" | "):
            body, _, weight = text.rpartition(" *") if text[-1].isdigit() else (text, "", "1")
            free = [name for name in variables if name in symbol + body]
            for values in itertools.product(*(variables[name] for name in free)):
                table = str.maketrans(dict(zip(free, values, strict=True)))
                items = tuple(body.translate(table).split())
                rules.setdefault(symbol.translate(table), []).extend([items] * int(weight))
    return rules


@cache
def rule_name(symbol: str) -> str:
    """NP-SBJ/NN is written as NP/NN is; so is NP-1/NN."""
    return re.sub(r"^([^-/]+)-[^/]+", r"\1", symbol)


def is_symbol(item: str) -> bool:
    return "(" not in item and ")" not in item


def shortest(rules: Rules) -> Rules:
    """Of each symbol only what comes to words in the fewest steps."""
    found: Rules = {}
    while len(found) < len(rules):
        done = found.keys() | LEXICON.keys()
        for symbol in rules.keys() - done:
            ended = [items for items in rules[symbol] if done.issuperset(map(rule_name, filter(is_symbol, items)))]
            found |= {symbol: ended} if ended else {}
    return found


LEXICON = read_lexicon()
RULES = read_grammar(LEXICON)
SHORTEST = shortest(RULES)

# --------------------------------------------------------------------------------------------- sampling


def expand(symbol: str, choose: random.Random, depth: int = 0) -> str:
    """A random tree of the symbol; far down, one of the lowest that there are."""
    label = symbol.partition("/")[0]
    if symbol in LEXICON:
        return f"({label} {choose.choice(LEXICON[symbol])})"
    items = choose.choice((RULES if depth < MAX_DEPTH else SHORTEST)[rule_name(symbol)])
    text = " ".join(expand(item, choose, depth + 1) if is_symbol(item) else item for item in items)
    text = text.replace(" )", ")")
    return text if label[0].islower() else f"({label} {text})"


def spell(tree: str) -> str:
    """An before a vowel, and a capital at the beginning."""
    tree = re.sub(r"\(DT a\)(?=(?: \([^ ()]+)+ [aeiou])", "(DT an)", tree)
    return re.sub(r"(\((?!-NONE-|``)[^ ()]+ )([^()])", lambda match: match[1] + match[2].upper(), tree, count=1)


def words_of(tree: str) -> str:
    """Without traces."""
    return " ".join(word for tag, word in re.findall(r"\(([^ ()]+) ([^ ()]+)\)", tree) if tag != "-NONE-")


def draw_treebank(seed: int, size: int) -> list[str]:
    """Trees of sentences that differ from each other, of at most MAX_WORDS words, in random order."""
    choose = random.Random(seed)
    trees: dict[str, str] = {}
    while len(trees) < size:
        tree = spell(expand("TOP", choose))
        words = words_of(tree)
        if len(words.split()) <= MAX_WORDS:
            trees.setdefault(words, tree)
    treebank = list(trees.values())
    choose.shuffle(treebank)  # short sentences come up, and run out, early
    return treebank


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write a treebank of English sentences.")
    parser.add_argument("outdir", type=Path)
    for split, size in (("train", 24000), ("valid", 500), ("test", 500)):
        parser.add_argument(f"--{split}", type=int, default=size, help="number of trees (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    sizes = {split: getattr(options, split) for split in ("train", "valid", "test")}
    treebank = iter(draw_treebank(options.seed, sum(sizes.values())))
    options.outdir.mkdir(parents=True, exist_ok=True)
    for split, size in sizes.items():
        trees = list(itertools.islice(treebank, size))
        write_lines(options.outdir / f"{split}.trees", trees)
    write_lines(options.outdir / "test.words", map(words_of, trees))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
