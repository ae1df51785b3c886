"""What a translator is tried with: lines in capitals, in title case, without final punctuation, with typos."""

from __future__ import annotations

from nmt.training.robustness import changed, figures, table


def test_references_change_as_their_sources_do() -> None:
    pairs = [("A dog runs.", "Ein Hund läuft."), ("HE SLEEPS", "Er schläft.")]
    found = changed(pairs, [("en", "de")] * 2)
    assert found["plain"] == pairs
    assert found["capitals"] == [("A DOG RUNS.", "EIN HUND LÄUFT."), pairs[1]]
    assert found["title_case"] == [("A Dog Runs.", "Ein Hund Läuft."), pairs[1]]
    assert found["unpunctuated"] == [("A dog runs", "Ein Hund läuft"), pairs[1]]


def test_typos_are_in_sources_alone_and_always_the_same() -> None:
    pairs = [(f"The old man sees {name} near the green house.", "unchanged") for name in ("Ann", "Tom", "Eve", "Max")]
    found = changed(pairs, [("en", "de")] * 4)["typos"]
    for (source, _), (mistyped, reference) in zip(pairs, found, strict=True):
        assert mistyped != source
        assert reference == "unchanged"
    assert changed(pairs, [("en", "de")] * 4)["typos"] == found


def test_what_changes_no_source_is_left_out() -> None:
    found = changed([("一只猫坐在垫子上。", "A cat sits on the mat.")], [("zh", "en")])
    assert list(found) == ["plain", "unpunctuated"]
    assert found["unpunctuated"] == [("一只猫坐在垫子上", "A cat sits on the mat")]


def test_shares_are_of_the_plain_score() -> None:
    assert figures({"plain": 0.0})["plain"] == {"score": 0.0, "share": 0.0}
    assert table({"plain": 50.0, "typos": 45.0}, "nrefs:1").splitlines() == [
        "source                  chrF2  share",
        "plain                   50.00  1.000",
        "a typo in eight words   45.00  0.900",
        "  nrefs:1",
    ]
