"""The recipe sections for tokenizer, model, training and decoding: keys, types, defaults and limits.

All their defaults are defined here, except the task-dependent ones in `nmt/recipe/tasks.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

CPU_DEVICE_TOKENS = 4096
"""Default of training.device_tokens on a CPU"""
CPU_BATCH_TOKENS = 2048
"""Value of decoding.batch_tokens: auto on a CPU, for beams up to 4"""
# Upper bounds far beyond sensible use, so that a typo is reported instead of exhausting time or memory.
MOST_SUBWORDS = 100_000  # in a sequence, whose cost grows quadratically with its length
MOST_EXTRA = 10_000  # beyond the input's length; a model that never ends a sentence takes minutes to reach it
MOST_TOKENS = 1_000_000_000  # in an update or a batch
MOST_UPDATES = 1_000_000_000
WIDEST = 1_000_000  # width of a layer
Split = Literal["auto", "sentences", "length", "none"]


class Refusal(ValueError):
    """A validator's error: the problem, prefixed with `key: ` if it is about one key, and a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Settings(BaseModel):
    """Base class of all sections: frozen, strictly typed, no unknown keys, attribute docstrings as descriptions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def _or_auto(kinds: tuple[type, ...], least: float, most: float, number: str) -> BeforeValidator:
    """Return a validator with one message for the two types of a number or auto."""

    def check(value: Any) -> Any:
        if value != "auto" and not (type(value) in kinds and least <= value <= most):
            raise Refusal(f"must be {number} from {least} to {most}, or auto (got {value!r})", "auto is the default")
        return value

    return BeforeValidator(check)


Coverage = Annotated[
    Annotated[float, Field(ge=0.98, le=1)] | Literal["auto"], _or_auto((int, float), 0.98, 1, "a number")
]
BatchTokens = Annotated[
    Annotated[int, Field(ge=1, le=MOST_TOKENS)] | Literal["auto"], _or_auto((int,), 1, MOST_TOKENS, "a whole number")
]


def _check_review(value: Any) -> Any:
    """Return the value, if it is one of `Review`; there is one message for all of its types."""
    is_number = type(value) is float and 0 < value < 1
    if type(value) is not bool and value != "model" and not is_number:
        raise Refusal(f"must be true, false, model or a number between 0 and 1 (got {value!r})", "true is the default")
    return value


Review = Annotated[bool | Literal["model"] | Annotated[float, Field(gt=0, lt=1)], BeforeValidator(_check_review)]


class TokenizerSettings(Settings):
    """SentencePiece vocabularies, trained on the training split only."""

    algorithm: Literal["bpe", "unigram"] = "bpe"
    """Subword algorithm."""
    vocab_size: int = Field(37000, ge=261, le=10_000_000)
    """Size of each SentencePiece vocabulary, including 4 control symbols and 256 bytes; tree symbols do not count."""
    shared: bool = True
    """Whether both languages share a vocabulary. A parser always has two."""
    character_coverage: Coverage = "auto"
    """Fraction of the training text's characters that get entries; byte fallback encodes the others. auto: 0.9995,
    plus printable ASCII and every character that occurs 20 times, unless these are more than 500, as in Chinese or
    Japanese, or would fill the vocabulary."""
    normalization: Literal["plain", "none"] = "plain"
    """What is encoded. plain: text in which white space of all kinds is a plain space, characters that show nothing,
    such as soft hyphens, are dropped, and letters are composed with their marks (NFC); none: text as it is. A
    vocabulary records it, and that of `training.init_from` keeps its own."""
    sample: int = Field(10_000_000, ge=101, lt=2**31)  # SentencePiece needs more than 100
    """Maximum number of randomly drawn sentences to train on."""
    new_languages: tuple[Annotated[str, Field(max_length=24)], ...] = Field((), max_length=100, strict=False)
    """Languages of `data` that the model of `training.init_from` does not have: each gets a symbol, and all get the
    characters and subwords that the model's vocabulary lacks. Texts in other languages are encoded as before."""
    new_vocab_size: int = Field(2000, ge=261, le=1_000_000)
    """Size of a vocabulary that is learned from the texts in `new_languages`, as `vocab_size` is, and joined."""


class Model(Settings):
    """The Transformer of sections 3.1 to 3.5 of the paper, and variants."""

    layers: int = Field(6, ge=1, le=1000)
    """N: number of layers in the encoder and in the decoder."""
    decoder_layers: int | None = Field(None, ge=1, le=1000)
    """Number of decoder layers, if different from `layers`."""
    d_model: int = Field(512, ge=1, le=WIDEST)
    """Width of embeddings and layers."""
    d_ff: int = Field(2048, ge=1, le=WIDEST)
    """Inner width of the feed-forward layers."""
    heads: int = Field(8, ge=1, le=WIDEST)
    """h: number of attention heads."""
    d_k: int | None = Field(None, ge=1, le=WIDEST)
    """Width of each head's queries and keys. Default: d_model / heads."""
    d_v: int | None = Field(None, ge=1, le=WIDEST)
    """Width of each head's values. Default: d_model / heads."""
    attention_bias: bool = False
    """Add biases to the query, key, value and output projections of attention."""
    output_bias: bool = False
    """Add a bias to the output logits."""
    activation: Literal["relu", "silu", "gelu"] = "relu"
    """Activation function of feed-forward layers: relu, as in the paper; silu (also called swish), x · sigmoid(x); or
    gelu, x · Φ(x), computed exactly."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout rate (P_drop in section 5.4) on each sub-layer's output and on the sums of embeddings and positional
    encodings."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate on attention weights."""
    feed_forward_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate on the inner layer of feed-forward networks."""
    norm: Literal["post", "pre"] = "post"
    """LayerNorm after each residual sum, as in the paper (post), or before each sub-layer and after the last (pre)."""
    norm_epsilon: float = Field(1e-6, gt=0, le=1)
    """ε of LayerNorm, added to the variance."""
    positions: Literal["sinusoidal", "fairseq", "marian", "learned", "words"] = "sinusoidal"
    """Positional encoding (section 3.5). words (not in the paper) also encodes the word's number, on the target side
    the next word's, in half of the dimensions. On a small treebank, a parser learns much faster with it, because
    the decoder need not count. fairseq: the sinusoids of M2M-100 and NLLB-200. marian: those of Marian, whose rates
    differ a little; `nmt average --format marian` needs them."""
    max_positions: int = Field(1024, ge=1, le=2 * MOST_SUBWORDS)
    """Maximum sequence length for learned positions, including `</s>` or `<s>`; other encodings have no limit."""
    tie_embeddings: Literal["all", "target", "none"] = "all"
    """Which of source embedding, target embedding and output projection share a matrix (section 3.4): all three, the
    last two (target), or none. Default for trees: target."""

    @model_validator(mode="after")
    def _widths(self) -> Self:
        # A sine and a cosine for each rate; words has two such halves, and fairseq and marian need two rates.
        multiple = {"sinusoidal": 2, "fairseq": 4, "marian": 4, "learned": 1, "words": 4}[self.positions]
        if self.d_model % multiple:
            problem = f"d_model: must be a multiple of {multiple} with positions: {self.positions} (got {self.d_model})"
            next_multiple = -(-self.d_model // multiple) * multiple
            raise Refusal(problem, f"--set model.d_model={next_multiple}")
        if self.d_model % self.heads and (self.d_k is None or self.d_v is None):
            fitting = max(h for h in range(1, self.heads) if self.d_model % h == 0)
            problem = f"heads: must divide d_model {self.d_model} unless d_k and d_v are given (got {self.heads})"
            raise Refusal(problem, f"--set model.heads={fitting}")
        return self

    @property
    def key_width(self) -> int:
        """d_k: width of each head's queries and keys."""
        return self.d_k or self.d_model // self.heads

    @property
    def value_width(self) -> int:
        """d_v: width of each head's values."""
        return self.d_v or self.d_model // self.heads

    @property
    def decoder_depth(self) -> int:
        """Number of decoder layers."""
        return self.decoder_layers or self.layers


class Training(Settings):
    """Training, section 5 of the paper."""

    updates: int = Field(100_000, ge=1, le=MOST_UPDATES)
    """Total number of updates; a resumed run continues up to this number."""
    minutes: float | None = Field(None, gt=0, le=10_000_000)
    """Time budget of the command, from its start to its end, over all resumptions, unless `updates` come first. It
    includes preparing the data, which `nmt preprocess` does apart, and at the end an average of the last
    `average_last` checkpoints and its score. If time does not suffice, updates and the last checkpoint come
    before scores; what is left out is said. A validation is left out if it takes over about a tenth of the time."""
    batch_tokens: int = Field(25_000, ge=1, le=MOST_TOKENS)
    """Maximum tokens on each side of an update, including `</s>` but not padding; with `data.augment`, a tenth more."""
    device_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """Maximum tokens on each side of a device's micro-batch, including padding; a longer pair forms its own. An update
    accumulates gradients over micro-batches. Default: 4,096 over the processes of a CPU, but at least 512 each; on a
    GPU as many as fit, measured once."""
    warmup: int = Field(4000, ge=1, le=MOST_UPDATES)
    """Number of updates over which the learning rate rises linearly; with `minutes` and a schedule that falls to zero,
    the first tenth of the minutes if that is shorter."""
    schedule: Literal["inverse_sqrt", "constant", "linear", "cosine"] = "inverse_sqrt"
    """Learning rate after warm-up: inverse square root decay, as in the paper; constant; or linear or cosine decay to
    zero at the end of `updates` or `minutes`. Warm-up ends at the paper's peak, d_model^-0.5 · warmup^-0.5."""
    learning_rate_scale: float = Field(1.0, gt=0)
    """Factor on the learning rate, which in the paper is d_model^-0.5 · min(step^-0.5, step · warmup^-1.5)."""
    optimizer: Literal["adam", "muon"] = "adam"
    """adam, as in the paper, or muon, which trains the layers' matrices by momentum whose singular values are made
    equal (Jordan 2024), with updates as large as Adam's, and all else by Adam. It learns more from each update."""
    adam_betas: tuple[float, float] = Field((0.9, 0.98), strict=False)
    """β1 and β2 of Adam."""
    adam_epsilon: float = Field(1e-9, gt=0)
    """ε of Adam."""
    weight_decay: float | None = Field(None, ge=0, lt=1)
    """Decoupled weight decay, as in AdamW: each update multiplies matrices by 1 - learning rate · weight_decay. Biases,
    LayerNorms and, with `freeze_embeddings`, embeddings do not decay. Default: 0 with adam, as in the paper, and 0.1
    with muon, which learns more by it."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """ε_ls (section 5.4): probability that is spread uniformly over the vocabulary."""
    clip_norm: float | None = Field(None, gt=0)
    """Maximum gradient norm. Default: no clipping."""
    precision: Literal["auto", "bf16", "bf32", "tf32", "fp32", "fp64"] = "auto"
    """Precision of matrix multiplications. Weights and accumulation stay in fp32, except with fp64 (for verification).
    bf16 also applies to activations; bf32 (on a CPU with AMX) only rounds operands to bf16; tf32 (on a GPU), to tf32.
    auto is bf16 on a GPU whose hardware supports it; on a CPU, bf32 or bf16 where that is known to be faster; else
    fp32. Muon's own products follow it, but for bf16 on a CPU, where they are in fp32."""
    compile: bool | None = None
    """Compile the layers with torch.compile, which takes half a minute or so at the start. Default: on a GPU only."""
    packing: Literal["auto"] | bool = "auto"
    """Concatenate the sentences of a micro-batch instead of padding them, so that tensors have few distinct shapes.
    auto does so on a GPU whose attention kernel supports it: with bf16, without `attention_dropout`, and with equal
    widths of a head's keys and values, a multiple of 8 up to 256. It is slower on a CPU."""
    timeout_minutes: float = Field(10, gt=0, le=100_000)
    """Minutes that devices wait for one another before giving up."""
    report: bool = True
    """Write report.html, a page about the run, to its directory, and refresh it during training."""
    tensorboard: bool = False
    """Also write all metrics to the run's directory for TensorBoard."""
    seed: int = Field(1, ge=0, lt=2**63)
    """Seed of the initial weights, batch order and dropout."""
    checkpoint_minutes: float | None = Field(10, gt=0)
    """Minutes between checkpoints; ignored if `checkpoint_updates` is set, unless only an extended recipe sets it.
    Default with `minutes`: a fifteenth of these, at most 10; longer if scoring would take over a tenth of the time."""
    checkpoint_updates: int | None = Field(None, ge=1, le=MOST_UPDATES)
    """Updates between checkpoints."""
    keep_last: int = Field(20, ge=1, le=MOST_UPDATES)
    """Number of latest checkpoints to keep, besides the best by dev score."""
    average_last: int = Field(5, ge=1, le=MOST_UPDATES)
    """Number of latest checkpoints that are averaged at the end of `minutes`, and by `nmt average` by default; the most
    of them where the learning rate falls to zero, since fewer may score better."""
    log_updates: int = Field(50, ge=1, le=MOST_UPDATES)
    """Updates between lines of metrics.jsonl."""
    valid_beam: int | None = Field(None, ge=1, le=1000)
    """Beam size for dev chrF and BLEU, or F1. Default: `decoding.beam`."""
    patience: int | None = Field(None, ge=1, le=MOST_UPDATES)
    """Stop after this many consecutive checkpoints without a better dev score."""
    init_from: str | None = None
    """Model to fine-tune: a bundle, a run's directory, a folder with a Marian model, or hf:ORG/NAME on the hub. Its
    tokenizer is used, and its `model` keys unless the recipe sets them."""
    replace_init: bool = False
    """At the end of `minutes`, put the run in the place of the model of init_from, which stays beside it. If its dev
    score is lower than that of the model before all corrections, by more than chance, 70% of the change since is tried,
    then 40%, then none. On resuming, it may be changed."""
    embeddings: Literal["random", "pairs"] = "random"
    """What a translator's embeddings begin with: random numbers, or vectors by the training pairs, in which subwords
    that stand in the same pairs are alike. These take seconds, and help a short training most. A parser's are random,
    and those of `init_from` stay."""
    source_embeddings: str | None = None
    """File of word vectors, in the text format of word2vec and fastText, with which the embeddings of source subwords
    that are whole words begin. It has `model.d_model` numbers for each word, and may be compressed."""
    target_embeddings: str | None = None
    """The same for target subwords. Where one matrix serves both sides, its vectors replace those of the source."""
    freeze_embeddings: bool = False
    """Keep the vectors of `source_embeddings` and `target_embeddings` as they are, and train all others. On resuming,
    it may be changed."""
    freeze: tuple[Literal["embeddings", "encoder", "decoder"], ...] = Field((), strict=False)
    """Parts of the model that keep the weights of `init_from`: they need no gradients and moments, and so less memory.
    Output embeddings and biases belong to embeddings. On resuming, they may be others."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.adam_betas):
            problem = f"adam_betas: must be at least 0 and below 1 (got {list(self.adam_betas)})"
            raise Refusal(problem, "--set 'training.adam_betas=[0.9, 0.98]', as in the paper")
        if self.device_tokens is not None and self.device_tokens > self.batch_tokens:
            problem = f"device_tokens: must not exceed batch_tokens {self.batch_tokens} (got {self.device_tokens})"
            raise Refusal(problem, f"--set training.device_tokens={self.batch_tokens}")
        if self.falls and self.updates <= self.warmup:
            end = f"schedule: {self.schedule} falls to zero at training.updates {self.updates:,}"
            problem = f"{end}, which must be more than training.warmup (got {self.warmup:,})"
            warmup = max(1, self.updates // 10)
            hint = f"--set training.warmup={warmup}, or more updates"
            raise Refusal(problem, hint if warmup < self.updates else "--set training.updates=2, or more")
        vectors = self.source_embeddings or self.target_embeddings
        if vectors and self.init_from is not None:
            key = "source_embeddings" if self.source_embeddings else "target_embeddings"
            raise Refusal(
                f"{key}: do not go with init_from, whose model has its own (got {vectors})",
                f"--set training.{key}=null",
            )
        if self.replace_init and (self.init_from is None or self.minutes is None):
            problem = "replace_init: needs init_from, the model to be replaced, and minutes, at whose end it is"
            raise Refusal(problem, "add them, or remove replace_init")
        if self.freeze_embeddings and not vectors:
            problem = "freeze_embeddings: needs source_embeddings or target_embeddings"
            raise Refusal(problem, "name word vectors, or remove freeze_embeddings")
        if len(set(self.freeze)) < len(self.freeze):
            raise Refusal(f"freeze: names a part twice (got {', '.join(self.freeze)})", "name each part once")
        if len(self.freeze) > 2:
            problem = f"freeze: leaves nothing to train (got {', '.join(self.freeze)})"
            raise Refusal(problem, "leave out one of them")
        if self.freeze and self.init_from is None:
            problem = f"freeze: needs init_from, a trained model (got {', '.join(self.freeze)})"
            raise Refusal(problem, "add init_from, or remove freeze")
        return self

    @property
    def decay(self) -> float:
        """Weight decay, given or by default."""
        if self.weight_decay is not None:
            return self.weight_decay
        return 0.1 if self.optimizer == "muon" else 0.0

    @property
    def falls(self) -> bool:
        """Whether the learning rate falls to zero."""
        return self.schedule in ("linear", "cosine")

    @property
    def is_timed(self) -> bool:
        """Whether the learning rate rises and falls by `minutes`."""
        return self.falls and self.minutes is not None


class Decoding(Settings):
    """Beam search (section 6.1) and sampling; a bundle stores these settings as its defaults."""

    beam: int = Field(4, ge=1, le=1000)
    """Beam size; 1 is greedy search. Default for trees: 21."""
    alpha: float = Field(0.6, ge=0, le=5)
    """α of the length penalty ((5 + |Y|) / 6)^α. Default for trees: 0.3."""
    max_extra: int = Field(50, ge=1, le=MOST_EXTRA)
    """Maximum number of subwords by which an output may exceed its input. Default for trees: 300."""
    max_source: int = Field(1024, ge=1, le=MOST_SUBWORDS)
    """Maximum subwords in an input. Longer inputs are split, and their outputs joined, unless `split` is none."""
    split: Split = "auto"
    """Where a translator splits inputs. auto: between sentences, if an input has more of them than 99% of the training
    inputs or is longer than 99% of those; and after a clause, in a sentence longer than 99.9% of those; between all
    sentences if the lengths of the training inputs are unknown, as of OPUS-MT's models. sentences: between all of them.
    length: only beyond max_source. none: never; an input beyond max_source is an error. `nmt average` replaces auto by
    sentences in the model that it writes, if that significantly improves dev chrF."""
    keep: bool = True
    """Copy URLs, e-mail addresses, placeholders such as {name} and %s, and names such as config.ini and --all
    unchanged, as often as they occur."""
    min_length: int = Field(0, ge=0, le=MOST_EXTRA)
    """Minimum number of subwords in an output, not counting `</s>`."""
    no_repeat: int | None = Field(None, ge=1, le=MOST_SUBWORDS)
    """Forbid a second occurrence of any sequence of this many subwords in the translation of an input. Default: no
    limit. This ends loops, but the smaller the number, the more legitimate repetition it forbids."""
    temperature: float = Field(1.0, ge=1e-6, le=1000)
    """Sampling temperature: probabilities are raised to 1 / temperature, so lower values favour probable subwords."""
    top_k: int | None = Field(None, ge=1, le=10_000_000)
    """Sample only from this many of the most probable subwords. Default: all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample only from the smallest set of most probable subwords whose probabilities sum to at least this."""
    seed: int = Field(1, ge=0, lt=2**63)
    """Seed for sampling."""
    batch_tokens: BatchTokens = "auto"
    """Maximum source tokens in a batch, including padding. auto is 2,048 on a CPU, proportionally fewer for a beam
    above 4 or more than 4 samples; on a GPU, as many as fit into free memory, halved whenever a search runs out."""
    shortlist: int | None = Field(None, ge=1, le=100)
    """On a CPU, choose only among this many symbols that most clearly translate each source symbol, that symbol itself,
    and the 2,000 most frequent ones: faster with large vocabularies. Default: all symbols."""
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = "auto"
    """Precision of matrix multiplications. auto is fp32 on a CPU, bf16 on a GPU, and fp16 on GPUs that only emulate
    bf16, such as V100 and T4. fp16 requires a GPU, int8 a CPU."""
    review: Review = True
    """In files of translators: mark translations for review. model: all but those that the memory has for the same
    string in the same context. A number between 0 and 1: of these, only near matches, those with a warning, and those
    of which the model is less sure."""

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.min_length > self.max_extra:
            problem = f"min_length: must not exceed max_extra {self.max_extra} (got {self.min_length})"
            raise Refusal(problem, f"--set decoding.min_length={self.max_extra}, or raise decoding.max_extra")
        return self


def resolved(section: Settings) -> dict[str, Any]:
    """Return a section's values by key, with those that follow from others, and None for what is ignored."""
    values = dict(section)
    if isinstance(section, Model):
        values["decoder_layers"] = section.decoder_depth
        values["d_k"] = section.key_width
        values["d_v"] = section.value_width
    if isinstance(section, Training):
        values["weight_decay"] = section.decay
        values["freeze"] = tuple(sorted(section.freeze))
        if section.checkpoint_updates:
            values["checkpoint_minutes"] = None
    return values
