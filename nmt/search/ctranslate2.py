"""Search by CTranslate2, a compiled engine, instead of ours; imports no torch.

How its search and ours agree (`nmt.search.beam` states our rules). With a beam of 1 they are the same algorithm and
give the same text, apart from rounding. With a wider beam:

- Scores are ours: CTranslate2 gives Σ log p / |Y|^α, where |Y| counts `</s>`. They are converted to
  Σ log p / ((5 + |Y|) / 6)^α, which orders the hypotheses.
- Caps are ours, one for each sentence. Of the 2 · beam candidates of a step, both keep the same `beam` alive, and let
  the same ones end: those among the best `beam`.
- They stop at different times. CTranslate2 searches until `PATIENCE` · beam hypotheses have ended (with α = 0, also
  until the best candidate of a step ends) and keeps as many, the best by its own score. Our search goes on until no
  alive hypothesis can beat those that have ended.

A text therefore differs if ours ended long after others; its score is then below ours, apart from rounding. Equal texts
have equal scores, unless symbols are excluded: their probability goes to the other symbols in CTranslate2, and to none
in our search. This concerns `</s>` before decoding.min_length. Control symbols are therefore not excluded; instead,
hypotheses that contain one are dropped. If too few remain, which does not happen with trained models, the sentence is
searched again without control symbols.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Container, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from nmt.bundle import Bundle
from nmt.bundle.conversion import check_expressible, library, positions_for, specification
from nmt.device import device_error, find_device, memory_error
from nmt.errors import UserError
from nmt.files import exclusive, sha256, whole_directory
from nmt.integrity import check_files, read_manifest, replace_manifest, write_manifest
from nmt.recipe import CPU_BATCH_TOKENS, Decoding
from nmt.search.feed import Feed, Hypothesis, Source
from nmt.text.symbols import BOS, EOS, PAD, UNK
from nmt.text.tokenizer import Tokenizer

PATIENCE = 1.5  # of 1,000 texts of Multi30k 22 differ with 1.0, 8 with 1.5, 7 with 8.0, which takes thrice as long
FOLDER, STAMP = "ctranslate2", "converted.json"
FORMAT = 1  # of the folder; one of another format is made again
AUTO_BATCH_TOKENS = {"cpu": CPU_BATCH_TOKENS, "cuda": 16_384}  # about 2 GiB for the base model and a beam of 4
COMPUTE_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}  # of decoding.precision


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
    """An engine for a bundle. The bundle is converted first if needed, and `say` is told so.

    `threads` is the number of threads on a CPU; `device` and `worker` are those of `find_device`; for `folder`, see
    `convert`. decoding.precision auto is float32 on a CPU and float16 on a GPU. Raises UserError if ctranslate2 or the
    device is missing, the device does not compute in that precision, the bundle is damaged, or the folder cannot be
    written or loaded.
    """
    ctranslate2 = library()  # before any work
    path = convert(bundle, decoding, folder, say)
    kind, _, number = find_device(device, ctranslate2.get_cuda_device_count(), worker).partition(":")
    index, batches = int(number or 0), threads if kind == "cpu" else 1
    possible = ctranslate2.get_supported_compute_types(kind, index)
    options = {
        "device": kind,
        "device_index": index,
        "compute_type": _compute_type(decoding.precision, kind, possible),
        "inter_threads": batches,  # threads with a batch each get more done than threads that share one
        "intra_threads": 1,
    }
    try:
        translator = ctranslate2.Translator(str(path), **options)
    except RuntimeError as error:
        if memory_error(error) or device_error(error):
            raise
        hint = f"run this again; if that does not help, remove {path}, and it is made again"
        raise UserError(f"{path}: CTranslate2 cannot load it: {error}", hint) from None
    tokens = AUTO_BATCH_TOKENS[kind] if decoding.batch_tokens == "auto" else decoding.batch_tokens
    return CTranslate2Engine(translator, bundle.tokenizer(), decoding, tokens, batches)


def _compute_type(precision: str, kind: str, possible: Container[str]) -> str:
    """CTranslate2's name of a precision. Raises UserError if it is not among the `possible` ones of the device."""
    # Scores are summed in the type of the computation, of which bfloat16 keeps 8 bits and float16 keeps 11.
    compute_type = COMPUTE_TYPES.get(precision, "float32" if kind == "cpu" else "float16")
    if compute_type not in possible:
        choices = ["auto", *(name for name, needs in COMPUTE_TYPES.items() if needs in possible)]
        raise UserError(
            f"decoding.precision: CTranslate2 does not compute in {precision} on this {kind}",
            f"use one of: {', '.join(choices)}",
        )
    return compute_type


@dataclass(frozen=True)
class _Batch:
    """Sources that CTranslate2 is searching."""

    sources: list[Source]
    cap: int
    """Most symbols of any of their outputs."""
    excluding: bool
    """Whether control symbols are excluded."""
    results: list[Any]
    """A future for each source."""


class CTranslate2Engine:
    """An `Engine` around a `ctranslate2.Translator`, which searches several batches at a time."""

    def __init__(
        self, translator: Any, tokenizer: Tokenizer, decoding: Decoding, batch_tokens: int, batches: int
    ) -> None:
        """See `load_engine`."""
        self._translator, self._decoding = translator, decoding
        self._batch_tokens, self._batches = batch_tokens, batches
        self._source_pieces, target_pieces = tokenizer.source.listing(), tokenizer.target.listing()
        self._target_ids = {piece: i for i, piece in enumerate(target_pieces)}
        self._control = [[target_pieces[i]] for i in (PAD, UNK, BOS)]

    def search(self, feed: Feed, n_best: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """See `feed.Engine`."""
        under_way: deque[_Batch] = deque()
        while True:
            while len(under_way) < 2 * self._batches:  # so that no thread waits for its next batch
                sources = feed.take(self._batch_tokens, wait=not under_way)
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

    def sample(self, feed: Feed, count: int) -> NoReturn:
        """Raises UserError."""
        raise UserError("--engine ctranslate2: draws no samples", "use --engine nmt")

    def _start(self, sources: list[Source], cap: int, excluding: bool) -> _Batch:
        beam, patience = self._decoding.beam, PATIENCE if self._decoding.beam > 1 else 1.0
        results = self._translator.translate_batch(
            [[self._source_pieces[i] for i in source.ids] for source in sources],
            asynchronous=True,
            beam_size=beam,
            patience=patience,
            num_hypotheses=int(beam * patience + 0.5),  # all that end before it stops, rounded as it does
            length_penalty=self._decoding.alpha,
            max_input_length=0,  # no limit of its own
            min_decoding_length=self._decoding.min_length,
            max_decoding_length=cap,
            no_repeat_ngram_size=self._decoding.no_repeat or 0,
            suppress_sequences=self._control if excluding else None,
            return_scores=True,
            return_end_token=True,  # which a hypothesis cut at the cap lacks
        )
        return _Batch(sources, cap, excluding, results)

    def _hypotheses(self, found: Any) -> list[Hypothesis]:
        """The hypotheses of a `ctranslate2.TranslationResult` without control symbols, with our scores, best first."""
        alpha, hypotheses = self._decoding.alpha, []
        for pieces, score in zip(found.hypotheses, found.scores, strict=True):
            ids = [self._target_ids[piece] for piece in pieces]
            if min(ids) < EOS:
                continue
            ours = score * len(ids) ** alpha / ((5 + len(ids)) / 6) ** alpha
            finished = ids[-1] == EOS
            hypotheses.append(Hypothesis(ids[:-1] if finished else ids, ours, finished))
        return sorted(hypotheses, key=lambda hypothesis: hypothesis.score, reverse=True)


# --- conversion ------------------------------------------------------------------------------------------------


def convert(
    bundle: Bundle,
    decoding: Decoding,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """The folder with the CTranslate2 model of a bundle.

    By default this is BUNDLE/ctranslate2, or a folder in the user's cache if the bundle is read-only.
    `ctranslate2.Translator(folder)` loads it anywhere; the SentencePiece models are in it, too. If there is none of
    these weights, or only one for shorter inputs and outputs than `decoding` allows, it is made and `say` is told so.
    Raises UserError if ctranslate2 is not installed, the model uses what CTranslate2 does not support, the bundle is
    damaged or the folder cannot be written.
    """
    check_expressible(bundle)
    for path in _places(bundle, folder):
        if _is_current(path, bundle, decoding):
            return path
    with exclusive(path.parent / f".{path.name}.lock", str(path), say, wait=True):
        if not _is_current(path, bundle, decoding):  # else the process that held the lock has just made it
            say(f"converting {bundle.path} for CTranslate2: {path}")
            _write(path, bundle, decoding)
    return path


def _places(bundle: Bundle, folder: Path | None) -> Iterator[Path]:
    """Where to look for a conversion; a new one goes to the last place. Raises UserError if no cache can be made."""
    yield folder or bundle.path / FOLDER
    if folder is None and not os.access(bundle.path, os.W_OK):
        yield _cache() / _digest(bundle)


def _write(path: Path, bundle: Bundle, decoding: Decoding) -> None:
    """Converts a bundle into a folder."""
    positions = positions_for(bundle.recipe.model, decoding)
    made_from = {"format": FORMAT, "positions": positions, "sha256": _digest(bundle), **_size_and_time(bundle)}
    model = specification(bundle, positions)
    with whole_directory(path, STAMP) as part:
        model.save(str(part))
        for name, content in bundle.tokenizer().files().items():
            (part / name).write_bytes(content)
        write_manifest(part / STAMP, made_from)


def _cache() -> Path:
    """The user's folder of models converted for CTranslate2, which is made if it is missing."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"  # a relative path is to be ignored
        folder = base / "nmt" / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user's home is unknown
        raise UserError(
            f"the model's folder is read-only, and no cache can be made for its conversion: {error}",
            "set XDG_CACHE_HOME to a folder where you may write",
        ) from None
    return folder


def _is_current(path: Path, bundle: Bundle, decoding: Decoding) -> bool:
    """Whether an undamaged conversion of these very weights is there, for sequences as long as these settings allow.

    If the weights have only another time, as those of a copied bundle, it is recorded.
    """
    try:
        weights, positions = _size_and_time(bundle), positions_for(bundle.recipe.model, decoding)
        made_from = read_manifest(path / STAMP)
        if made_from["format"] != FORMAT or made_from["positions"] < positions:
            return False
        check_files(path / STAMP)
        if made_from.items() >= weights.items():
            return True
        if made_from["bytes"] != weights["bytes"] or made_from["sha256"] != _digest(bundle):
            return False
    except (UserError, OSError, AttributeError, KeyError, TypeError):  # it is missing or damaged
        return False
    with suppress(UserError):  # if nothing can be written, the hashes are compared again next time
        replace_manifest(path / STAMP, made_from | weights)
    return True


def _size_and_time(bundle: Bundle) -> dict[str, int]:
    """Tells whether the weights are unchanged without reading them."""
    status = _weights(bundle).stat()
    return {"bytes": status.st_size, "modified_ns": status.st_mtime_ns}


def _digest(bundle: Bundle) -> str:
    return sha256(_weights(bundle))


def _weights(bundle: Bundle) -> Path:
    return bundle.path / "model.safetensors"
