"""Text split into words by Moses' tokenizer, as papers do that report BLEU of words.

For figures of 2017, hyphenated compounds are split afterwards, as in the figures for English-German since Luong et al.
(2015). sacremoses is the tokenizer as it was then. Since November 2018 Moses has split off the last dot of every
sentence; sacremoses keeps "Bart." or "10." together if the word may be an abbreviation or an ordinal.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from nmt.errors import UserError

COMPOUND = re.compile(r"(\S)-(\S)")  # matches do not overlap, so a-b-c is split at the first hyphen only


class Moses:
    """Splits a detokenised line into words."""

    def __init__(self, language: str) -> None:
        """The code of a language, such as de or fr, decides on abbreviations and apostrophes.

        Raises UserError if sacremoses does not know the language, or is not installed.
        """
        try:
            from sacremoses import MosesTokenizer
            from sacremoses.corpus import NonbreakingPrefixes
        except ImportError as error:
            raise UserError(
                f"BLEU of Moses' words: sacremoses is not installed: {error}", "pip install sacremoses"
            ) from None
        known = sorted(set(NonbreakingPrefixes().available_langs.values()))
        if language not in known:  # for which sacremoses would use the abbreviations of English
            raise UserError(
                f"BLEU of Moses' words: the language of the reference, {language!r}, is none of {', '.join(known)}",
                "give --language CODE, or a reference whose name ends in it, such as test.de",
            )
        self._tokenizer = MosesTokenizer(language)
        self.signature = f"sacremoses-{version('sacremoses')}-{language}"

    def __call__(self, line: str, *, compounds: bool) -> str:
        """Return the words of a line, with spaces between; `compounds` are split: `rich ##AT##-##AT## text format`.

        Words are not escaped as by Moses (&quot; for "), which makes no difference to which words are equal.
        """
        words: str = self._tokenizer.tokenize(line, return_str=True, escape=False)
        return COMPOUND.sub(r"\1 ##AT##-##AT## \2", words) if compounds else words


def language_of(path: Path) -> str:
    """Return what the name of a file ends in, before .gz: de for test.de.gz."""
    return Path(path.name.removesuffix(".gz")).suffix[1:]
