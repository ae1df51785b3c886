"""`nmt preprocess`: raw text to a tokenizer, memory-mapped Arrow files of ids and a report of what was dropped.

A prepared directory holds `train.arrow`, `valid.arrow`, `test.arrow`, the files of the tokenizer, `report.json` and
`fingerprint.json`, which ties them to the content of the inputs and to the settings, and holds hashes of them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from nmt.console import Console
from nmt.data.corpus import ABSENT, SIDES
from nmt.data.encode import Chunk, EncodedChunk, PairEncoder, Sentences, encode_chunks
from nmt.data.pairs import Pair, check_inputs, describe, input_files, read_pairs
from nmt.errors import UserError
from nmt.files import exclusive, read_json, remedy, sha256, whole_directory, write_json
from nmt.integrity import HASHES, check_files, intact, read_manifest, replace_manifest, write_manifest
from nmt.recipe import Data, Dataset, Recipe
from nmt.text.linear import TreeVocabulary
from nmt.text.lines import in_groups
from nmt.text.tokenizer import Tokenizer

FORMAT = 2
MANIFEST = "fingerprint.json"
CHUNK, CHUNK_TEXT = 10_000, 1 << 24  # pairs, and about their characters, per record batch and unit of work


def directory(recipe: Recipe) -> Path:
    """Where the recipe's prepared data stands, relative to the working directory."""
    return Path("data") / recipe.data.name


def prepare(recipe: Recipe, console: Console, threads: int, tokenizer_from: Path | None = None) -> bool:
    """Prepares the recipe's data unless that is done already; returns whether there was anything to do.

    `tokenizer_from` is a bundle whose tokenizer is used instead of training one. Raises UserError on missing or
    unequal files before anything is written, and where a file of the prepared data is damaged; on any error what was
    prepared before stays.
    """
    out = directory(recipe)
    before = _read_fingerprint(out)
    inputs = _identify(recipe, tokenizer_from, before)
    if before.get("fingerprint") == inputs["fingerprint"]:
        check_files(out / MANIFEST)
        if before["files"] != inputs["files"]:  # so that files that were only touched are not read at every start
            with suppress(UserError):  # prepared data may be read-only
                replace_manifest(out / MANIFEST, inputs | {key: before[key] for key in (HASHES,) if key in before})
        return False
    splits, sides, unit = _splits(recipe), len(recipe.data.languages), recipe.data.unit
    totals = {split: check_inputs(datasets, recipe.data) for split, datasets in splits.items()}
    with (
        exclusive(out.parent / f".{out.name}.lock", str(out)),
        whole_directory(out, MANIFEST) as part,
    ):
        tokenizer = _tokenizer(recipe, totals["train"], console, tokenizer_from)
        for name, content in tokenizer.files().items():
            (part / name).write_bytes(content)
        evaluation = frozenset(
            pair for split in ("valid", "test") for dataset in splits[split] for pair in _pairs(dataset, recipe.data)
        )
        report = {}
        for split, datasets in splits.items():
            encoder = PairEncoder(
                (tokenizer.source, tokenizer.target)[-sides:],
                recipe.data.max_length,
                recipe.data.max_ratio,
                evaluation if split == "train" else frozenset(),
                keep_all=split != "train",
                unit=unit,
            )
            chunks = encode_chunks(encoder, _chunks(datasets, recipe.data), threads)
            with console.progress(f"encoding {split}", totals[split], unit) as advance:
                report[split] = _write_split(part / f"{split}.arrow", chunks, sides, len(datasets), advance)
        if not report["train"]["kept"]:
            reasons = [f"{count:,} {name}" for name, count in report["train"].items() if name.startswith("dropped")]
            raise UserError(
                f"data.train: none of the {report['train']['read']:,} {unit} read is usable: {', '.join(reasons)}",
                f"raise data.max_length {recipe.data.max_length} or data.max_ratio {recipe.data.max_ratio:g}, or name "
                "other files",
            )
        write_json(part / "report.json", report)
        write_manifest(part / MANIFEST, inputs)
    for line in _summary(out, report, tokenizer, unit):
        console.say(line)
    return True


def fingerprint(recipe: Recipe, tokenizer_from: Path | None = None) -> str:
    """Identity of the inputs as they are now and of the settings; prepared data and bundles made of it carry it."""
    return str(_identify(recipe, tokenizer_from, _read_fingerprint(directory(recipe)))["fingerprint"])


def fingerprint_of(prepared: Path) -> str | None:
    """The fingerprint that prepared data carries; None where nothing is prepared."""
    found = _read_fingerprint(prepared).get("fingerprint")
    return None if found is None else str(found)


def mean_lengths(prepared: Path) -> tuple[float, float] | None:
    """Subwords of training's sources, and subwords or symbols of its targets; None where nothing is prepared.

    Of a language model the former are ABSENT.
    """
    path = prepared / "report.json"
    report = read_json(intact(path)) if path.exists() else {}
    train = report.get("train", {}) if isinstance(report, dict) else {}
    source, target = train.get("mean length of sources", ABSENT), train.get("mean length of targets")
    return (source, target) if source and target else None


def set_sizes(prepared: Path) -> list[int]:
    """How many pairs of train.arrow come from each training set, in order. Raises UserError where that is not said."""
    path = prepared / "report.json"
    report = read_json(intact(path))
    train = report.get("train") if isinstance(report, dict) else None
    sizes = train.get("kept by set") if isinstance(train, dict) else None
    if not isinstance(sizes, list) or not all(isinstance(size, int) for size in sizes):
        raise UserError(f"{path}: does not tell how many pairs each training set has", remedy(path))
    return sizes


def _splits(recipe: Recipe) -> dict[str, tuple[Dataset, ...]]:
    return {"train": recipe.data.train, "valid": recipe.data.valid, "test": recipe.data.test}


def _read_fingerprint(out: Path) -> dict[str, Any]:
    """What the last preparation saw; under `files` each file's size, time and hash. Empty where there was none."""
    path = out / MANIFEST
    found = read_manifest(path) if os.path.lexists(path) else None
    if not isinstance(found, dict) or not isinstance(files := found.get("files"), dict):
        return {}
    return found if all(isinstance(seen, list) and len(seen) == 3 for seen in files.values()) else {}


def _identify(recipe: Recipe, tokenizer_from: Path | None, before: dict[str, Any]) -> dict[str, Any]:
    """Identity of inputs and settings; missing files have none, for `check_inputs` to report."""
    seen = before.get("files", {})
    files: dict[str, list[Any]] = {}
    contents: dict[str, Any] = {}
    for split, datasets in _splits(recipe).items():
        contents[split] = []
        for dataset in datasets:
            paths = input_files(dataset, recipe.data, seen)
            files |= {str(path): _seen(path, seen.get(str(path))) for path in paths}
            contents[split].append([describe(dataset, recipe.data), [files[str(path)][-1] for path in paths]])
    given = Tokenizer.load(tokenizer_from).files() if tokenizer_from else {}
    what = {
        "format": FORMAT,
        "languages": recipe.data.languages,
        "contents": contents,
        "limits": [recipe.data.max_length, recipe.data.max_ratio],
        "tokenizer": {name: hashlib.sha256(content).hexdigest() for name, content in given.items()}
        or recipe.tokenizer.model_dump(),
    }
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
    return {"fingerprint": digest, "files": files, **what}


def _seen(path: Path, before: list[Any] | None) -> list[Any]:
    """A file's size, time and hash; an unchanged one is not read again."""
    if not path.exists():
        return before or [0, 0, None]  # one that is gone counts as it was: prepared data is enough to train from
    status = path.stat()
    stamp = [status.st_size, status.st_mtime_ns]
    if before and before[:2] == stamp:
        return before
    return [*stamp, sha256(path) if path.is_file() else None]


def _tokenizer(recipe: Recipe, total: int | None, console: Console, tokenizer_from: Path | None) -> Tokenizer:
    """`total` is how many training pairs there are, where that is known."""
    if tokenizer_from is not None:
        console.say(f"tokenizer: from {tokenizer_from}")
        return Tokenizer.load(tokenizer_from)
    text = _TokenizerText(recipe.data, total, console)
    data = recipe.data
    return Tokenizer.train(text, recipe.tokenizer, console.say, data.has_trees, data.pos_tags)


class _TokenizerText:
    """Training pairs as the encoder will see them; can be iterated again and again, and shows how far that is."""

    def __init__(self, data: Data, total: int | None, console: Console) -> None:
        self._data = data
        self._total = total
        self._console = console

    def __iter__(self) -> Iterator[Pair]:
        with self._console.progress("reading for the tokenizer", self._total, self._data.unit) as advance:
            for chunk in _chunks(self._data.train, self._data):
                yield from chunk.pairs
                advance(len(chunk.pairs))


def _write_split(
    path: Path, chunks: Iterable[EncodedChunk], sides: int, sets: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Writes a split of `sets` data sets, all or only the last of whose `SIDES` there are; returns its part of the
    report."""
    counts: Counter[str] = Counter()
    lengths: Counter[int] = Counter()
    read = 0
    subwords = np.zeros(sides)
    kept = [0] * sets
    with _ArrowFile(path, SIDES[-sides:]) as file:
        for chunk in chunks:
            file.write(chunk)
            counts += chunk.counts
            lengths += chunk.length_classes()
            read += chunk.read
            kept[chunk.dataset] += len(chunk.lines)
            subwords += [len(side.ids) for side in chunk.sides]
            advance(chunk.read)
    means = (subwords / max(1, sum(kept))).round(2).tolist()
    return {
        "read": read,
        "kept": sum(kept),
        "kept by set": kept,
        **dict(sorted(counts.items())),
        **{f"mean length of {side}s": mean for side, mean in zip(SIDES[-sides:], means, strict=True)},
        "sentences by length in subwords, up to": {str(k): v for k, v in sorted(lengths.items())},
    }


def _chunks(datasets: Sequence[Dataset], data: Data) -> Iterator[Chunk]:
    first = 1
    for index, dataset in enumerate(datasets):
        for chunk in in_groups(_pairs(dataset, data), CHUNK, CHUNK_TEXT):
            yield Chunk(index, first, chunk)
            first += len(chunk)


def _pairs(dataset: Dataset, data: Data) -> Iterator[Pair]:
    """The pairs of a data set, without space around; a tree has none, but its last word may be a no-break space."""
    pairs = read_pairs(dataset, data)
    return (tuple(map(str.strip, pair)) for pair in pairs) if dataset.trees is None else pairs


class _ArrowFile:
    """An Arrow file written through `datasets`, a record batch per chunk."""

    def __init__(self, path: Path, sides: Sequence[str]) -> None:
        import pyarrow as pa

        # Its import takes seconds, and only preprocessing needs it.
        from datasets.arrow_writer import ArrowWriter

        ids, text = pa.list_(pa.int32()), pa.string()
        columns = [*((side, ids) for side in sides), ("line", pa.int64()), *((f"{side}_text", text) for side in sides)]
        self._schema = pa.schema(columns)
        self._writer = ArrowWriter(path=os.fspath(path), schema=self._schema, writer_batch_size=CHUNK)
        self._empty = True

    def __enter__(self) -> _ArrowFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            if self._empty:
                self._writer.write_table(self._schema.empty_table())
            self._writer.finalize()
        else:
            self._writer.close()

    def write(self, chunk: EncodedChunk) -> None:
        """Appends the pairs that are left of a chunk."""
        import pyarrow as pa

        self._empty = False
        if chunk.texts is None:
            texts = [pa.nulls(len(chunk.lines), pa.string())] * len(chunk.sides)
        else:
            texts = [pa.array([pair[side] for pair in chunk.texts], pa.string()) for side in range(len(chunk.sides))]
        arrays = [*map(_list_array, chunk.sides), pa.array(chunk.lines), *texts]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))


def _list_array(sentences: Sentences) -> Any:
    import pyarrow as pa

    offsets = np.zeros(len(sentences.lengths) + 1, dtype=np.int32)
    np.cumsum(sentences.lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(sentences.ids))


def _summary(out: Path, report: dict[str, dict[str, Any]], tokenizer: Tokenizer, unit: str) -> Iterator[str]:
    """The hygiene report as lines for the screen."""
    trees = isinstance(tokenizer.target, TreeVocabulary)
    pieces = f"{len(tokenizer.source):,} pieces"
    if not tokenizer.shared:
        pieces += f" and {len(tokenizer.target):,} {'tree symbols' if trees else 'pieces'}"
    yield f"prepared {out}: {pieces}"
    for split, figures in report.items():
        if not figures["read"]:
            continue
        symbols = "tree symbols" if trees else "subwords"
        source, target = figures.get("mean length of sources"), figures["mean length of targets"]
        notes = [f"{target} subwords each" if source is None else f"{source} subwords in, {target} {symbols} out"]
        if len(figures["kept by set"]) > 1:
            notes.append(f"by set {' + '.join(f'{kept:,}' for kept in figures['kept by set'])}")
        told = ("dropped", unit, "source", "trees")
        notes += [f"{value:,} {name}" for name, value in figures.items() if name.startswith(told)]
        read = f"{figures['read']:,} {'trees' if trees else unit}"
        yield f"  {split}: {figures['kept']:,} of {read}, {', '.join(notes)}"
    histogram = report["train"]["sentences by length in subwords, up to"]
    yield "  train sentences by length: " + ", ".join(f"≤{top}: {count:,}" for top, count in histogram.items())
    leaked = report["train"].get(f"{unit} also in valid or test", 0)
    if leaked:
        yield f"  warning: {leaked:,} training {unit} are in valid or test word for word, so scores there are too high"
