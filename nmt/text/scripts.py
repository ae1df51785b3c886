"""Scripts that are written without spaces between words."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A character of Thai, Lao, Tibetan, Burmese, Khmer, Balinese and their relatives, of Chinese, or kana
UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\u2e80-\u312f\u31a0-\u4dbf\u4e00-\u9fff"
    "\ua980-\ua9ff\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af]"
)


def is_unspaced(lines: Iterable[str]) -> bool:
    """Return whether most letters of the lines are of scripts written without spaces."""
    text = "".join(lines)
    return 2 * len(UNSPACED.findall(text)) > sum(map(str.isalpha, text))


def count_words(line: str) -> int:
    """Count words; where there are no spaces between them, count characters."""
    return len(UNSPACED.sub(r" \g<0> ", line).split())
