"""Codes of languages: read in whatever form, compared, and written as BCP 47."""

from __future__ import annotations

import pytest

from nmt.text.language_codes import SYMBOLS, Language, direction_in, language_in, of_android


@pytest.mark.parametrize(
    ("tag", "codes"),
    [
        ("ru", "ru rus rus_Cyrl ru-Cyrl RU"),
        ("pt-BR", "pt_BR pt-br por_BR PT_BR.UTF-8 pt_Latn_BR"),
        ("de-DE", "de_DE.UTF-8@euro de-DE ger_DE"),
        ("sr-Latn", "sr@latin sr-Latn srp_Latn sh hbs"),
        ("sr", "sr srp_Cyrl sr@cyrillic"),
        ("zh-Hant", "zho_Hant zh-Hant zh-CHT"),
        ("ja", "ja jpn jpn_Jpan"),
        ("he", "iw heb_Hebr"),
        ("id", "in ind_Latn"),
        ("nb", "nb nob_Latn"),
        ("es-419", "es-419 spa_419"),
        ("en-GB", "en_GB@quot en-GB-x-private-us en-UK"),
        ("tree", "tree"),
    ],
)
def test_codes_of_any_form_become_one_tag(tag: str, codes: str) -> None:
    assert {code: Language.of(code).tag for code in codes.split(" ")} == dict.fromkeys(codes.split(" "), tag)


def test_codes_of_gettext_have_modifiers() -> None:
    for code in ("pt_BR", "sr@latin", "zh_Hant", "uz_UZ@cyrillic", "ru"):
        assert Language.of(code).posix == code


def test_each_language_of_nllb_has_a_tag_of_its_own_but_for_dialects() -> None:
    tags = [Language.of(code).tag for code in SYMBOLS["nllb"].split()]
    assert len({*tags}) == len(tags)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("rus_Cyrl", "ru_RU", True),
        ("pt_BR", "pt", True),
        ("pt_BR", "pt_PT", False),
        ("zho_Hant", "zh_TW", True),
        ("zh_CN", "zh_TW", False),
        ("zh", "zh_TW", False),
        ("zh", "zh-Hans", True),
        ("sr", "sr@latin", False),
        ("no", "nb", True),
        ("nn", "no", True),
        ("nn", "nb_NO", False),
        ("iw", "he", True),
        ("de", "deu_Latn", True),
        ("de", "fr", False),
    ],
)
def test_languages_are_the_same_unless_scripts_or_two_regions_differ(one: str, other: str, is_same: bool) -> None:
    assert Language.of(one).is_same(Language.of(other)) == is_same
    assert Language.of(other).is_same(Language.of(one)) == is_same


@pytest.mark.parametrize(
    ("code", "codes", "found"),
    [
        ("zho_Hant", "zh_CN zh_TW", "zh_TW"),
        ("pt_BR", "pt pt_PT pt_BR", "pt_BR"),
        ("es_MX", "es_AR es", "es"),
        ("sr@latin", "hr sr", "sr"),
        ("no", "de nb", "nb"),
        ("ltg", "lv lt", None),
    ],
)
def test_the_nearest_code_has_the_script_or_else_the_region(code: str, codes: str, found: str | None) -> None:
    assert Language.of(code).nearest(codes.split()) == found


def test_folders_of_android_name_languages() -> None:
    folders = {
        "values": "",
        "values-v21": "",
        "values-night-land": "",
        "values-car": "",
        "values-de": "de",
        "values-iw": "iw",
        "values-pt-rBR-night": "pt-BR",
        "values-mcc310-mnc004-en-rUS": "en-US",
        "values-b+sr+Latn": "sr-Latn",
    }
    assert {folder: of_android(folder) for folder in folders} == folders


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("zh-Hans", "zh-Hans"),
        ("zh_Hant_TW", "zh-Hant-TW"),
        ("sr-Latn", "sr-Latn"),
        ("deu_Latn", "de"),
        ("text_pt_BR", "pt-BR"),
        ("en_text", "en"),
        ("German", "de"),
        ("no-body", "no"),
        ("somebody", ""),
        ("English (US)", "en-US"),
        ("German (Germany)", "de"),
        ("Chinese (Traditional)", "zh-Hant"),
        ("Source (English)", "en"),
        ("German [de]", "de"),
        ("He said (Spanish)", ""),
        ("Englisch", "en"),
        ("texte_français", "fr"),
        ("英文", "en"),
    ],
)
def test_names_of_columns_name_a_language_with_its_script(name: str, code: str) -> None:
    assert language_in(name) == code


@pytest.mark.parametrize(
    ("name", "languages"),
    [
        ("news.en-de", ("en", "de")),
        ("en2de.train", ("en", "de")),
        ("PAIRS.EN-DE", ("en", "de")),
        ("x.en_US-zh_CN", ("en-US", "zh-CN")),
        ("en-pt-BR", ("en", "pt-BR")),
        ("en-zh-Hant", ("en", "zh-Hant")),
        ("eng_Latn-deu_Latn", ("en", "de")),
        ("europarl-en-de", ("en", "de")),
        ("en-pt-br", None),
        ("my-en-de", ("en", "de")),
        ("en-de-fr", None),
        ("en-en", None),
        ("en-pt_br", ("en", "pt-BR")),
        ("zh_cn-en", ("zh-CN", "en")),
        ("X.EN-PT_BR", ("en", "pt-BR")),
        ("Sentence pairs in English-German - 2024-05-01", ("en", "de")),
        ("deutsch_englisch_train", ("de", "en")),
        ("english-german-french", None),
        ("english-notes-german", None),
    ],
)
def test_names_of_files_tell_a_direction_unless_it_is_not_clear(name: str, languages: tuple[str, str] | None) -> None:
    assert direction_in(name) == languages
