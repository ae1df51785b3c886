"""`nmt translate --input app.po --output app.sv.po`: the open units of translators' files, by memory and by search."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from glob import glob
from itertools import islice, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from xml.parsers.expat import ExpatError

import click

from nmt.commands.ledger import Ledger
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
from nmt.formats.numbers import is_garbled
from nmt.formats.plurals import forms_for
from nmt.formats.strings import ProgramString
from nmt.formats.terms import Terms, missing
from nmt.formats.units import ORIGINS, Origin, Unit
from nmt.formats.written import (
    FOLDER,
    Written,
    content_hash,
    free_copy,
    hash_of,
    matched,
    names_of,
    place_beside,
    rest_of,
    state_of,
)
from nmt.recipe import Data, Dataset, Decoding
from nmt.system.compression import compressed, split_suffix
from nmt.system.errors import Interrupted, UserError, counted
from nmt.system.files import check_place, make_directory, whole_file
from nmt.system.integrity import hash_file
from nmt.system.processes import exclusive
from nmt.text.language_codes import Language, of_android

WRITTEN = "PO, POT, XLIFF 1.2, TMX, Qt's TS and Android's strings"
CONVERTERS = dict.fromkeys((".yaml", ".yml"), "yaml") | dict.fromkeys((".html", ".htm", ".xhtml"), "html")
CONVERTERS |= {f".{name}": name for name in ("json", "resx", "ini", "php", "dtd", "wxl", "toml")}
CONVERTERS |= {".properties": "prop", ".ftl": "fluent"}
"""What the Translate Toolkit calls formats that it makes PO and back, by the endings of names"""


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
    others = [path for path in found if ending_of(path) == ".ts" and path not in files]
    if others:
        say(left_out(others, "for they are no files of Qt Linguist"))
    translations = [path for path in files if ending_of(path) != ".pot"]
    if translations:
        files = translations  # beside which templates are nothing to fill
    if output is None:
        raise click.UsageError("files of translators need --output: a file, or a folder for several")
    jobs = []
    if files == [source] and not output.is_dir():
        jobs.append((source, output))
    else:
        for path in files:
            name = Path(path.name) if root == path else path.relative_to(root)
            jobs.append((path, output / _catalog_name(name)))
    for path, out in jobs:
        _check_output(path, out)
    return jobs


def _check_output(path: Path, out: Path) -> None:
    """Raise UserError if an output is of another format than its input, is that one, or cannot be written."""
    if _format_of(out) != _format_of(path):
        ending = ending_of(Path(_catalog_name(path)))
        raise UserError(f"--output {out}: does not end in {ending}", "an output has the format of its input")
    if out.exists() and out.samefile(path) and (ending_of(path) == ".pot" or kind_of(path) == ".xml"):
        problem = f"--output {out}: is also the input, in which translations would replace the sources"
        raise UserError(problem, "give --output another file or folder")
    if out.is_symlink():
        check_place(out)


def _named(source: Path, output: Path | None) -> tuple[Path, list[Path]]:
    """Return the folder that the names of outputs are relative to, and the files that --input names.

    The folder is the file itself if that is the only one.
    """
    if source.is_dir():
        return source, _within(source, output, source)
    beginning, *wildcards = re.split(r"[*?\[]", str(source))
    if source.exists() or not wildcards:
        return source, [source]
    root = Path(beginning + "x").parent  # the last folder before the first wildcard
    found: list[Path] = []
    for match in sorted(map(Path, glob(str(source), recursive=True))):
        found += _within(match, output, root)
    return root, list(dict.fromkeys(found))


def _within(path: Path, output: Path | None, root: Path) -> list[Path]:
    """Return a file, or the files of a folder, without those of an output folder that is inside `root`."""
    paths = sorted(path.rglob("*")) if path.is_dir() else [path]
    files = [each for each in paths if each.is_file()]
    if output is None:
        return files
    written = output.resolve()
    if root.resolve().is_relative_to(written):
        return files
    return [each for each in files if not each.resolve().is_relative_to(written)]


def _is_written(path: Path) -> bool:
    """Return whether a file is of a format that is written, too."""
    return kind_of(path) not in ("", ".mo")


def _catalog_name(name: Path) -> str:
    """Return the name that a filled template has, .po for .pot; other names are as they are."""
    if ending_of(name) != ".pot":
        return str(name)
    stem, compression = split_suffix(name)
    return f"{stem[:-1]}{compression}"


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
    hint = _way_for(source) or (
        "their names end in .po, .pot, .xlf, .tmx, .ts or .xml; --document translates text and Markdown, "
        "--markup lines with tags, and nmt translate < FILE any lines"
    )
    return UserError(f"{source}: none of the formats that are translated in files: {WRITTEN}", hint)


def _way_for(source: Path) -> str:
    """Return how a file of another format is translated all the same; empty if there is no usual way."""
    ending = ending_of(source)
    if ending in (".strings", ".stringsdict", ".xcstrings"):
        return "let Xcode export XLIFF (Product, Export Localizations), and import it when it is translated"
    if ending in (".md", ".markdown", ".rst", ".srt", ".vtt"):
        return "add --document, which keeps the layout"
    name = CONVERTERS.get(ending)
    if not name or source.suffix.lower() != ending:  # compressed
        return ""
    pot = source.with_suffix(".pot").name
    back = f"po2{name} --fuzzy -t {source} FILLED.po OUTPUT{ending}"
    return f"the Translate Toolkit makes it PO and back: {name}2po -P {source} {pot}, and {back}"


def _in_languages(
    files: Sequence[tuple[Path, Path]], languages: Sequence[str], say: Callable[[str], None]
) -> list[tuple[Path, Path]]:
    """Return those files, each with its output, that declare no other languages; say which are left out.

    Raise UserError if none is in them, or if an output is in a folder of Android's for another language.
    """
    fitting = list[tuple[Path, Path]]()
    others = list[str]()
    _, target = languages
    for path, output in files:
        content = content_of(path)
        kind = kind_of(path)
        other = other_language(path, content, kind, languages)
        if other:
            others.append(f"{path} ({other[1]})")
            if len(others) == len(files):
                check_language(path, content, kind, languages)
            continue
        fitting.append((path, output))
        if kind == ".xml":
            _check_folder(output, target)
    if others:
        say(left_out(others, "for they are in other languages"))
    return fitting


def _check_folder(output: Path, target: str) -> None:
    """Raise UserError if an output is in a folder of Android's for another language than the target."""
    folder = of_android(output.absolute().parent.name)
    if folder and not Language.of(folder).is_same(Language.of(target)):
        problem = f"--output {output}: is in a folder for {folder}, not for {target}"
        raise UserError(problem, "name another folder, or the language by --to")


class _Found(NamedTuple):
    """What the memory has for a string; its text is empty if it has nothing."""

    text: str = ""
    origin: Origin = "model"
    is_exact: bool = False
    """Whether it is that of exactly this string in this context"""


@dataclass
class _Gap:
    """A unit to fill."""

    unit: Unit
    forms: Sequence[str]
    """The forms that are there, empty ones for gaps"""
    strings: Mapping[int, ProgramString]
    """Sources of the gaps, by the number of the form"""
    found: Mapping[int, _Found]
    """What the memory has for these"""
    is_marked: bool
    """Whether the forms that are there need review"""

    @property
    def searched(self) -> list[ProgramString]:
        """The strings that the memory does not have."""
        return [string for form, string in self.strings.items() if not self.found[form].text]

    @property
    def origin(self) -> Origin:
        """Where the forms come from; if that differs, the worst."""
        return max((each.origin for each in self.found.values()), key=ORIGINS.index)


class _Kept(NamedTuple):
    """A unit that stays as a person left it: there or in an older version of the output."""

    unit: Unit
    other: Unit
    """What the unit becomes: itself, or the one in the older version"""
    is_reviewed: bool


class _Job:
    """A file to translate."""

    def __init__(self, source: Path, output: Path, languages: Sequence[str]) -> None:
        """Read a file; raise UserError if it is unreadable."""
        self.source = source
        self.output = output
        self._languages = languages
        self.is_in_place = output.exists() and output.samefile(source)
        self.texts = list[str]()  # what is to be searched for, and no earlier file has
        self.gaps = list[_Gap]()
        self.copy: Path | None = None  # where the old version of the output is
        self.read()

    def read(self) -> None:
        """Read the file."""
        content = content_of(self.source)
        self.file = BilingualFile(self.source, self._languages, content)
        # In place, the input is the output, which each run changes.
        self.made_from = "" if self.is_in_place else content_hash(content)

    def merge(self, everything: bool) -> list[tuple[Unit, Sequence[str], bool]]:
        """Find what is to be filled: what is open or, with `everything`, all, but nothing that a person has done.

        Return these units, each with the forms that stay, and whether they need review. What a person has done in an
        existing output, its record says. Raise UserError if the output is unreadable.
        """
        self.record = Written.of(self.output)  # what nmt wrote there last
        self.old = _content(self.output)
        self.kept = list[_Kept]()
        self.theirs = set[str]()  # names of units that are the work of people
        self.both = list[Unit]()  # units that a person has changed, and the input as well
        self.gone = list[Unit]()  # work of people on units that the input no longer has
        self.older: BilingualFile | None = None  # what `old` holds; None in place, or if there is nothing
        pairs: Sequence[tuple[str, Unit] | None] = []
        if not self.is_in_place and self.old.strip() != b"":
            self.older = self.file.other(self.output, self.old)
            theirs = [unit for name, unit in names_of(self.older) if not self.record.wrote(name, self.older, unit)]
            self.file.divide_as(self.older, theirs)
            pairs = matched(self.file, self.older)
        wanted = list[tuple[Unit, Sequence[str], bool]]()
        for (name, unit), pair in zip_longest(names_of(self.file), pairs):
            if unit.is_locked:
                continue
            kept = self._keep(name, unit) if pair is None else self._keep_older(name, unit, *pair)
            forms: Sequence[str] = unit.filled
            if kept and kept.other.is_locked:
                continue
            if kept and kept.other is not unit:
                given = self.forms_of(kept.other)
                forms = [given[place] if place < len(given) else "" for place in forms_for(unit, kept.other)]
            elif everything:
                forms = [""] * len(unit.sources)
            if "" in forms and len(forms) == len(unit.sources) and unit not in self.file.headers:
                origin = kept.other if kept else unit
                wanted.append((unit, forms, any(forms) and origin.needs_review))
        if self.older:
            found = {pair[0] for pair in pairs if pair}
            self.gone = self._lost(self.older, found)
        return wanted

    def _lost(self, older: BilingualFile, found: Collection[str]) -> list[Unit]:
        """Return what people have translated in an older output, and the input no longer has; `found` are others."""
        lost = []
        for name, unit in names_of(older):
            if name in found or not any(self.forms_of(unit)):
                continue
            if not self.record.wrote(name, older, unit):
                lost.append(unit)
        return lost

    @property
    def corrected(self) -> list[_Kept]:
        """The units of an older output that stay."""
        return [each for each in self.kept if each.other is not each.unit and each.unit not in self.file.headers]

    def forms_of(self, other: Unit) -> Sequence[str]:
        """Return the forms of a unit of an older output."""
        return other.filled if self.file.has_sources else other.sources

    def _keep(self, name: str, unit: Unit) -> _Kept | None:
        """Note that a unit of the input stays as it is; return it if its note of origin goes, as it is reviewed."""
        is_own = self.is_in_place and self.record.wrote(name, self.file, unit)
        if self.is_in_place and any(unit.filled) and not is_own:
            self.theirs.add(name)
        is_reviewed = not is_own and self._is_reviewed(name, unit)
        if not is_reviewed:
            return None
        self.kept.append(_Kept(unit, unit, True))
        return self.kept[-1]

    def _keep_older(self, name: str, unit: Unit, older_name: str, other: Unit) -> _Kept | None:
        """Note, and return, that an older unit stays, unless it is empty, as nmt wrote it, or as the input has it."""
        assert self.older is not None
        is_own = self.record.wrote(older_name, self.older, other)
        is_same = state_of(self.older, other) == state_of(self.file, unit)
        is_gap = not any(self.forms_of(other)) and not other.is_locked
        if is_gap or is_own or is_same:
            return self._keep(name, unit)
        self.theirs.add(name)
        is_changed = any(unit.filled) if self.file.has_sources else self.record.has(older_name)
        if is_changed and not self.record.saw(older_name, self.file, unit) and unit not in self.file.headers:
            self.both.append(unit)
        self.kept.append(_Kept(unit, other, self._is_reviewed(older_name, other)))
        return self.kept[-1]

    def _is_reviewed(self, name: str, unit: Unit) -> bool:
        """Return whether a person has reviewed a unit whose note still says that nmt translated it."""
        is_known = self.file.has_marks and self.file.has_own_notes
        return unit.origin != "" and not unit.needs_review and (is_known or self.record.knows(name))

    @property
    def has_changed(self) -> bool:
        """Whether the output is another one than was read."""
        return _content(self.output) != self.old

    def is_done(self, job: str) -> bool:
        """Return whether the output was made so, and is as it was then."""
        return self.record.job == job and self.record.output == content_hash(_content(self.output))

    def write(self, job: str) -> BilingualFile:
        """Write the output, and the record of it; return it as it now is."""
        content = self.file.content()
        written = self.file.other(self.output, content)
        record = Written(job=job, output=content_hash(content), backup=self.record.backup)
        record.add(written, self.file, self.theirs)
        record.rest = rest_of(written)
        self.copy = self._copy(content)
        if self.copy and self.is_in_place:
            record.backup = hash_file(self.output)
        record.save(self.output)
        if self.copy:
            with whole_file(self.copy) as stream:
                stream.write(self.output.read_bytes())
        if content != self.old or not self.output.exists():
            with whole_file(self.output) as stream, compressed(stream, self.output) as file:
                file.write(content)
        return written

    def _copy(self, content: bytes) -> Path | None:
        """Return where to keep the old version of the output; None if nothing of it is lost that a person wrote."""
        if content == self.old or not self.old.strip():
            return None
        if self.is_in_place:
            return free_copy(self.output, self.record.backup)
        if self.gone or self.older is None or self.record.rest != rest_of(self.older):
            return free_copy(self.output, "")
        return None


def _missing(job: _Job, unit: Unit, forms: Sequence[str]) -> dict[int, ProgramString]:
    """Return the sources of a unit's empty forms, by the number of the form."""
    return {form: job.file.string(unit, form) for form, text in enumerate(forms) if not text}


def _content(path: Path) -> bytes:
    return content_of(path) if path.is_file() else b""


class FileTranslation:
    """The translation of files, and counts of what became of their strings."""

    def __init__(
        self,
        files: Sequence[tuple[Path, Path]],
        named: Sequence[Dataset],
        trained: Sequence[Dataset],
        data: Data,
        decoding: Decoding,
        say: Callable[[str], None],
        held: ExitStack,
        ledger: Ledger,
        settings: Mapping[str, Any] = MappingProxyType({}),
        resume: bool = False,
        terms: Terms | None = None,
        everything: bool = False,
    ) -> None:
        """Read the files, and recall what the memory has: files `named` as such and what the model was `trained` on.

        `settings` are all on which translations depend. With `resume`, files are left out that were made with these,
        from the same input. What the memory translates in another way than `terms` is named and counted. Outputs are
        locked until `held` is closed. Raise UserError if another process has locked them.
        """
        self._decoding = decoding
        self._say = say
        self._ledger = ledger
        self._settings = settings
        self._terms = terms
        self._jobs = list[_Job]()
        # By the text that the model was given
        self._outputs = dict[str, str]()
        self._known = dict[str, str]()  # outputs to use: empty if garbled, or until the text has been searched
        self._defects = dict[str, Mapping[str, int]]()
        self._confidence = dict[str, float]()  # if decoding.review is a number
        # Numbers of strings for the summary
        self.otherwise = 0  # from memory, not as in --terms
        self.empty = 0
        self.left = 0  # with ICU messages, which are not translated
        for path, output in _in_languages(files, data.languages, say):
            job = _Job(path, output, data.languages)
            has_texts = job.file.units or job.file.unfilled
            if has_texts or len(files) == 1 or ending_of(path) != ".xml":  # Android's resources may be colours alone
                self._jobs.append(job)
            if job.is_in_place and everything:
                problem = f"--output {output}: is also the input, whose translations --all would replace"
                raise UserError(problem, "give --output another file or folder")
        self._lock(held)
        self._everything = everything
        wanted = [job.merge(everything) for job in self._jobs]
        self.done = [job for job in self._jobs if resume and job.is_done(self._hash(job))]
        self._memory = TranslationMemory(self._strings(wanted), named, data, trained)
        for job, units in zip(self._jobs, wanted, strict=True):
            if job not in self.done:
                self._recall(job, units)
        self._jobs = [job for job in self._jobs if job not in self.done]

    def _strings(self, wanted: Sequence[list[tuple[Unit, Sequence[str], bool]]]) -> Iterator[ProgramString]:
        """Yield the sources of all empty forms; `wanted` are each file's units to fill."""
        for job, units in zip(self._jobs, wanted, strict=True):
            for unit, forms, _ in units:
                yield from _missing(job, unit, forms).values()

    def _lock(self, held: ExitStack) -> None:
        """Lock an output, or the folders of several."""
        outputs = [job.output for job in self._jobs]
        locks = {place_beside(path, ".lock"): path for path in outputs}
        if len(outputs) > 1:
            locks = {path.parent / FOLDER / "lock": path.parent for path in outputs}
        for lock, what in locks.items():
            held.enter_context(exclusive(lock, str(what), self._say))
        for job in self._jobs:
            if job.is_in_place:  # another command may have written it since it was read
                job.read()

    def _hash(self, job: _Job) -> str:
        """Return a hash of everything that an output is made from, but for itself."""
        return hash_of(self._settings, job.made_from)

    def _recall(self, job: _Job, units: Iterable[tuple[Unit, Sequence[str], bool]]) -> None:
        """Find what the memory has for the gaps of a file, and what is to be searched for."""
        job.gaps = []
        for unit, forms, is_marked in units:
            strings = _missing(job, unit, forms)
            found = {form: self._find(job, unit, form, string) for form, string in strings.items()}
            job.gaps.append(_Gap(unit, forms, strings, found, is_marked))
        job.texts = []
        for gap in job.gaps:
            for string in gap.searched:
                for text in string.texts:
                    if text not in self._known:
                        self._known[text] = ""
                        job.texts.append(text)

    def _find(self, job: _Job, unit: Unit, form: int, string: ProgramString) -> _Found:
        """Return the translation in the memory."""
        known = self._memory.recall_form(unit, form, string, job.source.stem)
        if known is None:
            return _Found()
        remembered, text = known
        is_same = remembered.source == string.text and remembered.target == text
        return _Found(text, "memory" if is_same else "near memory", is_same and remembered.context == unit.context)

    def run(self, pipeline: Pipeline[Any], statistics: Statistics) -> None:
        """Search for the other translations, and write each file as soon as all of its own are there.

        Raise Interrupted, which says how many files are done, if a signal ends it.
        """
        done = 0
        try:
            with closing(pipeline.stream(statistics.timed(self._requests()), searched=statistics.searched)) as results:
                for job in self._jobs:
                    for text, result in zip(job.texts, islice(results, len(job.texts)), strict=True):
                        statistics.add(result, with_warnings=False)
                        self._outputs[text] = result.texts[0]
                        self._known[text] = "" if is_garbled(text, result.texts[0]) else result.texts[0]
                        self._defects[text] = statistics.occurring(result)
                        self._confidence[text] = result.confidence or 0.0
                    self._write(job, statistics)
                    done += 1
        except (KeyboardInterrupt, Interrupted) as error:
            number = error.signal_number if isinstance(error, Interrupted) else signal.SIGINT
            of = f"{done:,} of {len(self._jobs):,} files are done"
            raise Interrupted(f"{of}; the same command with --resume translates the others", number) from error
        self._ledger.end()

    def _requests(self) -> Iterator[Request]:
        return (Request(text).of_segment(job.file.segment(text)) for job in self._jobs for text in job.texts)

    def _write(self, job: _Job, statistics: Statistics) -> None:
        make_directory(job.output.parent)
        if job.has_changed:  # somebody has saved it meanwhile
            job.read()
            self._recall(job, job.merge(self._everything))
        theirs = {each.unit: job.forms_of(each.other)[0] for each in job.kept}
        said = [("both changed", each, each.sources[0], theirs[each]) for each in job.both]
        for unit, other, is_reviewed in job.kept:
            job.file.keep(unit, other, is_reviewed)
        for gap in job.gaps:
            said += self._fill(gap, statistics)
        written = job.write(self._hash(job))
        by_name = dict(names_of(written))
        now = {unit: by_name.get(name) for name, unit in names_of(job.file)}
        for kind, unit, source, text in said:
            in_output = now[unit]
            place = written.place_of(in_output) if in_output else job.file.place_of(unit)
            self._ledger.add(kind, str(job.output), place, source, text)
        for source in job.file.unfilled:
            self.empty += 1
            self._ledger.add("left empty", str(job.output), "without a source", source, "")
        for each in job.gone:
            assert job.older is not None
            place = job.older.place_of(each)
            text = job.forms_of(each)[0]
            self._ledger.add("no longer in the input", str(job.copy), place, each.sources[0], text)
        if job.corrected and not job.record:
            self._say(f"{job.output}: no record says what nmt wrote, so what was translated there stays")
        if job.copy:
            self._say(f"{job.output}: its old version is {job.copy}")

    def _fill(self, gap: _Gap, statistics: Statistics) -> list[tuple[str, Unit, str, str]]:
        """Fill a unit; return what is to be said of it: kinds, each with the unit, a source and a translation."""
        own = {form: gap.found[form].text or string.put(self._known) for form, string in gap.strings.items()}
        forms = [own.get(form, text) for form, text in enumerate(gap.forms)]
        review = self._needs_review(gap)
        try:
            if not all(forms):
                raise ValueError
            gap.unit.write(forms, review or gap.is_marked, gap.origin)
        except (ExpatError, ValueError):  # a placeholder is lost, or it is no XML
            self.empty += len(own)
            empty = [form for form, text in own.items() if not text]
            string = gap.strings[min(empty or own)]  # of the first form without a text, or the first of all
            outputs = [self._outputs[text] for text in string.used(self._known) if text in self._outputs]
            return [("left empty", gap.unit, string.text, " ".join(outputs))]
        said = list[tuple[str, Unit, str, str]]()
        for form, string in gap.strings.items():
            if gap.found[form].text:
                if self._terms and missing(self._terms.phrases(string.body), string.body, forms[form]):
                    self.otherwise += 1
                    said.append(("from memory, not as in --terms", gap.unit, string.text, forms[form]))
                continue
            self.left += string.has_message
            kinds = ["messages left"] * string.has_message
            for text in string.used(self._known):
                defects = self._defects.get(text, {})
                statistics.warn(defects)
                kinds += defects
            said += [(kind, gap.unit, string.text, forms[form]) for kind in dict.fromkeys(kinds)]
        return said

    def _needs_review(self, gap: _Gap) -> bool:
        """Return whether to mark a unit; if a number decides, when the model is less sure, or with a warning."""
        review = self._decoding.review
        if isinstance(review, bool):
            return review
        if review == "model":
            return not all(each.is_exact for each in gap.found.values())
        if any(each.text and not each.is_exact for each in gap.found.values()):
            return True
        for string in gap.searched:
            for text in string.used(self._known):
                if self._confidence.get(text, 0.0) < review or self._defects.get(text):
                    return True
        return False

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return self.done != [] and not self._jobs

    @property
    def strings(self) -> int:
        """Number of strings to fill."""
        gaps = sum(len(gap.strings) for job in self._jobs for gap in job.gaps)
        return gaps + sum(len(job.file.unfilled) for job in self._jobs)

    @property
    def summary(self) -> str:
        """What became of the strings, for the last line."""
        remembered = 0
        for job in self._jobs:
            for gap in job.gaps:
                remembered += len(gap.strings) - len(gap.searched)
        done = f"{remembered:,} from memory"
        if self.otherwise:
            done += f" ({self.otherwise:,} not as in --terms)"
        done += f", {self.empty:,} left empty"
        if self.left:
            done += f", {self.left:,} with ICU messages left as they are"
        kept = sum(len(job.corrected) for job in self._jobs)
        if kept:
            done += f", {kept:,} kept as people left them"
        if self.done:
            done += f"; files done before: {len(self.done):,}"
        return f"{counted(self.strings, 'string')} in files ({len(self._jobs):,}), {done}"
