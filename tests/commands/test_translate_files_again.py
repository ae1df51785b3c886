"""Files of translators that are translated again: what people did stays, whatever is run and interrupts it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nmt.commands.ledger import Ledger
from nmt.commands.resume import Statistics
from nmt.commands.translate_files import FileTranslation, find_files
from nmt.formats.bilingual import BilingualFile
from nmt.recipe import Data, Dataset, Decoding
from nmt.system import files
from nmt.system.errors import Interrupted, UserError

pytest.importorskip("translate", reason="needs the package translate-toolkit")

DATA = Data(name="x", source="en", target="pl", train=(Dataset(file="unused.tsv"),))
FORMS = "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2);"
HEADER = f'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {FORMS}\\n"\n'


def po(*units: tuple[str, str]) -> str:
    return HEADER + "".join(f'\nmsgid "{source}"\nmsgstr "{target}"\n' for source, target in units)


def xliff(*units: tuple[str, str]) -> str:
    return (
        "<xliff version='1.2'><file source-language='en' target-language='pl'><body>"
        + "".join(
            f"\n<trans-unit id='{number}'><source>{source}</source>"
            + (f"<target>{target}</target>" if target else "")
            + "</trans-unit>"
            for number, (source, target) in enumerate(units)
        )
        + "\n</body></file></xliff>\n"
    )


def ts(*units: tuple[str, str]) -> str:
    return (
        '<TS version="2.1" language="pl"><context><name>A</name>'
        + "".join(
            f"\n<message>\n  <source>{source}</source>\n  "
            + (f"<translation>{target}</translation>" if target else '<translation type="unfinished"></translation>')
            + "\n</message>"
            for source, target in units
        )
        + "\n</context></TS>\n"
    )


def tmx(*units: tuple[str, str]) -> str:
    return (
        '<tmx version="1.4"><header srclang="en"/><body>'
        + "".join(
            f'\n<tu><tuv xml:lang="en"><seg>{source}</seg></tuv>'
            + (f'<tuv xml:lang="pl"><seg>{target}</seg></tuv>' if target else "")
            + "</tu>"
            for source, target in units
        )
        + "\n</body></tmx>\n"
    )


def android(*units: tuple[str, str]) -> str:
    return (
        "<resources>"
        + "".join(f'\n<string name="{source}">{source}</string>' for source, _ in units)
        + "\n</resources>\n"
    )


FORMATS = {"a.po": po, "a.xlf": xliff, "a.ts": ts, "a.tmx": tmx, "strings.xml": android}


@dataclass
class Model:
    """Stands for a model: it writes a source in capitals."""

    meanwhile: Callable[[], None] = lambda: None
    """What happens before each line"""
    seen: list[str] = field(default_factory=list)

    def stream(self, requests: Iterator[Any], searched: Callable[[int], None]) -> Iterator[Any]:
        for request in requests:
            self.meanwhile()
            self.seen.append(request.text)
            text = re.sub("(?<!%)[a-z]+", lambda word: word[0].upper(), request.text)
            yield SimpleNamespace(texts=[text.replace("LOST %s", "LOST")], parts=1, confidence=None)


def run(source: object, output: object, model: Model | None = None, resume: bool = False, **given: Any) -> list[str]:
    """Translate files; return what is said, and the last line."""
    said, model = list[str](), model or Model()
    memory = [Dataset(file=str(path)) for path in given.pop("memory", [])]
    ledger = given.pop("ledger", None)
    with ExitStack() as held:
        table = Ledger(ledger, said.append, held)
        jobs = find_files(Path(str(source)), Path(str(output)), False, said.append)
        everything = given.pop("everything", False)
        decoding = Decoding(**given)
        translation = FileTranslation(
            jobs, memory, [], DATA, decoding, said.append, held, table, {"a": 1}, resume, everything=everything
        )
        statistics = Statistics("translating", {"loops": lambda result: result.texts[0].count("LOOP")})
        translation.run(model, statistics)  # type: ignore[arg-type]
        return [*said, translation.summary]


def units(path: Path) -> dict[str, str]:
    """Return the translations of a file by their sources; those of Android by their names."""
    file = BilingualFile(path, DATA.languages)
    return {
        (unit.sources if file.has_sources else [unit.context])[0]: "|".join(
            unit.targets if file.has_sources else unit.sources
        )
        for unit in file.units
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_person_changed_stays_and_what_is_new_comes_in(here: Path, name: str) -> None:
    write = FORMATS[name]
    source, output = Path("in", name), Path("out", name)
    source.write_text(write(("one", ""), ("two", ""), ("three", "trzy")))
    run("in", "out")
    assert units(output)["one"] == "ONE"
    output.write_text(output.read_text().replace("ONE", "jeden &lt;1&gt;" if name != "a.po" else "jeden <1>"))
    source.write_text(write(("zero", ""), ("one", ""), ("two", ""), ("three", "trzy!")))
    said = run("in", "out")
    found = units(output)
    assert found["zero"], found["two"] == ("ZERO", "TWO")
    assert found["one"] == "jeden <1>"
    if name != "strings.xml":
        assert found["three"] == "trzy!"
    assert said[-1].endswith("1 kept as people left them"), said
    before = output.read_bytes()
    run("in", "out")
    assert output.read_bytes() == before
    assert not Path("out", f"{name}~").exists(), "nothing but translations was changed"
    run("in", "out", everything=True)
    assert units(output) | {"three": ""} == found | {"three": ""}


@pytest.mark.parametrize("name", FORMATS)
def test_without_a_record_all_that_is_filled_is_of_people(here: Path, name: str) -> None:
    source, output = Path("in", name), Path("out", name)
    source.write_text(FORMATS[name](("one", ""), ("two", "")))
    run("in", "out")
    written = output.read_bytes()
    shutil.rmtree("out/.nmt")
    model = Model()
    run("in", "out", model)
    assert model.seen == []
    assert units(output) == {"one": "ONE", "two": "TWO"}
    if name not in ("a.po", "a.ts", "a.tmx"):
        return
    assert output.read_bytes() == written


@pytest.mark.parametrize("name", ["a.po", "a.xlf", "a.ts", "a.tmx"])
def test_what_was_left_empty_and_filled_by_a_person_stays(here: Path, name: str) -> None:
    source, output = Path("in", name), Path("out", name)
    source.write_text(FORMATS[name](("one", ""), ("lost %s", "")))
    said = run("in", "out")
    assert said[0].endswith(": left empty: 'lost %s' -> 'LOST'")
    assert units(output)["lost %s"] == ""
    file = BilingualFile(output, DATA.languages)
    file.units[1].write(["zgubiony %s"], False)
    output.write_bytes(file.content())
    model = Model()
    run("in", "out", model)
    assert model.seen == ["one"]
    assert output.read_bytes() == file.content()


@pytest.mark.parametrize("name", FORMATS)
def test_corrections_outlive_any_commands_and_interruptions(
    here: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any three commands, for a folder, a file and in place, at ten moments: searches, and writes of any file."""
    source, output, left = Path("in", name), Path("out", name), [1 << 30]
    sync = files._sync

    def step(*path: Path) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        for each in path:
            sync(each)

    monkeypatch.setattr("nmt.system.files._sync", step)
    commands = [("in", "out"), (source, output), *([(output, output)] if name != "strings.xml" else [])]
    texts, corrected = ["one"], dict[str, str]()
    source.write_text(FORMATS[name](("one", "")))
    Path("in/deep").mkdir()
    run("in", "out")
    for moment in range(1, 11):
        texts = [f"new {'abcdefghijk'[moment]}", *texts]
        source.write_text(FORMATS[name](*((each, "") for each in texts)))
        Path("in/deep", name).write_text(source.read_text())
        for number, (given, written) in enumerate((*commands, ("in", "out"))):
            left[0] = moment if number < len(commands) else 1 << 30
            with suppress(Interrupted):
                run(given, written, Model(meanwhile=step), resume=(moment + number) % 2 == 1)
            left[0] = 1 << 30
            found = units(output)
            assert {text: found[text] for text in corrected} == corrected, (moment, number)
            own = next((each for each in texts if found.get(each) == each.upper()), None)
            if own:
                corrected[own] = f"mine {moment} {number}"
                text = re.sub(rf'(?<=[>"]){own.upper()}(?=[<"])', corrected[own], output.read_text())
                output.write_text(text)
    assert len(corrected) > 9


def test_a_person_may_save_the_output_while_it_is_translated(here: Path) -> None:
    source, output = Path("in/a.po"), Path("out.po")
    source.write_text(po(("one", ""), ("two", "")))
    run(source, output)

    def correct() -> None:
        output.write_text(output.read_text().replace('"ONE"', '"jeden"'))

    run(source, output, Model(meanwhile=correct))
    assert units(output) == {"one": "jeden", "two": "TWO"}


def test_both_sides_edited_keeps_the_output_and_says_so(here: Path) -> None:
    source, output = Path("in/a.po"), Path("out.po")
    source.write_text(po(("one", "a"), ("two", "a"), ("three", "")))
    run(source, output)
    output.write_text(output.read_text().replace('"a"', '"b"'))
    source.write_text(po(("one", "c"), ("two", "a"), ("three", "")))
    said = run(source, output)
    assert units(output) == {"one": "b", "two": "b", "three": "THREE"}
    assert "out.po: line 6: both changed: 'one' -> 'b'" in said
    assert len([line for line in said if "both changed" in line]) == 1


def test_a_corrected_unit_that_the_input_lost_is_in_a_copy(here: Path) -> None:
    source, output = Path("in/a.po"), Path("out.po")
    Path("out.po~").write_text("of somebody")
    source.write_text(po(("one", ""), ("two", "")))
    run(source, output)
    output.write_text(output.read_text().replace('"ONE"', '"jeden"'))
    source.write_text(po(("two", "")))
    said = run(source, output)
    assert "out.po~2: line 8: no longer in the input: 'one' -> 'jeden'" in said
    assert "out.po: its old version is out.po~2" in said
    assert units(output) == {"two": "TWO"}
    assert 'msgstr "jeden"' in Path("out.po~2").read_text()
    assert Path("out.po~").read_text() == "of somebody"


def test_in_place_only_gaps_are_filled_and_the_old_file_is_kept(here: Path) -> None:
    path = Path("in/a.po")
    Path("in/a.po~").write_text("of somebody")
    path.write_text(po(("one", "jeden"), ("two", "")))
    for number in range(2):
        before = path.read_text()
        said = run(path, path)
        assert said[-2] == f"{path}: its old version is in/a.po~2"
        assert Path("in/a.po~2").read_text() == before, "the copy is of nmt, and nothing of it is lost"
        path.write_text(path.read_text().replace('"TWO"', '"dwa"') + f'\nmsgid "new {number}"\nmsgstr ""\n')
    assert units(path) == {"one": "jeden", "two": "dwa", "new 0": "NEW 0", "new 1": ""}
    run(path, path)
    before = path.read_bytes()
    Path("in/a.po~2").unlink()
    run(path, path)
    assert path.read_bytes() == before
    assert not Path("in/a.po~2").exists(), "nothing was written"
    assert Path("in/a.po~").read_text() == "of somebody"
    assert run(path, path, resume=True)[-1].endswith("files done before: 1")
    with pytest.raises(UserError, match="is also the input, whose translations"):
        run(path, path, everything=True)
    for name in ("a.pot", "strings.xml"):
        Path(name).write_text(FORMATS.get(name, po)(("one", "")))
        with pytest.raises(UserError, match="is also the input, in which translations would replace the sources"):
            run(name, name)


PLURAL = '\nmsgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] "%d plik"\nmsgstr[1] ""\nmsgstr[2] ""\n'
NUMERUS = ts(("%n files", "y")).replace("<message>", '<message numerus="yes">')
NUMERUS = NUMERUS.replace(">y<", "><numerusform>%n plik &#x61;</numerusform><numerusform/><numerusform></numerusform><")


@pytest.mark.parametrize(("name", "text"), [("a.po", HEADER + PLURAL), ("a.ts", NUMERUS)])
def test_missing_forms_of_a_plural_are_filled_and_counted(here: Path, name: str, text: str) -> None:
    source, output = Path("in", name), Path("out", name)
    source.write_text(text)
    said = run("in", "out")
    assert said[-1].startswith("2 strings in files (1)")
    written = output.read_text()
    first = '"%d plik"' if name == "a.po" else ">%n plik &#x61;<"
    assert first in written
    assert len(re.findall("%[dn] FILES", written)) == 2
    assert ("#, fuzzy" if name == "a.po" else 'type="unfinished"') in written
    output.write_text(written.replace("plik", "Plik"))
    run("in", "out")
    assert output.read_text() == written.replace("plik", "Plik")


def test_resume_leaves_out_the_files_that_are_done(here: Path) -> None:
    for number in range(3):
        Path(f"in/{number}.po").write_text(po((f"a {number}", ""), (f"b {number}", "")))

    def end() -> None:
        if Path("out/0.po").exists():
            raise KeyboardInterrupt

    with pytest.raises(
        Interrupted, match="1 of 3 files are done; the same command with --resume translates the others"
    ):
        run("in", "out", Model(end))
    assert not Path("out/1.po").exists()
    model = Model()
    said = run("in", "out", model, resume=True)
    assert model.seen == ["a 1", "b 1", "a 2", "b 2"]
    assert said[-1].endswith("; files done before: 1")
    for change in ("in/2.po", "out/2.po"):
        Path(change).write_text(Path(change).read_text().replace('"A 2"', '"x"') + "\n# more\n")
        model = Model()
        run("in", "out", model, resume=True)
        assert model.seen[-1] == "b 2"
        assert len(model.seen) <= 2


def test_a_second_run_on_an_output_ends(here: Path) -> None:
    Path("in/a.po").write_text(po(("one", "")))
    Path("in/b.po").write_text(po(("one", "")))

    def second() -> None:
        with pytest.raises(UserError, match=r"out: another nmt is writing there"):
            run("in", "out")

    run("in", "out", Model(meanwhile=second))

    def other() -> None:
        run("in/b.po", "c.po")
        with pytest.raises(UserError, match=r"b.po: another nmt is writing there"):
            run("in/b.po", "b.po")

    run("in/a.po", "b.po", Model(meanwhile=other))


NOTED = {
    "a.po": ['# nmt: model\n#, fuzzy\nmsgid "one"', '# nmt: memory\n#, fuzzy\nmsgid "two"'],
    "a.xlf": [
        ' state="needs-review-translation" state-qualifier="mt-suggestion">ONE<',
        'state-qualifier="exact-match">dwa<',
    ],
    "a.ts": ["</source>\n  <translatorcomment>nmt: model</translatorcomment>\n  <translation type", ">nmt: memory<"],
    "a.tmx": ['<prop type="x-nmt">model</prop><seg>ONE</seg>', '<prop type="x-nmt">memory</prop><seg>dwa</seg>'],
}


@pytest.mark.parametrize("name", NOTED)
def test_a_note_says_where_a_translation_comes_from_until_it_is_reviewed(here: Path, name: str) -> None:
    source, output = Path("in", name), Path("out", name)
    source.write_text(FORMATS[name](("one", ""), ("two", ""), ("two", "dwa")))
    Path("memory.po").write_text(po(("two", "dwa")))
    memory = [Path("memory.po")]
    run("in", "out", memory=memory)
    written = output.read_text()
    assert all(note in written for note in NOTED[name]), written
    marks = {
        "a.po": "#, fuzzy\n",
        "a.xlf": ' state="needs-review-translation"',
        "a.ts": ' type="unfinished"',
        "a.tmx": "",
    }
    output.write_text(written.replace(marks[name], "").replace("ONE", "jeden"))
    run("in", "out", memory=memory)
    assert "jeden" in output.read_text()
    assert not re.search("nmt|qualifier", output.read_text().replace(NOTED["a.tmx"][1], "")), output.read_text()


def test_a_translation_of_segments_may_be_written_undivided(here: Path) -> None:
    source, output = Path("in/a.xlf"), Path("out.xlf")
    divided = "<seg-source><mrk mtype='seg' mid='1'>one.</mrk> <mrk mtype='seg' mid='2'>two.</mrk></seg-source>"
    source.write_text(xliff(("one. two.", ""), ("three", "")).replace("two.</source>", "two.</source>" + divided))
    run(source, output)
    written = output.read_text()
    assert ">ONE.</mrk> <mrk mtype='seg' mid='2'>TWO.</mrk></target>" in written
    output.write_text(re.sub("<target[^>]*><mrk.*</target>", "<target>jeden i dwa</target>", written))
    assert run(source, output)[-1].endswith("1 kept as people left them")
    assert "<target>jeden i dwa</target>" in output.read_text()


@pytest.mark.parametrize(
    ("opened", "edited"),
    [
        ("<trans-unit id='0' m:confirmed='0'>", "<trans-unit id='0' m:confirmed='1' m:by='A &amp; &quot;B&quot;'>"),
        ("<trans-unit id='0' mq:status='NotStarted'>", "<trans-unit id='0' mq:status='Confirmed' mq:locked='locked'>"),
        ("<trans-unit id='0'>", "<trans-unit id='0' translate='no'>"),
        ("<sdl:seg id='1'/>", "<sdl:seg id='1' conf='Translated'><sdl:value>x</sdl:value></sdl:seg>"),
        ("<sdl:seg id='1'/>", "<sdl:seg id='1' locked='true'/>"),
    ],
)
@pytest.mark.parametrize("text", ["ONE", ""])
def test_marks_and_locks_of_other_programs_stay(here: Path, opened: str, edited: str, text: str) -> None:
    source, output = Path("in/a.xlf"), Path("out.xlf")
    divided = "<source>one</source><seg-source><mrk mtype='seg' mid='1'>one</mrk></seg-source>"
    definitions = "<target><mrk mtype='seg' mid='1'/></target><sdl:seg-defs><sdl:seg id='1'/></sdl:seg-defs>"
    plain = xliff(("one", ""), ("two", ""))
    if "sdl" in opened:
        plain = plain.replace("<source>one</source>", divided + definitions)
    else:
        plain = plain.replace("<trans-unit id='0'>", opened)
    source.write_text(plain)
    run(source, output)
    changed = output.read_text().replace(opened, edited).replace("ONE", text)
    assert edited in changed
    output.write_text(changed)
    is_gap = not text and not ("locked" in edited or "translate" in edited)
    run(source, output)
    written = output.read_text().replace('"', "'")
    if is_gap:
        assert ">ONE<" in written
        return
    assert all(word in written for word in edited.split(" "))
    assert f">{text}<" in written
    before = output.read_bytes()
    run(source, output)
    assert output.read_bytes() == before


def test_comments_and_headers_of_people_stay(here: Path) -> None:
    source, output = Path("in/a.po"), Path("out.po")
    source.write_text(po(("one", ""), ("two", "")))
    run(source, output)
    edited = output.read_text().replace(
        '# nmt: model\n#, fuzzy\nmsgid "one"\nmsgstr "ONE"', '# sure?\nmsgid "one"\nmsgstr ""\n"je"\n"den"'
    )
    edited = edited.replace('msgid ""\nmsgstr ""\n', '# By me.\nmsgid ""\nmsgstr ""\n"Last-Translator: me\\n"\n', 1)
    output.write_text(edited)
    source.write_text(source.read_text().replace('msgid "one"', '#: a.c:2\nmsgid "one"'))
    run(source, output)
    assert output.read_text() == edited.replace("# sure?\n", "# sure?\n#: a.c:2\n")
    assert not Path("out.po~").exists()
    obsolete = '\n#~ msgid "old"\n#~ msgstr "stary"\n'
    output.write_text(output.read_text().replace('msgid "two"', 'msgid ""\n"two"') + obsolete)
    run(source, output)
    assert Path("out.po~").read_text().endswith(obsolete), "no unit of the input has it"
    assert output.read_text() == edited.replace("# sure?\n", "# sure?\n#: a.c:2\n")


def test_headers_of_people_stay_with_their_encoding_and_plural_forms(here: Path) -> None:
    """Editors convert a file to UTF-8, and correct the rule for plural forms."""
    source, output = Path("in/a.po"), Path("out.po")
    text = HEADER.replace("UTF-8", "iso-8859-2") + '\nmsgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\n'
    two = text.replace(FORMS, "nplurals=2; plural=n!=1;")
    source.write_text(two + '\nmsgid "old"\nmsgstr "zażółć"\n', "iso-8859-2")
    run(source, output)
    edited = output.read_text("iso-8859-2").replace("iso-8859-2", 'UTF-8\\n"\n"X-Editor: →')
    edited = edited.replace("nplurals=2; plural=n!=1;", FORMS).replace('msgstr[1] "', 'msgstr[2] "→')
    output.write_text(edited.replace("msgstr[2]", 'msgstr[1] "%d pliki"\nmsgstr[2]'))
    edited = output.read_text()
    assert run(source, output)[-1].endswith("1 kept as people left them")
    assert output.read_text() == edited
    assert not Path("out.po~").exists()
    translated = two.replace('msgstr[0] ""', 'msgstr[0] "%d plik"\nmsgstr[1] "%d pliki"').replace("file", "new file")
    source.write_text(translated, "iso-8859-2")
    run(source, output)
    assert re.findall(r"msgstr\[(\d)\] (.*)", output.read_text()) == [
        ("0", '"%d plik"'),
        ("1", '"%d pliki"'),
        ("2", '"%d NEW FILES"'),
    ]


@pytest.mark.parametrize(
    ("before", "after", "forms"),
    [
        (FORMS, "nplurals=2; plural=n!=1;", ["%d plik", "%d pliki"]),
        ("nplurals=2; plural=n!=1;", FORMS, ["%d plik", "%d pliki", "%d pliki"]),
        ("nplurals=2; plural=n!=1;", "nplurals=1; plural=0;", ["%d pliki"]),
    ],
)
def test_plural_forms_of_people_go_where_their_numbers_are(
    here: Path, before: str, after: str, forms: list[str]
) -> None:
    source, output = Path("in/a.po"), Path("out.po")
    text = HEADER + '\nmsgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\n'
    source.write_text(text.replace(FORMS, before))
    run(source, output)
    edited = output.read_text().replace("FILES", "pliki").replace("FILE", "plik")
    output.write_text(edited)
    source.write_text(text.replace(FORMS, after))
    run(source, output)
    assert re.findall(r'msgstr\[\d\] "(.*)"', output.read_text()) == forms
    assert after in output.read_text()
    output.write_text(output.read_text().replace('msgstr "', 'msgstr "X-Editor: me\\n"\n"', 1))
    source.write_text(text.replace(FORMS, before).replace('msgstr[0] ""', 'msgstr[0] "1"\nmsgstr[1] "2"'))
    run(source, output)
    assert "X-Editor: me" in output.read_text()


def test_previous_sources_go_as_people_take_them_out(here: Path) -> None:
    """Editors do so with the mark `fuzzy`."""
    source, output = Path("in/a.po"), Path("out.po")
    fuzzy = [f'\n#, fuzzy\n#| msgctxt "c"\n#| msgid "{text}"\nmsgid "{text}!"\nmsgstr "{text}"\n' for text in "ab"]
    source.write_text(HEADER + "".join(fuzzy))
    run(source, output)
    assert output.read_text() == source.read_text()
    edited = HEADER + '\nmsgid "a!"\nmsgstr "A!"\n' + fuzzy[1].replace('msgstr "b"', 'msgstr "B"')
    output.write_text(edited)
    run(source, output)
    assert output.read_text() == edited
    assert not Path("out.po~").exists()


def test_flags_that_people_add_stay(here: Path) -> None:
    source, output = Path("in/a.po"), Path("out.po")
    source.write_text(HEADER + '\n#, c-format\nmsgid "one"\nmsgstr ""\n\nmsgid "two"\nmsgstr ""\n')
    run(source, output)
    text = output.read_text()
    assert "#, fuzzy, c-format\n" in text
    edited = text.replace("#, fuzzy, c-format\n", "#, c-format, no-wrap\n").replace("#, fuzzy\n", "#, fuzzy, no-wrap\n")
    output.write_text(edited)
    run(source, output)
    assert output.read_text() == edited.replace("# nmt: model\n#, c", "#, c")  # which is reviewed


def test_marks_of_exact_matches_may_be_left_out(here: Path) -> None:
    Path("memory.po").write_text(po(("_Two", "_Dwa"), ("three", "trzy")) + '\nmsgctxt "x"\nmsgid "four"\nmsgstr "4"\n')
    Path("in/a.po").write_text(po(("_Two", ""), ("_three", ""), ("four", ""), ("one", "")))
    run("in", "out", memory=[Path("memory.po")], review="model")
    written = Path("out/a.po").read_text()
    assert '# nmt: memory\nmsgid "_Two"\nmsgstr "_Dwa"' in written
    assert '# nmt: near memory\n#, fuzzy\nmsgid "_three"\nmsgstr "_trzy"' in written
    assert '# nmt: memory\n#, fuzzy\nmsgid "four"\nmsgstr "4"' in written
    assert '# nmt: model\n#, fuzzy\nmsgid "one"' in written
    run("in", "out", memory=[Path("memory.po")], review="model")
    assert Path("out/a.po").read_text() == written


def test_defects_are_named_and_in_a_table(here: Path) -> None:
    Path("in/a.po").write_text(po(*((f"loop {number}", "") for number in range(12)), ("fine", ""), ("100%%d", "")))
    said = run("in", "out", ledger=Path("defects.tsv"))
    assert said[0] == "out/a.po: line 8: loops: 'loop 0' -> 'LOOP 0'"
    assert len([line for line in said if ": loops: " in line]) == 10
    assert "and more: loops 2; defects.tsv has all" in said
    rows = [line.split("\t") for line in Path("defects.tsv").read_text().splitlines()]
    assert rows[0] == ["file", "unit", "kind", "source", "translation"]
    assert rows[12] == ["out/a.po", "line 63", "loops", "loop 11", "LOOP 11"]
