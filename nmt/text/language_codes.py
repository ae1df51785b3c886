"""Codes of languages: read as models, files, systems and people write them, compared, and written as BCP 47.

`rus_Cyrl`, `rus` and `ru-RU` are Russian; `zh_TW` and `zho_Hant` are both written in traditional characters.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

SYMBOLS = tomllib.loads(Path(__file__).with_name("m2m_languages.toml").read_text(encoding="utf-8"))
"""Languages of M2M-100 and NLLB-200 in the order of their symbols' ids"""
UNKNOWN_LANGUAGES = ("source", "target")
"""What a model that does not name its languages has in their place"""
NAMES = tomllib.loads(Path(__file__).with_name("language_names.toml").read_text(encoding="utf-8"))
"""Names of languages, in English, their own and others, and codes that LibreTranslate has for them"""
_SHORT_CODES = """
aar:aa abk:ab afr:af aka:ak alb:sq als:sq amh:am ara:ar arb:ar arg:an arm:hy asm:as ava:av ave:ae ayr:ay aym:ay aze:az
azj:az bak:ba bam:bm baq:eu bel:be ben:bn bis:bi bod:bo bos:bs bre:br bul:bg bur:my cat:ca ces:cs cha:ch che:ce chi:zh
chu:cu chv:cv cmn:zh cor:kw cos:co cre:cr cym:cy cze:cs dan:da deu:de div:dv dut:nl dzo:dz ekk:et ell:el eng:en epo:eo
est:et eus:eu ewe:ee fao:fo fas:fa fij:fj fil:tl fin:fi fra:fr fre:fr fry:fy ful:ff fuv:ff gaz:om geo:ka ger:de gla:gd
gle:ga glg:gl glv:gv gre:el grn:gn guj:gu hat:ht hau:ha hbs:sr-Latn heb:he her:hz hin:hi hmo:ho hrv:hr hun:hu hye:hy
ibo:ig ice:is ido:io iii:ii iku:iu ile:ie in:id ina:ia ind:id ipk:ik isl:is ita:it iw:he jav:jv ji:yi jpn:ja jw:jv
kal:kl kan:kn kas:ks kat:ka kau:kr kaz:kk khk:mn khm:km kik:ki kin:rw kir:ky kmr:ku knc:kr kom:kv kon:kg kor:ko kua:kj
kur:ku lao:lo lat:la lav:lv lim:li lin:ln lit:lt ltz:lb lub:lu lug:lg lvs:lv mac:mk mah:mh mal:ml mao:mi mar:mr may:ms
mkd:mk mlg:mg mlt:mt mo:ro mol:ro mon:mn mri:mi msa:ms mya:my nau:na nav:nv nbl:nr nde:nd ndo:ng nep:ne nld:nl nno:nn
nob:nb nor:no npi:ne nya:ny oci:oc oji:oj ori:or orm:om ory:or oss:os pan:pa pbt:ps per:fa pes:fa pli:pi plt:mg pol:pl
por:pt prs:fa-AF pus:ps que:qu quy:qu roh:rm ron:ro rum:ro run:rn rus:ru sag:sg san:sa scc:sr scr:hr sh:sr-Latn sin:si
slk:sk slo:sk slv:sl sme:se smo:sm sna:sn snd:sd som:so sot:st spa:es sqi:sq srd:sc srp:sr ssw:ss sun:su swa:sw swe:sv
swh:sw tah:ty tam:ta tat:tt tel:te tgk:tg tgl:tl tha:th tib:bo tir:ti ton:to tsn:tn tso:ts tuk:tk tur:tr twi:tw uig:ug
ukr:uk urd:ur uzb:uz uzn:uz ven:ve vie:vi vol:vo wel:cy wln:wa wol:wo xho:xh ydd:yi yid:yi yor:yo zha:za zho:zh zsm:ms
zul:zu
"""
"""Codes of three letters of ISO 639 and NLLB-200, and older codes, each with that of BCP 47.

This may name a script or a region, too: prs is fa-AF, Persian as in Afghanistan.
"""
SHORT_CODES = dict(each.split(":") for each in _SHORT_CODES.split())
WIDER = {"nb": "no", "nn": "no"}
"""Languages whose texts may also be labelled with the code of a wider one: Bokmål and Nynorsk with Norwegian"""
MODIFIERS = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva", "arabic": "Arab"}
"""Scripts by the modifiers of gettext's codes, such as sr@latin"""
SCRIPTS = MODIFIERS | {"ijekavianlatin": "Latn", "chs": "Hans", "cht": "Hant"}
SCRIPTS |= {"simplified": "Hans", "traditional": "Hant"}
"""The same, and further names of scripts in codes and behind names of languages, such as zh-CHT"""
REGIONAL_SCRIPTS = {"zh-TW": "Hant", "zh-HK": "Hant", "zh-MO": "Hant", "pa-PK": "Arab", "uz-AF": "Arab"}
REGIONAL_SCRIPTS |= {"az-IR": "Arab", "kk-CN": "Arab", "mn-CN": "Mong", "sr-ME": "Latn"}
"""Scripts of regions where a language is not written in its usual one"""


def _only_scripts() -> dict[str, str]:
    """Return the script of each language that NLLB-200 has in one script."""
    scripts: dict[str, set[str]] = {}
    for symbol in SYMBOLS["nllb"].split():
        code, script = symbol.split("_")
        base = SHORT_CODES.get(code, code)
        scripts.setdefault(base, set()).add(script)
    only: dict[str, str] = {}
    for base, used in scripts.items():
        if len(used) == 1:
            only[base] = used.pop()
    return only


ONLY_SCRIPTS = _only_scripts()
USUAL_SCRIPTS = ONLY_SCRIPTS | {"zh": "Hans"}
"""Scripts that codes without one mean"""


@dataclass(frozen=True)
class Language:
    """A language, in the script and of the region that its code names."""

    base: str
    """Code of ISO 639-1 or, without one, of ISO 639-3"""
    script: str = ""
    """Code of ISO 15924; empty if none is named, or the only one that the language is usually written in"""
    region: str = ""
    """Code of ISO 3166"""

    @classmethod
    @lru_cache(maxsize=1024)  # each unit of a TMX asks
    def of(cls, code: str) -> Language:
        """Read a code such as pt_BR, en-GB, rus_Cyrl, sr@latin or de_DE.UTF-8; any other text is a base."""
        name, _, modifier = code.strip().lower().partition("@")
        first, *others = re.split("[-_]", name.partition(".")[0])
        base, *implied = SHORT_CODES.get(first, first).split("-")
        script = SCRIPTS.get(modifier, "")
        region = ""
        for part in [*implied, *others]:
            if len(part) == 1:  # what follows is private, or an extension
                break
            if part in SCRIPTS or re.fullmatch("[A-Za-z]{4}", part):
                script = SCRIPTS.get(part, part.capitalize())
            elif re.fullmatch("[A-Za-z]{2}|[0-9]{3}", part):
                region = "GB" if part == "uk" else part.upper()  # ISO 3166 reserves UK for the United Kingdom
        if script == ONLY_SCRIPTS.get(base):
            script = ""
        return cls(base, script, region)

    @property
    def is_known(self) -> bool:
        """Whether it has the form of a code, unlike `source` or `x1`."""
        return re.fullmatch("[a-z]{2,3}", self.base) is not None

    @property
    def tag(self) -> str:
        """The code of BCP 47, such as pt-BR, ru or zh-Hant."""
        return "-".join(filter(None, (self.base, self.script, self.region)))

    @property
    def posix(self) -> str:
        """The code of gettext, such as pt_BR, ru, sr@latin or zh_Hant."""
        for modifier, script in MODIFIERS.items():
            if script == self.script:
                return "_".join(filter(None, (self.base, self.region))) + f"@{modifier}"
        return self.tag.replace("-", "_")

    @property
    def written(self) -> str:
        """The script that it is written in; empty if that is not known."""
        return self.script or REGIONAL_SCRIPTS.get(f"{self.base}-{self.region}") or USUAL_SCRIPTS.get(self.base, "")

    def is_like(self, other: Language) -> bool:
        """Return whether both are one language in one script, of whatever region."""
        return self._has_base_of(other) and _agree(self.written, other.written)

    def is_same(self, other: Language) -> bool:
        """Return whether both are one language in one script, and not of two regions."""
        return self.is_like(other) and _agree(self.region, other.region)

    def nearest(self, codes: Iterable[str]) -> str | None:
        """Return the code that is most like this language; None if none is of the same base.

        Those in its script come first; among these, that of its region, then one without a region. For pt-BR, of pt and
        pt-PT, this is pt.
        """

        def distance(code: str) -> tuple[bool, bool, bool]:
            other = Language.of(code)
            return not self.is_like(other), other.region != self.region, other.region != ""

        of_base = [code for code in codes if self._has_base_of(Language.of(code))]
        return min(of_base, key=distance, default=None)

    def _has_base_of(self, other: Language) -> bool:
        bases = {self.base, other.base}
        return len(bases) == 1 or WIDER.get(self.base) in bases or WIDER.get(other.base) in bases


def _agree(code: str, other: str) -> bool:
    """Return whether two codes are equal, or one is empty."""
    return code == other or not code or not other


def is_same(code: str, other: str) -> bool:
    """Return whether two codes, such as pt-BR and pt_br, are of one language."""
    language = Language.of(code)
    return language.is_known and language.is_same(Language.of(other))


def _known_bases() -> set[str]:
    """Return the bases of all languages that are listed here."""
    codes = [*SHORT_CODES.values(), *SYMBOLS["m2m_100"].split(), *SYMBOLS["nllb"].split()]
    return {Language.of(code).base for code in codes}


_BASES = _known_bases()


def _by_name() -> dict[str, str]:
    """Return the codes of languages by their names in lower case."""
    found = dict[str, str]()
    for section in ("names", "own", "others"):
        for code, names in NAMES[section].items():
            if code in _BASES:
                for name in [names] if isinstance(names, str) else names:
                    found[name.lower()] = code
    return found


_BY_NAME = _by_name()
_WRITTEN = {symbol.split("_")[1] for symbol in SYMBOLS["nllb"].split()} | set(SCRIPTS.values())
_CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_]([A-Za-z]{4}))?(?:[-_][A-Za-z]{2})?")
_OPUS = r"(?i:pt_(?:br|pt)|zh_(?:cn|tw|hk))"  # codes that are often in lower case
_PART = rf"[A-Za-z]{{2,3}}(?:[-_][A-Z][a-z]{{3}})?(?:[-_](?!{_OPUS})[A-Z]{{2}})?"
_TWO_CODES = re.compile(rf"(?:(.*)[-_ ])??({_OPUS}|{_PART})(?:[-_]|2|-to-)({_OPUS}|{_PART})")
LONGEST_CODE = 3  # letters
MINE = "my"  # in the names of files seldom Burmese: my-en-de
_WORDS = re.compile(rf"{_PART}(?![A-Za-z])|[^\W\d_]+")
_IDENTIFIER = re.compile(r"\w+(?:[-.:/]\w+)*")
_QUALIFIED = re.compile(r"(\w+) ?[(\[]([^()\[\]]+)[)\]]")  # English (US), Source (English) or German [de]


def named_language(name: str) -> str:
    """Return the code, as in BCP 47, of a language that a text names: EN, de_DE, German or Deutsch; else nothing."""
    text = name.strip()
    if text.lower() in _BY_NAME:
        return str(_BY_NAME[text.lower()])
    code = _CODE.fullmatch(text)
    if code is None or (code[1] and code[1].capitalize() not in _WRITTEN):
        return ""
    language = Language.of(text)
    return language.tag if language.base in _BASES else ""


def code_for(language: str) -> str:
    """Return the code of a language that is called by its name, such as German; any other text as it is."""
    return language if Language.of(language).is_known else named_language(language) or language


def language_in(name: str) -> str:
    """Return the code of the only language that a name or one of its parts names, as in `text_de`; else nothing."""
    text = name.strip()
    qualified = _QUALIFIED.fullmatch(text)
    if qualified:
        return _qualified_language(*qualified.groups())
    whole = named_language(text)
    if whole or not _IDENTIFIER.fullmatch(text):
        return whole
    found = set(filter(None, map(named_language, _WORDS.findall(name))))
    return found.pop() if len(found) == 1 else ""


def _qualified_language(name: str, qualifier: str) -> str:
    """Return the code of the language that a name or the text in brackets behind it names; else nothing.

    The qualifier may be a code, a script or the code of a region: any other region is left out.
    """
    code = named_language(name)
    inner = named_language(qualifier)
    if not code or (inner and Language.of(inner).is_like(Language.of(code))):
        return inner
    if qualifier.lower() in SCRIPTS or re.fullmatch("[A-Z]{2}", qualifier):
        return Language.of(f"{code}-{qualifier}").tag
    return code


def direction_in(name: str) -> tuple[str, str] | None:
    """Return the codes of two languages in the name of a file of pairs, as in `news.en-de`, `en_de.train` or
    `English-German`.

    Return None if there may be three, as in `en-pt-br`.
    """
    for part in reversed(name.split(".")):
        found = _TWO_CODES.fullmatch(part)
        if found is None:
            continue
        before = re.split("[-_ ]", found[1] or "")[-1]
        source = named_language(found[2])
        target = named_language(found[3])
        if source and target and source != target:
            is_clear = len(before) != 2 or before.lower() == MINE or not named_language(before)
            return (source, target) if is_clear else None
    return _direction_by_names(name)


def _direction_by_names(name: str) -> tuple[str, str] | None:
    """Return the codes of the only two languages that words of a name name in full, next to each other."""
    words = [word for word in re.findall(r"[^\W\d_]+", name) if word.lower() not in ("to", "and")]
    named = [named_language(word) if len(word) > LONGEST_CODE else "" for word in words]
    places = [place for place, code in enumerate(named) if code]
    if len(places) != 2 or places[1] - places[0] != 1 or named[places[0]] == named[places[1]]:
        return None
    return named[places[0]], named[places[1]]


ANDROID = re.compile(
    r"values(?:-mcc\d+)?(?:-mnc\d+)?"
    r"-(?:b\+(?P<tag>[A-Za-z0-9+]+)|(?P<code>(?!car\b)[a-z]{2,3})(?:-r(?P<region>[A-Za-z]{2}))?)(?:-.*)?"
)
"""Name of a folder of Android's resources that says their language; -car is no language but a dock"""


def of_android(folder: str) -> str:
    """Return the code in a folder's name such as values-pt-rBR or values-b+sr+Latn; empty if it has none."""
    found = ANDROID.fullmatch(folder)
    if found is None:
        return ""
    if found["tag"]:
        return found["tag"].replace("+", "-")
    return "-".join(filter(None, found.group("code", "region")))
