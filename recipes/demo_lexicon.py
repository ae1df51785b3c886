"""The words of demo_corpus.py: English and German nouns, adjectives, verbs, determiners and adverbials, inflected."""

import re
from dataclasses import dataclass
from typing import NamedTuple

Words = tuple[str, ...]

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
