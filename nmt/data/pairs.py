"""Read sentence pairs from text, .zip, .tsv, .jsonl, .parquet, translators' files, sacreBLEU, hub and treebanks.

A tree becomes a pair of its space-separated words and the prepared tree on one line.
"""

from __future__ import annotations

import difflib
import glob
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from nmt.data.tables import check_columns, read_table
from nmt.formats.bilingual import BilingualFile, check_toolkit
from nmt.formats.declared import content_of, kind_of, other_language
from nmt.parsing.tree import prepare_tree, read_trees, read_trees_of, tree_files
from nmt.recipe import Data, Dataset
from nmt.recipe.addresses import is_address
from nmt.recipe.data import PAIRS, UNITS, format_of
from nmt.system.compression import members
from nmt.system.errors import UserError
from nmt.system.files import check_name
from nmt.text.lines import REALIGN, count_lines, one_line, read_lines, read_parallel, stripped

Pair = tuple[str, ...]
"""One sentence for each of `Data.languages`"""
ABSENT = object()
KINDS = {bytes: "bytes", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
"""What a record may hold in place of text"""
WILDCARD = r"\*\*/|\*+|\?|\[(?:![^/]|[^/][^]/])[^]/]*\]"  # not [x], which is x alone
WILDCARDS = f"((?:{WILDCARD})+)"
SHOWN = 3  # names of files in an error
ONE_OBJECT = 'write one JSON object on each line, such as {"en": "Hello.", "de": "Hallo."}'


def input_files(dataset: Dataset, data: Data) -> list[Path]:
    """Return the local files of a data set; a pattern that matches none as a path.

    Raise UserError if a folder holds none, or if a file that a pattern of one side matches has no partner.
    """
    names = (dataset.file, dataset.trees)
    files = [path for name in names if name is not None for path in _matches(name, data, name is dataset.trees)]
    return [path for side in _sides(dataset, data) for path in side] + files


def _sides(dataset: Dataset, data: Data) -> list[list[Path]]:
    """Return the text files of source and target, if they are named: file N of one is the partner of file N of the
    other where both are patterns that match files.

    Those are partners for whom the wildcards stand for the same. Raise UserError if a file has none.
    """
    names = [name for name in (dataset.source, dataset.target) if name is not None]
    found = [_matches(name, data, False) for name in names]
    patterns = [_pattern(name, data) for name in names]
    if not all(re.search(WILDCARDS, name) and each[0].exists() for name, each in zip(names, found, strict=True)):
        return found
    keys = [{_stands_for(pattern, path): path for path in side} for pattern, side in zip(patterns, found, strict=True)]
    alone = [path for side in keys for key, path in side.items() if not all(key in each for each in keys)]
    if alone:
        more = f" and {len(alone) - SHOWN:,} more" if len(alone) > SHOWN else ""
        problem = f"{', '.join(map(str, alone[:SHOWN]))}{more}: no partner among the files of {' and '.join(names)}"
        hint = "partners have the same in place of the wildcards, such as a.en and a.de for *.en and *.de: rename them"
        raise UserError(problem, hint)
    return [[side[key] for key in keys[0]] for side in keys]


def _stands_for(pattern: str, path: Path) -> tuple[str, ...]:
    """Return what each run of wildcards of a pattern stands for in a path that it matches."""
    parts = re.split(WILDCARDS, pattern)
    kinds = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    for number, part in enumerate(parts):
        if number % 2:
            every = (kinds.get(each, "[^/]") for each in re.findall(WILDCARD, part))
            parts[number] = f"({''.join(every)})"
        else:
            parts[number] = re.escape(re.sub(r"\[(.)\]", r"\1", part))
    found = re.fullmatch("".join(parts), str(path), re.DOTALL)
    return found.groups() if found else (str(path),)  # of a folder that the pattern matches


def _pattern(name: str, data: Data) -> str:
    """Return the pattern of paths that a name is, beside the root, which is none."""
    return str(data.model_copy(update={"root": glob.escape(data.root)}).path(name))


def _matches(name: str, data: Data, has_trees: bool) -> list[Path]:
    """Return the files that a name or a pattern stands for, in order."""
    path, files_of = data.path(name), tree_files if has_trees else pair_files
    if path.exists():
        return files_of(path)
    found = glob.glob(_pattern(name, data), recursive=True)
    return sorted({file for match in found for file in files_of(match)}) or [path]


def pair_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return a file, or the files of pairs of a folder and of those in it.

    Raise UserError if there are none.
    """
    found = [Path(path)]
    if Path(path).is_dir():
        found = sorted(each for each in Path(path).rglob("*") if _is_of_pairs(each) and each.is_file())
    if not found:
        raise UserError(f"{path}: holds no files that end in {', '.join(PAIRS)}", "name another folder")
    return found


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
            check_name(path)
            if not path.exists():
                if is_address(dataset.file):
                    raise UserError(f"{dataset.file}: is not downloaded yet", "nmt preprocess RECIPE downloads it")
                root = "" if path.is_absolute() else f" (data.root is {data.root})"
                raise UserError(f"{path}: no such file{root}", "--set data.root=FOLDER says where relative names begin")
            if not path.is_file():
                raise UserError(f"{path}: is not a regular file, but data is read several times", "write it to a file")
            if dataset.file is not None and dataset.fields is None and format_of(path) == ".tsv":
                check_columns(path, data.of(dataset).languages)
    sizes = list[int | None]()
    for dataset in datasets:
        if (groups := _text_files(dataset, data.of(dataset))) is None:
            sizes.append(dataset.take if isinstance(dataset.take, int) else None)
        for files in groups or ():
            counts = [count_lines(path) for path in files]
            if counts[0] != counts[-1]:
                problem = f"{files[0]} has {counts[0]:,} lines and {files[-1]} has {counts[-1]:,}"
                raise UserError(f"{problem}: line N of one must translate line N of the other", REALIGN)
            sizes.append(counts[0])
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _text_files(dataset: Dataset, data: Data) -> Sequence[tuple[os.PathLike[str], ...]] | None:
    """Return a data set's line-aligned text files, one per side, in groups; None if it has another format."""
    if dataset.sacrebleu is not None:
        return [find_test_set(dataset.sacrebleu, data.source, data.target)]
    if dataset.format == ".zip":
        return [members(path, data.endings) for path in input_files(dataset, data)]
    sides = _sides(dataset, data)
    if sides and len(sides[0]) != len(sides[-1]):
        problem = f"{dataset.source} stands for {len(sides[0])} files and {dataset.target} for {len(sides[-1])}"
        raise UserError(f"{problem}: file N of one must translate file N of the other", "name equally many")
    return list(zip(*sides, strict=True)) or None


class Part(NamedTuple):
    """Pairs of one file of a data set, of its two text files, or of a data set of the hub."""

    name: str
    """The data set's name in the recipe or, of several files, the path of this one"""
    pairs: Iterator[Pair]
    find: Callable[[int], tuple[int, str]] = lambda number: (number + 1, "")
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

    def named(path: str | os.PathLike[str]) -> str:
        return name_of(dataset) if str(path) == str(data.path(name_of(dataset))) else str(path)

    if (groups := _text_files(dataset, data)) is not None:
        for group in groups:
            yield Part(dataset.sacrebleu or named(group[0]), read_parallel(*group))
    elif dataset.trees is not None:
        for path in input_files(dataset, data):
            yield Part(named(path), _read_trees(path, data), partial(_find_tree, path))
    elif dataset.file is not None:
        paths = [*(input_files(dataset, data) if files is None else files)]
        foreign = list[Part]()
        for path in paths:
            part = _read_file(path, named(path), dataset, data)
            foreign += [part._replace(pairs=iter(()))] if part.is_foreign else []
            yield part
        if foreign and len(foreign) == len(paths):
            raise _without_pair(foreign, data)
    else:
        records = _read_hub(dataset, data)
        yield Part(name_of(dataset), _read_records(f"{dataset.hub} ({dataset.split})", records, dataset, data))


def name_of(dataset: Dataset) -> str:
    """Return a data set's file, corpus, hub or test set name."""
    local = dataset.file or dataset.source or dataset.target or dataset.trees
    return local or dataset.hub or str(dataset.sacrebleu)


def _read_trees(path: Path, data: Data) -> Iterator[Pair]:
    """Yield the words and the prepared form of each tree of a file."""
    for tree in read_trees(path):
        prepared = prepare_tree(tree, data.functional_tags, data.traces)
        yield ("", "") if prepared is None else (" ".join(prepared.leaves()), str(prepared))


def _find_tree(path: Path, number: int) -> tuple[int, str]:
    line, tree = next(islice(read_trees_of(path), number, None))
    return line, str(tree)


def _find_record(path: Path, number: int) -> tuple[int, str]:
    lines = (line for line, text in enumerate(read_lines(path), 1) if stripped(text))
    return next(islice(lines, number, None)), ""


def _read_file(path: Path, name: str, dataset: Dataset, data: Data) -> Part:
    """Return the pairs of one file of `dataset.file`; raise UserError if it is the only one, in another language."""
    if (form := format_of(path)) in UNITS:
        file = BilingualFile(path, data.languages)
        if (code := foreign_language(path, data)) and dataset.may_be_several:
            return Part(name, iter(()), lacking=len(file.units), codes=(code,), is_foreign=True)
        file.check_language()
        is_foreign = bool(file.lacking) and not file.complete
        return Part(name, file.pairs(), lacking=file.lacking, codes=tuple(file.codes), is_foreign=is_foreign)
    if form == ".tsv":
        return Part(name, read_table(path, dataset.fields or ("1", "2")))
    if form == ".parquet":
        return Part(name, _read_records(str(path), _read_parquet(path), dataset, data))
    records = _read_records(str(path), _read_json_lines(path), dataset, data)
    return Part(name, records, partial(_find_record, path))


def foreign_language(path: Path, data: Data) -> str:
    """Return the code of another language than those of `data` that a file of translators declares; else nothing."""
    if format_of(path) not in UNITS:
        return ""
    other = other_language(path, content_of(path), kind_of(path), data.languages)
    return other[1] if other else ""


def _without_pair(parts: Sequence[Part], data: Data) -> UserError:
    """Return the error for files of translators none of whose units has both languages."""
    codes = [*dict.fromkeys(code for part in parts for code in part.codes)]
    names = ", ".join(part.name for part in parts[:SHOWN]) + (" and others" if len(parts) > SHOWN else "")
    problem = f"{names}: no unit has both {' and '.join(data.languages)}, the languages are {', '.join(codes)}"
    return UserError(
        problem, f"name two of these, such as {{file: {parts[0].name}, languages: [{', '.join(codes[:2])}]}}"
    )


def _read_records(where: str, records: Iterator[dict[str, Any]], dataset: Dataset, data: Data) -> Iterator[Pair]:
    fields, number = dataset.fields or data.languages, 0
    for number, record in enumerate(records, 1):
        if isinstance(record.get("translation"), dict):
            record = record["translation"]  # WMT's data sets nest the languages here
        for field in fields:
            value = record.get(field, ABSENT)
            if not isinstance(value, str | None):
                raise _no_text(f"{where}: record {number:,}", field, value, record)
        yield tuple(_text(record[field]) for field in fields)
    if not number:
        raise UserError(f"{where}: holds no records", "name a data set that has some, or leave this one out")


def _no_text(where: str, field: str, value: Any, record: dict[str, Any]) -> UserError:
    """Return the error for a field that is missing, or that holds something else than text."""
    if value is ABSENT:
        problem = f"{where} has no text field {field!r}, it has {', '.join(map(str, record))}"
        return UserError(problem, "name fields that hold text: fields: [SOURCE, TARGET]")
    problem = f"{where} has no text in field {field!r}, but {KINDS.get(type(value), type(value).__name__)}"
    hint = "name fields that hold text: fields: [SOURCE, TARGET]"
    if isinstance(value, bytes):
        hint = f"make it a column of text, with pyarrow: table[{field!r}].cast('string'); or {hint}"
    return UserError(problem, hint)


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


UNTOLD = ("source", "target", "file", "sha256", "trees", "weight")  # keys that say nothing of a data set's pairs


def describe(dataset: Dataset, data: Data) -> dict[str, Any]:
    """Return the settings that determine a data set's pairs, excluding file names and weight."""
    given = json.loads(dataset.model_dump_json(exclude_defaults=True))
    told = {key: value for key, value in given.items() if key not in UNTOLD}
    if dataset.trees is not None:
        told |= {key: getattr(data, key) for key in ("functional_tags", "traces", "pos_tags")}
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
    pairs, pair = DATASETS[name].langpairs, f"{source}-{target}"
    if pair not in pairs:
        problem = f"{name}: sacreBLEU does not have this test set for {pair}"
        raise UserError(problem, f"take one of {', '.join(sorted(pairs))}")
    stem = Path(SACREBLEU_DIR) / name / f"{name.replace('/', '_')}.{pair}"
    sources, references = Path(f"{stem}.src"), Path(f"{stem}.ref")
    if sources.exists() and references.exists():  # sacreBLEU would also require files that we do not need
        return sources, references
    try:
        return Path(get_source_file(name, pair)), Path(get_reference_files(name, pair)[0])
    except (Exception, SystemExit) as error:  # sacreBLEU does not wrap errors, and exits on a damaged download
        reason = "its download failed" if isinstance(error, SystemExit) else error
        hint = f"without a network put its sentences, one a line, into {sources} and {references}, or name other files"
        raise UserError(f"{name}: sacreBLEU cannot provide this test set: {reason}", hint) from error
