"""`nmt preprocess`: raw text to a tokenizer, memory-mapped Arrow files of ids and a report of what was dropped.

A prepared directory holds `train.arrow`, `valid.arrow`, `test.arrow`, the SentencePiece models, `report.json` and
`fingerprint.json`, which ties them to the content of the inputs and to the settings.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nmt.console import Console
from nmt.data.encode import EncodedChunk, PairEncoder, encode_chunks
from nmt.data.pairs import Pair, Pairs, check_inputs, describe, input_files
from nmt.errors import UserError
from nmt.files import exclusive, read_json, sha256, whole_directory, write_json
from nmt.recipe import Dataset, Recipe
from nmt.text.tokenizer import Tokenizer

FORMAT = 1
CHUNK = 10_000  # pairs per record batch and unit of work
SMALL = 10 * CHUNK  # below this many pairs, starting workers costs more than they save


def directory(recipe: Recipe) -> Path:
    """Where the recipe's prepared data stands, relative to the working directory."""
    return Path("data") / recipe.data.name


def prepare(recipe: Recipe, console: Console, threads: int, tokenizer_from: Path | None = None) -> bool:
    """Prepares the recipe's data unless that is done already; returns whether there was anything to do.

    `tokenizer_from` is a bundle whose tokenizer is used instead of training one. Raises UserError on missing or
    unequal files before anything is written; on any error what was prepared before stays.
    """
    out = directory(recipe)
    inputs = _identify(recipe, tokenizer_from, _old_hashes(out))
    if _fingerprint_of(out) == inputs["fingerprint"]:
        return False
    splits = _splits(recipe)
    for datasets in splits.values():
        check_inputs(datasets, recipe.data)
    with (
        exclusive(out.parent / f".{out.name}.lock", str(out)),
        whole_directory(out, "fingerprint.json") as part,
    ):
        tokenizer = _tokenizer(recipe, splits, console, threads, tokenizer_from)
        for name, content in tokenizer.files().items():
            (part / name).write_bytes(content)
        evaluation = frozenset(
            (source.strip(), target.strip())
            for split in ("valid", "test")
            for source, target in Pairs(splits[split], recipe.data)
        )
        report = {}
        for split, datasets in splits.items():
            encoder = PairEncoder(
                tuple(tokenizer.files().values()),
                recipe.data.max_length,
                recipe.data.max_ratio,
                evaluation if split == "train" else frozenset(),
                keep_all=split != "train",
            )
            report[split] = _encode_split(split, Pairs(datasets, recipe.data), encoder, part, console, threads)
        if not report["train"]["kept"]:
            raise UserError(f"data.train: none of the {report['train']['read']:,} pairs read is usable")
        write_json(part / "report.json", report)
        write_json(part / "fingerprint.json", inputs)
    for line in _summary(out, report, tokenizer):
        console.say(line)
    return True


def set_sizes(prepared: Path) -> list[int]:
    return [read_json(prepared / "report.json")["train"]["kept"]]


def fingerprint(recipe: Recipe, tokenizer_from: Path | None = None) -> str:
    """Identity of the inputs as they are now and of the settings; prepared data and bundles made of it carry it."""
    return str(_identify(recipe, tokenizer_from, _old_hashes(directory(recipe)))["fingerprint"])


def _splits(recipe: Recipe) -> dict[str, tuple[Dataset, ...]]:
    return {"train": recipe.data.train, "valid": recipe.data.valid, "test": recipe.data.test}


def _fingerprint_of(out: Path) -> str | None:
    path = out / "fingerprint.json"
    found = read_json(path) if path.exists() else None
    return found.get("fingerprint") if isinstance(found, dict) else None


def _old_hashes(out: Path) -> dict[str, list[Any]]:
    """What the last preparation saw of each file: its size, time and hash, so that unchanged ones are not read."""
    path = out / "fingerprint.json"
    found = read_json(path) if path.exists() else None
    files = found.get("files") if isinstance(found, dict) else None
    return files if isinstance(files, dict) and all(isinstance(seen, list) for seen in files.values()) else {}


def _identify(recipe: Recipe, tokenizer_from: Path | None, known: dict[str, list[Any]]) -> dict[str, Any]:
    """Identity of inputs and settings; missing files have none, for `check_inputs` to report."""
    files: dict[str, list[Any]] = {}
    contents: dict[str, Any] = {}
    for split, datasets in _splits(recipe).items():
        contents[split] = []
        for dataset in datasets:
            hashes = []
            for path in input_files([dataset], recipe.data):
                stamp = _stamp(path)
                seen = known.get(str(path))
                # A file that is gone counts as it was: prepared data is enough to train from.
                unchanged = seen is not None and (seen[:2] == stamp or not path.exists())
                digest = seen[2] if seen and unchanged else sha256(path) if path.is_file() else None
                files[str(path)] = [*stamp, digest]
                hashes.append(digest)
            contents[split].append([describe(dataset), hashes])
    given = Tokenizer.load(tokenizer_from).files() if tokenizer_from else {}
    what = {
        "format": FORMAT,
        "languages": [recipe.data.source, recipe.data.target],
        "contents": contents,
        "limits": [recipe.data.max_length, recipe.data.max_ratio],
        "tokenizer": {name: hashlib.sha256(content).hexdigest() for name, content in given.items()}
        or recipe.tokenizer.model_dump(),
    }
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
    return {"fingerprint": digest, "files": files, **what}


def _stamp(path: Path) -> list[int]:
    if not path.exists():
        return [0, 0]
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _tokenizer(
    recipe: Recipe,
    splits: dict[str, tuple[Dataset, ...]],
    console: Console,
    threads: int,
    tokenizer_from: Path | None,
) -> Tokenizer:
    if tokenizer_from is not None:
        console.say(f"tokenizer: that of {tokenizer_from}")
        return Tokenizer.load(tokenizer_from)
    settings = recipe.tokenizer
    kind = "shared" if settings.shared else "separate"
    console.say(f"tokenizer: training {settings.algorithm}, {settings.vocab_size:,} pieces, {kind}")
    return Tokenizer.train(_Stripped(Pairs(splits["train"], recipe.data)), settings, threads)


class _Stripped:
    """Pairs as the encoder will see them."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs

    def __iter__(self) -> Iterator[Pair]:
        return ((source.strip(), target.strip()) for source, target in self._pairs)


def _encode_split(
    split: str, pairs: Pairs, encoder: PairEncoder, out: Path, console: Console, threads: int
) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    lengths: Counter[int] = Counter()
    read = kept = subwords = 0
    chunks = _chunks(pairs)
    head = list(islice(chunks, SMALL // CHUNK))
    workers = threads if len(head) == SMALL // CHUNK else 1
    with (
        console.progress(f"encoding {split}", None, "pairs") as advance,
        _ArrowFile(out / f"{split}.arrow") as file,
    ):
        for chunk in encode_chunks(encoder, _chain(head, chunks), workers):
            file.write(chunk)
            counts += chunk.counts
            lengths += chunk.lengths
            read += chunk.read
            kept += len(chunk.lines)
            subwords += sum(map(len, chunk.source)) + sum(map(len, chunk.target))
            advance(chunk.read)
    return {
        "read": read,
        "kept": kept,
        **dict(sorted(counts.items())),
        "mean length in subwords": round(subwords / max(1, 2 * kept), 2),
        "sentences by length in subwords, up to": {str(k): v for k, v in sorted(lengths.items())},
    }


def _chunks(pairs: Iterable[Pair]) -> Iterator[tuple[int, list[Pair]]]:
    iterator, first = iter(pairs), 1
    while chunk := list(islice(iterator, CHUNK)):
        yield first, chunk
        first += len(chunk)


def _chain(
    head: list[tuple[int, list[Pair]]], rest: Iterator[tuple[int, list[Pair]]]
) -> Iterator[tuple[int, list[Pair]]]:
    while head:
        yield head.pop(0)  # not kept alive here while it is worked on
    yield from rest


class _ArrowFile:
    """An Arrow file written through `datasets`, a record batch per chunk."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        # Its import takes seconds, and only preprocessing needs it.
        from datasets.arrow_writer import ArrowWriter

        ids, text = pa.list_(pa.int32()), pa.string()
        columns = [
            ("source", ids),
            ("target", ids),
            ("line", pa.int64()),
            ("source_text", text),
            ("target_text", text),
        ]
        self._schema = pa.schema(columns)
        self._writer = ArrowWriter(path=os.fspath(path), schema=self._schema, writer_batch_size=CHUNK)
        self._empty = True

    def __enter__(self) -> _ArrowFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            if self._empty:
                self.write(EncodedChunk())
            self._writer.finalize()
        else:
            self._writer.close()

    def write(self, chunk: EncodedChunk) -> None:
        """Appends the pairs that are left of a chunk."""
        import pyarrow as pa

        self._empty = False
        texts: Sequence[tuple[str | None, str | None]] = chunk.texts or [(None, None)] * len(chunk.lines)
        arrays = [
            _list_array(chunk.source),
            _list_array(chunk.target),
            pa.array(chunk.lines, pa.int64()),
            pa.array([source for source, _ in texts], pa.string()),
            pa.array([target for _, target in texts], pa.string()),
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))


def _list_array(rows: list[Any]) -> Any:
    import pyarrow as pa

    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = np.concatenate(rows) if rows else np.empty(0, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.int32()))


def _summary(out: Path, report: dict[str, dict[str, Any]], tokenizer: Tokenizer) -> Iterator[str]:
    """The hygiene report as lines for the screen."""
    pieces = f"{len(tokenizer.source):,}"
    if not tokenizer.shared:
        pieces += f" and {len(tokenizer.target):,}"
    yield f"prepared {out}: {pieces} pieces"
    for split, figures in report.items():
        if not figures["read"]:
            continue
        notes = [
            f"{value:,} {name}" for name, value in figures.items() if name.startswith(("dropped", "pairs", "source"))
        ]
        mean = figures["mean length in subwords"]
        yield (
            f"  {split}: {figures['kept']:,} of {figures['read']:,} pairs, {mean} subwords a side"
            + "".join(f", {note}" for note in notes)
        )
    histogram = report["train"]["sentences by length in subwords, up to"]
    yield "  train sentences by subwords: " + ", ".join(f"≤{top}: {count:,}" for top, count in histogram.items())
    leaked = report["train"].get("pairs also in valid or test", 0)
    if leaked:
        yield f"  warning: {leaked:,} training pairs stand in valid or test word for word; scores there flatter"
