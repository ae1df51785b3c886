"""Recipes: what a run is made from. Types, defaults and validation; `nmt.recipe_file` reads the files.

Every default of the project stands here and nowhere else. Validation happens before any work starts; an error
names the file and line, the key, the value, what is allowed and the nearest valid key. Run as a module it prints
the JSON Schema that `recipes/schema.json` holds.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from nmt.errors import UserError
from nmt.recipe_file import Origins, dump, override, read

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
TaskName = Literal["translate", "parse", "score"]
"""What a model is for, by the command that runs it."""
TREE = "tree"  # what data.target is of a parser
# What a parser has unless its recipe says otherwise, where that differs from a translator's defaults below; section
# 6.3 of the paper. Trees have about three symbols for each word, and limits on lengths have to let them pass.
PARSER: dict[str, dict[str, Any]] = {
    "data": {"max_length": 512, "max_ratio": 20.0},
    "tokenizer": {"shared": False},
    "model": {"tie_embeddings": "target"},
    "decoding": {"beam": 21, "alpha": 0.3, "max_extra": 300},
}
CPU_DEVICE_TOKENS = 4096  # what training.device_tokens is on a CPU unless given
CPU_BATCH_TOKENS = 2048  # what decoding.batch_tokens auto is on a CPU for beams of up to CPU_BEAM
CPU_BEAM = 4
# Limits far beyond any sensible use. A value above one of them is a typing error that would make a search or an
# allocation practically endless.
MOST_SUBWORDS = 100_000  # of a sequence; what one costs grows with the square of its length
MOST_EXTRA = 10_000  # of an output beyond its input; a model that never ends a sentence takes minutes to get there
MOST_TOKENS = 1_000_000_000  # of an update or a batch
MOST_UPDATES = 1_000_000_000
WIDEST = 1_000_000  # of a layer


class Refusal(ValueError):
    """A validator's word on a value: what is wrong, after `key: ` where that is known, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Settings(BaseModel):
    """Base of all sections: frozen, strict types, unknown keys refused, docstrings as descriptions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


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
        suffixes = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".parquet")
        if self.file is not None and not self.file.endswith(suffixes):
            raise Refusal(
                f"file: must end in one of {', '.join(suffixes)} (got {self.file})",
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
    def _trees(self) -> Self:
        for split, datasets in (("train", self.train), ("valid", self.valid), ("test", self.test)):
            for index, dataset in enumerate(datasets):
                if self.has_trees and dataset.trees is None:
                    raise Refusal(
                        f"{split}.{index}: must be trees, {{trees: NAME}}, since data.target is {TREE}",
                        "name trees, such as {trees: wsj/22}, or set data.target to a language",
                    )
                if not self.has_trees and dataset.trees is not None:
                    raise Refusal(
                        f"{split}.{index}.trees: needs data.target: {TREE}, which makes a parser (got {self.target})",
                        f"--set data.target={TREE}, or name two text files by source and target",
                    )
        for key in ("functional_tags", "traces", "pos_tags"):
            if getattr(self, key) and not self.has_trees:
                raise Refusal(
                    f"{key}: is for trees, and needs data.target: {TREE} (got {self.target})",
                    f"remove {key}, or set data.target to {TREE}",
                )
        return self

    @model_validator(mode="after")
    def _sides(self) -> Self:
        if self.source == "":
            raise Refusal(
                "source: must not be empty; without it a language model of the targets is trained",
                "name a language, such as en, or remove data.source",
            )
        if self.has_trees and self.source is None:
            raise Refusal(
                f"source: must be given with data.target: {TREE}, which makes a parser",
                "add data.source, the language of the sentences, such as en",
            )
        for split, datasets in (("train", self.train), ("valid", self.valid), ("test", self.test)):
            for index, dataset in enumerate(datasets):
                where = f"{split}.{index}"
                for key in ("source", "sacrebleu"):
                    if self.source is None and (given := getattr(dataset, key)) is not None:
                        raise Refusal(
                            f"{where}.{key}: needs data.source; without it a language model is trained, on target, "
                            f"file or hub (got {given})",
                            f"add data.source, such as en, or remove {key}",
                        )
                if self.source is not None and dataset.target is not None and dataset.source is None:
                    raise Refusal(
                        f"{where}: source and target go together: one text file for each side",
                        "add source, the text file that target translates",
                    )
                if dataset.fields is not None and len(dataset.fields) != len(self.languages):
                    sides = "the source's and the target's" if self.source else "the target's, without data.source"
                    raise Refusal(
                        f"{where}.fields: must be {len(self.languages)}, {sides} (got {list(dataset.fields)})",
                        f"name them: fields: [{'SOURCE, ' if self.source else ''}TARGET]",
                    )
                if self.source is None and dataset.fields is None and dataset.is_tsv:
                    raise Refusal(
                        f"{where}.fields: must name the column of the target without data.source",
                        'name the second column, for example: fields: ["2"]',
                    )
        return self

    @model_validator(mode="after")
    def _weights(self) -> Self:
        for split, datasets in (("valid", self.valid), ("test", self.test)):
            for index, dataset in enumerate(datasets):
                if dataset.weight != 1:
                    raise Refusal(
                        f"{split}.{index}.weight: is for training sets; in {split} every pair counts once "
                        f"(got {dataset.weight:g})",
                        "remove the weight",
                    )
        return self

    @property
    def has_trees(self) -> bool:
        """Whether the output is trees."""
        return self.target == TREE

    @property
    def languages(self) -> tuple[str, ...]:
        """Of the sides: source and target, or of a language model the target alone."""
        return (self.target,) if self.source is None else (self.source, self.target)

    @property
    def unit(self) -> str:
        """What examples are called."""
        return "lines" if self.source is None else "pairs"

    def path(self, name: str) -> Path:
        """A data file's path: `name` below `root` unless absolute."""
        return Path(os.path.expanduser(self.root)) / os.path.expanduser(name)


class TokenizerSettings(Settings):
    """The SentencePiece model, trained on the training split only."""

    algorithm: Literal["bpe", "unigram"] = "bpe"
    """Subword algorithm."""
    vocab_size: int = Field(37000, ge=261, le=10_000_000)
    """Entries, among them 4 control symbols and 256 bytes; for each side where vocabularies are separate. Trees have
    symbols of their own besides."""
    shared: bool = True
    """One vocabulary for both languages, or one for each; words and trees share nothing. A language model has one."""
    character_coverage: float = Field(0.9995, ge=0.98, le=1)
    """Share of the characters of the training text that get entries; the rest is spelled in bytes."""
    sample: int = Field(10_000_000, ge=101, lt=2**31)
    """At most this many sentences, drawn at random, train the model."""


class Model(Settings):
    """The Transformer of sections 3.1 to 3.5; every column of Table 3 is a key."""

    layers: int = Field(6, ge=1, le=1000)
    """N: identical layers in the encoder, and in the decoder."""
    decoder_layers: int | None = Field(None, ge=1, le=1000)
    """Layers of the decoder, which is all that a language model has, where they differ from `layers`."""
    d_model: int = Field(512, ge=1, le=WIDEST)
    """Width of embeddings and layers."""
    d_ff: int = Field(2048, ge=1, le=WIDEST)
    """Inner width of the feed-forward layers."""
    heads: int = Field(8, ge=1, le=WIDEST)
    """h: attention heads."""
    d_k: int | None = Field(None, ge=1, le=WIDEST)
    """Width of a head's queries and keys; d_model / heads unless given."""
    d_v: int | None = Field(None, ge=1, le=WIDEST)
    """Width of a head's values; d_model / heads unless given."""
    attention_window: int | None = Field(None, ge=1, le=MOST_SUBWORDS)
    """r of section 4: self-attention sees only the r positions around each, in the decoder the last r; it sees all
    unless given."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """P_drop, on each sub-layer's output and on embedding + position."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on attention weights."""
    feed_forward_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the inner layer of the feed-forward networks."""
    norm: Literal["post", "pre"] = "post"
    """LayerNorm after each residual sum, as in the paper, or on each sub-layer's input, with one more at the end."""
    positions: Literal["sinusoidal", "learned", "words"] = "sinusoidal"
    """Position encoding, section 3.5. With words, half of it tells which word it is, on the target side which comes
    next, so that a decoder need not count: not in the paper, and much the quickest for a parser of a small treebank."""
    max_positions: int = Field(1024, ge=1, le=2 * MOST_SUBWORDS)
    """Longest sequence that learned positions serve, `</s>` and `<s>` counted; sinusoids serve any."""
    tie_embeddings: Literal["all", "target", "none"] = "all"
    """One matrix for source embedding, target embedding and softmax (section 3.4), for the latter two, or none; of a
    parser, and of a language model unless none, for the latter two."""

    @model_validator(mode="after")
    def _widths(self) -> Self:
        multiple = {"sinusoidal": 2, "learned": 1, "words": 4}[self.positions]
        if self.d_model % multiple:
            raise Refusal(
                f"d_model: must be a multiple of {multiple} with positions: {self.positions} (got {self.d_model})",
                f"--set model.d_model={-(-self.d_model // multiple) * multiple}",
            )
        if self.d_model % self.heads and (self.d_k is None or self.d_v is None):
            fitting = [h for h in range(1, self.d_model + 1) if self.d_model % h == 0]
            near = sorted(sorted(fitting, key=lambda h: abs(h - self.heads))[:3])
            raise Refusal(
                f"heads: must divide d_model {self.d_model} unless d_k and d_v are given (got {self.heads})",
                f"set model.heads to one of {', '.join(map(str, near))}",
            )
        return self

    @property
    def key_width(self) -> int:
        """d_k, width of one head's queries and keys."""
        return self.d_k or self.d_model // self.heads

    @property
    def value_width(self) -> int:
        """d_v, width of one head's values."""
        return self.d_v or self.d_model // self.heads

    @property
    def decoder_depth(self) -> int:
        """Layers of the decoder."""
        return self.decoder_layers or self.layers

    def reach(self, causal: bool) -> tuple[int, int] | None:
        """How many positions before and after itself a position sees in self-attention; None where it sees all.

        Of an even window centred on a position, the one more lies before it.
        """
        if self.attention_window is None:
            return None
        others = self.attention_window - 1
        return (others, 0) if causal else (others - others // 2, others // 2)


class Training(Settings):
    """Section 5 of the paper."""

    updates: int = Field(100_000, ge=1, le=MOST_UPDATES)
    """Updates in all: a run that stopped goes on up to this number."""
    batch_tokens: int = Field(25_000, ge=1, le=MOST_TOKENS)
    """Tokens per update and side, `</s>` counted, padding not: neither side of an update has more."""
    device_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """Padded tokens per side of a device's micro-batch (a longer pair makes one alone); an update is accumulated from
    as many as it needs. Unless given: 4,096 on a CPU; on a GPU as many as its memory holds, tried out once and kept."""
    warmup: int = Field(4000, ge=1, le=MOST_UPDATES)
    """Updates of linear growth of the learning rate."""
    learning_rate_scale: float = Field(1.0, gt=0)
    """Factor on the paper's learning rate, d_model^-0.5 · min(step^-0.5, step · warmup^-1.5)."""
    adam_betas: tuple[float, float] = Field((0.9, 0.98), strict=False)
    """β1 and β2 of Adam."""
    adam_epsilon: float = Field(1e-9, gt=0)
    """ε of Adam."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """ε_ls, spread uniformly over the vocabulary."""
    clip_norm: float | None = Field(None, gt=0)
    """Largest norm of the gradient; no clipping unless given."""
    precision: Literal["auto", "bf16", "bf32", "tf32", "fp32", "fp64"] = "auto"
    """Of matrix products; weights and sums stay in fp32, with fp64 (for verification) all is. bf16 keeps what lies
    between products in bf16 too; bf32 is fp32 whose products round their factors to bf16 on a CPU that has AMX, tf32
    the same on a GPU, to tf32. auto is bf16 on a GPU that has it, fp32 elsewhere."""
    compile: bool | None = None
    """Compile the layers with torch.compile, which takes a minute at the start; on a GPU unless told."""
    timeout_minutes: float = Field(10, gt=0, le=100_000)
    """A device that lets the others wait this long is given up."""
    tensorboard: bool = False
    """Write all figures for TensorBoard too, into the run's directory."""
    seed: int = Field(1, ge=0, lt=2**63)
    """Seed of initialisation, order of batches and dropout."""
    checkpoint_minutes: float | None = Field(10, gt=0)
    """Minutes between checkpoints; not used where `checkpoint_updates` is given."""
    checkpoint_updates: int | None = Field(None, ge=1, le=MOST_UPDATES)
    """Updates between checkpoints."""
    keep_last: int = Field(20, ge=1, le=MOST_UPDATES)
    """Newest checkpoints to keep; the best one by dev score is kept besides."""
    log_updates: int = Field(50, ge=1, le=MOST_UPDATES)
    """Updates between lines of metrics.jsonl."""
    valid_beam: int | None = Field(None, ge=1, le=1000)
    """Beam for dev BLEU or F1; that of `decoding` unless given."""
    patience: int | None = Field(None, ge=1, le=MOST_UPDATES)
    """Stop after this many checkpoints in a row without a better dev BLEU or F1, or perplexity of a language model."""
    init_from: str | None = None
    """Bundle whose weights and tokenizer to start from (fine-tuning)."""
    source_embeddings: str | None = None
    """word2vec text file with initial vectors of source subwords or words."""
    target_embeddings: str | None = None
    """The same for the target side."""
    freeze_embeddings: bool = False
    """Keep the vectors read from those files as they are."""

    @model_validator(mode="after")
    def _betas(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.adam_betas):
            raise Refusal(
                f"adam_betas: must be at least 0 and below 1 (got {list(self.adam_betas)})",
                "--set 'training.adam_betas=[0.9, 0.98]', as in the paper",
            )
        if self.device_tokens is not None and self.device_tokens > self.batch_tokens:
            raise Refusal(
                f"device_tokens: must not exceed batch_tokens {self.batch_tokens} (got {self.device_tokens})",
                f"--set training.device_tokens={self.batch_tokens}",
            )
        if self.freeze_embeddings and not (self.source_embeddings or self.target_embeddings):
            raise Refusal(
                "freeze_embeddings: needs source_embeddings or target_embeddings",
                "name a word2vec file by one of these, or remove freeze_embeddings",
            )
        return self


class Decoding(Settings):
    """Beam search, section 6.1; saved in the bundle as its defaults."""

    beam: int = Field(4, ge=1, le=1000)
    """Hypotheses kept alive; 1 is greedy search. 21 for trees."""
    alpha: float = Field(0.6, ge=0, le=5)
    """α of the length penalty ((5 + |Y|) / 6)^α; 0.3 for trees."""
    max_extra: int = Field(50, ge=1, le=MOST_EXTRA)
    """An output has at most this many subwords more than its own input; 300 for trees."""
    max_source: int = Field(1024, ge=1, le=MOST_SUBWORDS)
    """Longer inputs, in subwords, are split, translated or parsed in parts and joined."""
    min_length: int = Field(0, ge=0, le=MOST_EXTRA)
    """An output has at least this many subwords, `</s>` not counted."""
    batch_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | Literal["auto"] = "auto"
    """Padded source tokens that are searched together; auto: 2,048 on a CPU, fewer in proportion for a beam
    beyond 4, on a GPU what its free memory holds."""
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Of matrix products; auto is bf16 on a GPU, fp32 on a CPU."""
    average_last: int = Field(5, ge=1, le=MOST_UPDATES)
    """Checkpoints that `nmt average` averages unless told."""

    @field_validator("batch_tokens", mode="before")
    @classmethod
    def _tokens(cls, value: object) -> object:
        if value != "auto" and (type(value) is not int or not 1 <= value <= MOST_TOKENS):
            raise Refusal(
                f"must be a whole number from 1 to {MOST_TOKENS}, or auto (got {value!r})",
                f"--set decoding.batch_tokens={CPU_BATCH_TOKENS}, or auto",
            )
        return value

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.min_length > self.max_extra:
            raise Refusal(
                f"min_length: must not exceed max_extra {self.max_extra}, the room that the shortest input has "
                f"(got {self.min_length})",
                f"--set decoding.min_length={self.max_extra}, or raise decoding.max_extra",
            )
        return self


class Recipe(Settings):
    """A whole run."""

    name: str = Field(pattern=NAME)
    """Name of the run."""
    data: Data
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: Model = Model()
    training: Training = Training()
    decoding: Decoding = Decoding()

    @model_validator(mode="before")
    @classmethod
    def _as_parser(cls, given: Any) -> Any:
        """Where the target is trees, what the recipe does not say is as PARSER has it."""
        if not isinstance(given, dict) or not isinstance(data := given.get("data"), dict) or data.get("target") != TREE:
            return given
        sections = {name: given.get(name, {}) for name in PARSER}
        filled = {name: PARSER[name] | section for name, section in sections.items() if isinstance(section, dict)}
        return given | filled

    @property
    def task(self) -> TaskName:
        """What the model is for."""
        if self.data.source is None:
            return "score"
        return "parse" if self.data.has_trees else "translate"

    @model_validator(mode="after")
    def _parsing(self) -> Self:
        if not self.data.has_trees:
            return self
        if self.tokenizer.shared:
            raise Refusal(
                f"tokenizer.shared: must be false with data.target: {TREE}; words and trees share nothing",
                "--set tokenizer.shared=false",
            )
        if self.training.target_embeddings is not None:
            raise Refusal(
                f"training.target_embeddings: are of words, which the outputs do not have with data.target: {TREE}",
                "remove training.target_embeddings",
            )
        if self.decoding.min_length:
            raise Refusal(
                f"decoding.min_length: must be 0 with data.target: {TREE}; a tree is as long as its words ask for "
                f"(got {self.decoding.min_length})",
                "--set decoding.min_length=0",
            )
        return self

    @model_validator(mode="after")
    def _language_modelling(self) -> Self:
        if self.data.source is not None:
            return self
        if not self.tokenizer.shared:
            raise Refusal(
                "tokenizer.shared: must be true without data.source: there is one side", "--set tokenizer.shared=true"
            )
        if self.training.source_embeddings is not None:
            raise Refusal(
                "training.source_embeddings: needs data.source, which a language model does not have",
                "rename it to training.target_embeddings",
            )
        return self

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.model.tie_embeddings == "all" and not self.tokenizer.shared:
            raise Refusal(
                "model.tie_embeddings: all needs one vocabulary; with tokenizer.shared: false use target or none",
                "--set model.tie_embeddings=target",
            )
        longest = self.data.max_length + 1
        if self.training.batch_tokens < longest:
            raise Refusal(
                f"training.batch_tokens: must be at least {longest}, data.max_length and one end symbol "
                f"(got {self.training.batch_tokens})",
                f"--set training.batch_tokens={longest}, or lower data.max_length",
            )
        if self.training.patience is not None and not self.data.valid:
            raise Refusal("training.patience: needs data.valid", "add data.valid, or remove training.patience")
        learned = self.model.positions == "learned"
        limits = {"data.max_length": self.data.max_length}
        if self.data.source is not None:
            limits["decoding.max_source"] = self.decoding.max_source
        longest = max(limits.values()) + 1
        if learned and longest > self.model.max_positions:
            raise Refusal(
                f"model.max_positions: must be at least {longest} for "
                f"{' and '.join(f'{key} {limit}' for key, limit in limits.items())} with one end symbol "
                f"(got {self.model.max_positions})",
                f"--set model.max_positions={longest}, or lower {' and '.join(limits)}",
            )
        return self

    def to_yaml(self) -> str:
        """The resolved recipe, every key present; `load` reads it back to an equal recipe."""
        return dump(self.model_dump(mode="json"))


# --- reading and validation ------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Reads, merges and validates a recipe.

    `overrides` are `section.key=value` strings whose values are YAML. Raises UserError on anything wrong.
    """
    tree, origins = read(Path(path))
    for setting in overrides:
        override(tree, origins, setting)
    if isinstance(tree.get("data"), dict):
        tree["data"].setdefault("name", tree.get("name"))
    return _validate(Recipe, tree, origins, str(path))


def override_decoding(decoding: Decoding, overrides: Sequence[str]) -> Decoding:
    """Decoding settings of a bundle with `--set decoding.key=value` (or `key=value`) applied."""
    tree: dict[str, Any] = {"decoding": decoding.model_dump()}
    origins: Origins = {}
    for setting in overrides:
        key = setting.split("=")[0].strip()
        if "." in key and not key.startswith("decoding."):
            raise UserError(
                f"--set {setting}: only keys of decoding can be set here",
                f"use one of {', '.join(f'decoding.{name}' for name in Decoding.model_fields)}",
            )
        override(tree, origins, setting if "." in key else f"decoding.{setting}")
    return _validate(Decoding, tree["decoding"], origins, "--set", ("decoding",))


S = TypeVar("S", bound=Settings)


def _validate(kind: type[S], tree: object, origins: Origins, file: str, prefix: tuple[str, ...] = ()) -> S:
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    path = (*prefix, *(str(part) for part in problem["loc"]))
    text, refusal = problem["msg"], problem.get("ctx", {}).get("error")
    if isinstance(refusal, Refusal):
        text, hint = str(refusal), refusal.hint
        key, colon, rest = text.partition(": ")
        if colon and " " not in key:
            path, text = (*path, *key.split(".")), rest
    elif problem["type"] == "missing":
        text, hint = "must be given", f"add {'.'.join(path)} to the recipe; recipes/schema.json describes all keys"
    elif problem["type"] == "extra_forbidden":
        text, hint = f"unknown key (value {problem['input']!r})", _nearest_key(path)
    elif problem["type"] == "string_pattern_mismatch":  # only names have one
        text = f"must be a name of letters, digits and . _ - (got {problem['input']!r})"
        hint = "begin with a letter or digit, and leave out spaces and slashes"
    else:
        text = f"{text.replace('Input should be', 'must be')} (got {problem['input']!r})"
        hint = _nearest_value(problem) or "correct the value, or remove the key where it has a default"
    where = next((origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in origins), file)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    raise UserError(f"{where}: {'.'.join(path)}: {text}{more}" if path else f"{where}: {text}{more}", hint)


def _nearest_value(problem: ErrorDetails) -> str | None:
    """Says which of a few words that are allowed was probably meant, if one was."""
    allowed = re.findall(r"'([^']+)'", problem.get("ctx", {}).get("expected", ""))
    near = difflib.get_close_matches(str(problem["input"]), allowed, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else None


def _nearest_key(path: tuple[str, ...]) -> str:
    """Says which key was probably meant, in the same section or, by its exact name, in another."""
    sections = {name: field.annotation for name, field in Recipe.model_fields.items()}
    keys = {
        name: list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, Settings) else []
        for name, kind in sections.items()
    }
    if len(path) > 2:  # a key of one data set
        allowed, prefix = list(Dataset.model_fields), ".".join(path[:-1]) + "."
    elif len(path) == 2:
        allowed, prefix = keys.get(path[0], []), f"{path[0]}."
    else:
        allowed, prefix = list(sections), ""
    near = difflib.get_close_matches(path[-1], allowed, n=1, cutoff=0.6)
    if near:
        return f"did you mean {prefix}{near[0]}?"
    elsewhere = [f"{name}.{path[-1]}" for name, names in keys.items() if path[-1] in names]
    return f"did you mean {' or '.join(elsewhere)}?" if elsewhere else f"use one of {', '.join(allowed)}"


def json_schema() -> dict[str, Any]:
    """JSON Schema of recipe files; nothing is required, since `extends` may supply it."""
    schema = Recipe.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        section.pop("required", None)
    base = {"type": "string", "description": "Recipe to inherit from, relative to this file."}
    schema["properties"] = {"extends": base, **schema["properties"]}
    return schema


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
