"""Text cut into words as the papers of 2017 did before they counted BLEU.

Moses' tokenizer, then hyphenated compounds split, a step that belongs to the published figures for English-German since
Luong et al. (2015). sacremoses is that tokenizer as it was then: Moses has split off every sentence's last dot since
November 2018, and this one leaves "Bart." or "10." together where the word may be an abbreviation or an ordinal.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from nmt.errors import UserError

COMPOUND = re.compile(r"(\S)-(\S)")  # takes what it matched out of play, so that of a-b-c only the first is split


class Moses:
    """Turns a detokenised line into words with a space between, compounds split: `rich ##AT##-##AT## text format`."""

    def __init__(self, language: str) -> None:
        """A code like de or fr, by which abbreviations are known and apostrophes split.

        Raises UserError where sacremoses does not know it, or is not installed.
        """
        try:
            from sacremoses import MosesTokenizer
            from sacremoses.corpus import NonbreakingPrefixes
        except ImportError as error:
            raise UserError(f"2017 BLEU: sacremoses is not installed: {error}", "pip install sacremoses") from None
        known = sorted(set(NonbreakingPrefixes().available_langs.values()))
        if language not in known:  # sacremoses itself would take English abbreviations
            raise UserError(
                f"2017 BLEU: the language of the reference, {language!r}, is none of {', '.join(known)}",
                "say --language CODE, or end the reference's name in it, as in test.de",
            )
        self._tokenizer = MosesTokenizer(language)
        self.signature = f"sacremoses-{version('sacremoses')}-{language}-compounds"

    def __call__(self, line: str) -> str:
        """The words of a line. They are not escaped as Moses' are (&quot; for "): equal words stay equal without."""
        return COMPOUND.sub(r"\1 ##AT##-##AT## \2", self._tokenizer.tokenize(line, return_str=True, escape=False))


def language_of(path: Path) -> str:
    """What a file's name ends in, before .gz: de of test.de.gz."""
    return Path(path.name.removesuffix(".gz")).suffix[1:]
