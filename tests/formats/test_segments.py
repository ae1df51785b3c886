"""Tags taken out of a line, and put around the words of its translation."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from nmt.formats.alignment import GLUE, Aligned, AlignedLine, words_of
from nmt.formats.markdown import read_markdown
from nmt.formats.tags import read_tags
from nmt.formats.terms import Phrase, Span, Terms

TAG = re.compile(r"</?\w[^<>]*>")


def aligned(source: str, output: str, links: dict[int, int] | None = None) -> AlignedLine:
    """Align a line of one part by `pair`."""
    return AlignedLine(output, [(0, 0, pair(source, output, links))])


def pair(source: str, output: str, links: dict[int, int] | None = None) -> Aligned:
    """Align output word j with source word links[j], or with its like at the same place."""
    words = words_of(source, GLUE), words_of(output, GLUE)
    weights = np.full((len(words[1]), len(words[0])), 0.02)
    for j in range(len(words[1])):
        i = j if links is None else links.get(j)
        if i is not None and i < len(words[0]):
            weights[j, i] = 0.8
    return Aligned(source, output, *words, weights, (), weights)


def put(line: str, output: str | None = None, links: dict[int, int] | None = None) -> str:
    markup = read_tags(line)
    return markup.put(aligned(markup.text, markup.text if output is None else output, links))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('a <i class="x > y"><a href=z>small</a> dog</i>.', "a small dog."),
        ("x <br/> y<br /> z <wbr>w <!-- a <b> comment --> v", "x y z w v"),
        ("a < b and c > d, <me@x.org> <https://x.org/y> <3", "a < b and c > d, <me@x.org> <https://x.org/y> <3"),
        ("<b>&amp; a &lt; &quot;b&quot;</b> &#8211;", '& a < "b" –'),
        ("<p>One</p> <li>two<br>three", "One two three"),
        ("<p>One</p> <p>Two</p> three", "One Two three"),
        ("x <b>y <i>z</b> w</i>", "x y z w"),
        ("H<sub>2</sub>O, m<sup>2</sup>", "H2O, m2"),
        ('see <ph id="1">%s</ph> and <ph id="2"/>{x}<it pos="begin">&lt;b&gt;</it>', "see and {x}"),
        ('<i class="icon"></i> Save', "Save"),
        ("<i></i> ?! a <b></b> : b", "?! a : b"),
        ("<ns:tag-1 a='1'>x</ns:tag-1>", "x"),
        ("<0>x</0> y", "x y"),
        ("The dog&#10;sees&#32;the&#xA;cat.", "The dog sees the cat."),
        ("<![CDATA[The <b>small</b> dog]]>", "The small dog"),
        ("x ]]> y", "x ]]> y"),
        ("<td>&nbsp;</td><td> a\u00a0</td>", "a"),
        ("a&nbsp;b &amp; c&#160;&quot;d&quot;", 'a b & c "d"'),
        ("<i>a&nbsp;<x/></i> b\u00a0!", "a b\u00a0!"),
        ("&lt; <%= a < b %> &lt;", "< <%= a < b %> <"),
        ("__name__.<b>It</b> is", "__name__.It is"),
        ("山。\u3000<code>x</code>川", "山。 <code>x</code>川"),
        (" <p>  a <b> small </b>dog </p>\t", "a small dog"),
        ("<p>a</p><p>b</p>c<br>d", "a b c d"),
        ("see <code>a &lt; <b>b</b></code> now", "see <code>a &lt; <b>b</b></code> now"),
        ("a &unknown; <b>c</b>", "a &unknown; c"),
    ],
)
def test_a_line_comes_back_as_it_was_around_an_equal_text(line: str, text: str) -> None:
    assert read_tags(line).text == text
    assert put(line) == line


@pytest.mark.parametrize(
    ("line", "output", "links", "expected"),
    [
        (
            "the <b>big</b> dog <i>barks</i>.",
            "bellt der große Hund.",
            {0: 3, 1: 0, 2: 1, 3: 2, 4: 4},
            "<i>bellt</i> der <b>große</b> Hund.",
        ),
        ("the <b>dog</b>, it barks", "es bellt, der Hund", {0: 3, 1: 4, 2: 2, 3: 0, 4: 1}, "es bellt, der <b>Hund</b>"),
        (
            "he <b>gives it up</b> now",
            "nun gibt er es auf",
            {0: 4, 1: 1, 2: 0, 3: 2, 4: 3},
            "nun <b>gibt er es auf</b>",
        ),
        ("a <b>big</b> dog", "der Hund, der groß ist", {1: 2, 4: 1}, "der Hund, der <b>groß</b> ist"),
        ("the <b>foot</b><i>ball</i>", "der Fußball", {0: 0, 1: 1}, "der <b>Fußball</b><i></i>"),
        ("<b>a well-known</b> man", "ein Mann", {0: 0, 1: 2}, "<b>ein</b> Mann"),
        ("he said <q>yes!</q>", "er sagte ja!", {0: 0, 1: 1, 2: 2}, "er sagte <q>ja!</q>"),
        ("he says <b>yes</b>!", "er sagt ja!", {0: 0, 1: 1, 2: 2, 3: 2}, "er sagt <b>ja</b>!"),
        ("one<br>two <x/>three", "drei zwei eins", {0: 2, 1: 1, 2: 0}, "<x/>drei zwei eins<br>"),
        ("drink H<sub>2</sub>O", "trinke Wasser", {0: 0, 1: 1}, "trinke <sub>Wasser</sub>"),
        ("&lt;x&gt; &amp; <b>y</b>", "y & <x>", {0: 4, 1: 3, 2: 0, 3: 1, 4: 2}, "<b>y</b> &amp; &lt;x&gt;"),
        ("a <b>b</b>", "x & y < z", {0: 0, 2: 1}, "x &amp; <b>y</b> &lt; z"),
        ("<p>the <b>small</b> dog</p>", "der kleine Hund.", {0: 0, 1: 1, 2: 2}, "<p>der <b>kleine</b> Hund.</p>"),
        ("the <b>small dog</b>.", "小犬が。", {0: 1, 1: 2, 2: 0, 3: 3}, "<b>小犬</b>が。"),
        ("a & b < c", "x & y < z", None, "x & y < z"),
        ("<b>a</b> b", "", None, "<b></b>"),
        ("<i>a </i> <b>b</b>", "B A", {0: 1, 1: 0}, "<b>B</b> <i>A </i>"),  # space inside stays, whatever is outside
        ("a <i>b <x/></i> c", "C B A", {0: 2, 1: 1, 2: 0}, "C <i>B <x/></i> A"),
        ("a <i>b</i>. <u> c</u>", "C. B A", {0: 3, 1: 2, 2: 1, 3: 0}, "<u> C</u>. <i>B</i> A"),
        ("a <x/> b<br/> <u>c</u>", "A B C", None, "A <x/> B<br/> <u>C</u>"),
        ("<q>a&nbsp;b</q> c", "C B A", {0: 2, 1: 1, 2: 0}, "C <q>B&nbsp;A</q>"),  # between two words again
        ("<q>a&nbsp;b</q> c", "AB C", {0: 0, 1: 2}, "<q>AB</q> C"),  # or nowhere, in one word
        ("a <b>b</b> c", "A X C", {0: 0, 2: 2}, "A <b>X</b> C"),  # a word that stands for no other
        ('<bpt i="1">{</bpt>a<ept i="1">}</ept> b', "B A", {0: 1, 1: 0}, 'B <bpt i="1">{</bpt>A<ept i="1">}</ept>'),
        ('<bx id="1"/>a<ex id="2" rid="1"/> b', "B A", {0: 1, 1: 0}, 'B <bx id="1"/>A<ex id="2" rid="1"/>'),
    ],
)
def test_tags_go_where_the_words_go(line: str, output: str, links: dict[int, int], expected: str) -> None:
    assert put(line, output, links) == expected


@pytest.mark.parametrize(
    "copied",
    [
        '<span translate="no">a <span>b</span> c</span>',
        *("<kbd>Ctrl</kbd>", "<samp>x</samp>", "<pre>a b</pre>", "<code class='x'>if (a < b)</code>"),
        *('<mrk mtype="protected">N &amp; M</mrk>', '<i class="x notranslate">y</i>'),
    ],
)
def test_elements_to_copy_are_a_span_of_the_text(copied: str) -> None:
    markup = read_tags(f"a &amp; <b>b</b> {copied} c")
    assert [markup.text[slice(*span)] for span in markup.kept] == [copied]
    assert put(markup.raw) == markup.raw
    assert read_tags(f"see {copied.partition('>')[0]}> x").kept == []  # has no end


def test_tags_and_spans_know_of_each_other() -> None:
    markup = read_tags("see https://x.org<br/>now {na<b>me}</b>")
    assert markup.walls == [17, 25, 28]
    assert [phrase.source for phrase in Terms().phrases(markup.text, markup.kept, markup.walls)] == ["https://x.org"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("see [the *cat*](docs/cat_(1).md) & <b>x</b>", "see the cat & x"),
        ('see [the cat](docs/cat.md "A cat") & <b>x</b>', "see the cat & x"),
        ("[![x](y.png)](z) [a] (b)", "x [a] (b)"),
        ("a [ref][label] b, [the cat][] c [x] [^1]", "a ref b, the cat c [x]"),
        ("**bold** _it_ snake_case_name 2 * 3 * 4 *a* ~~no~~ ***c***", "bold it snake_case_name 2 * 3 * 4 a no c"),
        ("`code *x*` and ``a ` b`` \\*no\\* &amp; ` x", "`code *x*` and ``a ` b`` *no* & ` x"),
        (
            "<https://x.org/a_b_c> :warning: 10:30:15",
            "<https://x.org/a_b_c> 10:30:15",
        ),
        ("**https://x.org/*a*/b_c** **https://x.org/a**。b", "https://x.org/*a*/b_c https://x.org/a。b"),
        ("horse:smile:! _:smile:_ _https://x.org/a_(b)_c_ $a_1 * b_2$", "horse! https://x.org/a_(b)_c $a_1 * b_2$"),
        ("the $$x$$ $$a + b$$ $y$, $$ and $$", "the $$x$$ $$a + b$$ $y$, $$ and $$"),
        ("a \\*b\\* * c * \\_d_e &amp; & `f_g`", "a *b* * c * _d_e & & `f_g`"),
        ("the dog &copy; © the cat &copy;", "the dog © © the cat ©"),
        ("[a [b] c](http://x 'T (x)') ![alt](<i n.png>){.cls} ](x)", "a [b] c alt ](x)"),
    ],
)
def test_marks_of_markdown_are_codes(line: str, text: str) -> None:
    markup = read_markdown(line)
    assert markup.text == text
    assert markup.put(aligned(markup.text, markup.text)) == line


@pytest.mark.parametrize(
    ("line", "output", "expected"),
    [
        ("You **do** see.", "Sie sehen.", "Sie sehen."),
        ("You ***do*** ~~not~~ see.", "Sie sehen.", "Sie sehen."),
        ("You **[do](x)** see.", "Sie sehen.", "Sie [](x)sehen."),
        ("You <b>do</b> see.", "Sie sehen.", "Sie <b></b> sehen."),
        ("You **<br>** *see*.", "Sie sehen.", "Sie **<br>** *sehen*."),
    ],
)
def test_marks_are_not_written_around_nothing(line: str, output: str, expected: str) -> None:
    markup = read_markdown(line)
    words = markup.text.split()
    links = {0: 0, 1: len(words) - 1, 2: len(words)}
    assert markup.put(aligned(markup.text, output, links)) == expected


def test_a_term_stands_for_its_words_whatever_the_attention() -> None:
    found = pair("the big dog", "der große Hund", {0: 0, 1: 2, 2: 1})
    phrase = Phrase("dog", ("hund",), 8, case=False)
    assert found.pinned([phrase]).run(Span(8, 11), np.ones(3, bool)) == (2, 3)


def test_an_element_goes_on_from_one_part_of_a_line_to_the_next() -> None:
    markup = read_tags("a <b>b. c</b> <i>d</i>.<br/> e <u>f</u>.")
    parts = [
        (0, 0, pair("a b.", "B A.", {0: 1, 1: 0, 2: 2})),
        (5, 5, pair("c d.", "D C.", {0: 1, 1: 0, 2: 2})),
        (10, 10, pair("e f.", "F E.", {0: 1, 1: 0, 2: 2})),
    ]
    assert markup.text == "a b. c d. e f."
    assert markup.put(AlignedLine("B A. D C. F E.", parts)) == "<b>B A. D C</b> <i></i>.<br/> <u>F</u> E."


def pairs_of(line: str) -> list[str]:
    """Return the names of all elements whose tags are nested well, as a stack finds them."""
    opened: list[str] = []
    pairs = []
    for tag in TAG.findall(line):
        name = tag.strip("</>")
        if tag.startswith("</") and name in opened:
            while opened.pop() != name:
                pass
            pairs.append(name)
        elif not tag.startswith("</"):
            opened.append(name)
    return sorted(pairs)


def test_tags_of_any_nesting_survive_any_alignment() -> None:
    choose = random.Random(1)
    for _ in range(400):
        words = [choose.choice(["a", "bc", "d-e", "f", ",", "g's", "1.5"]) for _ in range(choose.randint(1, 7))]
        for number in range(choose.randint(1, 5)):
            first, last = sorted(choose.choices(range(len(words) + 1), k=2))
            words.insert(last, f"</x{number}>")
            words.insert(first, f"<x{number}>")
        line = "".join(word + " " * choose.randint(0, 1) for word in words)
        markup = read_tags(line)
        output = "".join(choose.choice(["u", "v-w", "x", ".", "&"]) + choose.choice(["", " "]) for _ in range(6))
        boundaries = {edge for word in words_of(output, GLUE) for edge in word}
        links = {j: choose.randrange(9) for j in range(len(output)) if choose.random() < 0.8}
        found = markup.put(aligned(markup.text, output, links))
        assert sorted(TAG.findall(found)) == sorted(TAG.findall(line))
        assert set(pairs_of(line)) <= set(pairs_of(found))
        bare = found.replace("&amp;", "&")
        assert re.sub(r"\s", "", TAG.sub("", bare)) == re.sub(r"\s", "", output)
        for tag in TAG.finditer(bare):
            characters = len(re.sub(r"\s", "", TAG.sub("", bare[: tag.start()])))
            assert characters in {len(re.sub(r"\s", "", output[:edge])) for edge in boundaries | {0}}
