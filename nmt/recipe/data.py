"""The section `data` of a recipe: the data sets of each split, and what applies to all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from nmt.recipe.settings import MOST_SUBWORDS, Refusal, Settings
from nmt.recipe.tasks import KINDS, TREE, Kind, task_of

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
SUFFIXES = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".parquet")
"""What the names of files of pairs end in."""


class Dataset(Settings):
    """One set of sentence pairs: two text files, one file of pairs, a test set that sacreBLEU knows, or a data set of
    the Hugging Face hub; or one of trees; or, for a language model, of sentences: `target`, `file` or `hub`."""

    source: str | None = None
    """Text file, one sentence per line, plain or .gz; goes with `target`."""
    target: str | None = None
    """Text file whose line N translates line N of `source`; of a language model the only one."""
    file: str | None = None
    """One file of pairs: .tsv, .jsonl (either may be .gz) or .parquet; a language model reads their targets."""
    trees: str | None = None
    """Bracketed trees, for `data.target: tree`: a file, plain or .gz, a folder, of which all files that end in .mrg
    are read, or a pattern such as wsj/0[2-9] of files and folders."""
    sacrebleu: str | None = None
    """Name that sacreBLEU has for a test set, such as wmt14/full; downloaded into sacreBLEU's folder when it is needed,
    in the direction from `data.source` to `data.target`."""
    hub: str | None = None
    """Name of a data set on the hub, such as wmt/wmt14."""
    config: str | None = None
    """Configuration of the hub data set, such as de-en."""
    split: str = "train"
    """Split of the hub data set."""
    fields: tuple[str, ...] | None = Field(None, min_length=1, max_length=2, strict=False)
    """Where source and target stand: column numbers of a .tsv counted from 1, else field names. Unless given,
    columns 1 and 2, or the fields named `data.source` and `data.target`. For a language model the target's alone."""
    weight: float = Field(1.0, gt=0, le=1000)
    """Training only: how often an epoch sees each pair; 0.5 is a fresh half each epoch, 2.5 every pair twice and a
    fresh half of them a third time."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        given = [key for key in ("target", "file", "sacrebleu", "hub", "trees") if getattr(self, key) is not None]
        if self.source is not None and self.target is None:
            raise Refusal(
                "source and target go together: one text file for each side",
                "add target, the text file of translations",
            )
        if len(given) != 1:
            raise Refusal(
                "needs exactly one of: source and target, file, sacrebleu, hub, trees",
                "keep one of them, such as {source: train.en, target: train.de}",
            )
        if self.config is not None and self.hub is None:
            raise Refusal("config: goes with hub", "remove config, or add hub, such as wmt/wmt14")
        if self.fields is not None and self.file is None and self.hub is None:
            raise Refusal("fields: goes with file or hub; text files, test sets and trees have none", "remove fields")
        if self.file is not None and not self.file.endswith(SUFFIXES):
            raise Refusal(
                f"file: must end in one of {', '.join(SUFFIXES)} (got {self.file})",
                "rename the file to what it is, or name two text files by source and target",
            )
        if self.fields and self.is_tsv and not all(re.fullmatch(r"[1-9][0-9]*", field) for field in self.fields):
            raise Refusal(
                f"fields: of a .tsv are column numbers counted from 1 (got {list(self.fields)})",
                'give numbers in quotes, such as ["1", "2"]',
            )
        return self

    @property
    def is_tsv(self) -> bool:
        """Whether it is a file of columns."""
        return self.file is not None and self.file.endswith((".tsv", ".tsv.gz"))


class Data(Settings):
    """Where the sentences come from."""

    name: str = Field(pattern=NAME)
    """Prepared data goes to data/NAME. Unless given: the recipe's name, or the base's where a recipe that
    `extends` another changes neither data nor tokenizer."""
    root: str = "."
    """Base folder of relative file names, itself relative to the working directory."""
    source: str | None = None
    """Language of the input, such as en. Without it a language model of the targets is trained."""
    target: str
    """Language of the output, such as de; or tree, and a parser is trained on `trees`."""
    train: tuple[Dataset, ...] = Field(min_length=1, strict=False)
    """Training sets, concatenated."""
    valid: tuple[Dataset, ...] = Field((), strict=False)
    """Development sets: BLEU, or F1 of trees, at every checkpoint chooses the best one; perplexity is shown beside, and
    is what chooses a language model."""
    test: tuple[Dataset, ...] = Field((), strict=False)
    """Test sets: only encoded and searched for in the training data."""
    max_length: int = Field(256, ge=1, le=MOST_SUBWORDS)
    """Training pairs with more subwords than this on a side are dropped; 512 for trees."""
    max_ratio: float = Field(9.0, ge=1)
    """Training pairs one side of which has this many times the subwords of the other are dropped; 20 for trees."""
    functional_tags: bool = False
    """Trees: keep the functional tags and indices of labels, such as -SBJ of NP-SBJ."""
    traces: bool = False
    """Trees: keep empty elements, which no text has: leaves whose tag is -NONE-."""

    pos_tags: bool = False
    """Trees: let the model write the part-of-speech tag of each word, as the paper's released code does, instead of XX
    (Vinyals et al. 2015). It learns much faster, and the trees that it gives have tags."""

    @model_validator(mode="after")
    def _fits_the_task(self) -> Self:
        if self.source == "":
            raise Refusal(
                "source: must not be empty; without it a language model of the targets is trained",
                "name a language, such as en, or remove data.source",
            )
        if self.kind.has_trees and self.source is None:
            raise Refusal(
                f"source: must be given with data.target: {TREE}, which makes a parser",
                "add data.source, the language of the sentences, such as en",
            )
        for key in ("functional_tags", "traces", "pos_tags"):
            if getattr(self, key) and not self.kind.has_trees:
                raise Refusal(
                    f"{key}: is for trees, and needs data.target: {TREE} (got {self.target})",
                    f"remove {key}, or set data.target to {TREE}",
                )
        for split, index, dataset in self._datasets():
            self._check_task(f"{split}.{index}", dataset)
            self._check_fields(f"{split}.{index}", dataset)
            if split != "train" and dataset.weight != 1:
                raise Refusal(
                    f"{split}.{index}.weight: is for training sets; in {split} every pair counts once "
                    f"(got {dataset.weight:g})",
                    "remove the weight",
                )
        return self

    def _datasets(self) -> Iterator[tuple[str, int, Dataset]]:
        """Yield the split, position and settings of every data set."""
        for split, datasets in self.splits.items():
            yield from ((split, index, dataset) for index, dataset in enumerate(datasets))

    def _check_task(self, where: str, dataset: Dataset) -> None:
        """Refuse a data set that holds something else than this task needs."""
        if self.kind.has_trees and dataset.trees is None:
            raise Refusal(
                f"{where}: must be trees, {{trees: NAME}}, since data.target is {TREE}",
                "name trees, such as {trees: wsj/22}, or set data.target to a language",
            )
        if not self.kind.has_trees and dataset.trees is not None:
            raise Refusal(
                f"{where}.trees: needs data.target: {TREE}, which makes a parser (got {self.target})",
                f"--set data.target={TREE}, or name two text files by source and target",
            )
        for key in ("source", "sacrebleu"):
            if not self.kind.has_source and (given := getattr(dataset, key)) is not None:
                raise Refusal(
                    f"{where}.{key}: needs data.source; without it a language model is trained, on target, "
                    f"file or hub (got {given})",
                    f"add data.source, such as en, or remove {key}",
                )
        if self.kind.has_source and dataset.target is not None and dataset.source is None:
            raise Refusal(
                f"{where}: source and target go together: one text file for each side",
                "add source, the text file that target translates",
            )

    def _check_fields(self, where: str, dataset: Dataset) -> None:
        """Refuse a number of fields other than the number of sides."""
        if dataset.fields is not None and len(dataset.fields) != len(self.languages):
            sides = "the source's and the target's" if self.kind.has_source else "the target's, without data.source"
            raise Refusal(
                f"{where}.fields: must be {len(self.languages)}, {sides} (got {list(dataset.fields)})",
                f"name them: fields: [{'SOURCE, ' if self.kind.has_source else ''}TARGET]",
            )
        if not self.kind.has_source and dataset.fields is None and dataset.is_tsv:
            raise Refusal(
                f"{where}.fields: must name the column of the target without data.source",
                'name the second column, for example: fields: ["2"]',
            )

    @property
    def kind(self) -> Kind:
        """What is special about the task."""
        return KINDS[task_of(self.source, self.target)]

    @property
    def splits(self) -> dict[str, tuple[Dataset, ...]]:
        """The data sets of every split."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of the sides: source and target, or the target alone for a language model."""
        return (self.target,) if self.source is None else (self.source, self.target)

    def path(self, name: str) -> Path:
        """A data file's path: `name` below `root` unless absolute."""
        return Path(os.path.expanduser(self.root)) / os.path.expanduser(name)
