"""Words as papers count them: what Moses' own tokenizer.perl gave in June 2017, and languages it knows."""

import sys
from pathlib import Path

import pytest

from nmt.metrics import Moses, language_of
from nmt.system.errors import UserError

# By tokenizer.perl -no-escape, and by perl -pe 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g', @ for each
GERMAN = {
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


@pytest.mark.parametrize(("language", "cases"), [("de", GERMAN), ("fr", FRENCH), ("en", ENGLISH)])
def test_words_are_those_of_moses_with_compounds_split_or_whole(language, cases):
    pytest.importorskip("sacremoses")
    moses = Moses(language)
    split = [words.replace("@", "##AT##-##AT##") for words in cases.values()]
    assert [moses(line, compounds=True) for line in cases] == split
    assert [moses(line, compounds=False) for line in cases] == [words.replace(" @ ", "-") for words in cases.values()]


@pytest.mark.parametrize("language", ["", "xx", "german", "txt"])
def test_a_language_that_moses_does_not_know_is_a_users_error(language):
    pytest.importorskip("sacremoses")
    with pytest.raises(
        UserError, match=f"the language of the reference, '{language}', is none of as, .*, de, "
    ) as error:
        Moses(language)
    assert error.value.hint is not None
    assert "--language CODE" in error.value.hint


def test_without_sacremoses_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UserError, match="sacremoses is not installed") as error:
        Moses("de")
    assert error.value.hint == "pip install sacremoses"


@pytest.mark.parametrize(
    ("path", "language"),
    [("test.de", "de"), ("data/test.2014.fr.gz", "fr"), ("ref.gz", ""), ("/dev/fd/63", ""), ("a.b/test", "")],
)
def test_a_files_name_says_its_language(path, language):
    assert language_of(Path(path)) == language
