"""Search by CTranslate2, a compiled engine, instead of ours; imports no torch.

How its search and ours agree (`nmt.decoding.beam` states our rules). With a beam of 1 they are the same algorithm and
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
in our search. This concerns `</s>` before decoding.min_length. Control symbols are therefore not excluded; hypotheses
that contain one, which trained models do not write, come after all others.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from nmt.checkpoint.reading import Bundle
from nmt.decoding.engine import Hypothesis, Source, SourceQueue
from nmt.exchange.ctranslate2 import check_expressible, library, positions_for, write
from nmt.recipe import CPU_BATCH_TOKENS, Decoding
from nmt.system.device import find_device
from nmt.system.errors import UserError
from nmt.system.files import exclusive, whole_directory
from nmt.system.integrity import check_files, hash_file, read_manifest, write_manifest
from nmt.text.vocabulary import EOS

Say = Callable[[str], None]  # reports what takes long

PATIENCE = 1.5  # of 1,000 texts of Multi30k 22 differ with 1.0, 8 with 1.5, 7 with 8.0, which takes thrice as long
FOLDER, STAMP = "ctranslate2", "converted.json"
AUTO_BATCH_TOKENS = {"cpu": CPU_BATCH_TOKENS, "cuda": 16_384}  # about 2 GiB for the base model and a beam of 4
COMPUTE_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}  # of decoding.precision


def convert(bundle: Bundle, decoding: Decoding, say: Say) -> Path:
    """Return BUNDLE/ctranslate2, the bundle as a model of CTranslate2.

    If there is none of these weights, or one for inputs and outputs of other lengths than `decoding` allows, it is
    written and `say` is told so. Raises UserError if ctranslate2 is not installed, the model uses what CTranslate2 does
    not support, the bundle is damaged or the folder cannot be written.
    """
    check_expressible(bundle)
    path = bundle.path / FOLDER
    weights, positions = hash_file(bundle.path / "model.safetensors"), positions_for(bundle.recipe.model, decoding)
    made_from = {"weights": weights, "positions": positions}
    if _is_current(path, made_from):
        return path
    if not os.access(bundle.path, os.W_OK):
        raise UserError(
            f"{path}: cannot be written: the folder of the model is read-only",
            f"copy it, or export it: nmt average {bundle.path} --format ctranslate2 --out FOLDER",
        )
    with exclusive(path.with_name(f".{FOLDER}.lock"), str(path), say, wait=True):
        if not _is_current(path, made_from):  # else the process that held the lock has just made it
            say(f"converting {bundle.path} for CTranslate2: {path}")
            with whole_directory(path, STAMP) as part:
                write(bundle, part, decoding)
                write_manifest(part / STAMP, made_from)
    return path


def _is_current(path: Path, made_from: Mapping[str, object]) -> bool:
    """Is there an undamaged conversion with these values in its manifest?"""
    try:
        found = read_manifest(path / STAMP)
        if not isinstance(found, dict) or not made_from.items() <= found.items():
            return False
        check_files(path / STAMP)
    except UserError:
        return False
    return True


class CTranslate2Engine:
    """An `Engine` around a `ctranslate2.Translator`, which searches several batches at a time."""

    def __init__(
        self, bundle: Bundle, decoding: Decoding, say: Say, threads: int, device: str, worker: int | None = None
    ) -> None:
        """Load a bundle, which is converted first if needed; `say` is told so.

        `threads` is the number of threads on a CPU; `device` and `worker` are those of `find_device`.
        decoding.precision auto is float32 on a CPU and float16 on a GPU. Raises UserError if ctranslate2 or the device
        is missing, the device does not compute in that precision, the bundle is damaged, or the conversion cannot be
        written.
        """
        ctranslate2 = library()  # before any work
        path = convert(bundle, decoding, say)
        kind, _, number = find_device(device, ctranslate2.get_cuda_device_count(), worker).partition(":")
        self._batches = threads if kind == "cpu" else 1
        # Scores are summed in the type of the computation, of which bfloat16 keeps 8 bits and float16 keeps 11.
        compute_type = COMPUTE_TYPES.get(decoding.precision, "float32" if kind == "cpu" else "float16")
        try:
            self._translator = ctranslate2.Translator(
                str(path),
                device=kind,
                device_index=int(number or 0),
                compute_type=compute_type,
                inter_threads=self._batches,  # threads with a batch each get more done than threads that share one
                intra_threads=1,
            )
        except ValueError as error:
            problem = f"decoding.precision {decoding.precision}: {error}"
            raise UserError(problem, "use decoding.precision=auto") from None
        tokenizer, self._decoding = bundle.tokenizer(), decoding
        self._batch_tokens = AUTO_BATCH_TOKENS[kind] if decoding.batch_tokens == "auto" else decoding.batch_tokens
        self._source_pieces = tokenizer.source.listing()
        self._target_ids = {piece: i for i, piece in enumerate(tokenizer.target.listing())}

    def search(self, queue: SourceQueue, n_best: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Search as every `Engine` does."""
        under_way: deque[tuple[list[Source], int, list[Any]]] = deque()  # with the cap and the futures of each batch
        while True:
            while len(under_way) < 2 * self._batches:  # so that no thread waits for its next batch
                sources = queue.take(self._batch_tokens, wait=not under_way)
                if not sources:
                    break
                cap = max(source.cap for source in sources)
                under_way.append((sources, cap, self._start(sources, cap)))
            if not under_way:
                return
            (sources, cap, futures), again = under_way.popleft(), defaultdict(list)
            for source, future in zip(sources, futures, strict=True):
                found = future.result()
                if cap > source.cap <= max(map(len, found.hypotheses)):  # took the cap of another
                    again[source.cap].append(source)
                else:
                    yield source.number, self._hypotheses(found)[:n_best]
            under_way.extend((sources, cap, self._start(sources, cap)) for cap, sources in again.items())

    def sample(self, queue: SourceQueue, count: int) -> NoReturn:
        """Raise UserError."""
        raise UserError("--engine ctranslate2: draws no samples", "use --engine nmt")

    def _start(self, sources: list[Source], cap: int) -> Any:
        beam, patience = self._decoding.beam, PATIENCE if self._decoding.beam > 1 else 1.0
        return self._translator.translate_batch(
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
            return_scores=True,
            return_end_token=True,  # which a hypothesis cut at the cap lacks
        )

    def _hypotheses(self, found: Any) -> list[Hypothesis]:
        """Return the hypotheses of a `ctranslate2.TranslationResult` with our scores, best first; those with control
        symbols come last."""
        alpha, hypotheses = self._decoding.alpha, []
        for pieces, score in zip(found.hypotheses, found.scores, strict=True):
            ids = [self._target_ids[piece] for piece in pieces]
            ours = score * len(ids) ** alpha / ((5 + len(ids)) / 6) ** alpha
            finished = ids[-1] == EOS
            hypotheses.append(Hypothesis(ids[:-1] if finished else ids, ours, finished))
        return sorted(hypotheses, key=lambda each: (min(each.ids, default=EOS) < EOS, -each.score))
