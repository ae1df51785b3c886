"""A recipe's `data` section: the data sets of each split, and the settings that apply to all."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from nmt.recipe.addresses import SHA256, check_address, is_address, kept_at, path_in
from nmt.recipe.settings import MOST_SUBWORDS, Refusal, Settings
from nmt.recipe.tasks import TASKS, TREE, Task, task_of
from nmt.system.compression import FORMATS, split_suffix

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
UNITS = (".po", ".mo", ".tmx", ".xliff", ".xlf", ".ts")  # files of translators
TABLES = (".tsv", ".csv")
PAIRS = (*TABLES, ".jsonl", ".parquet", ".zip", *UNITS)
COMPRESSED = (*TABLES, ".jsonl", *UNITS)  # formats of pairs that may be compressed
SIDES_GO_TOGETHER = "source and target go together: one text file for each side"


def _name_of_field(given: Any) -> Any:
    return str(given) if type(given) is int else given


FieldName = Annotated[str, BeforeValidator(_name_of_field, json_schema_input_type=str | int)]
"""Name of a field, or number of a column"""


MOST_TAKEN = 10_000_000
TAKEN_FILES = "^[1-9][0-9]{0,4} files?$"


def _taken(given: Any) -> Any:
    """Refuse what is neither a number of sources nor one of files."""
    is_number = type(given) is int and 1 <= given <= MOST_TAKEN
    if not is_number and not re.fullmatch(TAKEN_FILES, str(given)):
        problem = f"must be a number of sources from 1 to {MOST_TAKEN:,}, or of files, such as 5 files (got {given!r})"
        raise Refusal(problem, "write {take: 500}, or {take: 5 files}")
    return given


Take = Annotated[
    Annotated[int, Field(ge=1, le=MOST_TAKEN)] | Annotated[str, Field(pattern=TAKEN_FILES)], BeforeValidator(_taken)
]


def format_of(name: str | os.PathLike[str]) -> str | None:
    """Return the suffix that tells the format of a file of pairs, in lower case and before that of compression.

    Return None if it is unknown.
    """
    stem, compression = split_suffix(name)
    suffix = Path(stem).suffix.lower()
    known = COMPRESSED if compression else PAIRS
    return suffix if suffix in known else None


class Dataset(Settings):
    """A set of sentence pairs: two text files, a file of pairs, a sacreBLEU test set, or a data set on the Hugging Face
    hub. For a parser, a set of trees."""

    source: str | None = None
    """Text file, one sentence per line, plain, .gz, .bz2, .xz or .zst; requires `target`. Like `file`, it may be a glob
    pattern: matches are taken in the order of their names, each with the file of `target` for which the wildcards of
    its pattern stand for the same, such as a.en and a.de for *.en and *.de."""
    target: str | None = None
    """Text file whose line N translates line N of `source`."""
    file: str | None = None
    """File of pairs: .tsv, .csv, .jsonl or .parquet, a .zip with one text file for each language, whose name ends in
    .LANGUAGE, or a file of translators, .po, .mo, .tmx, .xliff, .xlf or .ts, of which finished translations are read.
    All but .parquet and .zip may be compressed like a text file. Or several: a glob pattern, such as memory/*.po, or a
    folder. Or the address of such a file, which begins with https:// and is downloaded once, to data/_downloads."""
    sha256: str | None = None
    """SHA-256 of `file`, a single one, which is refused if it has another. An address of http:// needs it, except on
    this machine."""
    trees: str | None = None
    """Bracketed trees, for `data.target: tree`: a file, plain or compressed; a folder, searched for .mrg files; or a
    glob pattern of files and folders, such as wsj/0[2-9]."""
    sacrebleu: str | None = None
    """sacreBLEU test set, such as wmt14/full, in the direction `data.source` to `data.target`. It is downloaded to
    sacreBLEU's folder on first use."""
    hub: str | None = None
    """Data set on the Hugging Face hub, such as wmt/wmt14."""
    config: str | None = None
    """Configuration of the hub data set, such as de-en."""
    revision: str | None = None
    """Branch, tag or commit of the hub data set."""
    data_files: tuple[str, ...] | None = Field(None, min_length=1, strict=False)
    """Files of the hub data set that make up `split`, by name or pattern, such as data/*.parquet."""
    split: str = "train"
    """Split of the hub data set."""
    fields: tuple[FieldName, ...] | None = Field(None, min_length=2, max_length=2, strict=False)
    """Source and target fields: 1-based column numbers for a .tsv or .csv, otherwise field names. Default: columns 1
    and 2, or the fields named `data.source` and `data.target`."""
    take: Take | None = None
    """For `valid` and `test`: set aside the pairs of this many training sources, chosen by a hash of their text, so
    that no source is on both sides. Also written as `valid: {take: 500}`. With `5 files`: set aside whole files, chosen
    by a hash of a string that no other has, since the strings of one program resemble each other; of their sources,
    those that no other file has are scored. Files with fewer than 30 of these are taken last."""
    languages: tuple[str, ...] | None = Field(None, min_length=1, max_length=2, strict=False)
    """Source and target language of this set, such as [en, fr], or only the target. With `file`, `sacrebleu` and `hub`,
    `source` and `target` may name them instead: {file: en-fr.tsv, target: fr}. Default: `data.source` and
    `data.target`; for `take`, each direction of the training sets."""
    weight: float = Field(1.0, gt=0, le=1000)
    """For training sets: how often an epoch uses each pair. With 0.5, each epoch draws a new half of the pairs; with
    2.5, it uses every pair twice and a new half a third time."""

    @model_validator(mode="before")
    @classmethod
    def _named_by_sides(cls, given: Any) -> Any:
        """Read `source` and `target` as languages where something else holds the texts."""
        if not isinstance(given, dict):
            return given
        has_texts = any(given.get(key) is not None for key in ("file", "sacrebleu", "hub"))
        source = given.get("source")
        target = given.get("target")
        if not has_texts or target is None or given.get("languages") is not None:
            return given
        others = {key: value for key, value in given.items() if key not in ("source", "target")}
        return others | {"languages": [target] if source is None else [source, target]}

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.source is None) != (self.target is None):
            raise Refusal(SIDES_GO_TOGETHER, "name both, such as {source: train.en, target: train.de}")
        for language in self.languages or ():
            if not re.fullmatch(NAME, language):
                raise Refusal(f"languages: must be codes, such as en (got {language})", "name a language, such as fr")
        origins = ("target", "file", "sacrebleu", "hub", "trees", "take")  # target: with source
        given = [key for key in origins if getattr(self, key) is not None]
        if len(given) != 1:
            problem = "needs exactly one of: source and target, file, sacrebleu, hub, trees, take"
            raise Refusal(problem, "keep one of them, such as {source: train.en, target: train.de}")
        for key in ("config", "revision", "data_files"):
            if getattr(self, key) is not None and self.hub is None:
                raise Refusal(f"{key}: goes with hub", f"remove {key}, or add hub, such as wmt/wmt14")
        self._check_addresses()
        has_fields = self.hub is not None or (self.file is not None and self.format != ".zip")
        if self.fields is not None and not has_fields:
            raise Refusal(
                "fields: goes with hub, .tsv, .csv, .jsonl and .parquet; other data has none", "remove fields"
            )
        if self.file is not None and self.format is None and not self.may_be_several:
            raise _unknown_format(self.file)
        if self.fields is not None and self.format in TABLES:
            for column in self.fields:
                if not re.fullmatch("[1-9][0-9]*", column):
                    problem = f"fields: of a {self.format} are column numbers counted from 1 (got {list(self.fields)})"
                    raise Refusal(problem, "give numbers, such as [1, 2]")
        return self

    def _check_addresses(self) -> None:
        """Refuse an address where only files may be named, one that is not safe, and a hash of what is not one file."""
        for key in ("source", "target", "trees"):
            if is_address(getattr(self, key)):
                problem = f"{key}: must be a file; only file takes an address (got {getattr(self, key)})"
                raise Refusal(problem, "download it, or pack both texts into one .zip or .tsv")
        if is_address(self.file):
            check_address(self.file, self.sha256)
        if self.sha256 is None:
            return
        if self.file is None or self.may_be_several:
            raise Refusal("sha256: goes with file, if that is one file and no pattern or folder", "remove sha256")
        if not re.fullmatch(SHA256, self.sha256):
            raise Refusal(f"sha256: must be 64 hexadecimal digits (got {self.sha256})", "sha256sum FILE prints them")

    @property
    def format(self) -> str | None:
        """Format of `file`, see `format_of`; None if unknown, or of several files."""
        if is_address(self.file):
            return format_of(path_in(self.file))
        return format_of(self.file or "")

    @property
    def may_be_several(self) -> bool:
        """Whether `file` is a pattern, or may be a folder."""
        if is_address(self.file):
            return False
        file = str(self.file)
        return re.search(r"[*?\[]", file) is not None or not Path(file).suffix


def _unknown_format(file: str) -> Refusal:
    endings = f"{', '.join(PAIRS)}; all but .parquet and .zip may be followed by one of {', '.join(FORMATS)}"
    hint = "rename the file to what it is, or name two text files by source and target"
    if ".json" in Path(file).suffixes:
        hint = "write one JSON object on each line, and end the name in .jsonl"
    elif ".tar" in Path(file).suffixes or file.endswith(".tgz"):
        hint = f"extract its files, and name them: tar -xf {file}"
    return Refusal(f"file: must end in one of {endings} (got {file})", hint)


Share = Annotated[float, Field(ge=0, le=1)]
"""A share of the training pairs"""


class Augment(Settings):
    """Shares of the training pairs, from 0 to 1, whose text or tree is drawn anew in every epoch. URLs, placeholders,
    tags, names of files and the like, and words with digits stay as they are. So does a target where its source does:
    Chinese has no capitals."""

    upper: Share = 0.0
    """Both sides in capitals."""
    title: Share = 0.0
    """Both sides in title case, as headlines: each word in lower case begins with a capital. Translations of such lines
    are then in title case, too."""
    unpunctuated: Share = 0.0
    """Both sides without final punctuation, such as a full stop."""
    typos: Share = 0.0
    """Typos in one of eight words of the source, at least one: letters that are swapped, left out, doubled or replaced
    by a neighbouring key. Scripts that are not typed letter by letter have none."""
    joined: Share = 0.0
    """One to three more pairs of the same training set behind a pair, on both sides."""
    constituents: Share = 0.0
    """Trees, and only they: some constituents are replaced by some of other trees with the same labels and about as
    many words (Shi et al. 2021)."""

    @model_validator(mode="after")
    def _one_case(self) -> Self:
        if self.upper + self.title > 1:
            problem = (
                f"title: a pair is in capitals or in title case: both are 1 at most (got {self.upper + self.title:g})"
            )
            raise Refusal(problem, "lower upper or title, such as --set data.augment.title=0.1")
        return self

    @property
    def is_on(self) -> bool:
        """Whether it changes any pair."""
        return any(share > 0 for _, share in self)


class Data(Settings):
    """Training, development and test data."""

    name: str = Field(pattern=NAME)
    """Name of the prepared data, stored in data/NAME. Default: the recipe's name, or that of the recipe it `extends` if
    it changes nothing of both but `augment`."""
    root: str = "."
    """Folder that file names are relative to; itself relative to the working directory."""
    source: str = Field(min_length=1)
    """Input language, such as en."""
    target: str
    """Output language, such as de; or tree, to train a parser. Its code decides what BLEU counts as a word."""
    train: tuple[Dataset, ...] = Field(min_length=1, strict=False)
    """Training sets, concatenated."""
    valid: tuple[Dataset, ...] = Field((), strict=False)
    """Development sets. Their score ranks checkpoints: chrF, or F1 for trees. Lines
    whose target equals their source do not count, unless both are of one language."""
    test: tuple[Dataset, ...] = Field((), strict=False)
    """Test sets, encoded and checked for overlap with the training data."""
    memory: tuple[Dataset, ...] = Field((), strict=False)
    """Pairs in which strings of translators' files are looked up, as in the training sets. No model learns them."""
    temperature: float = Field(1.0, ge=1, le=1000)
    """T: an epoch draws from each training set in proportion to its number of pairs to the power of 1 / T, times its
    weight. 1 takes every pair once; a higher one, such as 5, draws less from large sets and more from small ones."""
    max_length: int = Field(256, ge=1, le=MOST_SUBWORDS)
    """Maximum subwords on either side of a training pair; longer pairs are dropped. Default for trees: 512."""
    max_ratio: float = Field(9.0, ge=1)
    """Maximum ratio of a training pair's lengths in subwords; other pairs are dropped. Default for trees: 20."""
    duplicates: Literal["keep", "drop"] = "keep"
    """Training pairs whose two texts have come before in the same direction, in any training set: keep counts them,
    drop leaves them out."""
    overlap: Literal["keep", "drop"] = "keep"
    """Training pairs whose source is in valid or test: keep counts them, drop leaves them out. Those of sources that
    are taken from the training sets are always left out."""
    augment: Augment = Augment()
    """Training pairs with changed text, which differ in every epoch. Preparing data does not depend on it."""
    functional_tags: bool = False
    """Trees: keep functional tags and indices in labels, such as -SBJ in NP-SBJ."""
    traces: bool = False
    """Trees: keep traces (leaves tagged -NONE-), which are not part of the text: the parser's input must have them."""
    pos_tags: bool = False
    """Trees: predict each word's part-of-speech tag, as the paper's released code does, instead of XX (Vinyals et al.
    2015). The model learns much faster, and its trees have tags."""

    @field_validator("source", "target")
    @classmethod
    def _code(cls, given: str) -> str:
        if given.split() != [given]:
            raise Refusal(f"must be a code, such as en (got {given!r})", "each setting has a --set of its own")
        return given

    @field_validator("valid", "test", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        """Accept one data set in place of a list."""
        return [given] if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _fits_the_task(self) -> Self:
        for key, share in self.augment:
            if share > 0 and (key == "constituents") != self.task.has_trees:
                which = "trees" if key == "constituents" else "translations"
                problem = f"augment.{key}: is for {which} (got data.target: {self.target})"
                raise Refusal(problem, f"remove data.augment.{key}")
        for key in ("functional_tags", "traces", "pos_tags"):
            if getattr(self, key) and not self.task.has_trees:
                problem = f"{key}: is for trees, and needs data.target: {TREE} (got {self.target})"
                raise Refusal(problem, f"remove {key}, or set data.target to {TREE}")
        for split in ("train", "valid", "test", "memory"):
            datasets = getattr(self, split)
            for index, dataset in enumerate(datasets):
                self._check_task(f"{split}.{index}", dataset)
                if split != "train" and dataset.weight != 1:
                    problem = f"{split}.{index}.weight: is for training sets (got {dataset.weight:g})"
                    raise Refusal(problem, "remove the weight")
                if split in ("train", "memory") and dataset.take is not None:
                    problem = f"{split}.{index}.take: is for valid and test (got {dataset.take})"
                    raise Refusal(problem, "name a file of pairs, such as {file: train.tsv}")
            taken = [dataset.languages for dataset in datasets if dataset.take is not None]
            has_twice = len(taken) > len(set(taken))
            if has_twice or (None in taken and len(taken) > 1):  # None takes of every direction
                raise Refusal(f"{split}: take stands more than once", "take the sum of both")
        return self

    @property
    def taken(self) -> dict[tuple[str, ...], dict[str, int | str]]:
        """The `take` of valid and test, by direction and split, such as `{("en", "de"): {"valid": 500}}`."""
        found: dict[tuple[str, ...], dict[str, int | str]] = {}
        for split, sets in self.splits.items():
            for each in sets:
                if each.take is not None:
                    found.setdefault(self.of(each).languages, {})[split] = each.take
        return found

    def _check_task(self, where: str, dataset: Dataset) -> None:
        """Refuse a data set of a kind that does not fit the task."""
        if self.task.has_trees and dataset.trees is None and dataset.take is None:
            problem = f"{where}: must be trees, {{trees: NAME}}, since data.target is {TREE}"
            raise Refusal(problem, "name trees, such as {trees: wsj/22}, or set data.target to a language")
        if not self.task.has_trees and dataset.trees is not None:
            problem = f"{where}.trees: needs data.target: {TREE}, which makes a parser (got {self.target})"
            raise Refusal(problem, f"--set data.target={TREE}, or name two text files by source and target")
        if dataset.languages is not None and self.task.name != "translate":
            problem = f"{where}.languages: are for a translator (got {', '.join(dataset.languages)})"
            raise Refusal(problem, "remove the languages, or give data.source and a language as data.target")

    @property
    def task(self) -> Task:
        """The model's task."""
        return TASKS[task_of(self.target)]

    @property
    def splits(self) -> dict[str, tuple[Dataset, ...]]:
        """Data sets by split; one that takes pairs of each direction becomes a set for each direction."""
        directions = self.directions
        splits: dict[str, tuple[Dataset, ...]] = {"train": self.train}
        for split, sets in (("valid", self.valid), ("test", self.test)):
            found = list[Dataset]()
            for each in sets:
                if each.take is not None and each.languages is None and len(directions) > 1:
                    found += [each.model_copy(update={"languages": languages}) for languages in directions]
                else:
                    found.append(each)
            splits[split] = tuple(found)
        return splits

    def of(self, dataset: Dataset) -> Data:
        """Return these settings for one data set: with its languages as source and target."""
        if dataset.languages is None:
            return self
        *source, target = dataset.languages
        own = {"target": target}
        if source:
            own["source"] = source[0]
        return self.model_copy(update=own)

    @property
    def has_titles(self) -> bool:
        """Whether training has pairs in title case, so that translations of headlines are in title case, too."""
        return self.augment.title > 0

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """The `languages` of the training sets, each once."""
        all_directions = (self.of(each).languages for each in self.train)
        return tuple(dict.fromkeys(all_directions))

    @property
    def symbols(self) -> tuple[str, ...]:
        """Target languages, if there are several: a source begins with the symbol of one."""
        found = tuple(dict.fromkeys(target for _, target in self.directions))
        return found if len(found) > 1 else ()

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.source, self.target

    @property
    def endings(self) -> tuple[str, ...]:
        """Endings of the names of text files, one for each side."""
        if self.source == self.target:
            return "source", "target"
        return self.languages

    def taken_files(self, split: str, languages: tuple[str, ...]) -> list[str]:
        """Return the names of the files with the texts that a split takes of a direction, one for each side."""
        if len(self.directions) == 1:
            return [f"{split}.{ending}" for ending in self.endings]
        direction = "-".join(languages)
        return [f"{split}.{direction}.{ending}" for ending in languages]

    def path(self, name: str) -> Path:
        """Return a data file's path: `name` relative to `root`, unless it is absolute, or where an address is kept."""
        if is_address(name):
            return kept_at(name)
        return Path(os.path.expanduser(self.root)) / os.path.expanduser(name)
