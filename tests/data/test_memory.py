"""Which translation a memory has for a string of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nmt.data.memory import TranslationMemory
from nmt.formats.bilingual import BilingualFile
from nmt.recipe import Data, Dataset

pytest.importorskip("translate", reason="needs the package translate-toolkit")

RUSSIAN = "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
THREE, FOUR = f"nplurals=3; plural={RUSSIAN}", f"nplurals=4; plural=n==1 ? 3 : {RUSSIAN}"
PLURAL = 'msgid "{}"\nmsgid_plural "%d files"\n'

Recall = Callable[..., list[list[str]]]


@pytest.fixture
def recall(tmp_path: Path) -> Recall:
    def opened(name: str, units: str, plurals: str, mark: str) -> Path:
        header = f'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {plurals};\\n"\n'
        path = tmp_path / name
        path.write_text(f'{header}"X-Accelerator-Marker: {mark}\\n"\n\n{units}')
        return path

    def recalled(
        memory: str, wanted: str, plurals: Sequence[str] = (THREE, THREE), marks: Sequence[str] = ("_", "_")
    ) -> list[list[str]]:
        """The translations of the forms of each unit that is wanted, from a memory of one file."""
        known = Dataset(file=str(opened("memory.po", memory, plurals[0], marks[0])))
        data = Data(name="x", source="en", target="uk", train=(known,))
        file = BilingualFile(opened("app.po", wanted, plurals[1], marks[1]), data.languages)
        strings = {unit: [file.string(unit, form) for form in range(len(unit.sources))] for unit in file.units}
        found = TranslationMemory([string for own in strings.values() for string in own], [known], data)
        forms = [[found.recall_form(unit, *each, "app") for each in enumerate(own)] for unit, own in strings.items()]
        return [[each[1] if each else "" for each in own] for own in forms]

    return recalled


def unit(source: str, target: str = "", context: str = "") -> str:
    before = f'msgctxt "{context}"\n' if context else ""
    return f'{before}msgid "{source}"\nmsgstr "{target}"\n\n'


def forms(*texts: str) -> str:
    return "".join(f'msgstr[{form}] "{text}"\n' for form, text in enumerate(texts)) + "\n"


@pytest.mark.parametrize("singular", ["One file", "%d file"])
def test_a_plural_takes_the_forms_for_its_numbers(recall: Recall, singular: str) -> None:
    four = PLURAL.format(singular) + forms("%d файл", "%d файли", "%d файлів", "Один файл")
    three = PLURAL.format(singular) + forms("%d файл", "%d файли", "%d файлів")
    empty = PLURAL.format(singular) + forms("")
    assert recall(four, empty, (FOUR, THREE)) == [["%d файл", "%d файли", "%d файлів"]]
    of_one = "%d файл" if singular == "%d file" else ""
    assert recall(three, empty, (THREE, FOUR)) == [["%d файл", "%d файли", "%d файлів", of_one]]


def test_a_form_that_lacks_a_placeholder_is_not_taken_for_several_numbers(recall: Recall) -> None:
    memory = PLURAL.format("One file") + forms("Один файл", "%s файли", "%1$d файлів")
    assert recall(memory, PLURAL.format("One file") + forms("")) == [["", "", "%1$d файлів"]]


def test_what_is_no_plural_is_taken_for_a_form_only_if_no_other_has_its_source(recall: Recall) -> None:
    memory = unit("%d file", "%d файл") + unit("%d files", "%d файлів")
    assert recall(memory, PLURAL.format("%d file") + forms("")) == [["%d файл", "", ""]]
    two = "nplurals=2; plural=n != 1"
    assert recall(memory, PLURAL.format("%d file") + forms(""), (two, two)) == [["%d файл", "%d файлів"]]
    assert recall(PLURAL.format("%d file") + forms("а %d", "б %d", "в %d"), unit("%d file")) == [["а %d"]]


def test_a_string_without_a_context_takes_one_without(recall: Recall) -> None:
    memory = unit("Open", "Відкрити", "verb") + unit("Open", "Відкрити", "button") + unit("Open", "Відкритий")
    assert recall(memory, unit("Open") + unit("Open", context="verb")) == [["Відкритий"], ["Відкрити"]]


@pytest.mark.parametrize(
    ("memory", "source", "expected"),
    [
        ([("_File", "Файл", "a"), ("_File", "Файл", "b"), ("_File", "_Файл", "c")], "_File", "_Файл"),
        ([("_File", "Файл", "a")], "_File", "_Файл"),
        ([("File", "Файл", "a")], "_File", "_Файл"),
        ([("_File", "_Файл", "a")], "File", "Файл"),
        ([("_File", "Файл (_F)", "a")], "_File", "Файл (_F)"),
        ([("Name:", "Назва", "a"), ("Name:", "Назва", "b"), ("Name:", "Ім’я:", "c")], "Name:", "Ім’я:"),
        ([("Name:", "Назва", "a")], "Name:", "Назва"),
    ],
)
def test_a_translation_with_the_mark_wins_and_one_without_gets_it(
    recall: Recall, memory: list[tuple[str, str, str]], source: str, expected: str
) -> None:
    assert recall("".join(unit(*each) for each in memory), unit(source, context="d")) == [[expected]]


def test_the_text_as_it_stands_is_looked_up_first(recall: Recall) -> None:
    """What is a mark in one file is none in another."""
    for marks in (("&", "_"), ("_", "&")):
        assert recall(unit("_File", "_Файл") + unit("File", "Файл"), unit("_File"), marks=marks) == [["_Файл"]]


def test_a_file_named_as_memory_wins_over_training_data(tmp_path: Path) -> None:
    header = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    for name, text in (("named", "Zu"), ("trained", "Schließen"), ("app", "")):
        (tmp_path / f"{name}.po").write_text(header + unit("Close", text))
    named, trained = (Dataset(file=str(tmp_path / f"{name}.po")) for name in ("named", "trained"))
    data = Data(name="x", source="en", target="de", train=(trained,))
    file = BilingualFile(tmp_path / "app.po", data.languages)
    string = file.string(file.units[0], 0)
    for sets, text in ((((named,), (trained,)), "Zu"), (((), (named, trained)), "Schließen")):
        found = TranslationMemory([string], sets[0], data, sets[1]).recall_form(file.units[0], 0, string, "trained")
        assert found is not None
        assert found[1] == text
