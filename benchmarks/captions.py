"""English to German on Multi30k with the German captions of its task 2, which are no translations.

    python benchmarks/captions.py FOLDER --out OUT [--reverse 4000] [--updates 11000] [--tuning 700] [--models 2]

FOLDER has Multi30k's train, val and test_2016_flickr, .en.gz and .de.gz, and task2/train.1.de.gz to train.5.de.gz. The
captions are for research use, and so is a model that is trained on them.

1. Captions become like the pairs' sentences: a capital at the beginning, capitals of nouns where a line has none, a
   full stop at the end. Lines of fewer than 3 or more than 40 words are left out.
2. A model as of recipes/multi30k_en_de.yaml, in the other direction, learns for --reverse updates. It translates them
   twice: the best of beam 3, and a sample of the ten likeliest subwords at each step (Edunov et al., 2018). A tag
   begins what was made so (Caswell et al., 2019).
3. Wider models with different seeds learn for --updates from both and from the pairs, these three times in an epoch,
   and then for --tuning updates from the pairs alone. Together they translate the test set.

Each command has one thread; those of a step run at once. The last checkpoint of each run is taken. What is in OUT is
not made again. Prints the processor time, and the scores of test_2016_flickr by each model and by all of them.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

TAG = "§ "
SHORTEST, LONGEST = 3, 40  # words of a caption
WAYS = {"best": ["--beam", "3"], "sampled": ["--sample", "1", "--set", "decoding.top_k=10"]}
WORD = re.compile(r"[^\W\d_]+")
TOKENIZER = {"algorithm": "bpe", "vocab_size": 8000, "shared": True}
MODEL = {"layers": 4, "d_model": 192, "d_ff": 768, "heads": 6, "dropout": 0.2, "norm": "pre"}
TRAINING = {
    "batch_tokens": 2048,
    "optimizer": "muon",
    "schedule": "linear",
    "warmup": 400,
    "learning_rate_scale": 1.5,
    "label_smoothing": 0.1,
    "checkpoint_updates": 2000,
    "valid_beam": 1,
    "average_last": 1,
}


def read(path: Path) -> list[str]:
    """Return the lines of a compressed file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [" ".join(line.split()) for line in file]


def write(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a compressed file."""
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def cleaned(captions: Iterable[str], pairs: Iterable[str]) -> Iterator[str]:
    """Yield captions written as the German sentences of the pairs are, each once."""
    captions = list(dict.fromkeys(captions))
    forms = defaultdict[str, Counter[str]](Counter)  # how a word is written that does not begin a line
    for line in [*pairs, *filter(has_nouns, captions)]:
        for word in WORD.findall(line)[1:]:
            forms[word.lower()][word] += 1

    def usual(word: re.Match[str]) -> str:
        known = forms.get(word[0].lower())
        return known.most_common(1)[0][0] if known else word[0]

    seen = set[str]()
    for caption in captions:
        line = caption if has_nouns(caption) else WORD.sub(usual, caption)
        line = re.sub(r"\s+([.,!?])", r"\1", line[:1].upper() + line[1:])
        if line[-1:] not in (".", "!", "?"):
            line = line.rstrip(",;: ") + "."
        if line not in seen and SHORTEST <= len(line.split()) <= LONGEST:
            seen.add(line)
            yield line


def has_nouns(line: str) -> bool:
    """Whether a line has a capital behind its first letter, as a German sentence has."""
    return any(map(str.isupper, line[1:]))


def is_plausible(pair: tuple[str, str]) -> bool:
    """Whether a translation is neither much shorter nor much longer than its source."""
    words, others = (len(text.split()) for text in pair)
    return words > 1 and words <= 2.2 * others + 3 and others <= 2.2 * words + 3


Command = list[object]


@dataclass(frozen=True)
class Work:
    """A folder in which commands of nmt run, and what of theirs is done already."""

    folder: Path
    """Multi30k's"""
    out: Path

    def run(self, *commands: Command) -> None:
        """Run commands of nmt at once, and wait for all of them."""
        started = []
        for command in commands:
            words = [*map(str, command)]
            print("nmt", *words, flush=True)
            started.append(subprocess.Popen([sys.executable, "-m", "nmt", *words], cwd=self.out))
        failed = [process for process in started if process.wait()]
        if failed:
            raise SystemExit("error: a command has failed\nhint: see above, and run this again to go on")

    def training(self, name: str, train: list[dict[str, Any]], training: dict[str, Any], **settings: Any) -> Command:
        """Write a recipe, and return the command that trains it into a folder of its name, unless that is done."""
        data = {"root": str(self.folder), "source": "en", "target": "de", "train": train}
        data |= {"valid": [{"source": "val.en.gz", "target": "val.de.gz"}], **settings.pop("data", {})}
        recipe = {"name": name, "data": data, "training": training, "decoding": {"beam": 4, "alpha": 1.4}, **settings}
        path = self.out / f"{name}.yaml"
        path.write_text(yaml.safe_dump(recipe, allow_unicode=True), encoding="utf-8")
        return ["train", path.name, "--out", name, "--threads", 1]

    def translated_back(self, captions: Path) -> Iterator[tuple[str, str]]:
        """Yield plausible translations of captions, each with its caption."""
        given: Command = ["translate", "--model", "reverse", "--threads", 1, "--input", captions.name]
        missing = [way for way in WAYS if not (self.out / f"{way}.en.gz").exists()]
        self.run(*([*given, *WAYS[way], "--output", f"{way}.en.gz", "--resume"] for way in missing))
        for way in WAYS:
            yield from filter(is_plausible, zip(read(self.out / f"{way}.en.gz"), read(captions), strict=True))

    def score(self, name: str, models: list[str]) -> None:
        """Translate and score the test set."""
        test = self.folder / "test_2016_flickr.en.gz"
        reference = test.with_name("test_2016_flickr.de.gz")
        given = [word for model in models for word in ("--model", model)]
        self.run(["translate", *given, "--input", test, "--output", f"{name}.test.de"])
        self.run(["score", reference, f"{name}.test.de", "--metric", "bleu,chrf"])
        self.run(["score", reference, f"{name}.test.de", "--metric", "tokenised", "--lowercase"])


def learn_reverse(work: Work, updates: int) -> None:
    """Train the model that translates captions back."""
    turned = {"source": "de", "target": "en", "valid": [{"source": "val.de.gz", "target": "val.en.gz"}]}
    command = work.training(
        "reverse",
        [{"source": "train.de.gz", "target": "train.en.gz"}],
        TRAINING | {"updates": updates, "checkpoint_updates": 1000, "weight_decay": 0.3},
        data=turned,
        model=MODEL | {"d_model": 128, "d_ff": 512, "heads": 4},
        tokenizer=TOKENIZER,
    )
    work.run(command)


def write_synthetic(work: Work, most: int | None) -> dict[str, str]:
    """Write pairs of tagged translations and captions, of `most` captions; return the files by their sides."""
    files = {side: work.out / f"synthetic.{language}.gz" for side, language in (("source", "en"), ("target", "de"))}
    if not all(path.exists() for path in files.values()):
        captions = work.out / "captions.de.gz"
        found = [line for number in range(1, 6) for line in read(work.folder / "task2" / f"train.{number}.de.gz")]
        write(captions, islice(cleaned(found, read(work.folder / "train.de.gz")), most))
        pairs = dict.fromkeys(work.translated_back(captions))
        write(files["source"], (TAG + source for source, _ in pairs))
        write(files["target"], (target for _, target in pairs))
    return {side: str(path) for side, path in files.items()}


def main() -> None:
    """Train and score as the module describes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--reverse", type=int, default=4000, help="updates")
    parser.add_argument("--captions", type=int, help="take only so many")
    parser.add_argument("--updates", type=int, default=11_000)
    parser.add_argument("--tuning", type=int, default=700, help="updates")
    parser.add_argument("--models", type=int, default=2)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    work = Work(given.folder.resolve(), given.out.resolve())

    learn_reverse(work, given.reverse)
    synthetic = write_synthetic(work, given.captions)
    pairs = {"source": "train.en.gz", "target": "train.de.gz"}
    both: list[dict[str, Any]] = [{**pairs, "weight": 3}, synthetic]
    mixed = TRAINING | {"updates": given.updates}
    tuning = TRAINING | {"updates": given.tuning, "warmup": 50, "checkpoint_updates": 150, "learning_rate_scale": 0.05}
    first: list[Command] = []
    then: list[Command] = []
    for seed in range(1, given.models + 1):
        start = {"init_from": str(work.out / f"mixed-{seed}")}
        of_both = mixed | {"seed": seed}
        first.append(work.training(f"mixed-{seed}", both, of_both, model=MODEL, tokenizer=TOKENIZER))
        then.append(work.training(f"tuned-{seed}", [pairs], tuning | {"seed": seed} | start))
    work.run(*first)
    work.run(*then)
    used = os.times()
    print(f"{used.children_user + used.children_system:,.0f} processor seconds, but for what was done before")
    tuned = [f"tuned-{seed}" for seed in range(1, given.models + 1)]
    for model in tuned:
        work.score(model, [model])
    work.score("tuned", tuned)


if __name__ == "__main__":
    main()
