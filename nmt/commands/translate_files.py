"""`nmt translate --input app.po --output app.sv.po`: the open units of translators' files, by memory and by search."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

import click

from nmt.commands.resume import Statistics
from nmt.data.memory import TranslationMemory
from nmt.decoding.engine import Request
from nmt.decoding.pipeline import Pipeline
from nmt.formats.bilingual import BilingualFile
from nmt.formats.strings import ProgramString, read_string
from nmt.formats.units import Unit
from nmt.recipe import Data, Dataset, Decoding
from nmt.system.compression import DAMAGED, decompressed, open_input, split_suffix
from nmt.system.errors import UserError
from nmt.system.files import check_place, make_directory, whole_file

WRITTEN = (".po", ".tmx", ".xliff", ".xlf", ".ts", "strings.xml")
REFUSED = (
    *(".mo", ".gmo", ".pot", ".sdlxliff", ".mxliff", ".mqxliff", ".qm", ".tbx"),
    *(".resx", ".resw", ".strings", ".stringsdict", ".xcstrings", ".properties", ".arb", ".json", ".yaml", ".yml"),
    *(".html", ".htm", ".xhtml", ".xml", ".md", ".markdown", ".srt", ".vtt", ".csv"),
    *(".docx", ".xlsx", ".pptx", ".odt", ".ods", ".odp", ".epub", ".idml", ".rtf", ".pdf"),
)
"""Endings of files that would not come back whole if they were translated as lines"""
CONTENT = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:\xde\x12\x04\x95|\x95\x04\x12\xde|PK\x03\x04|%PDF-|{\\rtf|WEBVTT"
    rb"|\s*<(?:\?xml\s|!DOCTYPE\s|(?:html|xliff|tmx|TS|resources)[\s>])"
    rb"|(?:\s*#[^\n]*\n)*\s*msg(?:id|ctxt) \")"
)
"""How such files begin, whatever their names: catalogs, office documents, PDF, RTF, WebVTT, XML and PO"""
HEAD = 1 << 16  # bytes to look at: a PO file may begin with a long comment
SHOWN = 60  # characters of a source in a complaint


def find_files(source: Path | None, output: Path | None, is_text: bool) -> list[tuple[Path, Path]]:
    """Return the files of translators that --input names, each with its output; [] if it names lines or `is_text`.

    Raise UsageError unless --output fits, and UserError if an output is an input, or a format none of WRITTEN.
    """
    if source is None:
        return []
    root, found = source, [source]
    if source.is_dir():
        found = sorted(path for path in source.rglob("*") if _ends(path, WRITTEN) and path.is_file())
    elif not source.exists() and re.search(r"[*?\[]", str(source)):
        found = sorted(Path(name) for name in glob(str(source), recursive=True))
        root = Path(re.split(r"[*?\[]", str(source))[0] + "x").parent
    if found and not any(_ends(path, WRITTEN) or (not is_text and _is_of_a_format(path)) for path in found):
        return []
    refused = next((path for path in found or [source] if not _ends(path, WRITTEN)), None)
    if refused:
        hint = "--document translates text and Markdown, --markup lines with tags, and nmt translate < FILE any lines"
        if split_suffix(refused)[1]:
            hint = "decompress it first; nmt translate < FILE translates it as lines"
        raise UserError(f"{refused}: none of the formats that are translated in files: {', '.join(WRITTEN)}", hint)
    if output is None:
        raise click.UsageError("files of translators need --output: a file, or a folder for several")
    files = [(source, output)]
    if output.is_dir() or found != [source]:
        files = [(path, output / (path.name if root == path else path.relative_to(root))) for path in found]
    for path, out in files:
        if out.suffix.lower() != path.suffix.lower():
            raise UserError(f"--output {out}: does not end in {path.suffix}", "an output has the format of its input")
        if out.exists() and out.samefile(path):
            raise UserError(f"--output {out}: is also the input", "give --output another file or folder")
        if out.is_symlink():
            check_place(out)
    return files


def _is_of_a_format(path: Path) -> bool:
    """Return whether a file, perhaps compressed, is of a format with more than lines: by its name or its content."""
    if _ends(Path(split_suffix(path)[0]), WRITTEN + REFUSED):
        return True
    if not path.is_file():
        return False
    try:
        with open_input(path) as file, decompressed(file, path) as stream:
            return CONTENT.match(stream.read(HEAD)) is not None
    except DAMAGED:  # which reading its lines will say
        return False


def _ends(path: Path, endings: tuple[str, ...]) -> bool:
    return path.name.lower().endswith(endings)


@dataclass
class _Job:
    """A file to translate."""

    file: BilingualFile
    output: Path
    units: list[tuple[Unit, list[ProgramString], list[str]]]
    """Open units, the strings of their forms, and translations of these from memory, "" for those to search for"""
    unfilled: list[tuple[str, int]]
    """Sources of other gaps, each with their number: of forms beside translated ones, and of what has no source here"""
    texts: list[str] = field(default_factory=list)
    """What is to be searched for, and no earlier file has"""

    @classmethod
    def of(cls, file: BilingualFile, output: Path, everything: bool) -> _Job:
        """Return the job of a file: what is open in it or, with `everything`, all."""
        units = [unit for unit in file.units if unit.is_open or everything]
        partly = [unit for unit in file.units if unit.gaps and not (unit.is_open or everything)]
        unfilled = [(unit.sources[-1], unit.gaps) for unit in partly] + [(source, 1) for source in file.unfilled]
        return cls(file, output, [(unit, [*map(file.string, unit.sources)], []) for unit in units], unfilled)


class FileTranslation:
    """The translation of files, and counts of what became of their strings."""

    def __init__(
        self,
        files: Sequence[tuple[Path, Path]],
        datasets: Sequence[Dataset],
        data: Data,
        decoding: Decoding,
        say: Callable[[str], None],
    ) -> None:
        """Read the files, and recall what the memory has: `datasets` and what the model was trained on."""
        self._decoding, self._say, self._known, self._jobs = decoding, say, dict[str, str](), list[_Job]()
        for path, output in files:
            self._jobs.append(_Job.of(BilingualFile(path, data.languages), output, decoding.all))
        strings = [string for job in self._jobs for _, own, _ in job.units for string in own]
        memory = TranslationMemory((string.body.strip() for string in strings), datasets, data)
        self.recalled, self.empty = 0, 0
        self.strings = len(strings) + sum(gaps for job in self._jobs for _, gaps in job.unfilled)
        for job in self._jobs:
            for unit, own, found in job.units:
                found += [self._recall(memory, job, unit, *each) for each in enumerate(own)]
                texts = (text for string, known in zip(own, found, strict=True) if not known for text in string.texts)
                new = [text for text in dict.fromkeys(texts) if text not in self._known]
                job.texts += new
                self._known |= dict.fromkeys(new, "")

    def _recall(self, memory: TranslationMemory, job: _Job, unit: Unit, form: int, string: ProgramString) -> str:
        """Return the translation in the memory; an empty one if it has none that fits."""
        where = unit.context_of(form), job.file.path.stem
        if (found := memory.recall(string.body.strip(), string.text, *where)) is None:
            return ""
        text = found.target if found.source == string.text else string.dressed(found.bare)
        self.recalled += text != ""
        return text

    def run(self, pipeline: Pipeline[Any], statistics: Statistics) -> None:
        """Search for the other translations, and write each file as soon as all of its own are there."""
        with closing(pipeline.stream(statistics.timed(self._requests()), searched=statistics.searched)) as results:
            for job in self._jobs:
                for text, result in zip(job.texts, results, strict=False):
                    statistics.add(result)
                    self._known[text] = result.texts[0]
                self._write(job)

    def _requests(self) -> Iterator[Request]:
        return (Request(text).of_segment(read_string(text)) for job in self._jobs for text in job.texts)

    def _write(self, job: _Job) -> None:
        for unit, strings, found in job.units:
            forms = [text or string.put(self._known) for string, text in zip(strings, found, strict=True)]
            try:
                if not all(forms):
                    raise ValueError
                unit.write(forms, self._decoding.review)
            except (ExpatError, ValueError):  # a placeholder is lost, or it is no XML
                self._leave_empty(job, unit.sources[0], len(forms))
        for source, gaps in job.unfilled:
            self._leave_empty(job, source, gaps)
        make_directory(job.output.parent)
        with whole_file(job.output) as stream:
            stream.write(job.file.content())

    def _leave_empty(self, job: _Job, source: str, forms: int) -> None:
        self.empty += forms
        self._say(f"{job.file.path}: left empty: {source[:SHOWN]!r}")

    @property
    def summary(self) -> str:
        """What became of the strings, for the last line."""
        done = f"{self.recalled:,} from memory, {self.empty:,} left empty"
        return f"{self.strings:,} strings in files ({len(self._jobs):,}), {done}"
