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
from nmt.formats.declared import (
    KINDS,
    check_kind,
    check_language,
    content_of,
    ending_of,
    is_of_a_format,
    kind_of,
    left_out,
    other_language,
)
from nmt.formats.strings import ProgramString
from nmt.formats.terms import Terms, missing
from nmt.formats.units import Unit
from nmt.recipe import Data, Dataset, Decoding
from nmt.system.compression import compressed, split_suffix
from nmt.system.errors import UserError
from nmt.system.files import check_place, make_directory, whole_file
from nmt.text.language_codes import Language, of_android

WRITTEN = "PO, POT, XLIFF 1.2, TMX, Qt's TS and Android's strings"
SHOWN, SHOWN_MOST = 60, 10  # characters of a source in a complaint; complaints of a kind


def find_files(
    source: Path | None, output: Path | None, is_text: bool, say: Callable[[str], None]
) -> list[tuple[Path, Path]]:
    """Return the files of translators that --input names, each with its output; [] if it names lines or `is_text`.

    Those of a folder or a pattern that are of another format are left out, and said. Raise UsageError unless --output
    fits, and UserError if an output is an input, or a format none of WRITTEN.
    """
    if source is None:
        return []
    root, found = _named(source, output)
    files = [path for path in found if _is_written(path)]
    if not files and found == [source] and (is_text or not is_of_a_format(source)):
        return []
    if not files:
        raise _no_files(source, found)
    if others := [path for path in found if ending_of(path) == ".ts" and path not in files]:
        say(left_out(others, "for they are no files of Qt Linguist"))
    if translations := [path for path in files if ending_of(path) != ".pot"]:
        files = translations  # beside which templates are nothing to fill
    if output is None:
        raise click.UsageError("files of translators need --output: a file, or a folder for several")
    jobs = [(source, output)]
    if output.is_dir() or files != [source]:
        names = [Path(path.name) if root == path else path.relative_to(root) for path in files]
        jobs = [(path, output / _catalog_name(name)) for path, name in zip(files, names, strict=True)]
    for path, out in jobs:
        if _format_of(out) != _format_of(path):
            ending = ending_of(Path(_catalog_name(path)))
            raise UserError(f"--output {out}: does not end in {ending}", "an output has the format of its input")
        if out.exists() and out.samefile(path):
            raise UserError(f"--output {out}: is also the input", "give --output another file or folder")
        if out.is_symlink():
            check_place(out)
    return jobs


def _named(source: Path, output: Path | None) -> tuple[Path, list[Path]]:
    """Return the folder that the names of outputs are relative to, and the files that --input names.

    The folder is the file itself if that is the only one.
    """
    if source.is_dir():
        return source, _within(source, output, source)
    beginning, *wildcards = re.split(r"[*?\[]", str(source))
    if source.exists() or not wildcards:
        return source, [source]
    root, matches = Path(beginning + "x").parent, sorted(map(Path, glob(str(source), recursive=True)))
    return root, list(dict.fromkeys(path for match in matches for path in _within(match, output, root)))


def _within(path: Path, output: Path | None, root: Path) -> list[Path]:
    """Return a file, or the files of a folder, without those of an output folder that is inside `root`."""
    paths = sorted(path.rglob("*")) if path.is_dir() else [path]
    written = output.resolve() if output else None
    if written is None or root.resolve().is_relative_to(written):
        return [each for each in paths if each.is_file()]
    return [each for each in paths if each.is_file() and not each.resolve().is_relative_to(written)]


def _is_written(path: Path) -> bool:
    """Return whether a file is of a format that is written, too."""
    return kind_of(path) not in ("", ".mo")


def _catalog_name(name: Path) -> str:
    """Return the name that a filled template has, .po for .pot; other names are as they are."""
    stem, compression = split_suffix(name)
    return f"{stem[:-1]}{compression}" if ending_of(name) == ".pot" else str(name)


def _format_of(path: Path) -> str:
    """Return the format of a file that may not be there yet: .po for a template as well."""
    return KINDS.get(ending_of(path), "")


def _no_files(source: Path, found: Sequence[Path]) -> UserError:
    """Return the error for an --input that names nothing to translate in files, but `found`."""
    if not found:
        what = "this folder has no files" if source.is_dir() else "no file matches this pattern"
        return UserError(f"{source}: {what}", f"the working folder is {Path.cwd()}; nmt translate < FILE takes lines")
    for path in found:
        if ending_of(path) == ".ts":
            check_kind(path, b"", "")
    hint = (
        "their names end in .po, .pot, .xlf, .tmx, .ts or .xml; --document translates text and Markdown, "
        "--markup lines with tags, and nmt translate < FILE any lines"
    )
    return UserError(f"{source}: none of the formats that are translated in files: {WRITTEN}", hint)


def _in_languages(
    files: Sequence[tuple[Path, Path]], languages: Sequence[str], say: Callable[[str], None]
) -> list[tuple[Path, Path]]:
    """Return those files, each with its output, that declare no other languages; say which are left out.

    Raise UserError if none is in them, or if an output is in a folder of Android's for another language.
    """
    fitting, others = list[tuple[Path, Path]](), list[str]()
    for path, output in files:
        content, kind = content_of(path), kind_of(path)
        if other := other_language(path, content, kind, languages):
            others.append(f"{path} ({other[1]})")
            if len(others) == len(files):
                check_language(path, content, kind, languages)
            continue
        fitting.append((path, output))
        folder = of_android(output.absolute().parent.name) if kind == ".xml" else ""
        if folder and not Language.of(folder).is_same(Language.of(languages[-1])):
            problem = f"--output {output}: is in a folder for {folder}, not for {languages[-1]}"
            raise UserError(problem, "name another folder, or the language by --to")
    if others:
        say(left_out(others, "for they are in other languages"))
    return fitting


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
        strings = [[file.string(unit, form) for form in range(len(unit.sources))] for unit in units]
        return cls(file, output, [(*each, []) for each in zip(units, strings, strict=True)], unfilled)


class FileTranslation:
    """The translation of files, and counts of what became of their strings."""

    def __init__(
        self,
        files: Sequence[tuple[Path, Path]],
        datasets: Sequence[Dataset],
        data: Data,
        decoding: Decoding,
        say: Callable[[str], None],
        terms: Terms | None = None,
    ) -> None:
        """Read the files, and recall what the memory has: `datasets` and what the model was trained on.

        It says and counts what the memory translates in another way than `terms`.
        """
        self._terms, self.otherwise = terms, 0
        self._decoding, self._say, self._known, self._jobs = decoding, say, dict[str, str](), list[_Job]()
        for path, output in _in_languages(files, data.languages, say):
            job = _Job.of(BilingualFile(path, data.languages), output, decoding.all)
            has_texts = job.file.units or job.file.unfilled
            if has_texts or len(files) == 1 or ending_of(path) != ".xml":  # Android's resources may be colours alone
                self._jobs.append(job)
        strings = [string for job in self._jobs for _, own, _ in job.units for string in own]
        memory = TranslationMemory(strings, datasets, data)
        self.recalled, self.empty, self.left = 0, 0, 0
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
        known = memory.recall_form(unit, form, string, job.file.path.stem)
        if known is None:
            return ""
        self.recalled += 1
        if self._terms:
            self._compare(job, string, known[1], self._terms)
        return known[1]

    def _compare(self, job: _Job, string: ProgramString, text: str, terms: Terms) -> None:
        """Say which terms a translation from the memory lacks."""
        lacking = missing(terms.phrases(string.body), string.body, text)
        if lacking:
            self.otherwise += 1
            if self.otherwise <= SHOWN_MOST:
                names = ", ".join(map(str, lacking))
                self._say(f"{job.file.path}: from memory, not as in --terms ({names}): {string.text[:SHOWN]!r}")

    def run(self, pipeline: Pipeline[Any], statistics: Statistics) -> None:
        """Search for the other translations, and write each file as soon as all of its own are there."""
        with closing(pipeline.stream(statistics.timed(self._requests()), searched=statistics.searched)) as results:
            for job in self._jobs:
                for text, result in zip(job.texts, results, strict=False):
                    statistics.add(result)
                    self._known[text] = result.texts[0]
                self._write(job)

    def _requests(self) -> Iterator[Request]:
        return (Request(text).of_segment(job.file.segment(text)) for job in self._jobs for text in job.texts)

    def _write(self, job: _Job) -> None:
        for unit, strings, found in job.units:
            forms = [text or string.put(self._known) for string, text in zip(strings, found, strict=True)]
            try:
                if not all(forms):
                    raise ValueError
                unit.write(forms, self._decoding.review)
                new = [string for string, recalled in zip(strings, found, strict=True) if not recalled]
                self._count_messages(job, new)
            except (ExpatError, ValueError):  # a placeholder is lost, or it is no XML
                self._leave_empty(job, unit.sources[0], len(forms))
        for source, gaps in job.unfilled:
            self._leave_empty(job, source, gaps)
        make_directory(job.output.parent)
        with whole_file(job.output) as stream, compressed(stream, job.output) as file:
            file.write(job.file.content())

    def _count_messages(self, job: _Job, strings: Sequence[ProgramString]) -> None:
        for string in strings:
            if string.has_message:
                self.left += 1
                self._say(f"{job.file.path}: an ICU message is left as it is: {string.text[:SHOWN]!r}")

    def _leave_empty(self, job: _Job, source: str, forms: int) -> None:
        self.empty += forms
        self._say(f"{job.file.path}: left empty: {source[:SHOWN]!r}")

    @property
    def summary(self) -> str:
        """What became of the strings, for the last line."""
        otherwise = f" ({self.otherwise:,} not as in --terms)" if self.otherwise else ""
        done = f"{self.recalled:,} from memory{otherwise}, {self.empty:,} left empty"
        if self.left:
            done += f", {self.left:,} with ICU messages left as they are"
        return f"{self.strings:,} strings in files ({len(self._jobs):,}), {done}"
