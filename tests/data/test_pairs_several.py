"""Data sets of several files, whole files that are set aside, and the memory that they are."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from prepared import QUIET, recipe, report, sentences, table, write

from nmt.data.memory import TranslationMemory
from nmt.data.pairs import check_inputs, read_pairs
from nmt.data.prepare import prepare
from nmt.recipe import Data, Dataset
from nmt.system.errors import UserError

HEADER = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("po").mkdir()
    for name in ("b", "a"):
        write(f"{name}.en", [f"{name} one", f"{name} two"])
        write(f"{name}.de", [f"{name} eins", f"{name} zwei"])
        write(f"folder/{name}.tsv", [f"{name}\t{name.upper()}"])


def data() -> Data:
    return Data(name="x", source="en", target="de", train=(Dataset(file="unused.tsv"),))


def test_patterns_and_folders_stand_for_files_in_order() -> None:
    found = list(read_pairs(Dataset(source="?.en", target="?.de"), data()))
    assert found == [
        (f"{name} {one}", f"{name} {ein}") for name in "ab" for one, ein in (("one", "eins"), ("two", "zwei"))
    ]
    assert check_inputs([Dataset(source="?.en", target="?.de")], data()) == 4
    for name in ("folder", "folder/*.tsv", "**/*.tsv"):
        assert list(read_pairs(Dataset(file=name), data())) == [("a", "A"), ("b", "B")]


@pytest.mark.parametrize(
    ("dataset", "problem"),
    [
        ({"source": "?.en", "target": "a.de"}, r"\?\.en stands for 2 files and a\.de for 1"),
        ({"file": "none/*.po"}, r"none/\*\.po: no such file"),
        ({"file": "empty"}, "empty: holds no files that end in .tsv"),
    ],
)
def test_what_stands_for_no_files_is_an_error(dataset: dict[str, str], problem: str) -> None:
    Path("empty").mkdir()
    with pytest.raises(UserError, match=problem):
        check_inputs([Dataset.model_validate(dataset)], data())


@pytest.mark.parametrize(
    ("source", "target", "names"),
    [
        ("u/*_en.txt", "v/*.de", ("u/{}_en.txt", "v/{}.de")),  # 10_en.txt stands before 1_en.txt, 1.de before 10.de
        ("u/*.en", "u/*-de.txt", ("u/{}.en", "u/{}-de.txt")),
        ("u/part-[0-9]*.en", "v/de.part*", ("u/part-{}.en", "v/de.part{}")),
        ("u/**/x*.en", "v/**/x*", ("u/{0}/x{0}.en", "v/{0}/x{0}")),
        ("[u]/*.en", "v/*.de", ("u/{}.en", "v/{}.de")),
    ],
)
def test_partners_have_the_same_in_place_of_the_wildcards(source: str, target: str, names: tuple[str, str]) -> None:
    numbers = ["1", "10", "1-b", "2"]
    for number in numbers:
        for side, name in zip(("en", "de"), names, strict=True):
            path = Path(name.format(number))
            path.parent.mkdir(parents=True, exist_ok=True)
            write(str(path), [f"{side} {number}"])
    found = list(read_pairs(Dataset(source=source, target=target), data()))
    assert sorted(found) == sorted((f"en {number}", f"de {number}") for number in numbers)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_files_without_a_partner_are_named(split: str) -> None:
    write("folder/a.en", ["one"])
    write("folder/a.de", ["eins"])
    write("folder/b.en", ["two"])
    write("folder/c.de", ["drei"])
    sets = {"train": [{"file": "folder/a.tsv"}], split: [{"source": "folder/*.en", "target": "folder/*.de"}]}
    with pytest.raises(UserError, match=r"^folder/b\.en, folder/c\.de: no partner among .* folder/\*\.en and") as error:
        prepare(recipe(data=sets), QUIET, 1)
    assert error.value.hint


def test_whole_files_are_set_aside_with_the_sources_that_no_other_has() -> None:
    for number in range(6):
        sides = [["Cancel", *sentences(20, number)], ["Abbruch", *sentences(20, number + 10)]]
        write(f"po/{number}.tsv", map("\t".join, zip(*sides, strict=True)))
    take = {"train": [{"file": "po"}], "valid": {"take": "1 file"}, "test": {"take": "2 files"}}
    prepare(recipe(data=take), QUIET, 1)
    texts = {split: {*table(split)["source_text"].to_pylist()} for split in ("valid", "test")}
    files = [{*sentences(20, number)} for number in range(6)]
    held = [file for file in files if file & (texts["valid"] | texts["test"])]
    assert len(held) == 3
    assert texts["valid"] in held
    assert texts["test"] in [one | other for one in held for other in held if one is not other]
    assert report("train")["read"] == 3 * 21  # among them Cancel, which nobody sets aside
    Path("po/6.tsv").write_text("new\tneu\n")
    prepare(recipe(data=take), QUIET, 1)
    others = {*table("test")["source_text"].to_pylist()}
    assert others == texts["test"] or "new" in others  # files keep their places when others come
    Path("po/6.tsv").unlink()
    for number in range(6):
        Path(f"po/{number}.tsv").rename(f"po/renamed-{9 - number}.tsv")
    prepare(recipe(data=take), QUIET, 1)
    assert {*table("test")["source_text"].to_pylist()} == texts["test"]  # and when they have other names
    with pytest.raises(UserError, match=r"data\.valid and data\.test: take 7 files, but data\.train has 6"):
        prepare(recipe(data=take | {"valid": {"take": "5 files"}}), QUIET, 1)


def test_files_of_few_strings_are_not_set_aside() -> None:
    for number in range(12):
        count = 40 if number < 4 else 2
        sides = sentences(count, number), sentences(count, number + 20)
        write(f"po/{number}.tsv", map("\t".join, zip(*sides, strict=True)))
    take = {"train": [{"file": "po"}], "valid": {"take": "1 file"}, "test": {"take": "2 files"}}
    prepare(recipe(data=take), QUIET, 1)
    assert [len(table(split)) for split in ("valid", "test")] == [40, 80]


def tmx(path: str, *units: str) -> None:
    """Writes a TMX with units of the languages that each names."""
    texts = (
        f'<tu>{"".join(f"""<tuv xml:lang="{code}"><seg>{code} {number}</seg></tuv>""" for code in unit.split())}</tu>'
        for number, unit in enumerate(units)
    )
    header = '<?xml version="1.0"?><tmx version="1.4"><header srclang="*all*" datatype="plaintext"/><body>'
    Path(path).write_text(f"{header}{''.join(texts)}</body></tmx>")


def test_units_without_one_of_the_languages_are_counted() -> None:
    pytest.importorskip("translate", reason="needs the package translate-toolkit")
    tmx("po/a.tmx", "en de fr", "de fr", "fr EN-US DE_at", "en")
    tmx("po/b.tmx", "de fr")
    write("texts.tsv", map("\t".join, zip(sentences(60, 1), sentences(60, 2), strict=True)))
    prepare(recipe(data={"train": [{"file": "texts.tsv"}, {"file": "po"}], "valid": [], "test": []}), QUIET, 1)
    train = report("train")
    assert train["kept by set"][1] == 2
    assert train["units without one of the languages"] == 3
    assert train["examples"]["units without one of the languages"] == [
        "po/a.tmx: 2 units; languages en, de, fr, en-us, de-at",
        "po/b.tmx: 1 units; languages de, fr",
    ]
    with pytest.raises(UserError, match=r"^po/b\.tmx: no unit has both en and de, the languages are de, fr") as error:
        list(read_pairs(Dataset(file="po/b.tmx"), data()))
    assert "languages: [de, fr]" in error.value.hint


def test_files_of_other_languages_and_typescript_are_not_learned_from() -> None:
    pytest.importorskip("translate", reason="needs the package translate-toolkit")
    po("de", ("", "Open", "Öffnen"), language="de_AT")
    po("fr", ("", "Open", "Ouvrir"), ("", "Save", "Enregistrer"), language="fra")
    Path("po/web.ts").write_text("export const a = 1;\n")
    write("texts.tsv", map("\t".join, zip(sentences(60, 1), sentences(60, 2), strict=True)))
    prepare(recipe(data={"train": [{"file": "texts.tsv"}, {"file": "po"}], "valid": [], "test": []}), QUIET, 1)
    train = report("train")
    assert train["kept by set"][1] == 1
    assert train["examples"]["units without one of the languages"] == ["po/fr.po: 2 units; languages fra"]
    with pytest.raises(UserError, match=r"^po/fr\.po: says that its translations are in fra, not in de"):
        list(read_pairs(Dataset(file="po/fr.po"), data()))
    po("de_CH", ("", "Close", "Schliessen"), language="de")
    for code in ("es", "it", "pl", "pt"):
        po(code, ("", "Close", code), language=code)
    take = {"train": [{"file": "texts.tsv"}, {"file": "po"}], "valid": {"take": "3 files"}, "test": []}
    with pytest.raises(UserError, match=r"data\.valid: take 3 files, but data\.train has 3"):
        prepare(recipe(data=take), QUIET, 1)
    memory = TranslationMemory(None, [Dataset(file="po")], data())
    assert (memory.recall("Open", "Open") is not None, memory.recall("Save", "Save")) == (True, None)
    for path in Path("po").glob("de*"):
        path.unlink()
    with pytest.raises(UserError, match="no unit has both en and de, the languages are es, fra, it, pl, pt"):
        list(read_pairs(Dataset(file="po"), data()))


def test_compressed_files_of_translators_are_read() -> None:
    pytest.importorskip("translate", reason="needs the package translate-toolkit")
    tmx("po/a.tmx", "en de")
    Path("po/a.tmx.gz").write_bytes(gzip.compress(Path("po/a.tmx").read_bytes()))
    assert list(read_pairs(Dataset(file="po/a.tmx.gz"), data())) == [("en 0", "de 0")]


def po(name: str, *units: tuple[str, str, str], language: str = "") -> None:
    texts = (f'\nmsgctxt "{context}"\nmsgid "{source}"\nmsgstr "{target}"\n' for context, source, target in units)
    Path(f"po/{name}.po").write_text(HEADER + f'"Language: {language}\\n"\n' + "".join(texts))


def test_the_memory_prefers_the_same_source_then_context_then_file_then_frequency() -> None:
    pytest.importorskip("translate", reason="needs the package translate-toolkit")
    po("a", ("menu", "Open", "Öffnen"), ("state", "Open", "Offen"), ("", "_Save", "_Sichern"))
    po("b", ("x", "Open", "Auf"), ("y", "Open", "Öffnen"), ("", "Save", "Speichern"))
    memory = TranslationMemory(None, [Dataset(file="po")], data())
    said = [memory.recall("Open", "Open", *where) for where in (("state", "b"), ("", "b"), ("", "c"))]
    assert [found and found.target for found in said] == ["Offen", "Öffnen", "Öffnen"]
    assert [(found := memory.recall("Save", text)) and found.target for text in ("Save", "_Save")] == [
        *("Speichern", "_Sichern")
    ]
    assert (found := memory.recall("Save", "Sa_ve")) is not None
    assert found.bare in ("Speichern", "Sichern")
    assert memory.recall("Close", "Close") is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  Open file\t", "  Datei öffnen\t"),
        ("Open file…", "Datei öffnen…"),
        ("OPEN FILE:", "DATEI ÖFFNEN:"),
        ("open file", "Datei öffnen"),  # which has a noun
        (" The %s cat! ", " Die %s Katze! "),
        ("the %s CAT", "die %s Katze"),
        ("THE %s CAT...", "DIE %s KATZE..."),
        ("THE %S CAT", None),
        ("So.", "So!"),  # found exactly
        ("SO", "SO"),
        ("Ready: ", "Prêt\xa0: "),
        ("Ready!", "Prêt\xa0!"),
        ("Ready", "Prêt"),
        ("Close:", "关闭："),
        ("打开。", "Open."),
        ("打开：", "Open:"),
        ("हो गया", "Done"),
        ("हो गया:", "Done:"),
        ("Ended", "समाप्त"),
        ("Do not stop", None),  # in capitals, of which the words' own are unknown
        ("DO NOT STOP.", "NICHT HALTEN."),
        ("The cat?", None),
        ("...", None),
        (" ", None),
    ],
)
def test_a_line_is_recalled_whatever_its_edges_capitals_and_end(line: str, expected: str | None) -> None:
    pairs = {
        **{
            "Open file": "Datei öffnen",
            "the %s cat.": "die %s Katze.",
            "So.": "So!",
            "so": "so",
            "Ready:": "Prêt\xa0:",
        },
        **{"打开": "Open", "हो गया।": "Done.", "Ended.": "समाप्त।"},
        **{"Close.": "关闭。", "DO NOT STOP!": "NICHT HALTEN!", "The cat": "Die Katze"},
    }
    write("memory.tsv", [f"{source}\t{target}" for source, target in pairs.items()])
    assert TranslationMemory(None, [Dataset(file="memory.tsv")], data()).recall_line(line) == expected


@pytest.mark.parametrize(
    ("languages", "line", "expected"),
    [
        (("tr", "el"), "IŞIK İPTAL", "ΑΚΥΡΟ ΦΩΣ"),
        (("tr", "el"), "İşik iptal", None),
        (("el", "tr"), "ΑΚΥΡΟ ΦΩΣ", "IŞIK İPTAL"),
        (("el", "tr"), "Άκυρο φως", "Işık iptal"),
        (("el", "tr"), "ακυρο φως", None),  # other accents are other words
    ],
)
def test_capitals_of_a_memory_are_those_of_its_languages(
    languages: tuple[str, str], line: str, expected: str | None
) -> None:
    source, target = languages
    texts = {"tr": "ışık iptal", "el": "άκυρο φως"}
    write("memory.tsv", [f"{texts[source]}\t{texts[target]}"])
    own = Data(name="x", source=source, target=target, train=(Dataset(file="unused.tsv"),))
    assert TranslationMemory(None, [Dataset(file="memory.tsv")], own).recall_line(line) == expected
