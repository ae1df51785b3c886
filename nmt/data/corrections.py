"""The recipe for corrections: a minute of them and of what a model was trained on, beginning with that model.

Without the latter, small models forget within a hundred updates; with it, they forget more if embeddings learn, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nmt.data.corpus import Chunk, Corpus, Ids, Rows, pair_encoder
from nmt.data.data_report import read_report
from nmt.data.directions import dataset_direction
from nmt.data.from_files import (
    Choice,
    Made,
    agreed_languages,
    count_pairs,
    given_by,
    loaded,
    mark_of,
    section,
    without,
    written,
)
from nmt.data.pairs import Pair, input_files, read_pairs
from nmt.data.prepare import CHUNK, CHUNK_TEXT, clean_pairs, reasons_of, sources_of
from nmt.data.shown import Languages, Shown, UnclearColumns, are_like, look_at
from nmt.parsing.linearization import load_tokenizer
from nmt.recipe import Data, Dataset, Recipe
from nmt.recipe.addresses import is_address
from nmt.recipe.yaml_files import Tree
from nmt.system.errors import UserError, counted
from nmt.text.language_codes import UNKNOWN_LANGUAGES
from nmt.text.lines import in_groups
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import TargetVocabulary

BASE = "finetune"
COUNTED = 20_000  # different sources to count at most
REPEATED = 5_000  # pairs from before, of which each epoch draws some
BESIDE = 1.0  # of these, for each correction
WARMUP = 20
STEP = 0.08  # of the greatest learning rate that the model was trained with; more made it forget
MINUTES = 1.0
REPLACED = ("source", "target", "train", "valid", "test", "root", "name", "overlap", "augment", "memory")
"""Keys of a model's `data` that its corrections have otherwise"""


class Start(NamedTuple):
    """The model to be corrected."""

    name: str
    """As training.init_from names it"""
    recipe: Recipe
    tokenizer: Tokenizer
    prepared: Path | None
    """Folder of the data that it was trained on, if that is here"""

    @property
    def data(self) -> Data:
        """The data section of its recipe, with relative names as seen from here: it may be trained elsewhere."""
        data = self.recipe.data
        if self.prepared is None:
            return data
        trained_in = self.prepared.parent.parent
        return data.model_copy(update={"root": str(trained_in / data.path(""))})


def make_corrections(files: Sequence[str], start: Start, path: Path, overrides: Sequence[str]) -> Made:
    """Return the recipe for corrections in files and folders of pairs, to be written to `path`.

    The files tell the languages of a start that does not name them. Raise UserError if they are of other languages,
    hold no pair that can be learned, or do not show which texts they hold, or if the development set of the start is
    not here.
    """
    given = given_by(overrides)
    shown, languages, by = _look_at(files, start, given)
    corrections = [each.dataset(languages) for each in shown]
    made = [
        Choice("name", path.stem),
        Choice("data.source", languages[0], by),
        Choice("data.target", languages[1]),
        Choice("training.init_from", start.name, "the model to begin with"),
    ]
    size = count_pairs(loaded(BASE, [*made, Choice("data.train", corrections)], given, overrides), COUNTED, 0)
    if not size.pairs:
        raise UserError(f"{files[0]}: has no pair to learn", "name files with finished translations")
    repeated = _before(start)
    sets = _sets_from_before(repeated, size.pairs, path)
    left_out = without(shown)
    beside = "; ".join(filter(None, (left_out, f"and as many that {start.name} was trained on" if sets else "")))
    made += [
        Choice("data.train", corrections + sets, beside),
        *_scored(start, section(given, "data")),
        *_memory(start),
        Choice("data.overlap", "drop", "what is scored is not learned"),
        *_others(start.data),
        *_steps(start.recipe),
        *_searching(start.recipe),
    ]
    recipe = loaded(BASE, made, given, overrides)
    name = files[0] if len(files) == 1 else "data.train"
    _check_learnable(recipe.data, len(corrections), name, start.tokenizer)
    made.insert(0, Choice("extends", BASE))
    text = written(mark_of(files, start.name), path, made, overrides)
    said = f"{' '.join(files)}: {size.described} to learn, into {start.name}"
    if left_out:
        said += f"; {left_out}"
    return Made(text, recipe, said, {_beside(path, direction): pairs for direction, pairs in repeated.items()})


def _look_at(files: Sequence[str], start: Start, given: Tree) -> tuple[Sequence[Shown], Languages, str]:
    """Return what the files of corrections show, the languages to read in them, and what says these."""
    languages = (start.data.source, start.data.target)
    if languages == UNKNOWN_LANGUAGES:
        wanted = section(given, "data")
        languages = (str(wanted.get("source") or ""), str(wanted.get("target") or ""))
    try:
        shown = look_at(files, languages)
    except UnclearColumns as error:  # data.train would replace the pairs from before
        raise UserError(error.message, "keep two columns: sources, and translations to learn") from None
    if start.data.languages == UNKNOWN_LANGUAGES:
        return shown, *agreed_languages(shown, languages)
    _check_languages(shown, start)
    return shown, languages, f"as {start.name}"


def _sets_from_before(repeated: Mapping[Languages, Sequence[Pair]], count: int, path: Path) -> list[dict[str, Any]]:
    """Return training sets of the pairs from before that lie beside the recipe, weighted for `count` corrections."""
    weight = min(1.0, BESIDE * count / max(1, sum(map(len, repeated.values()))))
    return [
        {
            "file": str(_beside(path, direction)),
            "fields": ["source", "target"],
            "languages": list(direction),
            "weight": float(f"{weight:.3g}"),
        }
        for direction in repeated
    ]


def _beside(path: Path, direction: Languages) -> Path:
    """Return the file for pairs from before, beside the recipe that reads them."""
    return path.with_name(f"{path.stem}.{'-'.join(direction)}.jsonl")


def _scored(start: Start, given: Tree) -> Iterator[Choice]:
    """Yield the start's development and test sets unless `given`; raise UserError if it has none of the former."""
    if start.prepared is None:
        if "valid" not in given:
            raise _not_here(start, "valid")
        return
    for split in ("valid", "test"):
        if split not in given:
            yield Choice(f"data.{split}", _split(start, split, start.prepared), f"as {start.name}")


def _memory(start: Start) -> Iterator[Choice]:
    """Yield the sets in which strings are looked up: those of the start that are here."""
    data = start.data
    memory = [_remembered(each, data) for each in (*data.train, *data.memory) if _is_here(each, data)]
    if memory:
        yield Choice("data.memory", memory, f"so that {start.name} forgets no string")


def _check_languages(shown: Sequence[Shown], start: Start) -> None:
    """Raise UserError if files show other languages than the start translates, in either direction."""
    directions = start.recipe.data.directions
    known = [*directions, *((target, source) for source, target in directions)]
    for each in shown:
        if each.languages and not any(are_like(each.languages, languages) for languages in known):
            problem = f"{each.name}: is {'-'.join(each.languages)} {each.by}, and {start.name} translates"
            listed = ", ".join(map("-".join, directions))
            raise UserError(f"{problem} {listed}", "name corrections of its languages")


def _not_here(start: Start, split: str, name: str = "") -> UserError:
    """Return the error for a development or test set of the start that is not here, or for its file `name`."""
    kind = {"valid": "development set", "test": "test set"}[split]
    guarding = ", which guards what it has learned," if split == "valid" else ""
    problem = f"{start.name}: the {kind} of its training{guarding} is not here"
    if name:
        problem += f": {name}"
    return UserError(problem, f"run this where it was trained, or name one: --set 'data.{split}=[{{file: pairs.tsv}}]'")


def _check_learnable(data: Data, count: int, name: str, tokenizer: Tokenizer) -> None:
    """Raise UserError if training would use no pair of the first `count` training sets, the corrections in `name`."""
    scored = list[Pair]()
    if data.overlap == "drop":
        for dataset in filter(partial(_is_here, data=data), (*data.valid, *data.test)):
            scored += clean_pairs(read_pairs(dataset, data.of(dataset)))
    encoder = replace(pair_encoder(data, "train", tokenizer), held_out=sources_of(scored, data))
    counts = Counter[str]()
    for index, dataset in enumerate(data.train[:count]):
        for group in in_groups(clean_pairs(read_pairs(dataset, data.of(dataset))), CHUNK, CHUNK_TEXT):
            encoded = encoder.encode(Chunk(index, 1, group, np.zeros(len(group), np.bool_)))
            if len(encoded.lines):
                return
            counts["read"] += encoded.read
            counts += encoded.counts
    problem = f"{name}: none of {counted(counts['read'], 'pair')} can be learned: {reasons_of(counts)}"
    raise UserError(problem, "name other corrections; what valid and test score is not learned")


def _before(start: Start) -> dict[Languages, list[Pair]]:
    """Return evenly spaced pairs that the start was trained on, by their languages: its prepared data as text again.

    There are none if that data is not here.
    """
    if start.prepared is None:
        return {}
    data = start.recipe.data
    corpus = Corpus(start.prepared / "train.arrow")
    tokenizer = load_tokenizer(start.prepared)
    found = dict[Languages, list[Pair]]()
    first = 0
    for dataset, kept in zip(data.train, read_report(start.prepared)["train"]["kept by set"], strict=True):
        rows = np.arange(first, first + kept)[:: max(1, len(corpus) // REPEATED)]
        first += kept
        before_source, before_target = tokenizer.first(dataset_direction(data, dataset, tokenizer))
        sources = _texts(tokenizer.source, *corpus.sources(rows), len(before_source))
        targets = _texts(tokenizer.target, *corpus.targets(rows), len(before_target))
        pairs = found.setdefault(data.of(dataset).languages, [])
        pairs += map(Pair, sources, targets)
    return found


def _texts(vocabulary: TargetVocabulary, ids: Rows, lengths: Ids, first: int) -> Iterator[str]:
    """Yield the text of each row of `ids` (rows, longest), without its `first` symbols."""
    for row, length in zip(ids, lengths.tolist(), strict=True):
        yield vocabulary.decode(row[first:length].tolist())


def _split(start: Start, split: str, prepared: Path) -> list[dict[str, Any]]:
    """Return the data sets of valid or test; what the start took from its training pairs is a file in its data."""
    data = start.data
    found = []
    for each in data.splits[split]:
        if each.take is None:
            missing = _missing(each, data)
            if missing:
                raise _not_here(start, split, missing)
            found.append(dict(_elsewhere(each, data)))
            continue
        languages = data.of(each).languages
        source, target = (str(prepared / name) for name in data.taken_files(split, languages))
        taken: dict[str, Any] = {"source": source, "target": target}
        if len(data.directions) > 1:
            taken["languages"] = list(languages)
        found.append(taken)
    return found


def _elsewhere(dataset: Dataset, data: Data) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a data set with its files as seen from here, whatever data.root is."""
    for key, value in dataset.model_dump(mode="json", exclude_defaults=True).items():
        is_file = key in ("source", "target", "file") and not is_address(value)
        yield key, str(data.path(value)) if is_file else value


def _missing(dataset: Dataset, data: Data) -> str:
    """Return a file that a data set names and that is not there; nothing if all are, or if they are to be fetched."""
    name = dataset.file or dataset.source
    if name is None or is_address(name):
        return ""
    with suppress(UserError):
        return next((str(path) for path in input_files(dataset, data) if not path.is_file()), "")
    return str(data.path(name))


def _is_here(dataset: Dataset, data: Data) -> bool:
    """Return whether the files of a data set are there."""
    with suppress(UserError):
        found = list(input_files(dataset, data))
        return bool(found) and all(path.is_file() for path in found)
    return False


def _remembered(dataset: Dataset, data: Data) -> dict[str, Any]:
    """Return a training set as one to look strings up in."""
    return {key: value for key, value in _elsewhere(dataset, data) if key != "weight"}


def _others(data: Data) -> Iterator[Choice]:
    """Yield the other keys of the start's data that are not the defaults."""
    for key, value in data.model_dump(mode="json", exclude_defaults=True).items():
        if key not in REPLACED:
            yield Choice(f"data.{key}", value)


def _steps(recipe: Recipe) -> Iterator[Choice]:
    """Yield how long and by which steps to learn."""
    training = recipe.training
    scale = training.learning_rate_scale
    if not training.replace_init:  # else the start itself has learned corrections, by such steps
        scale *= STEP * (WARMUP / training.warmup) ** 0.5
    yield Choice("training.minutes", MINUTES)
    yield Choice("training.replace_init", True, "accepted unless its dev score is lower by more than chance")
    yield Choice("training.optimizer", training.optimizer)
    yield Choice("training.schedule", "linear")
    yield Choice("training.warmup", WARMUP)
    yield Choice("training.learning_rate_scale", float(f"{scale:.3g}"), f"{STEP:.0%} of the greatest rate before")
    yield Choice("training.freeze", ["embeddings"], "so that it forgets less")
    yield Choice("training.label_smoothing", training.label_smoothing)
    yield Choice("training.checkpoint_updates", 1000, "only the end is scored")
    yield Choice("training.average_last", 1)


def _searching(recipe: Recipe) -> Iterator[Choice]:
    """Yield the start's settings of search."""
    values = recipe.decoding.model_dump(mode="json", exclude_defaults=True)
    for key in ("beam", "alpha"):  # which the base sets
        values.setdefault(key, getattr(recipe.decoding, key))
    for key, value in values.items():
        yield Choice(f"decoding.{key}", value)
