"""What counts as a word: the tokenizer of each language, and Moses' tokenizer for figures of papers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from nmt.system.compression import split_suffix
from nmt.system.errors import UserError
from nmt.text.language_codes import Language
from nmt.text.scripts import is_unspaced

Lines = Sequence[str]
COMPOUND = re.compile(r"(\S)-(\S)")  # matches do not overlap: a-b-c is split only at the first hyphen


class Moses:
    """Moses' tokenizer, for detokenised lines."""

    def __init__(self, language: str) -> None:
        """Load the rules for abbreviations and apostrophes of `language`, a code such as de.

        Raise UserError if sacremoses does not know the language or where its words end, or is not installed.
        """
        from importlib.metadata import version  # slow to import

        try:
            from sacremoses import MosesTokenizer
            from sacremoses.corpus import NonbreakingPrefixes
        except ImportError as error:
            problem = f"BLEU of Moses' words: sacremoses is not installed: {error}"
            raise UserError(problem, "pip install sacremoses") from None
        # Moses has rules for Chinese, but takes what stands between two marks for a word
        codes = set(NonbreakingPrefixes().available_langs.values())
        known = sorted(code for code in codes if not tokenizer_of(code))
        language = Language.of(language).base
        if language not in known:  # sacremoses would silently use the rules for English
            problem = f"the language of the reference, {language!r}, is none of {', '.join(known)}"
            hint = (
                "give --language CODE, or a reference whose name ends in it, such as test.de; else take --metric bleu"
            )
            raise UserError(f"BLEU of Moses' words: {problem}", hint)
        self._tokenizer = MosesTokenizer(language)
        self.signature = f"sacremoses-{version('sacremoses')}-{language}"

    def __call__(self, line: str, *, compounds: bool) -> str:
        """Return the words joined by spaces; with `compounds`, split at hyphens: `rich ##AT##-##AT## text format`.

        Unlike Moses, do not escape characters (&quot; for "): this does not change which words match.
        """
        words: str = self._tokenizer.tokenize(line, return_str=True, escape=False)
        if compounds:
            words = COMPOUND.sub(r"\1 ##AT##-##AT## \2", words)
        return words


def language_of(path: Path) -> str:
    """Return the suffix of a file name, ignoring those of compression and text: de for test.de.gz and test.de.txt."""
    name = Path(split_suffix(path)[0])
    if name.suffix.lower() == ".txt":
        name = name.with_suffix("")
    return name.suffix[1:]


# Codes of languages (ISO 639) and scripts (ISO 15924) by the tokenizer of sacreBLEU that finds their words
TOKENIZERS = {
    "zh": "zh yue lzh wuu gan hak hsn cjy cn hans hant hani",
    "ja-mecab": "ja jp jpan hira kana hrkt",
    "ko-mecab": "ko kore hang",
    "char": "th lo km my shn mnw bo dz thai laoo khmr mymr tibt lana talu java bali",
}


def tokenizer_of(language: str) -> str | None:
    """Return the tokenizer in `TOKENIZERS` for a code such as zh-TW, jpn_Jpan or tha; None if words end at spaces.

    A script in the code decides: zh_Latn is written with spaces.
    """
    given = Language.of(language)
    code = given.script.lower() or given.base
    for name, codes in TOKENIZERS.items():
        if code in codes.split():
            return name
    return None


def unknown_words(language: str, references: Lines) -> str | None:
    """Return a warning if references are written without spaces, but `language` is not known to be; else None."""
    if tokenizer_of(language) or not is_unspaced(references):
        return None
    unknown = "their language is not given"
    if language:
        unknown = f"no tokenizer is known for {language!r}"
    return f"warning: the references are written without spaces, but {unknown}: BLEU and TER count characters"
