"""`nmt preprocess`: turn raw text into a tokenizer, Arrow files of ids, and a report of dropped pairs.

A prepared directory holds `train.arrow`, `valid.arrow`, `test.arrow`, the tokenizer's files, `report.json` and
`fingerprint.json`, which identifies the inputs and settings and has the hashes of the other files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import RootModel

from nmt import __version__
from nmt.data.corpus import ABSENT, SIDES, Chunk, Corpus, EncodedChunk, PairEncoder, encode_chunks, schema_of, table_of
from nmt.data.pairs import Pair, check_inputs, describe, input_files, read_pairs
from nmt.parsing.linearization import TreeVocabulary, load_tokenizer
from nmt.recipe import Data, Dataset, Recipe, Task
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.system.files import exclusive, identify, read_json, whole_directory, write_json
from nmt.system.integrity import check_files, checked, intact, read_manifest, replace_manifest, write_manifest
from nmt.text.lines import in_groups
from nmt.text.sentences import SentenceSplitter, TrainedLengths
from nmt.text.tokenizer import COVERAGE, Tokenizer

FORMAT = 2
MANIFEST = "fingerprint.json"
REPORT = "report.json"
SAMPLE = 10_000  # number of pairs that `measure_lengths` samples
CHUNK, CHUNK_TEXT = 10_000, 1 << 24  # pairs and approximate characters per `Chunk` and record batch


def directory(recipe: Recipe) -> Path:
    """Return the directory of the recipe's prepared data, relative to the working directory."""
    return Path("data") / recipe.data.name


def prepare(recipe: Recipe, console: Console, threads: int, tokenizer_from: Path | None = None) -> bool:
    """Prepare the recipe's data unless it is up to date; return whether anything was done.

    `tokenizer_from` names a bundle whose tokenizer is used instead of training one. Raise UserError, before writing
    anything, if input files are missing or misaligned, or if existing prepared data is damaged. An error leaves
    existing prepared data unchanged.
    """
    out = directory(recipe)
    before = _read_fingerprint(out)
    inputs = _identify(recipe, tokenizer_from, before)
    if before.get("fingerprint") == inputs["fingerprint"]:
        check_files(out / MANIFEST)
        if before["files"] != inputs["files"]:  # touched: record the new times, to skip hashing the files next time
            with suppress(UserError):  # prepared data may be read-only
                replace_manifest(out / MANIFEST, before | inputs)
        return False
    data, splits = recipe.data, recipe.data.splits
    totals = {split: check_inputs(datasets, data) for split, datasets in splits.items()}
    with exclusive(out.parent / f".{out.name}.lock", str(out), console.say), whole_directory(out, MANIFEST) as part:
        tokenizer = _tokenizer(recipe, totals["train"], console, tokenizer_from)
        for name, content in tokenizer.files().items():
            (part / name).write_bytes(content)
        report = {}
        for split, datasets in splits.items():
            chunks = encode_chunks(_encoder(split, data, tokenizer), _chunks(datasets, data), threads)
            with console.progress(f"encoding {split}", totals[split], data.task.unit) as advance:
                sides = SIDES[-len(data.languages) :]
                report[split] = _write_split(part / f"{split}.arrow", chunks, sides, len(datasets), advance)
        _check_some_kept(report["train"], data)
        write_json(part / REPORT, report)
        write_manifest(part / MANIFEST, inputs)
    for line in _summary(out, report, tokenizer, data.task):
        console.say(line)
    return True


def fingerprint(recipe: Recipe, tokenizer_from: Path | None = None) -> str:
    """Return the hash of the current inputs and settings, as recorded in prepared data and bundles."""
    return str(_identify(recipe, tokenizer_from, _read_fingerprint(directory(recipe)))["fingerprint"])


def fingerprint_of(prepared: Path) -> str | None:
    """Return the fingerprint recorded in prepared data; None if nothing is prepared."""
    found = _read_fingerprint(prepared).get("fingerprint")
    return None if found is None else str(found)


def mean_lengths(prepared: Path) -> tuple[float, float] | None:
    """Return the mean source and target length of the training split; None if nothing is prepared.

    A language model's source length is ABSENT.
    """
    train = read_report(prepared)["train"] if (prepared / REPORT).exists() else {}
    source, target = train.get("mean length of sources", ABSENT), train.get("mean length of targets")
    return (source, target) if source and target else None


def set_sizes(prepared: Path) -> list[int]:
    """Return the number of pairs kept from each training set, in order."""
    return list(read_report(prepared)["train"]["kept by set"])


class _Report(RootModel[dict[str, dict[str, Any]]]):
    """Contents of report.json: statistics by split."""


def read_report(prepared: Path) -> dict[str, Any]:
    """Read report.json, which counts pairs read, kept and dropped; raise UserError if it is missing or damaged."""
    return checked(_Report, read_json(intact(prepared / REPORT)), prepared / REPORT).root


def _read_fingerprint(out: Path) -> dict[str, Any]:
    """Read fingerprint.json, with each input's size, mtime and hash under `files`; return {} if missing or outdated."""
    found = read_manifest(out / MANIFEST) if os.path.lexists(out / MANIFEST) else {}
    return found if found.get("format") == FORMAT else {}


def _identify(recipe: Recipe, tokenizer_from: Path | None, before: dict[str, Any]) -> dict[str, Any]:
    """Return the fingerprint, and the inputs and settings that it hashes; `check_inputs` reports missing files."""
    seen = before.get("files", {})
    files: dict[str, list[Any]] = {}
    contents: dict[str, Any] = {}
    for split, datasets in recipe.data.splits.items():
        contents[split] = []
        for dataset in datasets:
            paths = input_files(dataset, recipe.data, seen)
            files |= {str(path): _seen(path, seen.get(str(path))) for path in paths}
            contents[split].append([describe(dataset, recipe.data), [files[str(path)][-1] for path in paths]])
    given = load_tokenizer(tokenizer_from).files() if tokenizer_from else {}
    what = {
        "format": FORMAT,
        "languages": recipe.data.languages,
        "contents": contents,
        "limits": [recipe.data.max_length, recipe.data.max_ratio],
        "tokenizer": {name: hashlib.sha256(content).hexdigest() for name, content in given.items()}
        or recipe.tokenizer.model_dump(),
    }
    if before and "nmt" not in before and recipe.tokenizer.character_coverage == "auto" and not given:
        older = what | {"tokenizer": recipe.tokenizer.model_dump() | {"character_coverage": COVERAGE}}
        if _digest(older) == before["fingerprint"]:  # prepared when 0.9995 was the default: runs go on with it
            return {"fingerprint": before["fingerprint"], "files": files, **older}
    return {"fingerprint": _digest(what), "files": files, "nmt": __version__, **what}


def _digest(what: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _seen(path: Path, before: list[Any] | None) -> list[Any]:
    """Identify a file; a missing one counts as unchanged, since training needs only the prepared data."""
    return identify(path, before) if path.exists() else before or [0, 0, None]


def _tokenizer(recipe: Recipe, total: int | None, console: Console, tokenizer_from: Path | None) -> Tokenizer:
    """Load the tokenizer of a bundle, or train one; `total` is the number of training pairs, if known."""
    if tokenizer_from is not None:
        console.say(f"tokenizer: from {tokenizer_from}")
        return load_tokenizer(tokenizer_from)
    data, text = recipe.data, _TokenizerText(recipe.data, total, console)
    trees = partial(TreeVocabulary.train, pos_tags=data.pos_tags) if data.task.has_trees else None
    return Tokenizer.train(text, recipe.tokenizer, console.say, trees)


@dataclass(frozen=True)
class _TokenizerText:
    """Training pairs as the encoder receives them; iterating displays progress."""

    data: Data
    total: int | None
    console: Console

    def __iter__(self) -> Iterator[Pair]:
        with self.console.progress("reading for the tokenizer", self.total, self.data.task.unit) as advance:
            for chunk in _chunks(self.data.train, self.data):
                yield from chunk.pairs
                advance(len(chunk.pairs))


def _encoder(split: str, data: Data, tokenizer: Tokenizer) -> PairEncoder:
    """Return a split's encoder; that of the training split counts overlaps with the other splits."""
    others = (*data.valid, *data.test) if split == "train" else ()
    evaluation = frozenset(pair for dataset in others for pair in _pairs(dataset, data))
    sides = (tokenizer.source, tokenizer.target)[-len(data.languages) :]
    return PairEncoder(sides, data.max_length, data.max_ratio, evaluation, split != "train", data.task.unit)


def _write_split(
    path: Path, chunks: Iterable[EncodedChunk], sides: Sequence[str], sets: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Write a split made of `sets` data sets; return its section of the report."""
    from datasets.arrow_writer import ArrowWriter  # takes seconds to import

    counts: Counter[str] = Counter()
    lengths: Counter[int] = Counter()
    read, kept, subwords = 0, [0] * sets, np.zeros(len(sides))
    schema = schema_of(sides)
    with ArrowWriter(path=os.fspath(path), schema=schema, writer_batch_size=CHUNK) as file:
        for chunk in chunks:
            file.write_table(table_of(chunk, schema))
            counts += chunk.counts
            lengths += chunk.length_classes()
            read += chunk.read
            kept[chunk.dataset] += len(chunk.lines)
            subwords += [len(side.ids) for side in chunk.sides]
            advance(chunk.read)
        if not read:
            file.write_table(schema.empty_table())
        file.finalize()
    means = (subwords / max(1, sum(kept))).round(2).tolist()
    return {
        "read": read,
        "kept": sum(kept),
        "kept by set": kept,
        **dict(sorted(counts.items())),
        **{f"mean length of {side}s": mean for side, mean in zip(sides, means, strict=True)},
        "sentences by length in subwords, up to": {str(k): v for k, v in sorted(lengths.items())},
    }


def _check_some_kept(train: dict[str, Any], data: Data) -> None:
    """Raise UserError if no training pair was kept."""
    if not train["kept"]:
        reasons = [f"{count:,} {name}" for name, count in train.items() if name.startswith("dropped")]
        raise UserError(
            f"data.train: none of the {train['read']:,} {data.task.unit} read is usable: {', '.join(reasons)}",
            f"raise data.max_length {data.max_length} or data.max_ratio {data.max_ratio:g}, or name other files",
        )


def _chunks(datasets: Sequence[Dataset], data: Data) -> Iterator[Chunk]:
    first = 1
    for index, dataset in enumerate(datasets):
        for chunk in in_groups(_pairs(dataset, data), CHUNK, CHUNK_TEXT):
            yield Chunk(index, first, chunk)
            first += len(chunk)


def _pairs(dataset: Dataset, data: Data) -> Iterator[Pair]:
    """Yield the pairs of a data set, stripped of surrounding whitespace.

    Trees are not stripped, since their last word may be a no-break space.
    """
    pairs = read_pairs(dataset, data)
    return (tuple(map(str.strip, pair)) for pair in pairs) if dataset.trees is None else pairs


def _summary(out: Path, report: dict[str, dict[str, Any]], tokenizer: Tokenizer, task: Task) -> Iterator[str]:
    """Yield the report's summary line by line."""
    unit = task.unit
    pieces = f"{len(tokenizer.source):,} pieces"
    if not tokenizer.shared:
        pieces += f" and {len(tokenizer.target):,} {'tree symbols' if task.has_trees else 'pieces'}"
    yield f"prepared {out}: {pieces}"
    for split, figures in report.items():
        if not figures["read"]:
            continue
        symbols = "tree symbols" if task.has_trees else "subwords"
        source, target = figures.get("mean length of sources"), figures["mean length of targets"]
        notes = [f"{target} subwords each" if not task.has_source else f"{source} subwords in, {target} {symbols} out"]
        if len(figures["kept by set"]) > 1:
            notes.append(f"by set {' + '.join(f'{kept:,}' for kept in figures['kept by set'])}")
        told = ("dropped", unit, "source", "trees", "targets")
        notes += [f"{value:,} {name}" for name, value in figures.items() if name.startswith(told)]
        read = f"{figures['read']:,} {'trees' if task.has_trees else unit}"
        yield f"  {split}: {figures['kept']:,} of {read}, {', '.join(notes)}"
    histogram = report["train"]["sentences by length in subwords, up to"]
    yield "  train sentences by length: " + ", ".join(f"≤{top}: {count:,}" for top, count in histogram.items())
    if leaked := report["train"].get(f"{unit} also in valid or test"):
        yield f"  warning: {leaked:,} training {unit} are in valid or test word for word, so scores there are too high"


def measure_lengths(recipe: Recipe, corpus: Corpus, tokenizer: Tokenizer) -> TrainedLengths | None:
    """Measure lengths on evenly spaced training pairs of a translator; return None for other tasks."""
    if recipe.task.name != "translate" or recipe.data.source is None or not len(corpus):
        return None
    rows = np.unique(np.linspace(0, len(corpus) - 1, SAMPLE).astype(np.int64))
    sources, targets = corpus.lengths(rows)
    splitter = SentenceSplitter(recipe.data.source)
    sentences = []
    for chunk in np.array_split(rows, -(-len(rows) // 1000)):
        for ids, length in zip(*corpus.sources(chunk), strict=True):
            sentences.append(len(splitter.split(tokenizer.source.decode(ids[:length]))))
    return TrainedLengths.of(recipe.data.source, sources.tolist(), targets.tolist(), sentences)
