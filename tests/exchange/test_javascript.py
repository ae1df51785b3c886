"""The scripts of a translator's page, run by node beside what they repeat: tokenizer, sentences, model and search."""

import base64
import random
import unicodedata
from itertools import pairwise

import node
import pytest
import torch
from random_bundle import random_bundle, sentence, tokenizer_of_words, write_bundle
from reference_search import random_model
from tiny_parser import train_tokenizer, write_parser

import nmt
from nmt.checkpoint.reading import Bundle
from nmt.exchange import javascript
from nmt.formats.letter_case import KEPT, as_usual, in_capitals, in_title_case, kept_in
from nmt.formats.numbers import PLAIN, with_numbers_of
from nmt.formats.sentences import ABBREVIATIONS, FULL_STOPS, SentenceSplitter, with_end_of
from nmt.formats.tags import TAGS
from nmt.recipe import Decoding, TokenizerSettings
from nmt.system.errors import UserError
from nmt.text.vocabulary import BOS, EOS, Vocabulary

VARIANTS = [
    {"liking": 2.0, "norm": "post", "tie_embeddings": "all"},
    {"liking": 4.0, "norm": "pre", "tie_embeddings": "target", "positions": "learned", "max_positions": 90}
    | {"activation": "silu", "attention_bias": True, "output_bias": True, "d_k": 5, "d_v": 7},
    {"liking": 4.0, "norm": "pre", "positions": "fairseq", "heads": 3, "d_k": 4, "d_v": 4, "decoder_layers": 1},
    {"liking": 2.0, "positions": "marian"},
    {"liking": 4.0, "activation": "gelu", "positions": "words", "d_model": 24, "decoder_layers": 3, "layers": 1},
]
SCRIPTS = ["αβγδεζηθ", "абвгдежз", "ابتثجحخد", "कखगघङचछज", "的一是不了人我在", "가나다라마바사아", "abcdefgh"]
ODD = [
    "",
    "  two  spaces ",
    "\u2581 mark",
    "a\tb\u00a0c\u00adx\u200b",
    "🎉 👩‍👩‍👧",
    "\ufeffbom",
    "</s> <0x41>",
    "a" * 99,
    "e\u0301\u0323",
]
TEXTS = [
    "He <b>came.</b> She <i>left!</i> “No?”</i> I</b>. He <a>is.</a>The dog",
    'He came at 3 p.m. Dr. Smith left. "Really?" she asked. I... I do not know. Yahoo! Inc. grew.',
    "Das ist z. B. am 3. Mai so. Er kam.Der Hund bellt! (Ja.) Nein.",
    "今天很好。你呢？「好。」他说。 A.B. Cole saw os.Path 😀 The end",
    "Он пришёл. П. И. Чайковский здесь… Да?! нет",
    "",
]


LENGTHS = {"language": "en", "sentences": 1, "usual_sentences": 1, "source": 30, "longest_source": 40} | {
    "least_ratio": 0.5,
    "greatest_ratio": 2.0,
    "full_stop": ".",
    "unseen": ";:…/&–",
}


def bundle_of(path, liking=2.0, decoding=None, info=None, **model):
    shared = model.setdefault("tie_embeddings", "none") == "all"
    tokenizer = tokenizer_of_words(shared)
    model.setdefault("norm_epsilon", 0.3)  # a smaller one makes random models sensitive to rounding in fp32
    transformer = random_model(len(tokenizer.source), len(tokenizer.target), EOS, liking, 3, **model)
    if model.get("positions") == "words":  # the bundle's are those of its pieces
        transformer._starts = [torch.tensor(side.starts()) for side in (tokenizer.source, tokenizer.target)]
    with torch.no_grad():
        transformer.output_embedding.weight[: BOS + 1] *= 0.5
    return write_bundle(path, transformer, shared, decoding or Decoding(max_source=70, max_extra=9, beam=3), info)


def translated(bundle, *requests, code=""):
    """The answers of a page's worker to requests, but for that to the first one, which loads the model."""
    values, block = javascript.described(bundle)
    load = {"kind": "load", "number": 0, "values": values, "packed": block.packed(), "code": code}
    loaded, *answers = node.run(messages=[load, *requests])
    assert loaded == {"kind": "load", "number": 0, "isCompiled": bool(code)}
    return answers


@pytest.mark.parametrize("variant", VARIANTS, ids=["post", "pre-learned", "fairseq", "marian", "words"])
@pytest.mark.parametrize("is_compiled", [False, True], ids=["JavaScript", "WebAssembly"])
def test_page_finds_the_hypotheses_of_its_rounded_weights(variant, is_compiled, tmp_path):
    if is_compiled and not javascript.PRODUCTS.is_file():
        pytest.skip("needs products.wasm, which setup.py compiles with clang and lld, or ziglang")
    bundle = bundle_of(tmp_path / "bundle", **variant)
    rounded = nmt.load(
        javascript.write_rounded(bundle, tmp_path / "rounded").path, keep=False
    )  # ends are put right later
    texts = [sentence(seed) for seed in range(3)]
    encode = rounded.tokenizer.source.encode
    requests = [{"kind": "others", "number": 1, "ids": encode(text), "direction": 0, "beam": 3} for text in texts]
    answers = translated(bundle, *requests, code=javascript.compiled() if is_compiled else "")
    for answer, result in zip(answers, rounded.stream(texts, n_best=3), strict=True):
        best = answer["outputs"][0]
        assert best["ids"] == result.ids[0]
        assert best["score"] == pytest.approx(result.scores[0], abs=3e-4)  # sums in another order, in fp32


def test_page_follows_the_rules_of_decoding(tmp_path):
    decoding = Decoding(max_source=70, max_extra=9, beam=1, min_length=6, no_repeat=2)
    bundle = bundle_of(tmp_path / "bundle", decoding=decoding, **VARIANTS[1])
    rounded = nmt.load(javascript.write_rounded(bundle, tmp_path / "rounded").path)
    lines = [sentence(seed) for seed in range(3)]
    answers = translated(bundle, {"kind": "lines", "number": 1, "lines": lines, "direction": 0, "terms": []})
    found = [answer["output"]["ids"] for answer in answers[1:-1]]
    assert found == [result.ids[0] for result in rounded.stream(lines)]
    assert all(len(ids) >= 6 and len(set(pairwise(ids))) == len(ids) - 1 for ids in found)


def test_page_translates_capitals_in_small_letters(tmp_path):
    bundle = bundle_of(tmp_path / "bundle", decoding=Decoding(max_source=9, max_extra=9, beam=3, split="length"))
    rounded = nmt.load(javascript.write_rounded(bundle, tmp_path / "rounded").path)
    lines = ["THE TREE SEES THE DOG. 'THE 2ND CAT' LIKES J. WINDOW, O'TREE?! I SEE I'M", "THE TREE.", "DOG"]
    parts, *answers, _ = translated(bundle, {"kind": "lines", "number": 1, "lines": lines, "direction": 0, "terms": []})
    results = list(rounded.stream(lines))
    assert [[part["ids"] for part in of_line] for of_line in parts["parts"]] == [
        [ids for ids, _ in result.pairs] for result in results
    ]
    assert all(part["text"] in lines[0] for part in parts["parts"][0])
    assert [answer["output"]["text"] for answer in answers[-2:]] == [result.texts[0] for result in results[-2:]]


@pytest.mark.parametrize("line", ["2024", " 12:30 ", "1,234.5", "(50%)", "2024-11-30", "https://x.org", "%s"])
def test_page_copies_a_line_without_words_as_nmt_does(tmp_path, line):
    bundle = bundle_of(tmp_path / "bundle", decoding=Decoding(max_extra=9, beam=1))
    (result,) = nmt.load(bundle.path).stream([line])
    assert (result.pairs, result.texts) == ([], [line])
    parts, *_ = translated(bundle, {"kind": "lines", "number": 1, "lines": [line], "direction": 0, "terms": []})
    assert parts["parts"] == [[]]


@pytest.mark.parametrize("keep", [True, False])
def test_page_translates_what_nmt_does(keep, tmp_path):
    decoding = Decoding(max_extra=9, beam=1, keep=keep)
    bundle = bundle_of(tmp_path / "bundle", decoding=decoding)
    lines = ["1st", "MP3", "<br>", "F5", "config.ini", "[b]", "2024", "%s", "@count", "5 km", "3 x 4", "12:30 h", "C++"]
    lines += [
        "THE TREE! %s. 12",
        "--all",
        "&amp;",
        "!link",
        ":name",
        "{1>",
        "$5",
        "½",
        "(1) 2",
        "٣٤",
        "１２",
        "30°",
        "€5 the",
    ]
    parts, *_ = translated(bundle, {"kind": "lines", "number": 1, "lines": lines, "direction": 0, "terms": []})
    found = [[part["ids"] for part in of_line] for of_line in parts["parts"]]
    assert found == [[ids for ids, _ in result.pairs] for result in nmt.load(bundle.path).stream(lines)]


def test_page_gives_the_full_stop_that_nearly_all_sources_of_training_have(tmp_path):
    bundle = bundle_of(
        tmp_path / "bundle", decoding=Decoding(max_source=9, max_extra=9, beam=1), info={"lengths": LENGTHS}
    )
    lines = [
        "the dog",
        "The dog. the cat",
        "THE DOG",
        "(the dog)",
        "the tree (big)",
        "the dog,",
        "a b c d e f g",
    ]
    lines += ["The dog sees the cat and the big tree of the house", "the cat?", "1st", "the dog –", "犬", "the\tdog"]
    lines += [
        "The dog; the cat – it",
        "Tom &amp; the dog: I see; I'm",
        "TOM: I see the cat.",
        "a - b - c; 3 - 4",
        "it; The",
        "The dog 5: the 10: 3",
        "The dog?!",
        "(the dog?!)",
        "WARNING: THE DOG; IT",
        "FAQ",
        "N/A",
        "TO: it",
        "(AB)",
        "Q",
        "A1",
        "2 + 2 = 4",
        "the dog... it / & cat :",
        "dog & cat / the... it,",
        "the cat!! The dog??",
    ]
    parts, *answers = translated(bundle, {"kind": "lines", "number": 1, "lines": lines, "direction": 0, "terms": []})
    model = nmt.load(javascript.write_rounded(bundle, tmp_path / "rounded").path)
    found = [[part["ids"] for part in of_line] for of_line in parts["parts"]]
    results = list(model.stream(lines))
    assert found == [[ids for ids, _ in result.pairs] for result in results]
    stop = model.tokenizer.source.encode("the dog.")[-1]
    assert [ids[-1] == stop for ids, *_ in found[:4]] == [True] * 4
    texts = joined_by_page(lines, parts, answers[:-1])  # a random model writes line breaks, which become spaces
    assert [text.split() for text in texts] == [result.texts[0].split() for result in results]


def test_page_writes_the_sentences_in_capitals_that_are_so(tmp_path):
    bundle = bundle_of(tmp_path / "bundle", **VARIANTS[3])
    rounded = nmt.load(javascript.write_rounded(bundle, tmp_path / "rounded").path)
    lines = ["THE TREE SEES THE DOG! The cat likes.", "The big cat. <b>THE TREE SEES!</b> THE DOG."]
    parts, *answers, _ = translated(bundle, {"kind": "lines", "number": 1, "lines": lines, "direction": 0, "terms": []})
    assert [part["style"] for part in parts["parts"][0] + parts["parts"][1]] == [
        "capitals",
        "",
        "",
        "capitals",
        "capitals",
    ]
    texts = [answer["output"]["text"] for answer in answers]
    assert [" ".join(texts[:2]), " ".join(texts[2:])] == [result.texts[0] for result in rounded.stream(lines)]


def test_page_puts_numbers_of_the_source_in_the_place_of_others():
    random.seed(1)
    numbers = [
        "5",
        "7",
        "17",
        "19",
        "191",
        "1912",
        "٣٥",
        "1,000",
        "2:30",
        "3rd",
        "第5回",
        "300",
        "$16",
        "12 000",
        "1000",
        "5万",
        "5 Miles",
        "100 °F",
    ]
    texts = [[" a ".join(random.choices(numbers, k=random.randrange(4))) for _ in range(2)] for _ in range(400)]
    expected = [with_numbers_of(source, output) for source, output in texts]
    assert sum(found != output for found, (_, output) in zip(expected, texts, strict=True)) > 40
    script = """({texts, pattern}) => texts.map(([source, output]) =>
        withNumbersOf(source, output, expression(pattern, "g")))"""
    assert node.call(script, {"texts": texts, "pattern": PLAIN.pattern}) == expected


def test_page_ends_a_translation_as_its_source():
    random.seed(1)
    words = ["the dog", "früh am 3", "早上", "etc", "p.m", "J", "il y a", "in 1984", "(so", "😀"]
    ends = ["", ".", "...", "…", "!", " !", "!!", "?!", "？！", ":", ",", "。", '."', ")", " ", "?", ".\u202f»", ":."]
    texts = [[random.choice(words) + random.choice(ends) for _ in range(2)] for _ in range(900)]
    expected = [with_end_of(source, output) for source, output in texts]
    assert sum(found != output for found, (_, output) in zip(expected, texts, strict=True)) > 20
    rules = {"fullStops": FULL_STOPS, "abbreviations": sorted(ABBREVIATIONS)}
    script = "({texts, table, rules}) => texts.map(([source, output]) => withEndOf(source, output, table, rules))"
    given = {"texts": texts, "table": SentenceSplitter("en").table(), "rules": rules}
    assert node.call(script, given) == expected


def joined_by_page(lines, parts, answers):
    texts = {answer["key"]: answer["output"]["text"] for answer in answers}
    found = []
    for line, own in zip(lines, parts["parts"], strict=True):
        given = {"line": line, "parts": own, "texts": [texts[part["key"]] for part in own]}
        gaps = node.call("({line, parts, texts}) => gaps(line, parts, texts)", given)
        found.append(gaps[0] + "".join(text + gap for text, gap in zip(given["texts"], gaps[1:], strict=True)))
    return found


def test_page_leaves_what_stands_around_sentences(tmp_path):
    bundle = bundle_of(tmp_path / "bundle", **VARIANTS[3])
    rounded = nmt.load(javascript.write_rounded(bundle, tmp_path / "rounded").path)
    lines = [
        *(
            "- The cat likes.",
            "# THE TREE",
            "-The cat. —the dog",
            "-",
            "> * the dog",
            "(The cat likes.)",
            "[ the cat's dog ] ",
        ),
        *(
            "'the cat's dog'",
            "(5)",
            "(s)",
            "(狗)",
            "1) (config.ini)",
            "the cat. (The dog.) (5)",
            *("(the cat) and (the dog)", 'the dog, "The cat sees."', "THE DOG. the dog: “The cat?” (the tree)"),
            *(
                "(the cat).",
                '"the dog",',
                "- the cat? - the dog.",
                "...the cat",
                "[1] the dog",
                "(the cat) The dog. [the tree]",
                ">> the tree",
                "the cat - the dog. the tree",
            ),
        ),
    ]
    parts, *answers, _ = translated(bundle, {"kind": "lines", "number": 1, "lines": lines, "direction": 0, "terms": []})
    found = joined_by_page(lines, parts, answers)
    assert found == [result.texts[0] for result in rounded.stream(lines)]
    assert [found[0][:2], found[5][0], found[5][-1], found[11]] == ["- ", "(", ")", lines[11]]


def test_page_joins_the_translations_of_parts_as_nmt_does(tmp_path):
    bundle = bundle_of(tmp_path / "bundle", decoding=Decoding(max_source=4, max_extra=9, beam=1, split="length"))
    rounded = nmt.load(javascript.write_rounded(bundle, tmp_path / "rounded").path)
    lines = ["the tree\tthe dog", "dog\t12.5\ttree\t", "x" * 30, "\tTHE TREE\t\tthe cat sees the dog"]
    parts, *answers, _ = translated(bundle, {"kind": "lines", "number": 1, "lines": lines, "direction": 0, "terms": []})
    assert joined_by_page(lines, parts, answers) == rounded.translate(lines)


def test_page_shows_the_attention_of_the_model(tmp_path):
    bundle = bundle_of(tmp_path / "bundle", **VARIANTS[1])
    rounded = nmt.load(javascript.write_rounded(bundle, tmp_path / "rounded").path)
    text, output = sentence(1), "TREE the"
    ids = [rounded.tokenizer.source.encode(text), rounded.tokenizer.target.encode(output)]
    request = {"kind": "attention", "number": 1, "ids": ids[0], "output": ids[1], "direction": 0}
    (answer,) = translated(bundle, request)
    wanted = rounded.attention(text, output)
    assert answer["described"]["target_out"]["words"] == wanted.target_out.words
    assert answer["described"]["source"]["wordOf"] == wanted.source.word_of
    weights = torch.cat([torch.tensor(each).flatten() for each in (wanted.encoder, wanted.decoder, wanted.cross)])
    assert answer["bytes"] == pytest.approx((255 * weights).tolist(), abs=0.51)


def test_terms_are_in_the_translation_or_are_said_to_be_lacking(tmp_path):
    bundle = bundle_of(tmp_path / "bundle", **VARIANTS[0])
    terms = [["tree", "Baum"], ["nothing", "nichts"]]
    request = {"kind": "lines", "number": 1, "lines": ["the tree sees", "the cat"], "direction": 0, "terms": terms}
    _, with_term, without, _ = translated(bundle, request)
    assert "Baum" in with_term["output"]["text"] or with_term["output"]["lacking"] == ["Baum"]
    assert without["output"]["lacking"] == []


@pytest.mark.parametrize("keep", [True, False])
def test_what_is_copied_is_in_the_translation_or_is_said_to_be_lacking(keep, tmp_path):
    bundle = bundle_of(tmp_path / "bundle", decoding=Decoding(max_extra=9, beam=1, keep=keep))
    request = {"kind": "lines", "number": 1, "lines": ["the tree sees config.ini"], "direction": 0, "terms": []}
    output = translated(bundle, request)[1]["output"]
    assert ("config.ini" in output["text"] or output["lacking"] == ["config.ini"]) == keep
    request["terms"] = [["config.ini", "setup.ini"]]
    output = translated(bundle, request)[1]["output"]
    assert "setup.ini" in output["text"] or output["lacking"] == ["setup.ini"]


def test_a_term_is_lacking_where_it_is_only_part_of_a_word():
    lacking = "([terms, text, output]) => lackingTerms(terms, text, output)"
    terms = [["F1", "F1"], ["犬", "犬"]]
    assert node.call(lacking, [terms, "F1 と犬", "F11 の犬だ"]) == [["F1", "F1"]]
    assert node.call(lacking, [terms, "F1 と犬", "(f1)"]) == [["犬", "犬"]]
    number = ["1912", "1912"]
    assert [node.call(lacking, [[number], "1912", found]) for found in ("١٩١٢", "1 912", "191")] == [[], [], [number]]


def test_term_replaces_the_words_that_attend_to_it():
    source = {"words": ["a", "big", "dog", "</s>"], "wordOf": [0, 1, 2, 2, 3], "text": "a big dog"}
    output = {"words": ["ein", "großer", "Hund", "</s>"], "wordOf": [0, 1, 2, 3], "text": "ein großer Hund"}
    weights = [[9, 0, 0, 0, 0], [0, 9, 1, 1, 0], [0, 6, 5, 4, 0], [0, 0, 0, 0, 9]]  # two subwords of dog: 5 + 4 > 6
    attention = {
        "described": {"source": source, "target_out": output, "shapes": {"cross": [1, 1, 4, 5]}},
        "bytes": [weight for row in weights for weight in row],
    }
    place = "([terms, attention]) => placeTerms(terms, attention)"
    assert node.call(place, [[["dog", "Köter"]], attention]) == "ein großer Köter"
    assert node.call(place, [[["big", "riesiger"], ["dog", "Köter"]], attention]) == "ein riesiger Köter"
    assert node.call(place, [[["big dog", "Köter"], ["cat", "Katze"]], attention]) == "ein Köter"


@pytest.mark.parametrize(("algorithm", "normalization"), [("bpe", "plain"), ("unigram", "none")])
def test_tokenizer_equals_sentencepiece(algorithm, normalization):
    draw = random.Random(1)
    words = [
        [draw.choice(letters) * draw.randint(1, 2) + draw.choice(letters) for _ in range(40)] for letters in SCRIPTS
    ]
    lines = [" ".join(draw.choices(draw.choice(words), k=draw.randint(1, 12))) for _ in range(600)]
    settings = TokenizerSettings(algorithm=algorithm, vocab_size=480, normalization=normalization)
    vocabulary = Vocabulary.train("all", iter(lines), settings, lambda line: None, 1)
    texts = [*lines[:100], *(unicodedata.normalize("NFD", line) + "é…" for line in lines[:100]), *ODD]
    given = {"file": base64.b64encode(vocabulary.serialized).decode(), "texts": texts}
    encode = "({file, texts}) => texts.map((text) => new Vocabulary(fromBase64(file)).encode(text))"
    decode = "({file, ids}) => ids.map((each) => new Vocabulary(fromBase64(file)).decode(each))"
    ids = vocabulary.encode_all(texts)
    assert node.call(encode, given) == ids
    assert node.call(decode, {**given, "ids": ids}) == [vocabulary.decode(each).strip(" ") for each in ids]


def test_lines_are_split_by_the_rules_of_the_language():
    for language in ("en", "de", "ru"):
        splitter = SentenceSplitter(language)
        given = {"table": splitter.table(), "texts": TEXTS}
        split = "({table, texts}) => texts.map((text) => new SentenceSplitter(table).split(text))"
        assert node.call(split, given) == [splitter.split(text) for text in TEXTS]


@pytest.mark.parametrize("language", ["en", "de", "tr"])
def test_letter_case_is_that_of_the_vocabulary(language):
    draw = random.Random(2)
    words = ["the", "Straße", "is", "große", "I", "ipod", "NATO", "ist", "ışık", "not", "door", "Tom", "never", "über"]
    words += ["led", "a", "man's", "Haus", "x-ray", "messer"]
    ends = ["", ".", "?! "]
    lines = [" ".join(draw.choices(words, k=draw.randint(1, 9))) + draw.choice(ends) for _ in range(400)]
    vocabulary = Vocabulary.train("all", iter(lines), TokenizerSettings(vocab_size=440), lambda line: None, 1)
    texts = [in_capitals(line, language) for line in lines[:60]]
    texts += [in_title_case(line, language) for line in lines[60:120]]
    for line in lines[120:200]:
        first, _, rest = line.partition(" ")
        texts.append(f"{first} {in_capitals(rest, language)} {lines[0]}")
    texts += [line.lower() for line in lines[200:260]]
    texts += [
        "<b>STOP!</b> DOOR IS NOT <i>LED</i>.",
        "2. DOOR XIV OF THE PDF, 5 kWh",
        "iPod DOOR",
        "McDOOR LEDs, A USA-UTF-8 DOOR.TXT",
    ]
    texts += ["“the door”—led… isn’t <b title='“a”'>‘a’</b> «Tom» 5–6"]
    texts += ["2. DO NEVER ÜBER", "THE MESSER NEVER HAUS", "3. the led is never, boston"]
    texts += ["J. R. TOM MET 2ND 'MAN.' \"NOT\" (I'M) I", "IŞIK DOOR\u00adNEVER", "STRAßE", ""]
    given = {"file": base64.b64encode(vocabulary.serialized).decode(), "texts": texts}
    given |= {
        "of": {"language": language, **SentenceSplitter(language).table()},
        "table": [TAGS.pattern, *KEPT.table()],
    }
    usual = (
        "({file, texts, of, table}) =>"
        " texts.map((text) => asUsual(text, new Vocabulary(fromBase64(file)), {...of, kept: new Kept(table)}))"
    )

    found = node.call(usual, given)
    assert found == [as_usual(text, vocabulary, language) for text in texts]
    assert sum(one != other for one, other in zip(found, texts, strict=True)) > 80


@pytest.mark.parametrize(
    ("text", "language"), [("ijsvrij en {n}th wij", "nl"), ("ի՞նչ է <b>so</b>", "hy"), ("istanbul ıI", "tr")]
)
def test_page_writes_titles_as_nmt_does(text: str, language: str) -> None:
    given = {"text": text, "language": language, "table": [TAGS.pattern, *KEPT.table()]}
    write = "({text, language, table}) => inStyle(text, 'title', language, new Kept(table))"
    assert node.call(write, given) == in_title_case(text, language)


KEPT_PATTERNS = [TAGS.pattern, *KEPT.table()]
KEEPING = [
    "Use --all, -v or CONFIG.md in /etc/x/y, ~/.bashrc, .profile and src/*.py.gz; main() and a::b()",
    "MAX_SIZE of $HOME, %prog and Ctrl+Shift+Q or F12; Größe_ä and ÄÖ_2",
    "See https://a.org/x(y)?q={id}. Or WWW.a.org, Mailto:a@b.org, a.b@c-d.org: ftp://x/<name>! 见https://例.org/页。好",
    "%s %(n)d %<x>s %-5.2f 100 % sure, 50%-a %1$s %%n %A, %d %1 of %L2, %PATH% %B Bold %C18 and $a",
    "{n} {0:>5} {{ a }} {% if x %} ${x} #{y} %{z} $t(key) {n, plural, one {a {x}} other {b}} { n }",
    "$1 and $5 <0>x</0> <%= x %> <?= y ?> [[wiki page]] __file__ a__b__ $5",
    '<b class="x > y">STOP!</b> &amp; <!-- no --> <script>a < b</script> <ü> 1 < 2 > 1 <br/>&#8217; a<b',
    "2nd x86 Ⅷ² a1_b ٣abc m² 𝗕2 l'2e \U00020000/\U00020001",
    "C:\\WINDOWS\\x 5 km/h, 16 MB; UTF-8 TTB-LTR-UP STATE-OF-ART CTRL+Q A.TXT",
    "© 2024 → 👨‍👩‍👧‍👦👍🏽 ❤️! 🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣ ★★☆ 3 * 4 #1 – “a” • 5€",
    "@user @count-x @ab/cd @Straße René@home 私は@count件 *!*@x",
    "打开%n个 $name您好 编辑config.ini文件，联系me@x.org吧",
    "%count%回 main()関数 %.2fを Ctrl+Q를 ל$name ไฟล์%titleนี้ a__b__値 MAX_値",
    "and/or he/she I/O a~b A-B a+b a:b a: b x@y $ 5 {} [x] () <> &",
]


def test_page_keeps_what_nmt_keeps():
    spans = "({table, texts}) => texts.map((text) => new Kept(table).spans(text).map(([a, b]) => text.slice(a, b)))"
    found = node.call(spans, {"table": KEPT_PATTERNS, "texts": KEEPING})
    assert found == [[span.text_in(text) for span in kept_in(text)] for text in KEEPING]
    assert sum(map(len, found)) > 70


def test_page_parses_as_its_rounded_weights_do(tmp_path):
    write_parser(tmp_path / "parser", train_tokenizer())
    bundle = Bundle.read(tmp_path / "parser")
    rounded = nmt.load(javascript.write_rounded(bundle, tmp_path / "rounded").path)
    lines = ["the dog sees a house .", "(old) trees !!! ``\tyes ''", "", "?", f"{'cat ' * 20}, {'é' * 60} ئ\u3000…"]
    values, block = javascript.described(bundle)
    load = {"kind": "load", "number": 0, "values": values, "packed": block.packed(), "code": ""}
    _, *answers = node.run("parse", messages=[load, {"kind": "lines", "number": 1, "lines": lines}])
    assert [answer["tree"] for answer in answers] == [str(tree or "") for tree in rounded.parse(lines)]


def test_damage_is_told(tmp_path):
    values, block = javascript.described(random_bundle(tmp_path / "bundle"))
    (packed,) = block.packed()
    swapped = packed[:900] + packed[901:1000] + packed[900] + packed[1000:]
    for damaged in (swapped, packed[:-400]):
        load = {"kind": "load", "number": 0, "values": values, "packed": [damaged], "code": ""}
        (answer,) = node.run(messages=[load])
        assert answer["problem"]


def test_every_weight_is_within_half_a_step(tmp_path):
    bundle = random_bundle(tmp_path / "bundle")
    rounded = javascript.write_rounded(bundle, tmp_path / "rounded").weights()
    for name, weight in bundle.weights().items():
        steps = weight.abs().amax(-1, keepdim=True) / javascript.LEVELS if weight.dim() == 2 else torch.zeros(1)
        assert ((weight - rounded[name]).abs() <= 0.501 * steps).all()


def test_too_large_models_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(javascript, "LARGEST", 1000)
    with pytest.raises(UserError, match="parameters, and a page holds up to 1,000"):
        javascript.described(random_bundle(tmp_path / "bundle"))
