"""What counts as a word: tokenizers by language, and words as papers count them."""

import sys
from pathlib import Path

import pytest

from nmt.metrics.words import Moses, language_of, tokenizer_of, unknown_words
from nmt.system.errors import UserError

LINES = ["The cat sits on the mat .", "Where are you ?"]
CHINESE = ["一只猫坐在垫子上，看着窗外。", "两个女人坐在公园的长椅上。"]
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


def test_a_language_that_is_not_known_for_text_without_spaces_is_warned_of():
    assert "but no tokenizer is known for 'tgt': BLEU and TER count characters" in unknown_words("tgt", CHINESE)
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
    paths = ["test.de", "data/test.2014.fr.gz", "test.de.XZ", "test.de.txt", "a.zh.TXT.gz"]
    assert [language_of(Path(path)) for path in paths] == ["de", "fr", "de", "de", "zh"]
    assert {language_of(Path(path)) for path in ("ref.gz", "/dev/fd/63", "a.b/test", "my.txt", ".txt")} == {""}
