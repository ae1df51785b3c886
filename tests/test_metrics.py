"""Scores of translations: figures computed by hand, signatures, comparisons, texts that do not belong together."""

import random
import re
import sys
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU

from nmt.metrics import Comparison, Estimate, Moses, language_of, score, score_interval, tokenizer_of, unknown_words
from nmt.system.errors import UserError

LINES = ["The cat sits on the mat .", "A man goes home in the evening .", "Where are you ?"]


def one(metric, hypotheses, *references, **options):
    return score(hypotheses, references, [metric], **options)[metric].score


def test_with_several_references_each_n_gram_may_come_from_any():
    references = ["a b c d f"], ["x b c d e"]
    assert one("bleu", ["a b c d e"], *references) == pytest.approx(100.0)
    assert one("bleu", ["a b c d e"], references[0]) < 70
    assert one("ter", ["a b c d e"], ["q q q q q"], ["a b c d f"]) == pytest.approx(20.0)
    assert one("chrf", ["abcdef"], ["uvwxyz"], ["abcdef"]) == pytest.approx(100.0)


def test_every_score_has_its_signature():
    found = score(LINES, [LINES], ["bleu", "chrf", "ter"])
    assert list(found) == ["bleu", "chrf", "ter"]
    parts = {"bleu": "nrefs:1 case:mixed tok:13a smooth:exp", "chrf": "nrefs:1 nc:6 nw:0", "ter": "nrefs:1 tok:tercom"}
    for metric, wanted in parts.items():
        assert all(part in found[metric].signature for part in [*wanted.split(), "version:"])
    assert "nrefs:2" in score(LINES, [LINES, LINES], ["bleu"])["bleu"].signature


def test_the_interval_of_bleu_is_sacrebleus():
    dice = random.Random(1)
    lines = [" ".join(dice.choices("abcdef", k=12)) for _ in range(300)]
    noisy = [" ".join(dice.choices([word, "x"], [5, 1])[0] for word in line.split()) for line in lines]
    others = [line.replace("a", "x") for line in lines]  # which allows for some of the noise
    expected = BLEU().corpus_score(noisy, [lines, others], n_bootstrap=1000)
    low, high = score_interval("bleu", noisy, [lines, others])
    assert (low + high) / 2 == pytest.approx(expected._mean, abs=0.5)
    assert (high - low) / 2 == pytest.approx(expected._ci, abs=0.5)
    assert low > score_interval("bleu", noisy, [lines])[1]
    low, high = score_interval("chrf", noisy, [lines])
    assert low < one("chrf", noisy, lines) < high


def test_capitals_count_only_if_wanted():
    lower = [line.lower() for line in LINES]
    for metric in ("bleu", "chrf"):
        cased, uncased = (score(lower, [LINES], [metric], lowercase=lowercase)[metric] for lowercase in (False, True))
        assert cased.score < uncased.score == pytest.approx(100.0)
        assert "case:lc" in uncased.signature
        assert "case:mixed" in cased.signature or metric == "chrf"  # of which sacreBLEU says only that it is lowercased
    ter = score(lower, [LINES], ["ter"], lowercase=True)
    assert ter == score(lower, [LINES], ["ter"])  # which never counts them
    assert ter["ter"].score == 0.0


# --- languages without spaces --------------------------------------------------------------------------------

CHINESE = ["一只猫坐在垫子上，看着窗外。", "两个女人坐在公园的长椅上。"]
JAPANESE = ["これはとてもうつくしいはなですね。", "犬がマットの上に座っています。"]
THAI = ["แมวนั่งอยู่บนเสื่อ", "หมานอนอยู่บนเตียง"]


@pytest.mark.parametrize(
    ("tokenizer", "codes"),
    [
        ("zh", "zh zh-TW zh_CN ZH zho_Hans zho_Hant zh-Hans-CN cmn cmn_Hani yue_Hant lzh"),
        ("ja-mecab", "ja jpn jpn_Jpan ja-JP"),
        ("ko-mecab", "ko kor kor_Hang ko_KR"),
        ("char", "th tha tha_Thai lo lao_Laoo km khm_Khmr my mya_Mymr bo bod_Tibt dz dzo shn"),
        (None, "de deu_Latn zh_Latn vi vie_Latn en-GB tgt  txt"),
    ],
)
def test_codes_of_any_shape_name_the_tokenizer_of_their_language(tokenizer, codes):
    assert {code: tokenizer_of(code) for code in codes.split(" ")} == dict.fromkeys(codes.split(" "), tokenizer)


@pytest.mark.parametrize(
    ("language", "lines", "bleu", "ter"),
    [
        ("zh", CHINESE, "tok:zh|", "tok:tercom|norm:yes|punct:yes|asian:yes|"),
        ("jpn_Jpan", JAPANESE, "tok:char|", "tok:tercom-char|"),
        ("th", THAI, "tok:char|", "tok:tercom-char|"),
        ("", THAI, "tok:char|", "tok:tercom-char|"),
        ("tgt", CHINESE, "tok:char|", "tok:tercom-char|"),
        ("ko", ["고양이가 매트 위에 앉아 있다.", "여자가 공원 벤치에 앉아 있다."], "tok:char|", "tok:tercom|norm:no|"),
    ],
)
def test_text_without_spaces_is_scored_by_its_characters(language, lines, bleu, ter, monkeypatch):
    for package in ("sacrebleu.tokenizers.tokenizer_ja_mecab", "sacrebleu.tokenizers.tokenizer_ko_mecab"):
        monkeypatch.setattr(f"{package}.MeCab", None, raising=False)  # as where it is not installed
        monkeypatch.setattr(f"{package}.mecab_ko", None, raising=False)
    found = score(lines, [lines], ["bleu", "ter"], language=language)
    assert (found["bleu"].score, found["ter"].score) == (pytest.approx(100.0), 0.0)
    assert bleu in found["bleu"].signature
    assert ter in found["ter"].signature
    changed = [line[0] + "x" + line[2:] for line in lines]  # of each line one character
    worse = score(changed, [lines], ["bleu", "ter"], language=language)
    assert 30 < worse["bleu"].score < 95
    assert 0 < worse["ter"].score < 30
    assert score_interval("bleu", changed, [lines], language=language)[0] > 30


def test_a_comparison_counts_by_the_language_too():
    changed = [line.replace("子", "孩").replace("园", "场") for line in CHINESE]
    found = score(CHINESE * 20, [CHINESE * 20], ["bleu"], changed * 20, language="zh")["bleu"]
    assert "|tok:zh|" in found.signature
    assert found.comparison.p_value < 0.01


def test_a_language_that_is_not_known_for_text_without_spaces_is_warned_of():
    assert "'tgt' is no language known to be: BLEU and TER count characters" in unknown_words("tgt", CHINESE)
    assert "but their language is not given" in unknown_words("", THAI)
    for language, lines in (("zh", CHINESE), ("", LINES), ("tgt", ["一", *LINES]), ("ko", ["고양이가 매트"]), ("", [])):
        assert unknown_words(language, lines) is None


@pytest.mark.parametrize("language", ["zh", "zh-TW", "yue"])
def test_moses_does_not_count_words_that_it_does_not_find(language):
    pytest.importorskip("sacremoses")
    with pytest.raises(UserError, match=r"the language of the reference, '(zh|yue)', is none of as, bn, ") as error:
        Moses(language)
    assert error.value.hint.endswith("else take --metric bleu")
    assert Moses("de_DE").signature == Moses("de").signature


# --- a baseline ----------------------------------------------------------------------------------------------

REFERENCE = ["Ein Hund läuft schnell über die grüne Wiese.", "Zwei Frauen sitzen auf einer Bank im Park."] * 20
BETTER = [line.replace("grüne ", "") if number % 4 == 0 else line for number, line in enumerate(REFERENCE)]
WORSE = [
    line.replace("läuft", "geht").replace(" im ", " am ") if number % 3 == 0 else line
    for number, line in enumerate(REFERENCE)
]


@pytest.mark.parametrize(
    ("metric", "system", "baseline", "p_value"),
    [
        ("bleu", (92.4269, 92.3966, 3.8633), (88.5564, 88.4851, 5.4051), 0.0919),
        ("chrf", (95.6710, 95.6616, 2.1778), (94.7703, 94.7527, 2.3948), 0.1998),
        ("ter", (3.1250, 3.1325, 1.5625), (4.3750, 4.3981, 2.0312), 0.1289),
    ],
)
def test_figures_of_a_comparison_are_those_of_sacrebleus_command(metric, system, baseline, p_value):
    # sacrebleu REFERENCE -i WORSE BETTER -m bleu chrf ter --paired-bs -w 4
    found = score(BETTER, [REFERENCE], [metric], WORSE)[metric]
    assert found.comparison == Comparison(
        Estimate(*(pytest.approx(figure, abs=1e-4) for figure in system)),
        Estimate(*(pytest.approx(figure, abs=1e-4) for figure in baseline)),
        pytest.approx(p_value, abs=1e-4),
    )
    assert found.score == found.comparison.system.score


def test_a_clear_difference_is_significant_and_none_is_not():
    joined = [line.replace(" ", "-", 2) for line in REFERENCE]
    assert score(BETTER, [REFERENCE], ["bleu"], joined)["bleu"].comparison.p_value < 0.01
    assert score(BETTER, [REFERENCE], ["bleu"], BETTER)["bleu"].comparison.p_value == 1.0


def test_a_baseline_of_other_length_names_both_counts_and_something_must_be_there():
    with pytest.raises(UserError, match=r"hypothesis has 3 lines and the baseline has 2"):
        score(LINES, [LINES], ["bleu"], LINES[:2])
    with pytest.raises(UserError, match="nothing to score"):
        score([], [[]], ["bleu"])


# --- BLEU of words -------------------------------------------------------------------------------------------

GERMAN = [
    "Die deutsch-französische Freundschaft ist 60 Jahre alt.",
    "Er sagte: „Das geht's nicht!“ – und ging.",
    "Eine E-Mail-Adresse (z. B. die von Dr. Müller) kostet 3.500,75 Euro.",
    "Der 50-jährige Fahrer fuhr 1,5-mal so schnell, bzw. noch schneller...",
    '"Weiß-blau" oder "blau-weiß" -- das ist hier die Frage.',
    "Am 3. Oktober kamen ca. 1.200 Gäste; die U-Bahn war voll.",
    "Müller & Söhne [gegr. 1890] bauen 3-D-Drucker <neu> für 50% Rabatt.",
    "Wer-will-kann-kommen, sagte der Ex-Chef.",
    "Sie fragte: 'Wo ist der Hund?'",
    "Das T-Shirt - es war rot - passt nicht.",
    "Ein Mann ohne Bart.",
    "A-b-c-Schützen lernen das Abc.",
]
TRANSLATED = [
    "Die deutsch-französische Freundschaft ist 60 Jahre jung.",
    "Er sagte: „Das geht's ja nicht!“ – und dann ging er.",
    "Eine Email-Adresse (z. B. die von Dr. Müller) kostet 3.500,75 Euro.",
    "Der 50-jährige Mann fuhr 1,5-mal so schnell, bzw. schneller...",
    '"Weiß-blau" oder "Blau-weiß" -- das ist hier die Frage.',
    "Am 3. Oktober kamen ca. 1200 Gäste; die U-Bahn war zu voll.",
    "Müller & Söhne [gegr. 1890] bauen 3-D-Drucker <neu> mit 50 % Rabatt.",
    "Wer will, kann-kommen, sagte der Ex-Chef.",
    "Sie fragte: „Wo ist der Hund?“",
    "Das T-Shirt - es war rot - passt mir nicht.",
    "Ein Mann ohne Bart.",
    "A-b-c-Schützen lernen heute das ABC.",
]
SECOND = [re.sub(" (der|die|das) ", " ", line, count=1) for line in GERMAN]
THIRD = [re.sub(" (der|die|das) ", " diese ", line, count=1).replace("nicht", "gar nicht") for line in TRANSLATED]
THIRD = [line.replace("-", " ", 1) for line in THIRD]


@pytest.fixture(scope="module")
def german():
    pytest.importorskip("sacremoses")
    return Moses("de")


def test_2017_bleu_is_what_moses_programs_print(german):
    # tokenizer.perl of June 2017, compounds split by perl, multi-bleu.perl, over these sentences
    assert one("paper", TRANSLATED, GERMAN, moses=german) == pytest.approx(74.37, abs=0.005)
    assert one("paper", TRANSLATED, SECOND, THIRD, moses=german) == pytest.approx(84.13, abs=0.005)


def test_tokenised_bleu_lowercases_before_it_cuts(german):
    lower, shouted = [line.lower() for line in GERMAN], [line.upper().replace("SS", "ß") for line in TRANSLATED]
    found = score(shouted, [GERMAN], ["tokenised"], moses=german, lowercase=True)["tokenised"]
    quiet = [line.lower() for line in shouted]
    assert found.score == one("tokenised", quiet, lower, moses=german) > one("tokenised", quiet, GERMAN, moses=german)
    assert found.signature.startswith(f"nrefs:1|case:lc|eff:no|tok:{german.signature}|smooth:none|")
    # Of "Ein Mann ohne Bart." the dot belongs to the word, of "ein mann ohne bart." it does not.
    assert one(
        "tokenised", ["ein mann ohne glatze."], ["Ein Mann ohne Bart."], moses=german, lowercase=True
    ) == pytest.approx(one("tokenised", ["ein mann ohne glatze ."], ["ein mann ohne bart ."], moses=german))


# --- words as papers count them -----------------------------------------------------------------------------


# By tokenizer.perl -no-escape, and by perl -pe 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g', @ for each
GERMAN_COUNTED = {
    "Er sagte: „Das geht's nicht!“ – und ging.": "Er sagte : „ Das geht ' s nicht ! “ – und ging .",
    "Eine E-Mail-Adresse (z. B. die von Dr. Müller) kostet 3.500,75 Euro.": (
        "Eine E @ Mail @ Adresse ( z. B. die von Dr. Müller ) kostet 3.500,75 Euro ."
    ),
    "Der 50-jährige fuhr 1,5-mal so schnell, bzw. noch schneller...": (
        "Der 50 @ jährige fuhr 1,5 @ mal so schnell , bzw. noch schneller ..."
    ),
    '"Weiß-blau" -- das ist hier die Frage.': '" Weiß @ blau " -- das ist hier die Frage .',
    "Am 3. Oktober kamen ca. 1.200; die U-Bahn war voll.": "Am 3. Oktober kamen ca. 1.200 ; die U @ Bahn war voll .",
    "Müller & Söhne [gegr. 1890] bauen <neu> für 50%.": "Müller & Söhne [ gegr . 1890 ] bauen < neu > für 50 % .",
    "Das T-Shirt - es war rot - passt nicht.": "Das T @ Shirt - es war rot - passt nicht .",
    "A-b-c-Schützen und 3-D-Drucker": "A @ b-c @ Schützen und 3 @ D-Drucker",  # a letter counts for one match only
    "Ein Mann ohne Bart.": "Ein Mann ohne Bart.",  # Bart. being an abbreviation: not so since 2018
    "": "",
}
FRENCH = {
    "L'homme d'Aix-en-Provence n'a qu'un porte-clés : «aujourd'hui», dit M. Dupont.": (
        "L' homme d' Aix @ en @ Provence n' a qu' un porte @ clés : « aujourd' hui » , dit M. Dupont ."
    )
}
ENGLISH = {
    "The cat's well-known: it isn't Mr. Smith's 3.5-inch one.": (
        "The cat 's well @ known : it isn 't Mr. Smith 's 3.5 @ inch one ."
    )
}


@pytest.mark.parametrize(("language", "cases"), [("de", GERMAN_COUNTED), ("fr", FRENCH), ("en", ENGLISH)])
def test_words_are_those_of_moses_with_compounds_split_or_whole(language, cases):
    pytest.importorskip("sacremoses")
    moses = Moses(language)
    split = [words.replace("@", "##AT##-##AT##") for words in cases.values()]
    assert [moses(line, compounds=True) for line in cases] == split
    assert [moses(line, compounds=False) for line in cases] == [words.replace(" @ ", "-") for words in cases.values()]


def test_without_sacremoses_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UserError, match="sacremoses is not installed") as error:
        Moses("de")
    assert error.value.hint == "pip install sacremoses"


def test_a_files_name_says_its_language():
    paths = ["test.de", "data/test.2014.fr.gz", "test.de.XZ", "ref.gz", "/dev/fd/63", "a.b/test"]
    assert [language_of(Path(path)) for path in paths] == ["de", "fr", "de", "", "", ""]


def test_the_warning_of_tokenised_text_names_no_parameter_that_users_lack(caplog):
    score(["The cat sits on the mat ."] * 100, [["The cat sits on the mat."] * 100], ["bleu"])
    assert "tokenized period" in caplog.text
    assert "`force`" not in caplog.text
