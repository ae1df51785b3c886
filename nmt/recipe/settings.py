"""The sections of a recipe that shape the model, its training and its search: keys, types, defaults and limits.

Every default of these sections is defined here; `nmt/recipe/data.py` has the few that depend on the task.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

CPU_DEVICE_TOKENS = 4096
"""The default of training.device_tokens on a CPU."""
CPU_BATCH_TOKENS = 2048
"""What decoding.batch_tokens: auto means on a CPU, for beams of up to CPU_BEAM."""
CPU_BEAM = 4
# Limits far beyond any sensible use. A value above one of them is a typing error that would make a search or an
# allocation practically endless.
MOST_SUBWORDS = 100_000  # of a sequence; its cost grows with the square of its length
MOST_EXTRA = 10_000  # of an output beyond its input; a model that never ends a sentence takes minutes to get there
MOST_TOKENS = 1_000_000_000  # of an update or a batch
MOST_UPDATES = 1_000_000_000
WIDEST = 1_000_000  # of a layer


class Refusal(ValueError):
    """What a validator raises: what is wrong, after `key: ` if one key is, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Settings(BaseModel):
    """The base of all sections: frozen, strict types, no unknown keys, and docstrings as descriptions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class TokenizerSettings(Settings):
    """The SentencePiece model, trained on the training split only."""

    algorithm: Literal["bpe", "unigram"] = "bpe"
    """Subword algorithm."""
    vocab_size: int = Field(37000, ge=261, le=10_000_000)
    """Number of entries, including 4 control symbols and 256 bytes; of each side if vocabularies are separate. The
    symbols of trees are not among them."""
    shared: bool = True
    """One vocabulary for both languages, or one for each. A parser has two, and a language model has one."""
    character_coverage: float = Field(0.9995, ge=0.98, le=1)
    """Share of the characters of the training text that get entries; other characters are spelled in bytes."""
    sample: int = Field(10_000_000, ge=101, lt=2**31)
    """At most this many sentences, drawn at random, train the model."""


class Model(Settings):
    """The Transformer of sections 3.1 to 3.5; every column of Table 3 is a key."""

    layers: int = Field(6, ge=1, le=1000)
    """N: number of layers in the encoder, and in the decoder."""
    decoder_layers: int | None = Field(None, ge=1, le=1000)
    """Number of layers in the decoder, if it differs from `layers`. A language model is a decoder alone."""
    d_model: int = Field(512, ge=1, le=WIDEST)
    """Width of embeddings and layers."""
    d_ff: int = Field(2048, ge=1, le=WIDEST)
    """Inner width of the feed-forward layers."""
    heads: int = Field(8, ge=1, le=WIDEST)
    """h: attention heads."""
    d_k: int | None = Field(None, ge=1, le=WIDEST)
    """Width of a head's queries and keys; default: d_model / heads."""
    d_v: int | None = Field(None, ge=1, le=WIDEST)
    """Width of a head's values; default: d_model / heads."""
    attention_bias: bool = False
    """Add biases to the queries, keys, values and outputs of attention."""
    output_bias: bool = False
    """Add a bias to every symbol's logit."""
    attention_window: int | None = Field(None, ge=1, le=MOST_SUBWORDS)
    """r of section 4: self-attention sees only the r positions around each one, in the decoder the last r. Default:
    all."""
    activation: Literal["relu", "silu", "gelu"] = "relu"
    """Function between the two products of a feed-forward layer: relu, as in the paper; silu, x · sigmoid(x), which is
    also called swish; or gelu, x · Φ(x), by the exact Φ."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """P_drop, on each sub-layer's output and on embedding + position."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on attention weights."""
    feed_forward_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the inner layer of the feed-forward networks."""
    norm: Literal["post", "pre"] = "post"
    """LayerNorm after each residual sum, as in the paper, or on each sub-layer's input, with one more at the end."""
    norm_epsilon: float = Field(1e-6, gt=0, le=1)
    """ε of LayerNorm, added to the variance."""
    positions: Literal["sinusoidal", "learned", "words"] = "sinusoidal"
    """Position encoding, section 3.5. With words, which is not in the paper, half of the encoding is the number of the
    word, on the target side that of the next word. A parser of a small treebank learns much faster with it, because the
    decoder does not have to count."""
    max_positions: int = Field(1024, ge=1, le=2 * MOST_SUBWORDS)
    """Longest sequence for learned positions, with `</s>` or `<s>`; the other encodings have no limit."""
    tie_embeddings: Literal["all", "target", "none"] = "all"
    """Which of source embedding, target embedding and softmax share a matrix (section 3.4): all of them, the latter two
    (target), or none. A parser's default is target; for a language model, all means the same as target."""

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
        """Return how many positions before and after itself a position sees in self-attention; None if it sees all.

        If the window is even, one position more lies before it than after it.
        """
        if self.attention_window is None:
            return None
        others = self.attention_window - 1
        return (others, 0) if causal else (others - others // 2, others // 2)


class Training(Settings):
    """Section 5 of the paper."""

    updates: int = Field(100_000, ge=1, le=MOST_UPDATES)
    """Total number of updates; a resumed run continues up to it."""
    batch_tokens: int = Field(25_000, ge=1, le=MOST_TOKENS)
    """Most tokens on each side of an update, with `</s>` and without padding."""
    device_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """Most padded tokens on each side of a device's micro-batch (a longer pair makes one alone). An update accumulates
    the gradients of its micro-batches. Default: 4,096 on a CPU; on a GPU as many as fit into memory, tried out once."""
    warmup: int = Field(4000, ge=1, le=MOST_UPDATES)
    """Number of updates over which the learning rate grows linearly."""
    schedule: Literal["inverse_sqrt", "constant", "linear", "cosine"] = "inverse_sqrt"
    """Learning rate after warm-up, at whose end it is the paper's peak, d_model^-0.5 · warmup^-0.5. It falls with the
    inverse square root of the update, as in the paper; stays; or falls to zero at `updates` along a line or cosine."""
    learning_rate_scale: float = Field(1.0, gt=0)
    """Factor on the learning rate, which in the paper is d_model^-0.5 · min(step^-0.5, step · warmup^-1.5)."""
    adam_betas: tuple[float, float] = Field((0.9, 0.98), strict=False)
    """β1 and β2 of Adam."""
    adam_epsilon: float = Field(1e-9, gt=0)
    """ε of Adam."""
    weight_decay: float = Field(0.0, ge=0, lt=1)
    """Decay of weights apart from Adam's moments, as in AdamW: every update multiplies matrices by 1 - learning rate ·
    weight_decay. Biases and LayerNorms do not decay, nor do frozen embeddings."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """ε_ls, spread uniformly over the vocabulary."""
    clip_norm: float | None = Field(None, gt=0)
    """Largest norm of the gradient; default: no clipping."""
    precision: Literal["auto", "bf16", "bf32", "tf32", "fp32", "fp64"] = "auto"
    """Number format of matrix products. Weights and sums stay in fp32; fp64 (for verification) applies to everything.
    With bf16 activations are in bf16 too; bf32 only rounds the factors of products to bf16, on a CPU with AMX, and tf32
    to tf32, on a GPU. auto is bf16 on a GPU whose hardware has it, else fp32."""
    compile: bool | None = None
    """Compile the layers with torch.compile, which takes a minute at the start; default: on a GPU only."""
    packing: Literal["auto"] | bool = "auto"
    """Lay the sentences of a micro-batch end to end instead of padding them, so that tensors have few shapes. auto
    does so on a GPU where the kernel of such attention can: with bf16, without `attention_dropout`, and with heads
    whose keys and values are equally wide, in a multiple of 8 up to 256. On a CPU it is slower."""
    timeout_minutes: float = Field(10, gt=0, le=100_000)
    """Minutes that devices wait for one of them before they give it up."""
    report: bool = True
    """Write report.html, a page about the run, into its directory, and refresh it while training goes on."""
    tensorboard: bool = False
    """Also write all figures, and some outputs for data.valid, for TensorBoard, into the run's directory."""
    seed: int = Field(1, ge=0, lt=2**63)
    """Seed of the initial weights, the order of batches and dropout."""
    checkpoint_minutes: float | None = Field(10, gt=0)
    """Minutes between checkpoints; ignored if `checkpoint_updates` is given."""
    checkpoint_updates: int | None = Field(None, ge=1, le=MOST_UPDATES)
    """Updates between checkpoints."""
    keep_last: int = Field(20, ge=1, le=MOST_UPDATES)
    """Number of newest checkpoints to keep; the best one by dev score is kept as well."""
    log_updates: int = Field(50, ge=1, le=MOST_UPDATES)
    """Updates between lines of metrics.jsonl."""
    valid_beam: int | None = Field(None, ge=1, le=1000)
    """Beam for dev BLEU or F1; default: `decoding.beam`."""
    patience: int | None = Field(None, ge=1, le=MOST_UPDATES)
    """Stop after this many checkpoints in a row without a better dev score."""
    init_from: str | None = None
    """What training starts from (fine-tuning): a bundle, a run's directory, a folder with a Marian model, or a name of
    the hub, hf:ORG/NAME. Its tokenizer is used, and its keys of `model` where the recipe does not give them."""
    init_state: bool = False
    """Also take over Adam's moments and the number of updates of `init_from`, a checkpoint or a run's directory, whose
    newest checkpoint is taken: training goes on with other data, up to `updates` in all."""
    source_embeddings: str | None = None
    """Text file in word2vec format with initial vectors of source subwords or words."""
    target_embeddings: str | None = None
    """The same for the target side."""
    freeze_embeddings: bool = False
    """Do not train the vectors that are read from those files."""

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
        if self.schedule in ("linear", "cosine") and self.updates <= self.warmup:
            raise Refusal(
                f"schedule: {self.schedule} falls to zero at training.updates {self.updates:,}, which must be more "
                f"than training.warmup (got {self.warmup:,})",
                f"--set training.warmup={max(1, self.updates // 10)}, or more updates",
            )
        if self.init_state and self.init_from is None:
            raise Refusal(
                "init_state: needs init_from, the checkpoint to go on from",
                "--set training.init_from=ckpts/step-00010000, or remove init_state",
            )
        if self.init_state and (self.source_embeddings or self.target_embeddings):
            raise Refusal(
                "init_state: does not go with source_embeddings or target_embeddings, of which it has no moments",
                "remove them: the checkpoint has its embeddings",
            )
        if self.freeze_embeddings and not (self.source_embeddings or self.target_embeddings):
            raise Refusal(
                "freeze_embeddings: needs source_embeddings or target_embeddings",
                "name a word2vec file by one of these, or remove freeze_embeddings",
            )
        return self


class Decoding(Settings):
    """Beam search, section 6.1, and samples; a bundle holds these settings as its defaults."""

    beam: int = Field(4, ge=1, le=1000)
    """Number of hypotheses kept alive; 1 is greedy search. Default for trees: 21."""
    alpha: float = Field(0.6, ge=0, le=5)
    """α of the length penalty ((5 + |Y|) / 6)^α. Default for trees: 0.3."""
    max_extra: int = Field(50, ge=1, le=MOST_EXTRA)
    """An output has at most this many subwords more than its input. Default for trees: 300."""
    max_source: int = Field(1024, ge=1, le=MOST_SUBWORDS)
    """Inputs of more subwords are split, searched in parts and joined."""
    split: Literal["auto", "sentences", "length", "none"] = "auto"
    """Where a translator splits other inputs. auto: at the ends of sentences, if there are more of them than in 99% of
    the training inputs, or if the input is longer than 99% of those; and a sentence longer than 99.9% of them behind a
    clause. sentences: at the end of every sentence. length: only beyond max_source. none: never; a longer input is an
    error."""
    keep: bool = True
    """Copy URLs, e-mail addresses and placeholders such as {name} and %s as they are, each as often as it comes."""
    min_length: int = Field(0, ge=0, le=MOST_EXTRA)
    """An output has at least this many subwords, not counting `</s>`."""
    no_repeat: int | None = Field(None, ge=1, le=MOST_SUBWORDS)
    """No sequence of this many subwords comes twice in the translation of an input; default: any may. It
    ends loops, but also forbids a phrase that rightly comes twice, the more so the smaller the number."""
    temperature: float = Field(1.0, ge=1e-6, le=1000)
    """Samples are drawn from the model's probabilities to the power of 1 / temperature: below 1 probable subwords
    become more probable, above 1 less."""
    top_k: int | None = Field(None, ge=1, le=10_000_000)
    """Samples are drawn from this many of the most probable subwords only; default: from all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Samples are drawn from the fewest most probable subwords only that have this share of the probability."""
    seed: int = Field(1, ge=0, lt=2**63)
    """Seed of samples."""
    batch_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | Literal["auto"] = "auto"
    """Padded source tokens that are searched together. auto is 2,048 on a CPU, and proportionally fewer for a beam
    above 4 or more than 4 samples; on a GPU as many as fit into free memory.
    A GPU's search that runs out of memory goes on with half as many."""
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = "auto"
    """Number format of matrix products; auto is fp32 on a CPU, bf16 on a GPU, and fp16 on GPUs that only emulate bf16,
    such as V100 and T4. fp16 is for GPUs, int8 for CPUs."""
    average_last: int = Field(5, ge=1, le=MOST_UPDATES)
    """Number of checkpoints that `nmt average` averages by default."""

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
