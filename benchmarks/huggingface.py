"""A bundle exported to Hugging Face: translations by transformers beside ours, with figures for each difference.

    python benchmarks/huggingface.py --model BUNDLE --source FILE --reference FILE [--lines N]

Needs `pip install transformers`. Both sides translate whole lines with one thread; transformers takes batches of 50
lines of about equal length. The beam is that of the bundle; its row is repeated with early_stopping "never". Each row
counts why outputs differ: ours was cut at its cap; each is the better one by its own length penalty; or else the
searches found different ones.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers import __version__ as version

from nmt.api import Translator
from nmt.bundle import Bundle
from nmt.bundle.huggingface import export, generation_config
from nmt.metrics.bleu import score
from nmt.text.lines import read_lines
from nmt.text.symbols import BOS, EOS

THREADS, BATCH = 1, 50
Texts = list[str]
Pairs = Sequence[tuple[str, str]]


class Theirs:
    """An exported folder as transformers runs it."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder)

    @torch.inference_mode()
    def translate(self, lines: Texts, **changes: Any) -> Texts:
        order, outputs = sorted(range(len(lines)), key=lambda i: len(lines[i])), [""] * len(lines)
        for first in range(0, len(lines), BATCH):
            batch = order[first : first + BATCH]
            inputs = self.tokenizer([lines[i] for i in batch], padding=True, return_tensors="pt")
            found = self.tokenizer.batch_decode(self.model.generate(**inputs, **changes), skip_special_tokens=True)
            for index, text in zip(batch, found, strict=True):
                outputs[index] = text
        return outputs


class Judge:
    """Finds out why two outputs differ, by the log-probabilities that our model gives them."""

    def __init__(self, bundle: Bundle) -> None:
        self.tokenizer, self.model = bundle.tokenizer(), bundle.model(torch.device("cpu"))
        self.alpha = bundle.recipe.decoding.alpha
        self.power = generation_config(bundle.recipe.decoding, self.tokenizer).get("length_penalty", 0.0)

    def reason(self, source: str, ours: str, theirs: str, greedy: bool) -> str:
        """Names the reason; with `search`, one side missed an output that its own length penalty prefers."""
        if theirs.startswith(ours):
            return "cut at our cap"
        one, other = (self.log_probabilities(source, text) for text in (ours, theirs))
        if greedy:
            parting = next(i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
            return f"{one[parting] - other[parting]:.1e} nats where they part"
        by_ours = [float(each.sum()) / ((5 + len(each)) / 6) ** self.alpha for each in (one, other)]
        by_theirs = [float(each.sum()) / len(each) ** self.power for each in (one, other)]
        return "penalty" if by_ours[0] > by_ours[1] and by_theirs[0] < by_theirs[1] else "search"

    @torch.inference_mode()
    def log_probabilities(self, source: str, text: str) -> Tensor:
        """Of each subword of an output and of `</s>`: (length,)."""
        ids = [*self.tokenizer.target.encode(text), EOS]
        source_ids = [*self.tokenizer.source.encode(source), EOS]
        logits: Tensor = self.model(torch.tensor([source_ids]), torch.tensor([[BOS, *ids[:-1]]]))
        return logits[0].log_softmax(-1)[range(len(ids)), ids]


def compare(name: str, pairs: Pairs, ours: Translator, theirs: Theirs, judge: Judge, **changes: Any) -> None:
    """Translates the sources of (source, reference) pairs by both, and prints a row and why outputs differ."""
    sources, references = (list(side) for side in zip(*pairs, strict=True))
    start = time.perf_counter()
    one = ours.translate(sources)
    middle = time.perf_counter()
    other = theirs.translate(sources, **changes)
    end = time.perf_counter()
    bleu = [score(texts, [references], ["bleu"])["bleu"].score for texts in (one, other)]
    reasons = Counter(
        judge.reason(*outputs, greedy=ours.decoding.beam == 1)
        for outputs in zip(sources, one, other, strict=True)
        if outputs[1] != outputs[2]
    )
    print(
        f"{name:15s} {len(sources) - reasons.total():5,} equal  BLEU {bleu[0]:.2f}, theirs {bleu[1]:.2f}  "
        f"{middle - start:.0f} s, theirs {end - middle:.0f} s  {dict(reasons)}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--lines", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    files = read_lines(arguments.source), read_lines(arguments.reference)
    pairs = list(islice(zip(*files, strict=True), arguments.lines))
    bundle = Bundle.read(arguments.model)
    with tempfile.TemporaryDirectory() as folder:
        export(bundle, Path(folder) / "model")
        theirs = Theirs(Path(folder) / "model")
    print(f"transformers {version}, {type(theirs.model).__name__}, {len(pairs):,} lines")
    plain = partial(Translator, bundle.model(torch.device("cpu")), bundle.tokenizer())
    decoding = bundle.recipe.decoding.model_copy(update={"split": "none", "keep": False})
    judge, beam = Judge(bundle), f"beam {decoding.beam}"
    compare("greedy", pairs, plain(decoding.model_copy(update={"beam": 1})), theirs, judge, num_beams=1)
    compare(beam, pairs, plain(decoding), theirs, judge)
    compare(f"{beam}, never", pairs, plain(decoding), theirs, judge, early_stopping="never")


if __name__ == "__main__":
    main()
