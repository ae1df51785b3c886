"""`nmt preprocess`: turn raw text into a tokenizer, Arrow files of ids, and a report of dropped pairs.

A prepared directory holds `train.arrow`, `valid.arrow`, `test.arrow`, the tokenizer's files, `report.json`,
`lengths.json`, the texts of splits taken from the training data, and `fingerprint.json`, which identifies the inputs
and settings and has the hashes of the other files.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nmt.data import folders
from nmt.data.corpus import HELD_OUT, SCHEMA, Chunk, Corpus, PairEncoder, encode_chunks, pair_encoder, table_of
from nmt.data.data_report import REPORT, known_figures, length_figures, summary
from nmt.data.directions import check_directions
from nmt.data.downloads import download_all, downloaded
from nmt.data.duplicates import SeenPairs, hash_pairs
from nmt.data.findings import Findings
from nmt.data.folders import MANIFEST, directory, read_fingerprint
from nmt.data.known import Known
from nmt.data.languages import LanguageJudge
from nmt.data.pairs import Pair, Part, check_inputs, foreign_language, input_files, read_pairs, read_parts
from nmt.formats.sentences import SentenceSplitter, TrainedLengths, unseen_marks, usual_stop
from nmt.parsing.linearization import TreeVocabulary
from nmt.recipe import Data, Dataset, Recipe
from nmt.system import files, integrity
from nmt.system.console import Console
from nmt.system.errors import UserError, counted
from nmt.system.processes import claimed, exclusive
from nmt.text.lines import in_groups, stripped
from nmt.text.new_languages import Added, learn
from nmt.text.tokenizer import Tokenizer

LENGTHS = "lengths.json"
SAMPLE = 10_000  # number of pairs whose sentences are counted
FEW_STRINGS = 30  # of a file that no other has: scores of these would be chance
MOST_STRINGS = 1000  # of a file, among which one is looked for that no other file has
CHUNK = 10_000  # pairs per `Chunk` and record batch
CHUNK_TEXT = 1 << 24  # and approximate characters
SplitDirection = tuple[str, tuple[str, ...]]
"""A split, `valid` or `test`, and a direction of the training sets that it takes pairs of"""


class Prepared(NamedTuple):
    """Data that is prepared for a recipe."""

    path: Path
    is_new: bool
    """Whether it has been prepared just now, by this process"""


def prepare(
    recipe: Recipe, console: Console, threads: int, start: Tokenizer | None = None, held: ExitStack | None = None
) -> Prepared:
    """Prepare the recipe's data unless it is up to date; wait for another process that is preparing some of its name.

    Until `held` closes, if it is given, no other process renames or removes the folder. `start` is the tokenizer of
    training.init_from, which is used instead of training one. Raise UserError, before writing anything but downloads to
    caches, if input files are missing or misaligned, or if existing prepared data is damaged. An error leaves existing
    prepared data unchanged.
    """
    out = directory(recipe)
    is_new = False
    while True:
        path, inputs = folders.look_up(recipe, start)
        if path is None:
            is_new |= _write(recipe, console, threads, start)
            continue
        if path != out:
            with claimed(_lock(out), alone=True) as is_alone:
                if is_alone:
                    path = folders.promote(path, out)
        with ExitStack() as used:
            if not folders.use(path, inputs["fingerprint"], used):  # another process has renamed it
                continue
            if not is_new:
                integrity.check_files(path / MANIFEST)
            before = integrity.read_manifest(path / MANIFEST)
            if before["files"] != inputs["files"]:  # touched: record the new times, to skip hashing the files next time
                with suppress(UserError):  # prepared data may be read-only
                    integrity.replace_manifest(path / MANIFEST, before | inputs)
            if held is not None:
                held.push(used.pop_all())
            return Prepared(path, is_new)


def _lock(out: Path) -> Path:
    """Return the file that a process locks while it writes `out`, or data beside it."""
    return out.parent / f".{out.name}.lock"


def _write(recipe: Recipe, console: Console, threads: int, start: Tokenizer | None) -> bool:
    """Prepare the recipe's data unless another process has just done it; return whether this one did."""
    data = recipe.data
    out = directory(recipe)
    files.check_replaceable(out, MANIFEST)
    check_directions(data, start, recipe.tokenizer.new_languages, console.say)
    download_all(chain.from_iterable(data.splits.values()), console)
    totals = {split: check_inputs(datasets, data) for split, datasets in data.splits.items()}
    with exclusive(_lock(out), str(out), console.say, wait=True):
        path, inputs = folders.look_up(recipe, start)
        if path is not None:
            return False
        path = folders.beside(out, inputs["fingerprint"]) if read_fingerprint(out) else out
        with files.whole_directory(path, MANIFEST) as part:
            report, tokenizer = _Preparation(recipe, console, threads, totals).write(part, start)
            _, now = folders.look_up(recipe, start)
            _check_unchanged(inputs, now)
            integrity.write_manifest(part / MANIFEST, inputs)
        path = folders.promote(path, out)
        folders.remove_unused(out)
    for line in summary(path, report, tokenizer, data):
        console.say(line)
    return True


def _check_unchanged(inputs: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise UserError if an input is not what it was when preparing began: it is read several times."""
    for name, _ in _hashes(inputs) ^ _hashes(now):
        raise UserError(f"{name}: has changed while it was read", "run this again once nothing writes to it")


def _hashes(inputs: dict[str, Any]) -> set[tuple[str, str]]:
    return {(name, stamp[-1]) for name, stamp in inputs["files"].items()}


def choose_held_out(pairs: Iterable[Pair], sizes: Mapping[str, int]) -> dict[str, list[Pair]]:
    """Return as many pairs as each split takes, of distinct sources, in the order of the training data.

    The sources with the smallest hashes are taken, first for the last split, so that adding a split or more pairs to an
    earlier one leaves the test set as it is. A repeated source gives its first pair. Pairs with an empty or undecodable
    side are not taken. Fewer are returned if the data has too few sources.
    """
    wanted = sum(sizes.values())
    heap: list[tuple[int, int, Pair]] = []  # the smallest hashes so far, negated, with pair number and pair
    inside: set[int] = set()
    for number, pair in enumerate(pairs):
        digest = hashlib.blake2b(pair.source.encode(), digest_size=8).digest()
        key = int.from_bytes(digest, "big")
        if all(pair) and "\ufffd" not in "".join(pair) and key not in inside:
            inside.add(key)
            heapq.heappush(heap, (-key, number, pair))
            if len(heap) > wanted:
                largest = heapq.heappop(heap)
                inside.remove(-largest[0])
    by_hash = [(number, pair) for _, number, pair in sorted(heap, reverse=True)]
    found = {}
    for split in reversed(list(sizes)):
        own = by_hash[: sizes[split]]
        by_hash = by_hash[sizes[split] :]
        found[split] = [pair for _, pair in sorted(own)]
    return found


def sources_of(pairs: Iterable[Pair], data: Data) -> frozenset[str]:
    """Return the sources of `pairs`, which no training pair may have; of several directions also the targets."""
    has_several = len(data.directions) > 1
    found = set[str]()
    for pair in pairs:
        found.add(pair.source)
        if has_several:
            found.add(pair.target)
    return frozenset(found)


class _Preparation:
    """The steps of preparing a recipe's data, which share the pairs that are set aside and the evaluation splits."""

    def __init__(self, recipe: Recipe, console: Console, threads: int, totals: Mapping[str, int | None]) -> None:
        """Read the evaluation splits; `totals` are the numbers of pairs by split, if known.

        Raise UserError if they cannot be scored, or if the training data has too few sources for what they take.
        """
        self._recipe = recipe
        self._data = recipe.data
        self._console = console
        self._threads = threads
        self._totals = totals
        self._judge = LanguageJudge.load()
        self._held_files = self._choose_files()
        self._held_out: dict[SplitDirection, list[Pair]] = self._pairs_of_files()
        for languages, sizes in self._data.taken.items():
            counts = {split: size for split, size in sizes.items() if isinstance(size, int)}
            if counts:
                found = choose_held_out(self._pairs("train", languages), counts)
                for split, pairs in found.items():
                    self._held_out[split, languages] = pairs
        self._sources = sources_of(chain.from_iterable(self._held_out.values()), self._data)
        self._check_taken()
        self._known = Known()  # what training has of valid and test, once it is encoded
        self._texts = {split: self._evaluation_pairs(split) for split in ("valid", "test")}
        if self._data.overlap == "drop":
            self._sources |= sources_of(chain.from_iterable(self._texts.values()), self._data)

    def _check_taken(self) -> None:
        """Raise UserError if there are fewer sources to take than asked for, or none to train on."""
        taken = self._data.taken
        wanted = 0
        found = 0
        for languages, sizes in taken.items():
            for split, size in sizes.items():
                if isinstance(size, int):
                    wanted += size
                    found += len(self._held_out[split, languages])
        if found < wanted or (taken and all(pair.source in self._sources for pair in self._pairs("train"))):
            splits = dict.fromkeys(chain.from_iterable(taken.values()))
            problem = (
                f"take {counted(wanted, 'source')}, but data.train has only {found:,}, some of which are to train on"
            )
            raise UserError(f"{_keys(splits)}: {problem}", "take fewer of them")

    def _choose_files(self) -> dict[Path, str]:
        """Return the training files set aside, with their splits, and name them; raise UserError if there are too few.

        Files are chosen by a string that no other has, so that a new name or place changes nothing.
        """
        chosen = dict[Path, str]()
        for languages, sizes in self._data.taken.items():
            counts = {split: int(size.split()[0]) for split, size in sizes.items() if isinstance(size, str)}
            if not counts:
                continue
            splits = list[str]()
            for split in reversed(counts):
                splits += [split] * counts[split]
            files = self._files_of(languages)
            if len(splits) >= len(files):
                problem = (
                    f"take {counted(len(splits), 'file')}, but data.train has {len(files)}, one of which is to train on"
                )
                raise UserError(f"{_keys(counts)}: {problem}", "take fewer of them")
            self._console.say(f"reading {counted(len(files), 'file')}, of which {len(splits)} are set aside")
            chosen |= zip(self._by_own_strings(files), splits, strict=False)
        for split in dict.fromkeys(chosen.values()):
            names = sorted(path.name for path, of in chosen.items() if of == split)
            self._console.say(f"data.{split}: set aside {', '.join(names)}")
        return chosen

    def _files_of(self, languages: tuple[str, ...]) -> dict[Path, Dataset]:
        """Return the training files of a direction, each with its data set, without those that declare another."""
        found = dict[Path, Dataset]()
        for dataset in self._data.train:
            data = self._data.of(dataset)
            if dataset.file and data.languages == languages:
                for path in input_files(dataset, self._data):
                    if not foreign_language(path, dataset, data):
                        found[path] = dataset
        return found

    def _by_own_strings(self, files: Mapping[Path, Dataset]) -> list[Path]:
        """Return files in the order of the hash of a string that no other has; those with few of these come last."""
        strings = dict[Path, set[str]]()
        for path, dataset in files.items():
            pairs = islice(read_pairs(dataset, self._data.of(dataset), files=[path]), MOST_STRINGS)
            strings[path] = {pair.source for pair in pairs}
        counts = Counter(chain.from_iterable(strings.values()))
        keys = dict[Path, tuple[bool, bool, bytes, Path]]()
        for path, texts in strings.items():
            own = sorted(text for text in texts if counts[text] == 1)
            digest = hashlib.blake2b((own[0] if own else path.name).encode()).digest()
            keys[path] = (not own, len(own) < FEW_STRINGS, digest, path)
        return sorted(files, key=keys.__getitem__)

    def _pairs_of_files(self) -> dict[SplitDirection, list[Pair]]:
        """Return the pairs of the files that are set aside whose sources no other file has; of equal ones the first."""
        found = dict[SplitDirection, dict[str, Pair]]()
        for languages, sizes in self._data.taken.items():
            for split, size in sizes.items():
                if isinstance(size, str):
                    found[split, languages] = {}
        if not found:
            return {}
        for dataset in self._data.train:
            data = self._data.of(dataset)
            for path in input_files(dataset, data):
                key = (self._held_files.get(path, ""), data.languages)
                if key in found:
                    for pair in clean_pairs(read_pairs(dataset, data, files=[path])):
                        found[key].setdefault(pair.source, pair)
        known = {pair.source for pair in self._pairs("train")}
        return {key: [pairs[source] for source in pairs if source not in known] for key, pairs in found.items()}

    def write(self, part: Path, start: Tokenizer | None) -> tuple[dict[str, Any], Tokenizer]:
        """Write all files but the manifest to a directory; return the report and the tokenizer."""
        data = self._data
        tokenizer = self._tokenizer(start)
        for name, content in tokenizer.files().items():
            (part / name).write_bytes(content)
        report = {split: self._write_split(split, part, tokenizer) for split in data.splits}
        _check_some_kept(report["train"], data)
        for split, texts in self._texts.items():
            report[split] |= known_figures(texts, self._known)
        lengths, several = _measure_lengths(self._recipe, Corpus(part / "train.arrow"), tokenizer)
        if lengths is not None:
            files.write_json(part / LENGTHS, lengths.model_dump())
            report["train"]["sources with several sentences"] = round(several * report["train"]["kept"])
        for split, datasets in data.splits.items():
            addresses = downloaded(datasets)
            if addresses:
                report[split]["downloaded"] = addresses
        for (split, languages), pairs in self._held_out.items():
            source, target = data.taken_files(split, languages)
            _write_lines(part / source, (pair.source for pair in pairs))
            _write_lines(part / target, (pair.target for pair in pairs))
        files.write_json(part / REPORT, report)
        return report, tokenizer

    def __iter__(self) -> Iterator[Pair]:
        """Yield the training pairs as the encoder receives them, without those set aside, for the tokenizer."""
        with self._console.progress("reading for the tokenizer", self._totals["train"], "pairs") as advance:
            for chunk in self._chunks("train"):
                yield from self._trained_on(chunk)
                advance(len(chunk.pairs))

    def _tokenizer(self, start: Tokenizer | None) -> Tokenizer:
        """Return the tokenizer of the start, with new languages, or train one."""
        settings = self._recipe.tokenizer
        say = self._console.say
        if start is None:
            trees = None
            if self._data.task.has_trees:
                trees = partial(TreeVocabulary.train, pos_tags=self._data.pos_tags)
            return Tokenizer.train(self, settings, say, trees, self._threads, self._data.symbols)
        say(f"tokenizer: from {self._recipe.training.init_from}")
        new = settings.new_languages
        if not new or start.before(new) is not start:  # if it has them, its run is resumed
            return start
        start.check_extensible(new, say)
        pieces = learn(start.source, self._texts_in(new), settings, say, self._threads)
        return start.with_languages(Added(languages=list(new), pieces=pieces))

    def _texts_in(self, languages: Collection[str]) -> Iterator[str]:
        """Yield the texts of the training pairs in some languages."""
        for chunk in self._chunks("train"):
            source, target = self._data.of(self._data.train[chunk.dataset]).languages
            for pair in self._trained_on(chunk):
                if source in languages:
                    yield pair.source
                if target in languages:
                    yield pair.target

    def _trained_on(self, chunk: Chunk) -> Iterator[Pair]:
        """Yield a chunk's pairs without those set aside and, where they are dropped, duplicates."""
        drops_repeated = self._data.duplicates == "drop"
        for pair, is_repeated in zip(chunk.pairs, chunk.repeated.tolist(), strict=True):
            if not (drops_repeated and is_repeated) and pair.source not in self._sources:
                yield pair

    def _evaluation_pairs(self, split: str) -> list[Pair]:
        """Return the pairs of valid or test; raise UserError if it has data sets, but no pair that can be scored."""
        pairs = list(self._pairs(split))
        if self._data.splits[split] and not any(map(all, pairs)):
            problem = f"none of the {counted(len(pairs), 'pair')} read can be scored: a side of each is blank"
            raise UserError(f"data.{split}: {problem}", f"name other files, or leave out data.{split}")
        return pairs

    def _chunks(self, split: str, findings: Findings | None = None) -> Iterator[Chunk]:
        """Yield a split's pairs and, if `findings` are to be made or duplicates dropped, which have come before."""
        first = 1
        seen = SeenPairs()
        for index, dataset in enumerate(self._data.splits[split]):
            parts = self._parts(split, dataset)
            pairs = _pairs_of(parts) if findings is None else findings.read(parts)
            for group in in_groups(pairs, CHUNK, CHUNK_TEXT):
                repeated = np.zeros(len(group), np.bool_)
                if findings is not None or self._data.duplicates == "drop":
                    hashes = hash_pairs(group, self._data.of(dataset).languages)
                    repeated = seen.add(hashes)
                if findings is not None:
                    findings.samples[index].add(first, group, hashes)
                yield Chunk(index, first, group, repeated)
                first += len(group)

    def _parts(self, split: str, dataset: Dataset) -> Iterator[Part]:
        """Yield a data set's pairs, stripped of surrounding whitespace, and empty if nothing in them is visible.

        Trees are not stripped, since their last word may be a no-break space.
        """
        data = self._data.of(dataset)
        if dataset.take is not None:
            yield Part(f"{split} of {'-'.join(data.languages)}", iter(self._held_out[split, data.languages]))
            return
        files = [path for path in input_files(dataset, data) if path not in self._held_files]
        for part in read_parts(dataset, data, files):
            if self._data.task.has_trees:
                yield part
            else:
                yield part._replace(pairs=clean_pairs(part.pairs))

    def _pairs(self, split: str, only: tuple[str, ...] = ()) -> Iterator[Pair]:
        """Yield a split's pairs; with `only`, those of a direction."""
        for dataset in self._data.splits[split]:
            if not only or self._data.of(dataset).languages == only:
                yield from _pairs_of(self._parts(split, dataset))

    def _encoder(self, split: str, tokenizer: Tokenizer) -> PairEncoder:
        """Return a split's encoder; that of the training split counts overlaps with the others."""
        encoder = pair_encoder(self._data, split, tokenizer)
        if split != "train":
            return replace(encoder, keep_all=True)
        evaluation = frozenset(chain.from_iterable(self._texts.values()))
        return replace(encoder, evaluation=evaluation, held_out=self._sources)

    def _write_split(self, split: str, part: Path, tokenizer: Tokenizer) -> dict[str, Any]:
        """Write a split; return its section of the report."""
        from datasets.arrow_writer import ArrowWriter  # takes seconds to import

        findings = Findings(self._data, split, self._judge)
        counts = Counter[str]()
        read = [0] * len(findings.samples)  # pairs of each data set
        kept = [0] * len(findings.samples)
        path = part / f"{split}.arrow"
        chunks = encode_chunks(self._encoder(split, tokenizer), self._chunks(split, findings), self._threads)
        with (
            self._console.progress(f"encoding {split}", self._totals[split], "pairs") as advance,
            ArrowWriter(path=str(path), schema=SCHEMA, writer_batch_size=CHUNK) as file,
        ):
            for chunk in chunks:
                file.write_table(table_of(chunk))
                counts += chunk.counts
                self._known.update(chunk.known)
                for reason, found in chunk.examples.items():
                    for line, pair in found:
                        findings.show(reason, line, pair)
                read[chunk.dataset] += chunk.read
                kept[chunk.dataset] += len(chunk.lines)
                advance(chunk.read)
            if not sum(read):
                file.write_table(SCHEMA.empty_table())
            file.finalize()
        return {
            "read": sum(read),
            "kept": sum(kept),
            "kept by set": kept,
            **dict(sorted(counts.items())),
            **length_figures(Corpus(path)),
            **findings.of_units(),
            **findings.of_languages(),
            "examples": findings.examples,
        }


def _keys(splits: Iterable[str]) -> str:
    return " and ".join(f"data.{split}" for split in splits)


def clean_pairs(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Strip the texts of pairs."""
    for pair in pairs:
        source = stripped(pair.source)
        target = stripped(pair.target)
        is_clean = source is pair.source and target is pair.target  # as most are, and no new pair is made
        yield pair if is_clean else Pair(source, target)


def _pairs_of(parts: Iterable[Part]) -> Iterator[Pair]:
    return chain.from_iterable(part.pairs for part in parts)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _check_some_kept(train: dict[str, Any], data: Data) -> None:
    """Raise UserError if no training pair was kept."""
    if not train["kept"]:
        hint = f"raise data.max_length {data.max_length} or data.max_ratio {data.max_ratio:g}, or name other files"
        raise UserError(
            f"data.train: none of the {counted(train['read'], 'pair')} read is usable: {reasons_of(train)}", hint
        )


def reasons_of(counts: Mapping[str, Any]) -> str:
    """Return the reasons for which pairs are not trained on, with their numbers."""
    reasons = [f"{count:,} {name}" for name, count in counts.items() if name == HELD_OUT or name.startswith("dropped")]
    return ", ".join(reasons)


def trained_lengths(prepared: Path) -> TrainedLengths | None:
    """Return the lengths of the prepared training pairs; None unless they are a translator's."""
    path = prepared / LENGTHS
    if not path.exists():
        return None
    return integrity.checked(TrainedLengths, files.read_json(integrity.intact(path)), path)


def _measure_lengths(recipe: Recipe, corpus: Corpus, tokenizer: Tokenizer) -> tuple[TrainedLengths | None, float]:
    """Measure evenly spaced training pairs of a translator; return also the fraction with several sentences."""
    if recipe.task.name != "translate" or not len(corpus):
        return None, 0.0
    rows = np.unique(np.linspace(0, len(corpus) - 1, SAMPLE).astype(np.int64))
    lengths = corpus.lengths(rows)
    splitter = SentenceSplitter(recipe.data.source)
    texts = []
    for row in rows:
        ids, _ = corpus.sources(row[None])  # (1, subwords)
        texts.append(tokenizer.source.decode(ids[0]))
    sentences = [len(splitter.split(text)) for text in texts]
    several = sum(count > 1 for count in sentences)
    measured = TrainedLengths.of(
        recipe.data.source,
        lengths.source.tolist(),
        lengths.target.tolist(),
        sentences,
        full_stop=usual_stop(texts),
        unseen=unseen_marks(texts),
    )
    return measured, several / len(sentences)
