"""`nmt translate --input app.po --output app.sv.po`: files in, files out, and translations of the memory first."""

from __future__ import annotations

import gzip
import math
import re
import shutil
from pathlib import Path

import pytest

from nmt.checkpoint.writing import add_info
from nmt.formats.confidence import Confidence

pytest.importorskip("translate", reason="needs the package translate-toolkit")

HEADER = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"X-Accelerator-Marker: _\\n"\n'
UNITS = {
    "_a b c": "",  # the model reverses letters
    "a b:\\n": "",
    "d e %s": "",
    "f g h": "done already",
    "known": "",
    "_known": "",
    "<b>h i</b> j": "",
    "%d": "",
}


def po(units: dict[str, str]) -> str:
    return HEADER + "".join(f'\nmsgid "{source}"\nmsgstr "{target}"\n' for source, target in units.items())


def read(path: Path) -> dict[str, str]:
    return dict(re.findall(r'^msgid "(.+)"\nmsgstr "(.*)"$', path.read_text(), re.M))


@pytest.fixture
def ready(reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    monkeypatch.chdir(tmp_path)
    Path("in/deep").mkdir(parents=True)
    Path("in/a.po").write_text(po(UNITS))
    Path("in/deep/b.po").write_text(po({"c d e": "", "a b:\\n": ""}))
    Path("empty").mkdir()
    Path("mixed").mkdir()
    Path("mixed/a.po").write_text(po(UNITS))
    Path("mixed/b.xlf").write_text("<xliff")
    Path("web").mkdir()
    Path("web/a.ts").write_text("export const a = 1;\n")
    Path("memory.po").write_text(po({"known": "bekannt", "f g h": "unused"}))
    return ("translate", "--model", reverse_run / "ckpts")


def test_open_units_are_translated_by_memory_and_search(nmt, ready: tuple[object, ...]) -> None:
    done = nmt(*ready, "--input", "in", "--output", "out/new", "--memory", "memory.po")
    assert done.code == 0, done.err
    found = read(Path("out/new/a.po"))
    assert found["f g h"] == "done already"
    assert found["known"] == "bekannt"
    assert found["_known"] == "be_kannt"
    assert found["_a b c"] == "c b _a"
    assert found["a b:\\n"].endswith(":\\n")
    assert found["%d"] == "%d"
    assert found["d e %s"].count("%s") == 1
    assert re.search("<b>.*</b>", found["<b>h i</b> j"])
    assert list(found) == list(UNITS)
    assert Path("out/new/a.po").read_text().count("#, fuzzy") == 7
    assert read(Path("out/new/deep/b.po")) == {"c d e": "e d c", "a b:\\n": found["a b:\\n"]}
    assert re.search(r"; 9 strings in files \(2\), 2 from memory, 0 left empty\n\Z", done.err)
    again = nmt(*ready, "--input", "out/new/a.po", "--output", "again.po")
    assert again.code == 0
    assert re.search("memory: 2 of 2 training files are not here .*, or name them by --memory\n", again.err)
    assert Path("again.po").read_bytes() == Path("out/new/a.po").read_bytes()  # nothing is open any more


def test_a_folder_is_translated_but_for_what_is_written_and_what_is_no_file_of_translators(
    nmt, ready: tuple[object, ...]
) -> None:
    for path, text in {
        "in/app.ts": "export const a = 1;\n",
        "in/b.TS": '<TS version="2.1"><context><name/><message><source>a b d</source></message></context></TS>',
        "in/res/more.xml": '<resources><string name="a">a b d</string></resources>',
        "in/res/colors.xml": '<resources><color name="a">#ffffff</color></resources>',
        "in/pom.xml": "<project>a b</project>",
        "in/a.pot": po({"b c": ""}),
    }.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
    Path("in/c.PO.gz").write_bytes(gzip.compress(po({"e f g": ""}).encode()))
    Path("in/link.po").symlink_to("nowhere.po")
    for _ in range(2):  # what the first one writes is no input of the second
        done = nmt(*ready, "--input", "in", "--output", "in/out")
        assert done.code == 0, done.err
        assert "left out, for they are no files of Qt Linguist (1): in/app.ts\n" in done.err
        found = {
            str(path.relative_to("in/out"))
            for path in Path("in/out").rglob("*")
            if path.is_file() and ".nmt" not in path.parts
        }
        assert found == {"a.po", "b.TS", "c.PO.gz", "deep/b.po", "res/more.xml"}
    assert ">d b a</translation>" in Path("in/out/b.TS").read_text()
    assert ">d b a</string>" in Path("in/out/res/more.xml").read_text()
    assert 'msgstr "g f e"' in gzip.decompress(Path("in/out/c.PO.gz").read_bytes()).decode()


@pytest.mark.parametrize(("name", "output"), [("a.pot", "b.po"), ("a.pot", "new/"), ("a.pot.gz", "b.po.gz")])
def test_a_template_is_filled(nmt, ready: tuple[object, ...], name: str, output: str) -> None:
    raw = po({"a b d": ""}).encode()
    Path(name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    Path("new").mkdir()
    done = nmt(*ready, "--input", name, "--output", output)
    assert done.code == 0, done.err
    written = Path("new/a.po" if output == "new/" else output).read_bytes()
    written = gzip.decompress(written) if output.endswith(".gz") else written
    assert b'msgstr "d b a"' in written


def test_what_cannot_be_filled_is_named_and_counted(nmt, ready: tuple[object, ...]) -> None:
    """Texts that nothing says are any."""
    array = "<array name='a'><item>b c</item></array><string name='d'>a b c</string>"
    Path("in/strings.xml").write_text(f"<resources>{array}</resources>")
    Path("in/a.po").unlink()
    done = nmt(*ready, "--input", "in", "--output", "out")
    assert done.code == 0, done.err
    assert "out/strings.xml: without a source: left empty: 'b c'\n" in done.err
    assert re.search(r"; 4 strings in files \(2\), 0 from memory, 1 left empty\n\Z", done.err)
    assert Path("out/strings.xml").read_text() == f"<resources>{array.replace('a b c', 'c b a')}</resources>"


def test_an_icu_message_that_stays_is_named_and_counted(nmt, ready: tuple[object, ...]) -> None:
    message = "{n, plural, one {# dog} other {# dogs}}"
    Path("in/a.po").write_text(HEADER + f'\nmsgid "{message}"\nmsgstr ""\n\nmsgid "a b"\nmsgstr ""\n')
    done = nmt(*ready, "--input", "in/a.po", "--output", "out.po")
    assert done.code == 0, done.err
    assert f"out.po: line 8: messages left: '{message}' -> '{message}'\n" in done.err
    assert done.err.endswith(", 0 left empty, 1 with ICU messages left as they are\n")
    assert read(Path("out.po"))[message] == message


def test_all_units_without_review_if_asked(nmt, ready: tuple[object, ...]) -> None:
    settings = ("--all", "--set", "decoding.review=false")
    done = nmt(*ready, "--input", "in/*.po", "--output", "out", *settings)
    assert done.code == 0, done.err
    assert read(Path("out/a.po"))["f g h"] == "h g f"
    assert "fuzzy" not in Path("out/a.po").read_text()


def test_a_number_marks_what_the_model_is_less_sure_of(nmt, ready: tuple[object, ...], reverse_run: Path) -> None:
    model = Path(shutil.copytree(reverse_run / "ckpts/averaged", "model"))
    limit = math.log(4.5)  # of symbols, in a table that is sure of shorter outputs
    sure = Confidence(means=(0, 0, limit, 0, 0, 0), scales=(1,) * 6, weights=(0, 0, -20.0, 0, 0, 0), bias=0)
    add_info(model, {"confidence": sure.model_dump()})
    command = ("translate", "--model", model, "--input", "in/deep/b.po", "--output", "b.po", "--memory", "memory.po")
    Path("in/deep/b.po").write_text(po({"c d e f": "", "a b d": "", "known": "", "_known": ""}))
    done = nmt(*command, "--set", "decoding.review=0.7")
    assert done.code == 0, done.err
    marked = re.findall(r'#, fuzzy\n(?:#.*\n)*msgid "(.+)"', Path("b.po").read_text())
    assert marked == ["c d e f", "_known"]  # the latter is not exactly what the memory has
    add_info(model, {"confidence": None})
    Path("b.po").unlink()
    done = nmt(*command, "--set", "decoding.review=0.7")
    assert (done.code, Path("b.po").exists()) == (1, False)
    assert "error: model: its bundle.json has no calibrated confidence\nhint: " in done.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--input", "in"), "need --output"),
        (("--input", "in/a.po", "--output", "a.xlf"), "--output a.xlf: does not end in .po"),
        (("--input", "in/a.po", "--output", "in/a.po", "--all"), "is also the input"),
        (("--all",), "--all is for files of translators"),
        (("--ledger", "a.tsv"), "--ledger is for files of translators"),
        (("--input", "page.html", "--output", "b.po"), "page.html: none of the formats that are"),
        (("--input", "empty", "--output", "b.po"), "empty: this folder has no files"),
        (("--input", "in/*.xlf", "--output", "b.po"), "in/*.xlf: no file matches this pattern"),
        (("--input", "none.po", "--output", "b.po"), "none.po: cannot be read: No such file"),
        (("--input", "web", "--output", "b.po"), "web/a.ts: is no file of Qt Linguist"),
        (
            ("--input", "in/a.po", "in/b.po", "--output", "b.po"),
            "'in/b.po' is an argument, but lines come from stdin or",
        ),
        (("--input", "app.resx", "--output", "b.po"), "app.resx: none of the formats that are"),
        (("--input", "in/a.po", "--output", "b.po.bz2x"), "--output b.po.bz2x: does not end in .po"),
        (("--input", "mixed", "--output", "b.po"), "mixed/b.xlf: cannot be read as .xlf"),
        (("--input", "in/a.po", "--output", "b.po", "--n-best", "2"), "--n-best is for lines"),
        (("--input", "in/a.po", "--output", "b.po", "--memory", "none.po"), "none.po: no such file"),
        (("--input", "memory.po", "--memory", "a.txt", "--output", "b.po"), "--memory a.txt: must end in one of"),
    ],
)
def test_what_does_not_fit_is_an_error(
    nmt, ready: tuple[object, ...], arguments: tuple[str, ...], problem: str
) -> None:
    done = nmt(*ready, *arguments)
    assert done.code in (1, 2)
    assert problem in done.err
    assert not Path("b.po").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *[(f"app{ending}", b"a b c\n") for ending in (".resx", ".strings", ".properties", ".arb", ".csv", ".DOCX")],
        *[(f"app{ending}", b"a b c\n") for ending in (".mo", ".yml", ".resx.gz", ".xml", ".php")],
        ("app.po.txt", b'# of somebody\n#: main.c:3\nmsgid "a b c"\nmsgstr ""\n'),
        ("context.in", b'\xef\xbb\xbfmsgctxt "menu"\nmsgid "a b c"\nmsgstr ""\n'),
        ("compressed", gzip.compress(b'msgid "a b c"\nmsgstr ""\n', mtime=0)),
        ("app.xlf.orig", b'<?xml version="1.0"?>\n<xliff>a b c</xliff>\n'),
        ("values", b'\n  <resources>\n<string name="a">a b c</string></resources>\n'),
        ("manual.ttx", '<?xml version="1.0"?>\n<TRADOStag>a b c</TRADOStag>\n'.encode("utf-16")),
        ("report", b"PK\x03\x04 a b c\n"),
        ("catalog", b"\xde\x12\x04\x95\0\0\0\0"),
    ],
)
def test_files_that_are_more_than_lines_are_not_translated_as_lines(
    nmt, ready: tuple[object, ...], name: str, content: bytes
) -> None:
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    done = nmt(*ready, "--input", name, "--output", "out.txt")
    assert done.code == 1
    assert f"{name}: none of the formats that are translated in files" in done.err
    assert re.search("nmt translate < FILE|Xcode|Translate Toolkit", done.err)
    assert not Path("out.txt").exists()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("en.json", "json2po -P en.json en.pot, and po2json --fuzzy -t en.json FILLED.po OUTPUT.json"),
        ("a.properties", "prop2po -P a.properties a.pot, and po2prop --fuzzy -t a.properties"),
        ("en.yml", "yaml2po -P en.yml en.pot, and po2yaml --fuzzy -t en.yml FILLED.po OUTPUT.yml"),
        ("en.json.gz", "nmt translate < FILE"),
        ("a.xcstrings", "let Xcode export XLIFF"),
        ("a.srt", "add --document"),
        ("a.arb", "nmt translate < FILE"),
    ],
)
def test_the_hint_says_how_other_formats_are_translated(nmt, ready: tuple[object, ...], name: str, hint: str) -> None:
    Path(name).write_bytes(b"a b c\n")
    done = nmt(*ready, "--input", name, "--output", "out.txt")
    assert hint in done.err.splitlines()[-1]


@pytest.mark.parametrize("content", [b"<a b> c\n", b"msgid a b\n", b"# a b c\n", b"a <?xml b\n", b"{a} b\n"])
def test_lines_that_only_begin_like_files_are_translated(nmt, ready: tuple[object, ...], content: bytes) -> None:
    Path("lines").write_bytes(content)
    done = nmt(*ready, "--input", "lines", "--output", "out.txt")
    assert done.code == 0, done.err
    assert len(Path("out.txt").read_bytes().splitlines()) == 1


def test_lines_are_recalled_if_a_memory_is_given(nmt, ready: tuple[object, ...]) -> None:
    done = nmt(*ready, "--memory", "memory.po", stdin=b"a b c\n  Known: \n\nf g h\n")
    assert done.out.decode() == "c b a\n  Bekannt: \n\nunused\n", done.err
    assert done.err.rstrip().endswith("; 2 from memory")


def test_a_memory_wins_over_terms_and_that_is_said_and_counted(nmt, ready: tuple[object, ...]) -> None:
    Path("terms.tsv").write_text("known\tgekannt\na\tb\n")
    done = nmt(*ready, "--input", "in/a.po", "--output", "out.po", "--memory", "memory.po", "--terms", "terms.tsv")
    assert done.code == 0, done.err
    assert read(Path("out.po"))["known"] == "bekannt"
    assert "from memory, not as in --terms: 'known' -> 'bekannt'\n" in done.err
    assert ", 2 from memory (2 not as in --terms), 0 left empty\n" in done.err


def test_a_plural_form_whose_number_is_lost_is_translated_without_it(nmt, ready: tuple[object, ...]) -> None:
    """The model knows no digits."""
    plural = 'msgid "a %d"\nmsgid_plural "b c %d"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    Path("in/a.po").write_text(HEADER + '"Plural-Forms: nplurals=2; plural=n != 1;\\n"\n\n' + plural)
    done = nmt(*ready, "--input", "in/a.po", "--output", "out.po")
    assert done.code == 0, done.err
    first, second = re.findall(r'msgstr\[.\] "(.*)"', Path("out.po").read_text())
    assert (first.count("%d"), second.count("%d")) == (1, 1)
