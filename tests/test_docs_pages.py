"""Pages are easy to find and to read, and what is said of a page's blocks, links and sentences is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import (
    GENERATED,
    PAGES,
    ROOT,
    anchors,
    begins_with,
    blocks,
    broken_links,
    commands,
    links,
    matches,
    paragraphs,
    sentences,
    tokens,
)

INDEX = ROOT / "docs" / "index.md"
WRITTEN = [*(page for page in PAGES if page not in GENERATED), *ROOT.glob("benchmarks/*.md"), ROOT / "CHANGELOG.md"]
LONGEST = 40  # words of a sentence


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_no_sentence_is_too_long(page: Path) -> None:
    found = [(line, each) for line, text in paragraphs(page) for each in sentences(text)]
    assert [f"{name(page)}:{line}: {each}" for line, each in found if len(each.split()) > LONGEST] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_opens_with_a_title_and_a_paragraph(page: Path) -> None:
    kinds = [token.type for token in tokens(page) if token.type != "html_block"]
    assert kinds[:4] == ["heading_open", "inline", "heading_close", "paragraph_open"]
    assert sum(token.tag == "h1" for token in tokens(page)) == 2  # where it opens and where it closes


def test_the_index_leads_to_every_page() -> None:
    listed = {(INDEX.parent / link.partition("#")[0]).resolve() for link in links(INDEX) if "://" not in link}
    assert [name(page) for page in PAGES if page != INDEX and page not in listed] == []


# --- the machinery itself ----------------------------------------------------------------------------------------


def page_of(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_blocks_have_their_languages_their_lines_and_the_markers_before_them(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        "# A page\n\n<!-- begins with: texts, hub -->\n\n<!-- not run: needs a GPU -->\n\n```sh\nnmt train\n```\n\n"
        "Text.\n\n- item:\n\n  <!-- setup:\n  a\n  b -->\n  <!-- run: slow -->\n  ```console\n  $ nmt\n  ```\n\n"
        "More:\n\n"
        "    nmt score a b\n\n```yaml\nname: x\n```\n",
    )
    first, second, third, fourth = blocks(page)
    assert (first.language, first.line, first.marker("not run"), first.speed) == ("sh", 8, "needs a GPU", "not run")
    assert (second.language, second.marker("setup"), second.speed) == ("console", "a\nb", "slow")
    assert (third.language, third.markers) == ("sh", ())
    assert (fourth.language, fourth.is_program) == ("yaml", False)
    assert begins_with(page) == ["texts", "hub"]


def test_a_marker_does_not_reach_beyond_text(tmp_path: Path) -> None:
    (block,) = blocks(page_of(tmp_path, "<!-- run: slow -->\n\nText.\n\n```sh\nls\n```\n"))
    assert block.markers == ()


def test_commands_of_a_console_block_have_their_outputs(tmp_path: Path) -> None:
    (block,) = blocks(page_of(tmp_path, "```console\n$ a |\n> b\none\n> two\n$ c\n```\n"))
    assert commands(block) == [("a |\nb", "one\n> two\n"), ("c", "")]


@pytest.mark.parametrize(
    ("expected", "output", "equal"),
    [
        ("a\nb\n", "a  \nb", True),
        ("a … c", "a b c", True),
        ("…\nlast", "first\nmore\nlast\n", True),
        ("BLEU 1.0", "BLEU 110", False),
        ("a", "a\nb", False),
    ],
)
def test_outputs_are_compared(expected: str, output: str, equal: bool) -> None:
    assert matches(expected, output) is equal


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text(
        "# Über `uns`\n\n```sh\n# no heading\n```\n\n## Twice\n\n## Twice\n", encoding="utf-8"
    )
    assert anchors(tmp_path / "other.md") == {"über-uns", "twice", "twice-1"}
    good = "[a](other.md#%C3%BCber-uns) [b](other.md) [c](#here) <https://example.org> [d](other.md#twice-1)"
    bad = "[a](none.md) [b](other.md#no-heading) [c](#there) ![d](none.svg) [e](https://) [f](htp://example.org)"
    page = page_of(tmp_path, f'# Here\n\n{good} {bad}\n\n<img src="none.png">\n')
    assert broken_links(page) == [
        "none.md",
        "other.md#no-heading",
        "#there",
        "none.svg",
        "https://",
        "htp://example.org",
        "none.png",
    ]


def test_sentences_end_where_a_reader_takes_a_breath() -> None:
    text = "It has 3.5 points. Is it (really)? Yes: it is! See `nmt.load`."
    assert sentences(text) == ["It has 3.5 points.", "Is it (really)?", "Yes: it is!", "See `nmt.load`."]
