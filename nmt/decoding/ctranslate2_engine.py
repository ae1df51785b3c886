"""Search with CTranslate2, a compiled engine, in place of our own; imports no torch.

`nmt.decoding.beam` states the rules of our search. With a beam of 1, CTranslate2 uses the same algorithm and finds
the same text, apart from rounding. With a wider beam:

- Scores are converted from CTranslate2's Σ log p / |Y|^α, where |Y| counts `</s>`, to our Σ log p / ((5 + |Y|) / 6)^α,
  by which hypotheses are ranked.
- Caps and candidates are the same: of a step's 2 · beam candidates, both engines finish those that end among the best
  `beam`, and keep the best `beam` of the others alive.
- The stopping rules differ. CTranslate2 searches until `PATIENCE` · beam hypotheses have ended (with α = 0, also until
  a step's best candidate ends) and keeps that many, ranked by its own score. Our search continues until no alive
  hypothesis can beat the finished ones.

Texts therefore differ where our best hypothesis ended long after others; CTranslate2's then scores lower. Equal texts
have equal scores, apart from rounding, unless symbols are excluded: CTranslate2 renormalises over the remaining ones,
and we do not. This concerns decoding.min_length, which excludes `</s>`, and decoding.no_repeat. Control symbols are
not excluded; hypotheses that contain one are ranked last.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from nmt.checkpoint.reading import Bundle
from nmt.decoding.engine import Hypothesis, Source, SourceQueue
from nmt.exchange.ctranslate2 import check_expressible, library, positions_for, write
from nmt.recipe import CPU_BATCH_TOKENS, Decoding
from nmt.system.errors import UserError
from nmt.system.files import whole_directory
from nmt.system.integrity import check_files, hash_file, read_manifest, write_manifest
from nmt.system.processes import exclusive
from nmt.text.tokenizer import Tokenizer
from nmt.text.vocabulary import EOS

PATIENCE = 1.5  # of 1,000 Multi30k texts, 22 differ from ours with 1.0, 8 with 1.5, 7 with 8.0 (three times slower)
FOLDER, STAMP = "ctranslate2", "converted.json"
AUTO_BATCH_TOKENS = {"cpu": CPU_BATCH_TOKENS, "cuda": 16_384}  # CUDA: about 2 GiB for the base model and beam 4
COMPUTE_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}  # by decoding.precision


def convert(bundle: Bundle, decoding: Decoding, say: Callable[[str], None]) -> Path:
    """Return BUNDLE/ctranslate2, the bundle converted to a CTranslate2 model.

    Reuse a conversion of the same weights and maximum lengths; otherwise write one and report it to `say`. Raise
    UserError if ctranslate2 is not installed or does not support the model, the bundle is damaged, or the folder is
    not writable.
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
        if not _is_current(path, made_from):  # otherwise another process has written it
            say(f"converting {bundle.path} for CTranslate2: {path}")
            with whole_directory(path, STAMP) as part:
                write(bundle, part, decoding)
                write_manifest(part / STAMP, made_from)
    return path


def _is_current(path: Path, made_from: Mapping[str, object]) -> bool:
    """Return whether `path` holds an undamaged conversion whose manifest has the values `made_from`."""
    with suppress(UserError):
        if made_from.items() <= read_manifest(path / STAMP).items():
            check_files(path / STAMP)
            return True
    return False


class CTranslate2Engine:
    """`Engine` around a `ctranslate2.Translator`, which searches several batches concurrently."""

    def __init__(self, path: Path, tokenizer: Tokenizer, decoding: Decoding, device: str, threads: int) -> None:
        """Load the model at `path` on cpu, cuda or cuda:N; on a CPU, search `threads` batches at a time.

        decoding.precision auto means float32 on a CPU and float16 on a GPU. Raise UserError if the device does not
        support the precision.
        """
        kind, _, number = device.partition(":")
        self._batches = threads if kind == "cpu" else 1
        # Scores are accumulated in the compute type: float16 has 11 significant bits, bfloat16 only 8.
        compute_type = COMPUTE_TYPES.get(decoding.precision, "float32" if kind == "cpu" else "float16")
        try:
            self._translator = library().Translator(
                str(path),
                device=kind,
                device_index=int(number or 0),
                compute_type=compute_type,
                inter_threads=self._batches,  # one batch per thread is faster than threads that share a batch
                intra_threads=1,
            )
        except ValueError as error:
            problem = f"decoding.precision {decoding.precision}: {error}"
            raise UserError(problem, "use decoding.precision=auto") from None
        self._decoding = decoding
        self._batch_tokens = AUTO_BATCH_TOKENS[kind] if decoding.batch_tokens == "auto" else decoding.batch_tokens
        self._source_pieces = tokenizer.source.listing()
        self._target_pieces = tokenizer.target.listing()
        self._target_ids = {piece: i for i, piece in enumerate(self._target_pieces)}

    def search(self, queue: SourceQueue, n_best: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        """Search, keeping two batches per thread submitted."""
        under_way: deque[tuple[list[Source], int, list[Any]]] = deque()  # batches: sources, cap, futures
        while True:
            while len(under_way) < 2 * self._batches:  # twice, so that no thread waits for work
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
                if cap > source.cap <= max(map(len, found.hypotheses), default=0):  # went beyond its own cap
                    again[source.cap].append(source)
                else:
                    yield source.number, self._hypotheses(found)[:n_best]
            under_way.extend((sources, cap, self._start(sources, cap)) for cap, sources in again.items())

    def sample(self, queue: SourceQueue, count: int) -> NoReturn:
        """Raise UserError: this engine cannot sample."""
        raise UserError("--engine ctranslate2: draws no samples", "use --engine nmt")

    def _start(self, sources: list[Source], cap: int) -> Any:
        beam, patience = self._decoding.beam, PATIENCE if self._decoding.beam > 1 else 1.0
        return self._translator.translate_batch(
            [[self._source_pieces[i] for i in source.ids] for source in sources],
            target_prefix=[[self._target_pieces[i] for i in source.first] for source in sources],
            asynchronous=True,
            beam_size=beam,
            patience=patience,
            num_hypotheses=int(beam * patience + 0.5),  # all that end; CTranslate2 rounds this way
            length_penalty=self._decoding.alpha,
            max_input_length=0,  # no limit: sources are short enough already
            min_decoding_length=self._decoding.min_length,
            max_decoding_length=cap,
            no_repeat_ngram_size=self._decoding.no_repeat or 0,
            return_scores=True,
            return_end_token=True,  # its absence marks hypotheses cut off at the cap
        )

    def _hypotheses(self, found: Any) -> list[Hypothesis]:
        """Convert a `ctranslate2.TranslationResult` to hypotheses, best first by our scores.

        Those that contain control symbols come last.
        """
        alpha, hypotheses = self._decoding.alpha, []
        for pieces, score in zip(found.hypotheses, found.scores, strict=True):
            ids = [self._target_ids[piece] for piece in pieces]
            ours = score * len(ids) ** alpha / ((5 + len(ids)) / 6) ** alpha
            finished = ids[-1] == EOS
            hypotheses.append(Hypothesis(ids[:-1] if finished else ids, ours, finished))
        return sorted(hypotheses, key=lambda each: (min(each.ids, default=EOS) < EOS, -each.score))
