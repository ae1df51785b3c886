"""Text cut into words as papers do that count BLEU of words, those of 2017 and many since.

Moses' tokenizer; for the figures of 2017 hyphenated compounds are split after it, a step that belongs to those
published for English-German since Luong et al. (2015). sacremoses is that tokenizer as it was then: Moses has split off
every sentence's last dot since November 2018, and this one leaves "Bart." or "10." together where the word may be an
abbreviation or an ordinal.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from nmt.errors import UserError

COMPOUND = re.compile(r"(\S)-(\S)")  # takes what it matched out of play, so that of a-b-c only the first is split


class Moses:
    """Turns a detokenised line into words with a space between."""

    def __init__(self, language: str) -> None:
        """A code like de or fr, by which abbreviations are known and apostrophes split.

        Raises UserError where sacremoses does not know it, or is not installed.
        """
        try:
            from sacremoses import MosesTokenizer
            from sacremoses.corpus import NonbreakingPrefixes
        except ImportError as error:
            raise UserError(
                f"BLEU of Moses' words: sacremoses is not installed: {error}", "pip install sacremoses"
            ) from None
        known = sorted(set(NonbreakingPrefixes().available_langs.values()))
        if language not in known:  # sacremoses itself would take English abbreviations
            raise UserError(
                f"BLEU of Moses' words: the language of the reference, {language!r}, is none of {', '.join(known)}",
                "give --language CODE, or a reference whose name ends in it, such as test.de",
            )
        self._tokenizer = MosesTokenizer(language)
        self.signature = f"sacremoses-{version('sacremoses')}-{language}"

    def __call__(self, line: str, *, compounds: bool) -> str:
        """The words of a line; with `compounds` these are split: `rich ##AT##-##AT## text format`.

        They are not escaped as Moses' are (&quot; for "): equal words stay equal without.
        """
        words: str = self._tokenizer.tokenize(line, return_str=True, escape=False)
        return COMPOUND.sub(r"\1 ##AT##-##AT## \2", words) if compounds else words


def language_of(path: Path) -> str:
    """What a file's name ends in, before .gz: de of test.de.gz."""
    return Path(path.name.removesuffix(".gz")).suffix[1:]
