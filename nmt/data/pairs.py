"""Read sentence pairs from text, .zip, .tsv, .csv, .jsonl, .parquet, translators' files, sacreBLEU, hub and treebanks.

A tree becomes a pair of its space-separated words and the prepared tree on one line.
"""

from __future__ import annotations

import difflib
import glob
import json
import logging
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice, starmap
from pathlib import Path
from typing import Any, NamedTuple

from nmt.data.tables import check_columns, read_table, row_line
from nmt.formats.bilingual import BilingualFile, check_toolkit
from nmt.formats.declared import content_of, declared_languages, kind_of, language_by_place, other_language
from nmt.parsing.tree import prepare_tree, read_trees, read_trees_of, tree_files
from nmt.recipe import Data, Dataset
from nmt.recipe.addresses import is_address
from nmt.recipe.data import PAIRS, TABLES, UNITS, format_of
from nmt.system.compression import members
from nmt.system.errors import UserError, counted
from nmt.system.files import check_name
from nmt.text.language_codes import is_same
from nmt.text.lines import REALIGN, count_lines, one_line, read_lines, read_parallel, stripped

ABSENT = object()
KINDS = {bytes: "bytes", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
"""What a record may hold in place of text"""
WILDCARD = r"\*\*/|\*+|\?|\[(?:![^/]|[^/][^]/])[^]/]*\]"  # not [x], which is x alone
WILDCARDS = f"((?:{WILDCARD})+)"
ANY_TEXT = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
"""What wildcards stand for, as regular expressions; the others stand for one character"""
SHOWN = 3  # names of files in an error
WITHOUT_EFFECT = ("source", "target", "file", "sha256", "trees", "weight")
"""Keys of a data set that do not change its pairs: names of files count by their content"""
ONE_OBJECT = 'write one JSON object on each line, such as {"en": "Hello.", "de": "Hallo."}'
NAME_FIELDS = "name fields that hold text: fields: [SOURCE, TARGET]"


class Pair(NamedTuple):
    """A sentence and its translation or, for a parser, its words and its tree."""

    source: str
    target: str


def input_files(dataset: Dataset, data: Data) -> list[Path]:
    """Return the local files of a data set; a pattern that matches none as a path.

    Raise UserError if a folder holds none, or if a file that a pattern of one side matches has no partner.
    """
    sources, targets = _sides(dataset, data)
    files = [*sources, *targets]
    if dataset.file is not None:
        files += _matches(dataset.file, data, pair_files)
    if dataset.trees is not None:
        files += _matches(dataset.trees, data, tree_files)
    return files


def _sides(dataset: Dataset, data: Data) -> tuple[list[Path], list[Path]]:
    """Return the text files of source and target, if they are named: file N of one is the partner of file N of the
    other where both are patterns that match files.

    Those are partners for whom the wildcards stand for the same. Raise UserError if a file has none.
    """
    if dataset.source is None or dataset.target is None:
        return [], []
    sources = _matches(dataset.source, data, pair_files)
    targets = _matches(dataset.target, data, pair_files)
    is_paired = re.search(WILDCARDS, dataset.source) and re.search(WILDCARDS, dataset.target)
    if not is_paired or not sources[0].exists() or not targets[0].exists():
        return sources, targets
    source_by_key = {_stands_for(dataset.source, data, path): path for path in sources}
    target_by_key = {_stands_for(dataset.target, data, path): path for path in targets}
    alone = [path for key, path in source_by_key.items() if key not in target_by_key]
    alone += [path for key, path in target_by_key.items() if key not in source_by_key]
    if alone:
        more = f" and {len(alone) - SHOWN:,} more" if len(alone) > SHOWN else ""
        those = f"{', '.join(map(str, alone[:SHOWN]))}{more}"
        problem = f"{those}: no partner among the files of {dataset.source} and {dataset.target}"
        hint = "partners have the same in place of the wildcards, such as a.en and a.de for *.en and *.de: rename them"
        raise UserError(problem, hint)
    return list(source_by_key.values()), [target_by_key[key] for key in source_by_key]


def _stands_for(name: str, data: Data, path: Path) -> tuple[str, ...]:
    """Return what each run of wildcards of the pattern `name` stands for in a path that it matches."""
    parts = re.split(WILDCARDS, _pattern(name, data))
    for number, part in enumerate(parts):
        if number % 2:
            every = [ANY_TEXT.get(wildcard, "[^/]") for wildcard in re.findall(WILDCARD, part)]
            parts[number] = f"({''.join(every)})"
        else:
            plain = re.sub(r"\[(.)\]", r"\1", part)
            parts[number] = re.escape(plain)
    found = re.fullmatch("".join(parts), str(path), re.DOTALL)
    return found.groups() if found else (str(path),)  # of a folder that the pattern matches


def _pattern(name: str, data: Data) -> str:
    """Return the pattern of paths that a name is, beside the root, which is none."""
    escaped = data.model_copy(update={"root": glob.escape(data.root)})
    return str(escaped.path(name))


def _matches(name: str, data: Data, files_of: Callable[[Path], list[Path]]) -> list[Path]:
    """Return the files that a name or a pattern stands for, in order; `files_of` lists those of a folder."""
    path = data.path(name)
    if path.exists():
        return files_of(path)
    found = set[Path]()
    for match in glob.glob(_pattern(name, data), recursive=True):
        found.update(files_of(Path(match)))
    return sorted(found) or [path]


def pair_files(path: Path) -> list[Path]:
    """Return a file, or the files of pairs of a folder and of those in it, without hidden ones.

    Raise UserError if there are none.
    """
    if not path.is_dir():
        return [path]
    found = sorted(filter(_is_of_pairs, files_in(path)))
    if not found:
        raise UserError(f"{path}: holds no files that end in {', '.join(PAIRS)}", "name another folder")
    return found


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of those in it, except hidden ones, such as copies that an editor keeps."""
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if not any(part.startswith(".") for part in parts) and os.path.isfile(path):  # without an error if unreadable
            yield path


def _is_of_pairs(path: Path) -> bool:
    """Return whether a file in a folder is one of pairs, unlike TypeScript, whose names end in .ts as Qt's do."""
    form = format_of(path)
    return form is not None and (form not in UNITS or kind_of(path) != "")


def check_inputs(datasets: Sequence[Dataset], data: Data) -> int | None:
    """Check that files exist, that the first columns of tables hold sentences, and that both sides of each data set
    have equally many lines, else raise UserError.

    Download missing sacreBLEU test sets. Return the number of pairs, or None if a data set is not line-aligned text.
    """
    for dataset in datasets:
        for path in input_files(dataset, data.of(dataset)):
            _check_file(path, dataset, data)
    total = 0
    is_known = True
    for dataset in datasets:
        size = _count_lines(dataset, data.of(dataset))
        if size is None:
            is_known = False
        else:
            total += size
    return total if is_known else None


def _check_file(path: Path, dataset: Dataset, data: Data) -> None:
    """Raise UserError unless a data set's file exists and, of a table, its first columns hold sentences."""
    check_name(path)
    if not path.exists():
        if is_address(dataset.file):
            raise UserError(f"{dataset.file}: is not downloaded yet", "nmt preprocess RECIPE downloads it")
        root = "" if path.is_absolute() else f" (data.root is {data.root})"
        raise UserError(f"{path}: no such file{root}", "--set data.root=FOLDER says where relative names begin")
    if not path.is_file():
        raise UserError(f"{path}: is not a regular file, but data is read several times", "write it to a file")
    if dataset.file is not None and dataset.fields is None and format_of(path) in TABLES:
        check_columns(path, data.of(dataset).languages)


def _count_lines(dataset: Dataset, data: Data) -> int | None:
    """Return the number of pairs of a data set of line-aligned text, or that it takes; None if it is of another kind.

    Raise UserError if two files have not equally many lines.
    """
    groups = _text_files(dataset, data)
    if groups is None:
        return dataset.take if isinstance(dataset.take, int) else None
    total = 0
    for source, target in groups:
        lines = count_lines(source)
        translations = count_lines(target)
        if lines != translations:
            problem = f"{source} has {counted(lines, 'line')} and {target} has {translations:,}"
            raise UserError(f"{problem}: line N of one must translate line N of the other", REALIGN)
        total += lines
    return total


TextFile = str | os.PathLike[str]


def _text_files(dataset: Dataset, data: Data) -> Sequence[tuple[TextFile, TextFile]] | None:
    """Return a data set's line-aligned text files, of source and target; None if it has another format."""
    if dataset.sacrebleu is not None:
        return [find_test_set(dataset.sacrebleu, data.source, data.target)]
    if dataset.format == ".zip":
        groups = list[tuple[TextFile, TextFile]]()
        for path in input_files(dataset, data):
            source, target = members(path, data.endings, is_same)
            groups.append((source, target))
        return groups
    sources, targets = _sides(dataset, data)
    if len(sources) != len(targets):
        problem = f"{dataset.source} stands for {counted(len(sources), 'file')} and {dataset.target} for {len(targets)}"
        raise UserError(f"{problem}: file N of one must translate file N of the other", "name equally many")
    return list(zip(sources, targets, strict=True)) or None


def _place_of_line(number: int) -> tuple[int, str]:
    return number + 1, ""


class Part(NamedTuple):
    """Pairs of one file of a data set, of its two text files, or of a data set of the hub."""

    name: str
    """The data set's name in the recipe or, of several files, the path of this one"""
    pairs: Iterator[Pair]
    find: Callable[[int], tuple[int, str]] = _place_of_line
    """Reads the line of a pair, which is counted from 0, and what to show for a tree that left no pair"""
    lacking: int = 0
    """Number of units of a translators' file that lack one of the languages"""
    codes: tuple[str, ...] = ()
    """Languages of such a file"""
    is_foreign: bool = False
    """Whether all of its units lack one, or it declares another"""


def check_packages(data: Data) -> None:
    """Raise UserError if training files of translators are there, but not the package that they need."""
    for dataset in data.train:
        found = list[Path]()
        with suppress(UserError):  # what is missing is said when it is read
            found = [path for path in input_files(dataset, data.of(dataset)) if format_of(path) in UNITS]
        if found:
            check_toolkit(found[0])


def read_pairs(dataset: Dataset, data: Data, files: Iterable[Path] | None = None) -> Iterator[Pair]:
    """Yield a data set's pairs in order; raise UserError if its data is unreadable or malformed.

    `data` has the languages of the set, as `Data.of` returns it. `files` are those of `file` to read, by default all.

    Of a tree these are its words and its prepared form, or two empty strings if preparation leaves nothing.
    """
    for part in read_parts(dataset, data, files):
        yield from part.pairs


def read_parts(dataset: Dataset, data: Data, files: Iterable[Path] | None = None) -> Iterator[Part]:
    """Yield what `read_pairs` reads, file by file; each part is to be read before the next is asked for."""
    groups = _text_files(dataset, data)
    if groups is not None:
        for source, target in groups:
            name = dataset.sacrebleu or _named(source, dataset, data)
            yield Part(name, starmap(Pair, read_parallel(source, target)))
    elif dataset.trees is not None:
        for path in input_files(dataset, data):
            yield Part(_named(path, dataset, data), _read_trees(path, data), partial(_find_tree, path))
    elif dataset.file is not None:
        yield from _read_files(input_files(dataset, data) if files is None else files, dataset, data)
    else:
        records = _read_hub(dataset, data)
        yield Part(name_of(dataset), _read_records(f"{dataset.hub} ({dataset.split})", records, dataset, data))


def _read_files(files: Iterable[Path], dataset: Dataset, data: Data) -> Iterator[Part]:
    """Yield the pairs of files of `dataset.file`; raise UserError at the end if none of them has both languages."""
    foreign = list[Part]()
    count = 0
    for path in files:
        part = _read_file(path, _named(path, dataset, data), dataset, data)
        count += 1
        if part.is_foreign:
            foreign.append(part._replace(pairs=iter(())))
        yield part
    if foreign and len(foreign) == count:
        raise _without_pair(foreign, data)


def _named(path: TextFile, dataset: Dataset, data: Data) -> str:
    """Return the name of a file: the data set's if that is this file, else its path."""
    name = name_of(dataset)
    return name if str(path) == str(data.path(name)) else str(path)


def name_of(dataset: Dataset) -> str:
    """Return a data set's file, corpus, hub or test set name."""
    local = dataset.file or dataset.source or dataset.target or dataset.trees
    return local or dataset.hub or str(dataset.sacrebleu)


def _read_trees(path: Path, data: Data) -> Iterator[Pair]:
    """Yield the words and the prepared form of each tree of a file."""
    for tree in read_trees(path):
        prepared = prepare_tree(tree, data.functional_tags, data.traces)
        if prepared is None:
            yield Pair("", "")
        else:
            yield Pair(" ".join(prepared.leaves()), str(prepared))


def _find_tree(path: Path, number: int) -> tuple[int, str]:
    line, tree = next(islice(read_trees_of(path), number, None))
    return line, str(tree)


def _find_record(path: Path, number: int) -> tuple[int, str]:
    lines = (line for line, text in enumerate(read_lines(path), 1) if stripped(text))
    return next(islice(lines, number, None)), ""


def _read_file(path: Path, name: str, dataset: Dataset, data: Data) -> Part:
    """Return the pairs of one file of `dataset.file`; raise UserError if it is the only one, in another language."""
    form = format_of(path)
    if form in UNITS:
        return _read_units(path, name, dataset, data)
    if form in TABLES:
        fields = dataset.fields or ("1", "2")
        return Part(name, starmap(Pair, read_table(path, fields)), partial(row_line, path, fields))
    records = _read_records(str(path), read_records(path), dataset, data)
    if form == ".parquet":
        return Part(name, records)
    return Part(name, records, partial(_find_record, path))


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a .jsonl or .parquet; raise UserError where it is malformed."""
    return _read_parquet(path) if format_of(path) == ".parquet" else _read_json_lines(path)


def _read_units(path: Path, name: str, dataset: Dataset, data: Data) -> Part:
    """Return the pairs of a translators' file."""
    file = BilingualFile(path, data.languages)
    code = foreign_language(path, dataset, data)
    if code and dataset.may_be_several:
        return Part(name, iter(()), lacking=len(file.units), codes=(code,), is_foreign=True)
    file.check_language()
    is_foreign = bool(file.lacking) and not file.complete
    lines = array("L")  # of the pairs read

    def read() -> Iterator[Pair]:
        for line, source, target in file.placed_pairs():
            lines.append(line)
            yield Pair(source, target)

    def find(number: int) -> tuple[int, str]:
        return lines[number], ""

    return Part(name, read(), find, lacking=file.lacking, codes=tuple(file.codes), is_foreign=is_foreign)


def foreign_language(path: Path, dataset: Dataset, data: Data) -> str:
    """Return the code of another language than those of `data` that a file of translators declares or, among several
    and declaring none, is called by; else nothing."""
    if format_of(path) not in UNITS:
        return ""
    content = content_of(path)
    other = other_language(path, content, kind_of(path), data.languages)
    if other:
        return other[1]
    by_name = language_by_place(path)
    if not by_name or not dataset.may_be_several or any(declared_languages(path, content)):
        return ""
    return "" if is_same(by_name, data.target) else by_name


def _without_pair(parts: Sequence[Part], data: Data) -> UserError:
    """Return the error for files of translators none of whose units has both languages."""
    codes = list(dict.fromkeys(chain.from_iterable(part.codes for part in parts)))
    names = ", ".join(part.name for part in parts[:SHOWN])
    if len(parts) > SHOWN:
        names += " and others"
    problem = f"{names}: no unit has both {' and '.join(data.languages)}, the languages are {', '.join(codes)}"
    example = f"{{file: {parts[0].name}, languages: [{', '.join(codes[:2])}]}}"
    return UserError(problem, f"name two of these, such as {example}")


def _read_records(where: str, records: Iterator[dict[str, Any]], dataset: Dataset, data: Data) -> Iterator[Pair]:
    source, target = dataset.fields or data.languages
    number = 0
    for number, record in enumerate(records, 1):
        record = fields_of(record)
        for field in (source, target):
            value = record.get(field, ABSENT)
            if not isinstance(value, str | None):
                raise _no_text(f"{where}: record {number:,}", field, value, record)
        yield Pair(_text(record[source]), _text(record[target]))
    if not number:
        raise UserError(f"{where}: holds no records", "name a data set that has some, or leave this one out")


def fields_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record: those in `translation`, where WMT's data sets nest the languages, or its own."""
    nested = record.get("translation")
    return nested if isinstance(nested, dict) else record


def _no_text(where: str, field: str, value: Any, record: dict[str, Any]) -> UserError:
    """Return the error for a field that is missing, or that holds something else than text."""
    if value is ABSENT:
        problem = f"{where} has no text field {field!r}, it has {', '.join(map(str, record))}"
        return UserError(problem, f"{NAME_FIELDS}; if only this record lacks it, write null there")
    kind = kind_of_value(value)
    hint = NAME_FIELDS
    if isinstance(value, bytes):
        hint = f"make it a column of text, with pyarrow: table[{field!r}].cast('string'); or {hint}"
    return UserError(f"{where} has no text in field {field!r}, but {kind}", hint)


def kind_of_value(value: object) -> str:
    """Return what a record holds in place of text."""
    return KINDS.get(type(value), type(value).__name__)


def _text(value: str | None) -> str:
    if value is None:
        return ""
    if not value.isascii():  # JSON may escape lone surrogates, which UTF-8 cannot encode
        value = value.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")
    return one_line(value)


def _read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a .jsonl file's records as they are; `datasets` would add the fields of all records to each."""
    for number, line in enumerate(read_lines(path), 1):
        if not stripped(line):
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: is not valid JSON: {error}", ONE_OBJECT) from None
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: must be a JSON object, is {line.strip()[:40]}", ONE_OBJECT)
        yield record


def _read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet

    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except (OSError, ValueError, pyarrow.ArrowException) as error:  # ValueError: a text or column name is not UTF-8
        raise UserError(f"{path}: cannot be read: {_reason(error)}", "take another copy of this file") from None


def _read_hub(dataset: Dataset, data: Data) -> Iterator[dict[str, Any]]:
    import datasets  # takes seconds to import

    datasets.disable_progress_bars()
    for name in ("datasets", "huggingface_hub"):  # whatever they log is repeated in their exceptions
        logging.getLogger(name).setLevel(logging.CRITICAL)
    split = dataset.split.partition("[")[0]  # of a slice such as train[:10%]
    files = {split: list(dataset.data_files)} if dataset.data_files else None
    try:
        yield from datasets.load_dataset(
            dataset.hub, dataset.config, split=dataset.split, revision=dataset.revision, data_files=files
        )
    except Exception as error:  # of many types, all meaning that the data is unavailable
        own = "{source: train.en, target: train.de}"
        hint = f"without a network give local files: --set 'data.train=[{own}]', and likewise data.valid and data.test"
        if "scripts are no longer supported" in str(error):
            parquet = f"revision: refs/convert/parquet, data_files: [{dataset.config or 'default'}/{split}/*.parquet]"
            hint = f"nmt runs no code of data sets; the hub converts many: {{hub: {dataset.hub}, {parquet}}}"
        raise UserError(f"{dataset.hub}: cannot be loaded from the hub: {_reason(error)}", hint) from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def describe(dataset: Dataset, data: Data) -> dict[str, Any]:
    """Return the settings that determine a data set's pairs, excluding file names and weight."""
    given = json.loads(dataset.model_dump_json(exclude_defaults=True))
    told = {key: value for key, value in given.items() if key not in WITHOUT_EFFECT}
    if dataset.trees is not None:
        told["functional_tags"] = data.functional_tags
        told["traces"] = data.traces
        told["pos_tags"] = data.pos_tags
    return told


def find_test_set(name: str, source: str, target: str) -> tuple[Path, Path]:
    """Return the source and first reference file of a sacreBLEU test set, such as wmt14/full from en to de.

    sacreBLEU downloads missing files to ~/.sacrebleu or the directory named by the environment variable SACREBLEU.
    Raise UserError if it has no such test set or language pair, or cannot download it.
    """
    from sacrebleu.dataset import DATASETS
    from sacrebleu.utils import SACREBLEU_DIR, get_reference_files, get_source_file

    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "name one that sacrebleu --list shows"
        raise UserError(f"{name}: sacreBLEU knows no such test set", hint)
    pairs = DATASETS[name].langpairs
    pair = f"{source}-{target}"
    if pair not in pairs:
        problem = f"{name}: sacreBLEU does not have this test set for {pair}"
        raise UserError(problem, f"take one of {', '.join(sorted(pairs))}")
    stem = Path(SACREBLEU_DIR) / name / f"{name.replace('/', '_')}.{pair}"
    sources = Path(f"{stem}.src")
    references = Path(f"{stem}.ref")
    if sources.exists() and references.exists():  # sacreBLEU would also require files that we do not need
        return sources, references
    try:
        return Path(get_source_file(name, pair)), Path(get_reference_files(name, pair)[0])
    except (Exception, SystemExit) as error:  # sacreBLEU does not wrap errors, and exits on a damaged download
        reason = "its download failed" if isinstance(error, SystemExit) else error
        hint = f"without a network put its sentences, one a line, into {sources} and {references}, or name other files"
        raise UserError(f"{name}: sacreBLEU cannot provide this test set: {reason}", hint) from error
