"""The recipe for files of pairs: the text of a file with a comment on each choice.

`choices` decides by how much text there is, by what trains, and by how often that will see it.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from nmt.data.pairs import Pair, check_inputs, read_pairs
from nmt.data.shown import Languages, Shown, are_like, look_at
from nmt.recipe import Recipe, Training, load
from nmt.recipe.yaml_files import Dumper, Origins, Tree, override, shipped_recipes
from nmt.system.errors import UserError, counted
from nmt.system.parallelism import threads_of_torch
from nmt.system.speed import core_flops
from nmt.text.language_codes import code_for
from nmt.text.lines import stripped
from nmt.text.scripts import WIDE

MARK = "# Written by: nmt train "
"""How the first line of such a recipe begins; the names of the files follow"""
FEWEST = 200  # different sources, of which some are set aside
ENOUGH = 15_000  # different sources from which on no more are set aside
VALID = 500  # sources set aside then
TEST = 1000
COUNTED = 300_000  # different sources to count at most; it takes seconds
COUNTED_UNITS = 100_000  # likewise, in translators' files, which are read more slowly
LEAST_SUBWORDS = 500
BYTES = 260  # with control symbols
MANY_FILES = 10  # translators' files of which one is set aside whole
SUBWORD = 4  # characters, in European languages
WIDTH = 128  # of the model of the recipe laptop
WIDER = 192
TRAINING_FLOPS = {WIDTH: 15e6, WIDER: 29e6}  # of a target token
LONG = 25e6  # target tokens of a training that is long enough for a wider model to learn more from half of them
RANKS = 2  # processes that train by the recipe laptop; the speed of threads that share one is not known
MUCH = 1e6  # target tokens that are enough text for one
AT_WORK = 0.9  # of the processors' FLOP/s in fp32, by training in bf16 with its scores; in fp32 it is less
DROPOUT = ((10, 0.0), (20, 0.1), (40, 0.2), (math.inf, 0.3))
"""For how many epochs at most, and with which dropout; half as many of the wider model, which memorises sooner"""
FORGOTTEN = 2.0  # epochs in which weights decay to 1 / e at the peak rate, whatever the number of pairs
MOST_DECAY = 0.9  # the most that was tried
CAUTIOUS = 0.1  # most dropout of a small model for much text, with which none was tried
FEW = 50_000  # different sources, for which a smaller model is enough even on a GPU
EVALUATION = re.compile(r"(?i)(?<![a-z])(?:test|dev|valid|validation|eval)(?![a-z])")
"""A word in the name of a file that others may have been evaluated on"""
GPU_VOCABULARY = 10_000
GPU_WHY = "sizes of iwslt14_de_en, for a GPU; we have not trained this"
SIZES = {"layers", "decoder_layers", "d_model", "d_ff", "heads"}
VECTORS = {"source_embeddings", "target_embeddings"}


class Choice(NamedTuple):
    """A value of the recipe, and why it has it."""

    key: str
    value: Any
    why: str = ""


class Size(NamedTuple):
    """How much there is to train on."""

    pairs: int
    """Number of pairs without a blank side"""
    sources: int
    """Number of different sources among them"""
    is_all: bool
    """Whether these are all, and not only the first"""
    words: int
    """Number of different words on both sides, as spaces separate them"""
    length: int
    """Number of characters of the targets, a Chinese or Japanese one as three, since it is most of a subword"""
    characters: int
    """Number of different characters in the words"""
    files: int
    """Number of files, if all are translators'"""

    @property
    def described(self) -> str:
        pairs = counted(self.pairs, "pair")
        return pairs if self.is_all else f"more than {pairs}"


class Made(NamedTuple):
    """A recipe for files, not written yet."""

    text: str
    recipe: Recipe
    said: str
    """A line that tells the choices"""
    repeated: Mapping[Path, Sequence[Pair]] = {}
    """Pairs that the recipe reads from files beside it, which are to be written, too"""
    device: str = ""
    """What is to train it, if that matters"""


def choices(size: Size, base: Recipe, flops: float | None, has_sizes: bool = False) -> list[Choice]:
    """Return the values in which a recipe differs from its base by how much there is and by what trains it.

    These are the vocabulary, the model, and what is set aside. `flops` are the FLOP/s that the processors reach with
    which the recipe trains, None if a GPU trains. The model's sizes stay if the user `has_sizes`.
    """
    if flops is None:
        model = [] if has_sizes else _on_gpu(size)
        return [*_vocabulary(size, base, GPU_VOCABULARY), *model, *_set_aside(size)]
    vocabulary = _vocabulary(size, base, base.tokenizer.vocab_size)
    return [*vocabulary, *_by_time(size, base, flops, has_sizes), *_decay(size, base), *_set_aside(size)]


def _on_gpu(size: Size) -> Iterator[Choice]:
    """Yield the sizes of the recipe iwslt14_de_en, its dropout and tokens per update; smaller sizes for few pairs."""
    is_small = size.is_all and size.sources < FEW
    yield Choice("model.layers", 4 if is_small else 6, GPU_WHY)
    yield Choice("model.decoder_layers", 4 if is_small else 6)
    yield Choice("model.d_model", 256 if is_small else 512)
    yield Choice("model.d_ff", 1024)
    yield Choice("model.heads", 4)
    yield Choice("model.dropout", 0.3 if size.is_all else 0.2)
    yield Choice("training.batch_tokens", 4096)


def _by_time(size: Size, base: Recipe, flops: float, has_sizes: bool) -> Iterator[Choice]:
    """Yield a wider model if there is time and text for it, and dropout if pairs are seen often enough to memorise."""
    tokens = _target_tokens(size)
    seen = _seen(base.training, flops / TRAINING_FLOPS[WIDTH])
    is_wider = not has_sizes and seen >= LONG and tokens >= MUCH
    if is_wider:
        yield Choice("model.d_model", WIDER, "since there is time for more than laptop's 128")
        yield Choice("model.d_ff", 4 * WIDER)
        yield Choice("model.heads", 6)
        seen = _seen(base.training, flops / TRAINING_FLOPS[WIDER])
    epochs = seen / tokens
    compared = 2.0 * epochs if is_wider else epochs
    dropout = next(dropout for most, dropout in DROPOUT if compared <= most)
    if tokens >= MUCH and not is_wider:
        dropout = min(dropout, CAUTIOUS)
    if size.is_all and dropout > base.model.dropout:
        yield Choice("model.dropout", dropout, f"since each pair is seen some {epochs:,.0f} times")


def _decay(size: Size, base: Recipe) -> Iterator[Choice]:
    """Yield more weight decay than the default's if there are few pairs (Wang and Aitchison 2024)."""
    training = base.training
    if not size.is_all or training.optimizer != "muon" or training.weight_decay is not None:
        return
    updates = math.ceil(_target_tokens(size) / training.batch_tokens)  # of an epoch
    peak = training.learning_rate_scale * (base.model.d_model * training.warmup) ** -0.5
    decay = min(MOST_DECAY, round(1 / (FORGOTTEN * updates * peak), 1))
    if decay > training.decay:
        yield Choice("training.weight_decay", decay, f"since there are only {updates:,} updates in an epoch")


def _target_tokens(size: Size) -> float:
    """Return about how many tokens all targets have, or those that were counted."""
    return size.length / SUBWORD + size.pairs


def _seen(training: Training, tokens_per_second: float) -> float:
    """Return how many target tokens a training sees, of which a model takes so many in a second."""
    tokens = float(training.updates * training.batch_tokens)
    if training.minutes is not None:
        tokens = min(tokens, AT_WORK * 60 * training.minutes * tokens_per_second)
    return tokens


def _vocabulary(size: Size, base: Recipe, most: int) -> Iterator[Choice]:
    """Yield a vocabulary of `most` subwords, or of as many as few words fill and show often enough to be learned."""
    least = math.ceil((BYTES + 2 * size.characters) / 100) * 100
    subwords = max(LEAST_SUBWORDS, least, size.words // 200 * 100)
    if size.is_all and subwords < most:
        counts = f"{size.words:,} different words and {size.characters:,} characters"
        yield Choice("tokenizer.vocab_size", subwords, f"so few, since there are {counts}")
    elif most != base.tokenizer.vocab_size:
        yield Choice("tokenizer.vocab_size", most, GPU_WHY)


def _set_aside(size: Size) -> list[Choice]:
    """Return what is set aside for development and test sets."""
    files = min(3, size.files // MANY_FILES)
    if files:
        take = counted(files, "file")
        why = f"of {size.files:,}: whole ones, since the strings of one program resemble each other"
        return [Choice("data.valid", [{"take": take}], why), Choice("data.test", [{"take": take}], "likewise")]
    share = min(1.0, size.sources / ENOUGH)
    valid = max(10, 10 * round(VALID * share / 10))
    test = max(20, 10 * round(TEST * share / 10))
    return [
        Choice("data.valid", [{"take": valid}], f"of {size.described}: not trained on, but scored while it trains"),
        Choice("data.test", [{"take": test}], "likewise not trained on: for a score at the end"),
    ]


def make_recipe(files: Sequence[str], path: Path, overrides: Sequence[str], on_gpu: bool = False) -> Made:
    """Return the recipe for files and folders of pairs, to be written to `path`, with settings of --set in it.

    Its sizes are for processors, or for a GPU. Raise UserError if the files do not show which texts they hold, if they
    hold too few pairs, or if a setting is invalid.
    """
    given = given_by(overrides)
    data = section(given, "data")
    wanted = (str(data.get("source") or ""), str(data.get("target") or ""))
    _check_codes(wanted)
    shown = [Shown(file, None) for file in files] if "train" in data else look_at(files, wanted)
    languages, by = agreed_languages(shown, wanted)
    shown, others = _in_languages(shown, languages)
    left_out = "; ".join(_left_out(shown, others, languages[1]))
    units = [path for each in shown for path in each.units]
    is_software = all(each.units for each in shown)
    base = "strings" if is_software else "laptop"
    made = [
        Choice("name", path.stem),
        Choice("data.source", languages[0], by),
        Choice("data.target", languages[1], by),
        Choice("data.train", [each.dataset(languages) for each in shown], left_out),
    ]
    recipe = loaded(base, made, given, overrides)
    most, translated = (COUNTED_UNITS, len(units)) if is_software else (COUNTED, 0)
    size = count_pairs(recipe, most, translated)
    _check_size(files, size)
    # As many as will train: PyTorch counts cores, of which some have two hyperthreads.
    flops = None if on_gpu else min(RANKS, threads_of_torch(None)) * core_flops()
    has_sizes = not SIZES.isdisjoint(section(given, "model")) or not VECTORS.isdisjoint(section(given, "training"))
    made += choices(size, recipe, flops, has_sizes)
    recipe = loaded(base, made, given, overrides)
    made.insert(0, Choice("extends", base, "which comes with nmt, and has all other settings"))
    minutes = recipe.training.minutes or 0.0
    whole = int(minutes) if minutes.is_integer() else minutes
    made.append(Choice("training.minutes", whole, "of training in all; raise it to train longer"))
    said = [f"{' '.join(files)}: {size.described}, {'-'.join(recipe.data.languages)} {by}".rstrip()]
    if left_out:
        said.append(left_out)
    for each in shown:
        if each.languages and not _fits(each, languages):
            said.append(f"but {each.name} is {'-'.join(each.languages)} {each.by}")
    text = written(mark_of(files), path, made, overrides)
    return Made(text, recipe, "; ".join(said), device="a GPU" if on_gpu else "CPUs")


def _left_out(shown: Sequence[Shown], others: Sequence[Shown], target: str) -> Iterator[str]:
    """Return what is not read of files, and what is although people may not expect it."""
    unread = without(shown)
    if unread:
        yield unread
    for each in shown:
        if each.variants:
            yield f"also reads {', '.join(each.variants)} as {target}"
    evaluation = [each.name for each in shown if EVALUATION.search(Path(each.name).name)]
    if evaluation and len(shown) > 1:
        yield f"also trains on {', '.join(evaluation)}"
    for each in others:
        yield f"without {each.name} ({'-'.join(each.languages or ())})"


def _check_size(files: Sequence[str], size: Size) -> None:
    """Raise UserError if there is too little to learn from."""
    if size.sources < FEWEST:
        sources = counted(size.sources, "different source")
        problem = f"{files[0]}: {size.described} with {sources}; at least {FEWEST:,} are needed to learn from"
        raise UserError(problem, "name more files; some 10,000 pairs begin to show a result")


def without(shown: Sequence[Shown]) -> str:
    """Return what files hold that is not read; nothing if all is."""
    return "; ".join(f"{each.name} without {each.left_out}" for each in shown if each.left_out)


def given_by(overrides: Sequence[str]) -> Tree:
    """Return the settings of --set as a tree; raise UserError if one is malformed."""
    given: Tree = {}
    for setting in overrides:
        override(given, {}, setting)
    return given


def section(given: Tree, name: str) -> Tree:
    """Return a section of settings; an empty one if it is missing, or no section."""
    found = given.get(name)
    return found if isinstance(found, dict) else {}


def mark_of(files: Sequence[str], start: str = "") -> str:
    """Return the first line of the recipe that is written for files, or for corrections of the model `start`."""
    words = [str(Path(file)) for file in files]
    if start:
        words += ["--set", f"training.init_from={start}"]
    return MARK + _plain(shlex.join(words))


def first_line(path: Path) -> str:
    """Return the first line of a recipe that is written for files; nothing of any other file, or of none."""
    with suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8") as file:
        line = file.readline(1 << 20).rstrip("\n")
        if line.startswith(MARK):
            return line
    return ""


def agreed_languages(shown: Sequence[Shown], wanted: Languages) -> tuple[Languages, str]:
    """Return source and target language, and what says them: the user, or else the first data set that does.

    Raise UserError if none does, or if two differ.
    """
    source, target = wanted
    if source and target:
        return wanted, ""
    found = wanted
    by = ""
    saying = [each for each in shown if each.languages is not None]
    fitting = [each for each in saying if _fits(each, wanted)]
    if saying and not fitting:
        problem = f"{saying[0].name}: is {'-'.join(saying[0].languages or ())} {saying[0].by}"
        said = f"data.source is {source}" if source else f"data.target is {target}"
        raise UserError(f"{problem}, but {said}", "correct it, or set both data.source and data.target")
    for each in fitting:
        assert each.languages is not None
        if not by:
            found = each.languages
            by = each.by
        elif not are_like(each.languages, found) and not are_like(each.languages[::-1], found):
            problem = f"{each.name}: is {'-'.join(each.languages)}, and {fitting[0].name} is {'-'.join(found)}"
            raise UserError(
                problem, "train one at a time, or say which of them: --set data.source=en --set data.target=de"
            )
    if not by:
        settings = ("" if source else " --set data.source=en") + ("" if target else " --set data.target=de")
        problem = f"{shown[0].name}: neither its name nor anything in it says which languages it is in"
        if shown[0].labels:
            problem += f" ({' | '.join(shown[0].labels)})"
        raise UserError(problem, f"add them, such as{settings}")
    if not are_like(found, wanted) and are_like(found[::-1], wanted):
        found = found[::-1]
    return (source or found[0], target or found[1]), by


def _fits(shown: Shown, languages: Languages) -> bool:
    """Return whether a data set says these languages, in either order, or none."""
    said = shown.languages
    return said is None or are_like(said, languages) or are_like(said[::-1], languages)


def _in_languages(shown: Sequence[Shown], languages: Languages) -> tuple[list[Shown], list[Shown]]:
    """Return the data sets to read in two languages, and those that say others; if all do, the user knows better."""
    fitting = [each for each in shown if _fits(each, languages)]
    if not fitting:
        return list(shown), []
    return fitting, [each for each in shown if not _fits(each, languages)]


def _check_codes(wanted: Languages) -> None:
    """Raise UserError if the user has set the name of a language in place of its code."""
    for key, language in zip(("source", "target"), wanted, strict=True):
        code = code_for(language)
        if code != language:
            raise UserError(f"data.{key}: must be a code (got {language})", f"--set data.{key}={code}")


def loaded(base: str, made: Sequence[Choice], given: Tree, overrides: Sequence[str]) -> Recipe:
    """Return the recipe that `base` is with choices and settings, of which the latter are `given` as a tree, too."""
    settings = [f"{choice.key}={json.dumps(choice.value, ensure_ascii=False)}" for choice in made]
    name = given.get("name", made[0].value)
    return load(shipped_recipes()[base], [*settings, f"data.name={json.dumps(name)}", *overrides])


def count_pairs(recipe: Recipe, most: int, files: int) -> Size:
    """Count the training pairs until `most` different sources are found."""
    data = recipe.data
    check_inputs(data.train, data)
    pairs = 0
    sources = set[str]()
    words = set[str]()
    length = 0
    for dataset in data.train:
        for pair in read_pairs(dataset, data.of(dataset)):
            if all(map(stripped, pair)):
                pairs += 1
                sources.add(pair.source)
                words.update(pair.source.split(), pair.target.split())
                length += len(pair.target)
                if not pair.target.isascii():
                    length += 2 * len(WIDE.findall(pair.target))
            if len(sources) >= most:
                return Size(pairs, most, False, len(words), length, 0, files)
    characters = len(set(chain.from_iterable(words)))
    return Size(pairs, len(sources), True, len(words), length, characters, files)


# --- text ---------------------------------------------------------------------------------------------------------


def written(mark: str, path: Path, made: Sequence[Choice], overrides: Sequence[str]) -> str:
    """Return the recipe as YAML, with a comment on each choice and on what --set has given, below the line `mark`."""
    tree: Tree = {}
    origins: Origins = {}
    whys = dict[tuple[str, ...], str]()
    for key, value, why in made:
        *section, name = key.split(".")
        owner = tree.setdefault(section[0], {}) if section else tree
        owner[name] = value
        whys[*section, name] = why
    for setting in overrides:
        override(tree, origins, setting)
    for path_of_key in origins:
        whys[path_of_key[:2]] = "by --set"
    lines = [
        mark,
        f"# It is yours to change: nmt train {path} trains it as it is, into {path.stem}/, and so does that command.",
    ]
    for key, value in tree.items():
        if isinstance(value, dict):
            lines.append(f"{key}:")
            lines += [f"  {_line(name, inner, whys.get((key, name), ''))}" for name, inner in value.items()]
        else:
            lines.append(_line(key, value, whys.get((key,), "")))
    return "".join(f"{line}\n" for line in lines)


def _line(key: str, value: Any, why: str) -> str:
    """Return a key with its value as a line of YAML, with a comment."""
    whole = yaml.dump(
        {key: value}, Dumper=Dumper, default_flow_style=True, allow_unicode=True, sort_keys=False, width=1 << 30
    )
    text = whole.strip()[1:-1]  # without the braces
    return f"{text} # {_plain(why)}" if why else text


def _plain(text: str) -> str:
    """Return a text that can stand in a comment of YAML."""
    return "".join(character if character.isprintable() else "?" for character in text)
