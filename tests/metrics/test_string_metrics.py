"""Scores of translations: figures computed by hand, signatures, texts that do not belong together."""

import re

import pytest

from nmt.metrics.string_metrics import StringMetric, score
from nmt.metrics.words import Moses
from nmt.system.errors import UserError

LINES = ["The cat sits on the mat .", "A man goes home in the evening .", "Where are you ?"]


def one(metric, hypotheses, *references, **options):
    return StringMetric(metric, references, **options).corpus_score(hypotheses)


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


def test_capitals_count_only_if_wanted():
    lower = [line.lower() for line in LINES]
    for metric in ("bleu", "chrf"):
        cased, uncased = (StringMetric(metric, [LINES], lowercase=lowercase) for lowercase in (False, True))
        assert cased.corpus_score(lower) < uncased.corpus_score(lower) == pytest.approx(100.0)
        assert "case:lc" in uncased.signature
        assert "case:mixed" in cased.signature or metric == "chrf"  # of which sacreBLEU says only that it is lowercased
    assert one("ter", lower, LINES, lowercase=True) == one("ter", lower, LINES) == 0.0  # which never counts them


# --- languages without spaces --------------------------------------------------------------------------------

CHINESE = ["一只猫坐在垫子上，看着窗外。", "两个女人坐在公园的长椅上。"]
JAPANESE = ["これはとてもうつくしいはなですね。", "犬がマットの上に座っています。"]
THAI = ["แมวนั่งอยู่บนเสื่อ", "หมานอนอยู่บนเตียง"]


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


def test_a_score_needs_lines_and_as_many_references():
    with pytest.raises(UserError, match=r"the hypothesis has 2 lines and reference 1 has 3"):
        score(LINES[:2], [LINES], ["bleu"])
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
    found = StringMetric("tokenised", [GERMAN], moses=german, lowercase=True)
    quiet = [line.lower() for line in shouted]
    assert (
        found.corpus_score(shouted)
        == one("tokenised", quiet, lower, moses=german)
        > one("tokenised", quiet, GERMAN, moses=german)
    )
    assert found.signature.startswith(f"nrefs:1|case:lc|eff:no|tok:{german.signature}|smooth:none|")
    # Of "Ein Mann ohne Bart." the dot belongs to the word, of "ein mann ohne bart." it does not.
    assert one(
        "tokenised", ["ein mann ohne glatze."], ["Ein Mann ohne Bart."], moses=german, lowercase=True
    ) == pytest.approx(one("tokenised", ["ein mann ohne glatze ."], ["ein mann ohne bart ."], moses=german))


def test_the_warning_of_tokenised_text_names_no_parameter_that_users_lack(caplog):
    score(["The cat sits on the mat ."] * 100, [["The cat sits on the mat."] * 100], ["bleu"])
    assert "tokenized period" in caplog.text
    assert "`force`" not in caplog.text
