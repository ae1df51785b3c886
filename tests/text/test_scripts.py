"""Scripts with and without spaces between words."""

from __future__ import annotations

import pytest

from nmt.text.scripts import count_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cat, at last.", 4),
        ("Кот спит.", 2),
        ("선생님은 책을 읽습니다.", 3),
        ("猫在睡觉。", 4),
        ("Python 3を使います。 はい", 9),
        ("แมว นอน", 6),
        ("", 0),
    ],
)
def test_words_are_counted_in_all_scripts(text: str, words: int) -> None:
    assert count_words(text) == words
