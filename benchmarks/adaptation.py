"""Adaptation on Multi30k: a model that was trained without sport, fine-tuned on captions of sport.

Splits the pairs by a list of words, trains a model on those without them (recipes/multi30k_en_de.yaml), and fine-tunes
it on the others (recipes/finetune.yaml, by Muon, as the model was trained), alone and mixed with the general pairs.
Averages the start with each end, and compares all of them with the start on test sentences of both kinds. All of it
goes through the command line, as a user would do it.

    python benchmarks/adaptation.py --data FOLDER --out OUT [--updates 1600] [--scales 0.3 0.1] [--threads 2]

FOLDER holds Multi30k; OUT is made, and a run that was stopped goes on: what is there is not made again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

# A caption is about sport if it has one of these words. Words with other common uses are not here: ball (dogs play
# with them, too), game, goal, match, pitch, court, climbing, swimming.
SPORT = re.compile(
    r"\b(sports?|athletes?|athletics|teams?|team ?mates?|players?|referees?|umpires?|coach(es)?|cheerleaders?"
    r"|soccer|football(ers?)?|baseball|basketball|softball|volleyball|handball|tennis|badminton|hockey|lacrosse|rugby"
    r"|cricket|golf(ers?|ing)?|polo|bowling|bowlers?|quarterback|goalies?|goalkeepers?|tackl(e|es|ed|ing)"
    r"|wrestl(e|es|ed|ers?|ing)|box(ers?|ing)|karate|judo|martial|fencing|gymnasts?|gymnastics|hurdles?|marathon"
    r"|rac(es?|ed|ers?|ing)|motocross|bmx|rodeo|stadium"
    r"|skat(es?|ed|ers?|ing)|skateboard(s|ed|ers?|ing)?|surf(s|ed|ers?|ing)?|surfboards?|wakeboard(ers?|ing)?"
    r"|skis?|ski(ed|ers?|ing)|snowboard(s|ers?|ing)?|kayak(s|ers?|ing)?|rafting)\b",
    re.IGNORECASE,
)
RECIPES = Path(__file__).resolve().parent.parent / "recipes"
LANGUAGES = ("en", "de")
SETS = {"valid": "sport, development set", "domain_test": "sport, test set", "general_test": "general, test set"}
Pair = tuple[str, str]


def lines(path: Path) -> list[str]:
    """The lines of a compressed file, with their ends."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.readlines()


def read(folder: Path, name: str) -> tuple[list[Pair], list[Pair]]:
    """The pairs of a split without sport, and those with it."""
    general: list[Pair] = []
    sport: list[Pair] = []
    sides = (lines(folder / f"{name}.{language}.gz") for language in LANGUAGES)
    for source, target in zip(*sides, strict=True):
        (sport if SPORT.search(source) else general).append((source, target))
    return general, sport


def write_split(folder: Path, text: Path) -> None:
    """Writes the files that recipes/finetune.yaml names, and the general dev set and both test sets.

    Sport has 120 pairs in each of dev and test set, too few to tell systems apart. Of every eight training pairs of
    sport, one goes to the dev set and two to the test set. Each training pair is of an image of its own, so that no
    test sentence has a companion in the training data.
    """
    if text.exists():
        return
    (general, sport), (general_valid, sport_valid) = read(folder, "train"), read(folder, "val")
    general_test, sport_test = read(folder, "test_2016_flickr")
    sets = {
        "general": general,
        "domain": [pair for index, pair in enumerate(sport) if index % 8 not in (0, 3, 6)],
        "general_valid": general_valid,
        "valid": sport_valid + sport[0::8],
        "general_test": general_test,
        "domain_test": sport_test + [pair for index, pair in enumerate(sport) if index % 8 in (3, 6)],
    }
    unfinished = text.with_name("text.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    for name, pairs in sets.items():
        print(f"{name}: {len(pairs):,} pairs")
        for side, language in enumerate(LANGUAGES):
            (unfinished / f"{name}.{language}").write_text("".join(pair[side] for pair in pairs), encoding="utf-8")
    unfinished.rename(text)


def nmt(folder: Path, *arguments: object) -> str:
    """Runs a command in a folder, and returns what it prints."""
    command = [sys.executable, "-m", "nmt", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def train(folder: Path, recipe: str, threads: int, **keys: object) -> Path:
    """The average of a run in a folder; a key's section and name are joined by two underscores."""
    bundle = folder / "ckpts/averaged"
    if not bundle.exists():
        folder.mkdir(exist_ok=True)
        changes = [part for key, value in keys.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]
        nmt(folder, "train", RECIPES / recipe, "--threads", threads, *changes)
        nmt(folder, "average", "ckpts", "--threads", threads)
    return bundle


def train_start(out: Path, updates: int, threads: int) -> Path:
    """The model that knows no sport: the average of the last five checkpoints."""
    return train(
        out / "start",
        "multi30k_en_de.yaml",
        threads,
        data__root=out / "text",
        data__train="[{source: general.en, target: general.de}]",
        data__valid="[{source: general_valid.en, target: general_valid.de}]",
        data__test="[]",
        training__updates=updates,
        training__checkpoint_updates=200,
    )


def fine_tune(out: Path, start: Path, scale: float, updates: int, threads: int) -> dict[str, Path]:
    """Fine-tunes the start on sport alone, and on as many general pairs as pairs of sport in each epoch."""
    text = out / "text"
    domain, general = ((text / name).read_text(encoding="utf-8").count("\n") for name in ("domain.en", "general.en"))
    alone = "{source: domain.en, target: domain.de}"
    mixed = f"{alone}, {{source: general.en, target: general.de, weight: {domain / general:.4f}}}"
    keys = dict(
        training__init_from=start,
        training__optimizer="muon",
        training__schedule="linear",
        training__learning_rate_scale=scale,
        training__updates=updates,
    )
    bundles = {}
    for name, sets in ((f"sport-{scale:g}", alone), (f"mixed-{scale:g}", mixed)):
        bundles[name] = train(out / name, "finetune.yaml", threads, data__root=text, data__train=f"[{sets}]", **keys)
    return bundles


def average(out: Path, start: Path, end: Path, name: str, share: float) -> Path:
    """The average of the start with a fine-tuned model, which has this share."""
    bundle = out / f"{name}-{share:g}"
    if not bundle.exists():
        nmt(out, "average", start, end, "--weights", f"{1 - share:g},{share:g}", "--out", bundle)
    return bundle


def translate(out: Path, model: Path, name: str, text: str, threads: int) -> Path:
    """The translation of a set, with the same settings of search for all models."""
    output = out / "hyp" / f"{name}.{text}.de"
    if not output.exists():
        output.parent.mkdir(exist_ok=True)
        unfinished = output.with_suffix(".unfinished")
        search = ("--beam", 4, "--alpha", 1.0, "--threads", threads, "--quiet")
        nmt(out, "translate", "--model", model, *search, "--input", out / f"text/{text}.en", "--output", unfinished)
        unfinished.rename(output)
    return output


def compare(reference: Path, hypothesis: Path, baseline: Path) -> str:
    """BLEU, and the p-value of its difference from the baseline's if that is another system."""
    files: list[str | Path] = [reference, hypothesis]
    if hypothesis != baseline:
        files += ["--baseline", baseline]
    bleu = json.loads(nmt(reference.parent, "score", *files, "--metric", "bleu", "--json"))["bleu"]
    if hypothesis == baseline:
        return f"{bleu['score']:.2f}"
    (one,) = [one for one in bleu["systems"] if one["verdict"] != "baseline"]
    return f"{one['score']:.2f}, p = {one['p_bootstrap']:.3f}"


def main() -> None:
    """Prints a table of BLEU in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Multi30k, compressed")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=1600, help="of the start")
    parser.add_argument("--tuning-updates", type=int, default=600, help="of fine-tuning")
    parser.add_argument("--scales", type=float, nargs="+", default=[0.3], help="learning-rate scales of fine-tuning")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.3, 0.5, 0.7], help="of the end, in averages")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    out = given.out.resolve()
    write_split(given.data, out / "text")
    start = train_start(out, given.updates, given.threads)
    ends: dict[str, Path] = {}
    for scale in given.scales:
        ends |= fine_tune(out, start, scale, given.tuning_updates, given.threads)
    models = {"start": start}
    for name, end in ends.items():
        models[name] = end
        models |= {f"{name}-{share:g}": average(out, start, end, name, share) for share in given.shares}
    print("| model |", " | ".join(SETS.values()), "|\n|" + "---|" * (1 + len(SETS)))
    for name, model in models.items():
        cells = []
        for text in SETS:
            before, after = (translate(out, *one, text, given.threads) for one in ((start, "start"), (model, name)))
            cells.append(compare(out / f"text/{text}.de", after, before))
        print("|", " | ".join((name, *cells)), "|", flush=True)


if __name__ == "__main__":
    main()
