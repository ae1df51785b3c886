"""Search by CTranslate2, a compiled engine, instead of ours; imports no torch.

How its search and ours agree (`nmt.search.engine` states our rules). A beam of 1 is one algorithm, and gives the
same text but for rounding. Of a wider beam:

- Scores are ours: CTranslate2 gives Σ log p / |Y|^α, where |Y| counts `</s>`; from that comes
  Σ log p / ((5 + |Y|) / 6)^α, which puts the hypotheses in order.
- Caps are ours, one for each sentence. Of a step's 2 · beam candidates both keep the same `beam` alive, and let the
  same end, those among the best `beam`.
- The stop differs: CTranslate2 searches until `PATIENCE` · beam hypotheses have ended (at α = 0 until the best
  candidate of a step has, too) and keeps as many, the best by its own score; our search goes on until none that is
  alive can beat those that have ended.

So a text differs where ours ended long after others; its score is then, but for rounding, below ours. Where the texts
are equal the scores are, with two exceptions. What CTranslate2 excludes gives its share of the probability to the
rest, in our search nobody gets it: this concerns `</s>` before decoding.min_length. Control symbols are therefore not
excluded but hypotheses with one are dropped; only where too few remain, which trained models do not bring about, the
sentence is searched again without them.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.bundle import Bundle
from nmt.device import find_device
from nmt.errors import UserError
from nmt.files import exclusive, remedy, sha256, whole_directory
from nmt.integrity import check_files, read_manifest, replace_manifest, write_manifest
from nmt.recipe import CPU_BATCH_TOKENS, Decoding, Model
from nmt.search.feed import Feed, Hypothesis, Source
from nmt.text.symbols import BOS, EOS, PAD, UNK
from nmt.text.tokenizer import Tokenizer

PATIENCE = 1.5  # of 1,000 texts of Multi30k 22 differ with 1.0, 8 with 1.5, 7 with 8.0, which takes thrice as long
FOLDER, STAMP = "ctranslate2", "converted.json"
FORMAT = 1  # of the folder; what has another is converted anew
MULTIPLE = 8  # to which CTranslate2 pads lengths on a GPU
GPU_BATCH_TOKENS = 16_384  # what decoding.batch_tokens auto is here: about 2 GiB for the base model and a beam of 4
COMPUTE_TYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}  # of decoding.precision


def load_engine(
    bundle: Bundle,
    decoding: Decoding,
    *,
    threads: int,
    device: str = "auto",
    worker: int | None = None,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> CTranslate2Engine:
    """An engine for a bundle, which is converted first where that is needed; `say` is told so.

    `threads` are those of a CPU in all; `device` and `worker` are those of `find_device`; for `folder`, where the
    converted model stands, see `convert`. decoding.precision auto is float32 on a CPU, float16 on a
    GPU. Raises UserError where ctranslate2 or the device is missing, the device does not compute in that precision,
    the bundle is damaged, or the folder cannot be written.
    """
    _library()  # says so before any work where it is missing
    path = convert(bundle, decoding, folder, say)
    return CTranslate2Engine(path, bundle.tokenizer(), decoding, threads=threads, device=device, worker=worker)


@dataclass(frozen=True)
class _Batch:
    """Sources on their way through CTranslate2."""

    sources: list[Source]
    cap: int
    """Most symbols of any of their outputs."""
    excluding: bool
    """Whether control symbols are excluded."""
    results: list[Any]
    """A future of each."""


class CTranslate2Engine:
    """An `Engine` that searches in a folder made by `convert`."""

    def __init__(
        self,
        folder: Path,
        tokenizer: Tokenizer,
        decoding: Decoding,
        *,
        threads: int,
        device: str = "auto",
        worker: int | None = None,
    ) -> None:
        """See `load_engine`."""
        ctranslate2 = _library()
        kind, _, number = find_device(device, ctranslate2.get_cuda_device_count(), worker).partition(":")
        index = int(number or 0)
        # Scores are summed in the type that is computed in, of which bfloat16 keeps 8 bits and float16 keeps 11.
        compute_type = COMPUTE_TYPES.get(decoding.precision, "float32" if kind == "cpu" else "float16")
        possible = ctranslate2.get_supported_compute_types(kind, index)
        if compute_type not in possible:
            choices = ["auto", *(name for name, needs in COMPUTE_TYPES.items() if needs in possible)]
            raise UserError(
                f"decoding.precision: CTranslate2 does not compute in {decoding.precision} on this {kind}",
                f"use one of: {', '.join(choices)}",
            )
        self._decoding = decoding
        auto_tokens = CPU_BATCH_TOKENS if kind == "cpu" else GPU_BATCH_TOKENS
        self._tokens = auto_tokens if decoding.batch_tokens == "auto" else decoding.batch_tokens
        self._source_pieces = tokenizer.source.listing()
        target_pieces = tokenizer.target.listing()
        self._target_ids = {piece: i for i, piece in enumerate(target_pieces)}
        self._control = [[target_pieces[i]] for i in (PAD, UNK, BOS)]
        self._workers = threads if kind == "cpu" else 1
        self._translator = ctranslate2.Translator(
            str(folder),
            device=kind,
            device_index=index,
            compute_type=compute_type,
            inter_threads=self._workers,  # a batch each gets more done than threads that share one
            intra_threads=1,
        )

    def search(self, feed: Feed, n_best: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """See `feed.Engine`."""
        under_way: deque[_Batch] = deque()
        while True:
            while len(under_way) < 2 * self._workers:  # so that none waits for the next
                sources = feed.take(self._tokens, wait=not under_way)
                if not sources:
                    break
                under_way.append(self._start(sources, max(source.cap for source in sources), excluding=False))
            if not under_way:
                return
            batch, again = under_way.popleft(), defaultdict(list)
            for source, future in zip(batch.sources, batch.results, strict=True):
                found = future.result()
                hypotheses = self._hypotheses(found)
                too_few = not batch.excluding and len(hypotheses) < min(n_best, len(found.hypotheses))
                if too_few or batch.cap > source.cap <= max(map(len, found.hypotheses)):  # took the cap of another
                    again[source.cap, batch.excluding or too_few].append(source)
                else:
                    yield source.number, hypotheses[:n_best]
            under_way.extend(self._start(sources, *how) for how, sources in again.items())

    def _start(self, sources: list[Source], cap: int, excluding: bool) -> _Batch:
        beam = self._decoding.beam
        patience = PATIENCE if beam > 1 else 1.0
        results = self._translator.translate_batch(
            [[self._source_pieces[i] for i in source.ids] for source in sources],
            asynchronous=True,
            beam_size=beam,
            patience=patience,
            num_hypotheses=int(beam * patience + 0.5),  # all that end before it stops; it rounds like this
            length_penalty=self._decoding.alpha,
            max_input_length=0,  # none of its own
            min_decoding_length=self._decoding.min_length,
            max_decoding_length=cap,
            suppress_sequences=self._control if excluding else None,
            return_scores=True,
            return_end_token=True,  # which a hypothesis cut at the cap lacks
        )
        return _Batch(sources, cap, excluding, results)

    def _hypotheses(self, found: Any) -> list[Hypothesis]:
        """Those of a `ctranslate2.TranslationResult` without control symbols, with our scores, best first."""
        alpha, hypotheses = self._decoding.alpha, []
        for pieces, score in zip(found.hypotheses, found.scores, strict=True):
            ids = [self._target_ids[piece] for piece in pieces]
            if min(ids) < EOS:
                continue
            total, length = score * len(ids) ** alpha, len(ids)
            finished = ids[-1] == EOS
            hypotheses.append(Hypothesis(ids[:-1] if finished else ids, total / ((5 + length) / 6) ** alpha, finished))
        return sorted(hypotheses, key=lambda hypothesis: hypothesis.score, reverse=True)


# --- conversion ------------------------------------------------------------------------------------------------


def convert(
    bundle: Bundle,
    decoding: Decoding,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """The folder with the CTranslate2 model of a bundle.

    Unless given this is BUNDLE/ctranslate2, or a folder in the user's cache where the bundle cannot be written to.
    `ctranslate2.Translator(folder)` loads it anywhere; the SentencePiece models lie inside too. It is made, and `say`
    told so, where there is none, or one of other weights, or one for shorter inputs and outputs than `decoding`
    allows. Raises UserError where ctranslate2 is not installed, the model has what CTranslate2 has not, the bundle is
    damaged or the folder cannot be written.
    """
    model = bundle.recipe.model
    for key, lacking in (("attention_window", model.attention_window), ("positions", model.positions == "words")):
        if lacking:
            value = getattr(model, key)
            raise UserError(f"{bundle.path}: CTranslate2 has nothing like model.{key} {value}", "use --engine nmt")
    path = folder or bundle.path / FOLDER
    if _is_current(path, bundle, decoding):
        return path
    if folder is None and not os.access(bundle.path, os.W_OK):
        path = _cache() / _digest(bundle)
        if _is_current(path, bundle, decoding):
            return path
    _library()
    from nmt.search.conversion import specification

    with exclusive(path.parent / f".{path.name}.lock", str(path), wait=True):
        if _is_current(path, bundle, decoding):  # now, by the process that held the lock
            return path
        say(f"converting {bundle.path} for CTranslate2: {path}")
        positions, tokenizer = _positions(bundle.recipe.model, decoding), bundle.tokenizer()
        made_from = {"format": FORMAT, "positions": positions, **_size_and_time(bundle), "sha256": _digest(bundle)}
        model = specification(bundle, positions)
        with whole_directory(path, STAMP) as part:
            model.save(str(part))
            for name, content in tokenizer.files().items():
                (part / name).write_bytes(content)
            write_manifest(part / STAMP, made_from)
    return path


def _cache() -> Path:
    """The user's folder of models converted for CTranslate2, which is made where it is missing."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"  # others are to be ignored
        folder = base / "nmt" / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # the latter where nobody knows the user's home
        raise UserError(
            f"the model's folder is read-only, and no cache can be made for its conversion: {error}",
            "set XDG_CACHE_HOME to a folder where you may write",
        ) from None
    return folder


def _is_current(path: Path, bundle: Bundle, decoding: Decoding) -> bool:
    """Whether a whole conversion of these very weights is there, for sequences as long as these settings allow."""
    weights, positions = _size_and_time(bundle), _positions(bundle.recipe.model, decoding)
    try:
        made_from = read_manifest(path / STAMP)
        if made_from["format"] != FORMAT or made_from["positions"] < positions:
            return False
        check_files(path / STAMP)
        if made_from.items() >= weights.items():
            return True
        if made_from["bytes"] != weights["bytes"] or made_from["sha256"] != _digest(bundle):
            return False
    except (UserError, AttributeError, KeyError, TypeError):  # it is missing or damaged
        return False
    with suppress(UserError):  # a copy of the bundle; where nothing can be written it is compared again next time
        replace_manifest(path / STAMP, made_from | weights)
    return True


def _size_and_time(bundle: Bundle) -> dict[str, int]:
    """What tells that the weights are unchanged without reading them."""
    path = _weights(bundle)
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}", remedy(path)) from None
    return {"bytes": status.st_size, "modified_ns": status.st_mtime_ns}


def _digest(bundle: Bundle) -> str:
    return sha256(_weights(bundle))


def _weights(bundle: Bundle) -> Path:
    return bundle.path / "model.safetensors"


def _positions(config: Model, decoding: Decoding) -> int:
    """Rows of the tables of position encodings."""
    longest = config.max_positions if config.positions == "learned" else decoding.max_source + decoding.max_extra
    return -(-longest // MULTIPLE) * MULTIPLE


def _library() -> Any:
    try:
        import ctranslate2
    except ImportError as error:
        raise UserError(f"CTranslate2 is not installed: {error}", "pip install ctranslate2") from None
    return ctranslate2
