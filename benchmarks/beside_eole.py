"""BLEU and chrF by processor seconds of training beside eole: the same pairs, each toolkit as its own documents advise.

    python benchmarks/beside_eole.py --eole VENV/bin/eole --out OUT [--multi30k FOLDER] [--tatoeba FOLDER]
        [--budgets 300 900 1800] [--rates 1 2] [--train N] [--dev 1000] [--test N]

--multi30k: train, val and test_2016_flickr, .en.gz and .de.gz. --tatoeba: train, dev and test.en-fr.tsv.gz. VENV has
eole 0.6.4 and sentencepiece. --train, --dev and --test take only the first lines. Linux only. A run that was stopped
goes on: finished trainings and translations in OUT are not made again, an unfinished training begins anew.

Counted: processor seconds, user and system, of the training command with all its processes, from its start, on one
thread; the start is in them. Not counted, for both alike: subwords, vocabulary, and, for nmt, `nmt preprocess` (eole
encodes while it trains); translation; the search for settings. Both train without validation and report.

nmt: recipes/multi30k_en_de.yaml and recipes/laptop.yaml, one run per budget, since the learning rate falls to zero at
its end. Two short runs, and then the run before, tell how many updates fit in; the seconds of each run are measured and
stand in the results.

eole: one run per learning rate, since its recipes decay by the inverse square root, which has no end. It saves often;
a budget's model is the last one saved within it, and of the learning rates the one with the best dev BLEU.

Prints a table, and writes its figures to OUT/beside_eole.json; as benchmarks/beside_eole.json, docs/pictures/draw.py
draws them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

from nmt import recipe as recipes
from nmt.recipe import Recipe

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
SPLITS = ("train", "dev", "test")
BEAM = 4
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

CALIBRATION = (20, 220)
"""Updates of the two runs that tell what starting and an update cost"""
SPARE = 0.01
"""Share of a budget that is left, since updates may cost more than in calibration"""
MOST_WARMUP = 0.25
"""Share of a run's updates, where the recipe's warm-up would be more"""

# Both recipes of eole for translation have the Noam schedule: wmt17 with a factor of 2, NewsPalm-synthetic with 1.
LEARNING_RATES = (1, 2)
SAVE_UPDATES = 25
POLL_SECONDS = 0.2

Figures = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A data set, and the recipe with which nmt learns from it."""

    name: str
    label: str
    recipe: str
    languages: tuple[str, str]
    files: Mapping[str, Sequence[str]]
    """By split: a compressed text for each language, or one of pairs"""


MULTI30K = Task(
    "multi30k",
    "Multi30k, English to German",
    "multi30k_en_de.yaml",
    ("en", "de"),
    {
        "train": ("train.en.gz", "train.de.gz"),
        "dev": ("val.en.gz", "val.de.gz"),
        "test": ("test_2016_flickr.en.gz", "test_2016_flickr.de.gz"),
    },
)
TATOEBA = Task(
    "tatoeba",
    "Tatoeba, English to French",
    "laptop.yaml",
    ("en", "fr"),
    {split: (f"{split}.en-fr.tsv.gz",) for split in SPLITS},
)


# --- processes -------------------------------------------------------------------------------------------------------


def run(folder: Path, command: Sequence[object], log: Path | None = None) -> str:
    """Run a command in a folder on one thread, and return what it prints; its messages go to a log, if there is one."""
    words = [str(word) for word in command]
    environment = {**os.environ, **ONE_THREAD}
    with (log or Path(os.devnull)).open("a", encoding="utf-8") as messages:
        stderr = messages if log else None
        done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
    if done.returncode != 0:
        raise SystemExit(f"exit code {done.returncode}: {' '.join(words)}\nmessages: {log or 'above'}")
    return done.stdout


def children_seconds() -> float:
    """Processor seconds of the children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def tree_seconds(root: int) -> float:
    """Processor seconds of a running process and of its descendants."""
    ticks = 0
    waiting = [root]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        with suppress(OSError):  # it has ended, and its parent counts it
            after_name = (process / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in after_name[11:15])  # of itself and of its children that have ended
            for thread in (process / "task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
    return ticks / os.sysconf("SC_CLK_TCK")


def once(path: Path, make: Callable[[], Figures]) -> Figures:
    """Return the figures in a file; make them first unless it exists."""
    if not path.exists():
        write(path, json.dumps(make()) + "\n")
    figures: Figures = json.loads(path.read_text(encoding="utf-8"))
    return figures


def write(path: Path, content: str) -> None:
    """Write a file that is there only as a whole."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(content, encoding="utf-8")
    unfinished.rename(path)


def empty(folder: Path) -> Path:
    """Remove what a stopped run has left of a folder, and make it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


# --- data ------------------------------------------------------------------------------------------------------------


def read(path: Path, most: int | None) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") for line in islice(file, most)]


def write_texts(task: Task, data: Path, texts: Path, most: Mapping[str, int | None]) -> None:
    """Write every split as two texts, from which both toolkits begin."""
    texts.mkdir(parents=True, exist_ok=True)
    for split, names in task.files.items():
        columns: Iterable[Sequence[str]] = [read(data / name, most[split]) for name in names]
        if len(names) == 1:
            (lines,) = columns
            columns = zip(*(line.split("\t")[:2] for line in lines), strict=True)
        for language, column in zip(task.languages, columns, strict=True):
            path = texts / f"{split}.{language}"
            if not path.exists():
                write(path, "".join(f"{line}\n" for line in column))


# --- nmt -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contest:
    """A task whose texts are in a folder, and in which both toolkits leave what they make."""

    task: Task
    folder: Path

    def text(self, split: str, side: int) -> Path:
        return self.folder / "texts" / f"{split}.{self.task.languages[side]}"

    def recipe(self) -> Recipe:
        return recipes.load(RECIPES / self.task.recipe)

    def scores(self, split: str, hypothesis: Path) -> Figures:
        """BLEU and chrF of a translation."""
        command = [sys.executable, "-m", "nmt", "score", self.text(split, 1), hypothesis]
        found = json.loads(run(self.folder, [*command, "--metric", "bleu,chrf", "--json"]))
        return {metric: found[metric]["score"] for metric in ("bleu", "chrf")}


def nmt_command(contest: Contest, command: str, **keys: object) -> list[object]:
    """A command for the task's recipe on its texts; a key's section and name are joined by two underscores."""
    languages = contest.task.languages
    values: dict[str, object] = {
        "data.root": contest.folder / "texts",
        "data.source": languages[0],
        "data.target": languages[1],
        "data.train": f"[{{source: train.{languages[0]}, target: train.{languages[1]}}}]",
        "data.valid": "[]",
        "data.test": "[]",
    }
    values |= {name.replace("__", "."): value for name, value in keys.items()}
    overrides = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "nmt", command, RECIPES / contest.task.recipe, *overrides, "--threads", 1]


def nmt_train(contest: Contest, name: str, updates: int, **keys: object) -> Figures:
    """Train for a number of updates; return these and the processor seconds."""
    ours = contest.folder / "nmt"
    checkpoints = empty(ours / name)
    limits = {"training__updates": updates, "training__checkpoint_updates": updates, "training__minutes": "null"}
    command = nmt_command(contest, "train", training__report="false", **limits, **keys)
    before = children_seconds()
    run(ours, [*command, "--device", "cpu", "--out", checkpoints], ours / "log")
    return {"updates": updates, "seconds": children_seconds() - before}


def calibrate(contest: Contest) -> Figures:
    """Return the processor seconds that starting and an update cost."""
    few, many = (
        nmt_train(contest, "calibration", updates, training__schedule="constant")["seconds"] for updates in CALIBRATION
    )
    update = (many - few) / (CALIBRATION[1] - CALIBRATION[0])
    return {"update": update, "start": few - update * CALIBRATION[0]}


def nmt_points(contest: Contest, budgets: Sequence[float]) -> list[Figures]:
    """Train a model for each budget, and score it on the test set."""
    ours = contest.folder / "nmt"
    ours.mkdir(exist_ok=True)
    if not (ours / "calibration.json").exists():
        run(ours, nmt_command(contest, "preprocess"), ours / "log")
    cost = once(ours / "calibration.json", lambda: calibrate(contest))
    points = []
    for budget in budgets:
        name = f"{budget:g}"
        updates = max(2, int(((1 - SPARE) * budget - cost["start"]) / cost["update"]))
        warmup = max(1, min(contest.recipe().training.warmup, int(MOST_WARMUP * updates)))
        trained = once(
            ours / f"{name}.json",
            lambda: nmt_train(contest, name, updates, training__warmup=warmup),  # noqa: B023
        )
        # A longer run tells better what an update costs.
        cost["update"] = (trained["seconds"] - cost["start"]) / trained["updates"]
        hypothesis = ours / f"{name}.test"
        if not hypothesis.exists():
            command = [sys.executable, "-m", "nmt", "translate", "--model", ours / name, "--beam", BEAM, "--threads", 1]
            write(hypothesis, run(ours, [*command, "--input", contest.text("test", 0)], ours / "log"))
        points.append({"toolkit": "nmt", "budget": budget, **trained, **contest.scores("test", hypothesis)})
        print(json.dumps(points[-1]), flush=True)
    return points


# --- eole ------------------------------------------------------------------------------------------------------------


def eole_config(contest: Contest, learning_rate: float) -> Figures:
    """Settings of eole 0.6.4; where nothing else is said, those of its recipes/wmt17/wmt17_ende_spm.yaml.

    Sizes are those of the recipe of nmt. Its documents have no advice for small data but that of the quick start, to
    lower the bucket's size, so what depends on the size of data and model follows the recipe of nmt, too.
    """
    theirs = contest.folder / "eole"
    recipe = contest.recipe()
    width, vocabulary = recipe.model.d_model, theirs / "vocabulary"
    pairs = contest.text("train", 0).read_bytes().count(b"\n")
    subwords = {"src_subword_model": str(theirs / "spm.model"), "tgt_subword_model": str(theirs / "spm.model")}
    data = {
        "save_data": str(theirs / "data"),
        "overwrite": True,
        "seed": 1234,
        "report_every": 100,
        "src_vocab": str(vocabulary),
        "tgt_vocab": str(vocabulary),
        "src_vocab_size": recipe.tokenizer.vocab_size + 8,  # all subwords and special symbols
        "tgt_vocab_size": recipe.tokenizer.vocab_size + 8,
        "vocab_size_multiple": 8,
        "src_words_min_frequency": 2,
        "tgt_words_min_frequency": 2,
        "share_vocab": True,
        "n_sample": 0,
        "data": {
            "corpus_1": {"path_src": str(contest.text("train", 0)), "path_tgt": str(contest.text("train", 1))},
        },
        "transforms": ["sentencepiece", "filtertoolong"],
        "transforms_configs": {
            "sentencepiece": subwords,
            "filtertoolong": {"src_seq_length": 512, "tgt_seq_length": 512},
        },
    }
    training = {
        "model_path": str(theirs / f"rate-{learning_rate:g}"),
        "train_steps": 10**6,  # it is ended when the last budget is used up
        "save_checkpoint_steps": SAVE_UPDATES,
        "valid_steps": 10**6,  # no validation
        # In place of averaging checkpoints, as docs/FAQ/performance.md advises; the value is that of quickmt's models.
        "average_decay": 1e-4,
        # docs/quickstart.md: "adapt dataloading defaults to very small dataset". All pairs are a bucket; the first one
        # and its growth are those of wmt17_ende_bpe.yaml, so that training begins sooner.
        "bucket_size": pairs,
        "bucket_size_init": min(25000, pairs),
        "bucket_size_increment": 25000,
        "num_workers": 0,  # a process that encodes while a GPU computes would only cost here
        "world_size": 1,
        "gpu_ranks": [],
        "batch_type": "tokens",
        "batch_size": 2048,  # 5,000 ten times over there, for 6 M pairs
        "batch_size_multiple": 8,
        "accum_count": [1],
        "accum_steps": [0],
        "dropout_steps": [0],
        "dropout": [0.1],
        "attention_dropout": [0.1],
        "compute_dtype": "fp32",  # bf16 there, for a GPU
        "optim": "adamw",
        "learning_rate": learning_rate,
        "warmup_steps": recipe.training.warmup,  # 4,000 of 50,000 updates there
        "decay_method": "noam",
        "adam_beta2": 0.998,
        "max_grad_norm": 0,
        "label_smoothing": 0.1,
        "param_init_method": "xavier_uniform",
        "normalization": "tokens",
        "log_attention_entropy": False,  # a measurement that costs time
    }
    model = {
        "architecture": "transformer",
        "hidden_size": width,
        "share_decoder_embeddings": True,
        "share_embeddings": True,
        "encoder": {"layers": recipe.model.layers},
        "decoder": {"layers": recipe.model.decoder_depth},
        "heads": recipe.model.heads,
        "transformer_ff": recipe.model.d_ff,
        "embeddings": {"word_vec_size": width, "position_encoding_type": "SinusoidalInterleaved"},
    }
    return {**data, "training": training, "model": model}


# As its recipes/wmt17/prepare_wmt_ende_data.sh; fewer subwords if there is too little text for as many.
LEARN_SUBWORDS = """
import sys, sentencepiece
sentencepiece.SentencePieceTrainer.train(
    input=sys.argv[2:], model_prefix="spm", vocab_size=int(sys.argv[1]), character_coverage=1.0, model_type="unigram",
    hard_vocab_limit=False, num_threads=1)
"""


def eole_prepare(contest: Contest, eole: Path) -> None:
    """Train the subwords and write the vocabulary."""
    theirs = contest.folder / "eole"
    theirs.mkdir(exist_ok=True)
    if (theirs / "vocabulary").exists():
        return
    texts = [contest.text("train", side) for side in (0, 1)]
    size = contest.recipe().tokenizer.vocab_size
    run(theirs, [eole.parent / "python", "-c", LEARN_SUBWORDS, size, *texts], theirs / "log")
    config = theirs / "vocabulary.yaml"
    config.write_text(json.dumps(eole_config(contest, LEARNING_RATES[0])))  # JSON is YAML
    run(theirs, [eole, "build_vocab", "--config", config, "--n_sample", -1], theirs / "log")


def eole_train(contest: Contest, eole: Path, learning_rate: float, budgets: Sequence[float]) -> Figures:
    """Train until the last budget is used up; return for each one the last update saved within it, and its seconds."""
    theirs = contest.folder / "eole"
    models = empty(theirs / f"rate-{learning_rate:g}")
    config = theirs / f"rate-{learning_rate:g}.yaml"
    config.write_text(json.dumps(eole_config(contest, learning_rate)))
    command = [str(eole), "train", "--config", str(config)]
    saved: dict[int, float] = {}
    with (theirs / "log").open("a", encoding="utf-8") as log:
        environment = {**os.environ, **ONE_THREAD}
        process = subprocess.Popen(command, cwd=theirs, env=environment, stdout=log, stderr=log)
        try:
            # One more checkpoint, so that those before it are whole.
            while max(saved.values(), default=0.0) <= budgets[-1]:
                time.sleep(POLL_SECONDS)
                if process.poll() is not None:
                    raise SystemExit(f"eole ended with exit code {process.returncode}; messages: {theirs / 'log'}")
                seconds = tree_seconds(process.pid)
                for path in models.glob("step_*"):
                    saved.setdefault(int(path.name.removeprefix("step_")), seconds)
                remove_others(models, {*best_within(saved, budgets).values(), max(saved, default=0)})
        finally:
            process.terminate()
            process.wait()
    best = best_within(saved, budgets)
    remove_others(models, set(best.values()))
    return {f"{budget:g}": {"updates": update, "seconds": saved[update]} for budget, update in best.items()}


def best_within(saved: Mapping[int, float], budgets: Sequence[float]) -> dict[float, int]:
    """Return for each budget the last update that was saved within it, if there is one."""
    within = {budget: [update for update, seconds in saved.items() if seconds <= budget] for budget in budgets}
    return {budget: max(updates) for budget, updates in within.items() if updates}


def remove_others(models: Path, kept: set[int]) -> None:
    """Remove the checkpoints that no budget needs, which would fill a disk."""
    for path in models.glob("step_*"):
        if int(path.name.removeprefix("step_")) not in kept:
            shutil.rmtree(path)


def eole_translate(contest: Contest, eole: Path, model: Path, split: str) -> Path:
    """Translate a split, with eole's defaults but for the beam."""
    theirs = contest.folder / "eole"
    hypothesis = theirs / f"{model.parent.name}-{model.name}.{split}"
    if not hypothesis.exists():
        unfinished = hypothesis.with_name(f"{hypothesis.name}.unfinished")
        search = ("--beam_size", BEAM, "--batch_size", 4096, "--batch_type", "tokens")
        files = ("--model_path", model, "--src", contest.text(split, 0), "--output", unfinished)
        run(theirs, [eole, "predict", *files, *search], theirs / "log")
        unfinished.rename(hypothesis)
    return hypothesis


def eole_points(contest: Contest, eole: Path, budgets: Sequence[float], rates: Sequence[float]) -> list[Figures]:
    """Train by each learning rate; for each budget, score the model with the best dev BLEU on the test set."""
    theirs = contest.folder / "eole"
    eole_prepare(contest, eole)
    runs = {
        rate: once(theirs / f"rate-{rate:g}.json", lambda: eole_train(contest, eole, rate, budgets))  # noqa: B023
        for rate in rates
    }
    points = []
    for budget in budgets:
        candidates = []
        for rate, figures in runs.items():
            found = figures.get(f"{budget:g}")
            if found is None:
                continue
            model = theirs / f"rate-{rate:g}" / f"step_{found['updates']}"
            bleu = contest.scores("dev", eole_translate(contest, eole, model, "dev"))["bleu"]
            candidates.append((bleu, rate, model, found))
        if not candidates:
            continue
        _, rate, model, found = max(candidates, key=lambda candidate: candidate[0])
        scores = contest.scores("test", eole_translate(contest, eole, model, "test"))
        points.append({"toolkit": "eole", "budget": budget, **found, **scores, "learning_rate": rate})
        print(json.dumps(points[-1]), flush=True)
    return points


# --- both ------------------------------------------------------------------------------------------------------------


def processor() -> str:
    """The name that Linux gives it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def table(points: Sequence[Figures]) -> str:
    """Both toolkits beside each other, in Markdown."""
    lines = ["| data | budget | nmt: seconds, updates | BLEU | chrF2 | eole: seconds, updates | BLEU | chrF2 |"]
    lines.append("|---|---:|---|---:|---:|---|---:|---:|")
    for name, budget in dict.fromkeys((point["data"], point["budget"]) for point in points):
        cells = [name, f"{budget:g}"]
        for toolkit in ("nmt", "eole"):
            wanted = (name, budget, toolkit)
            found = [point for point in points if (point["data"], point["budget"], point["toolkit"]) == wanted]
            for point in found:
                cells += [
                    f"{point['seconds']:.0f}, {point['updates']:,}",
                    f"{point['bleu']:.2f}",
                    f"{point['chrf']:.2f}",
                ]
            if not found:
                cells += ["", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, print the table and write its figures."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a running command is ended, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eole", type=Path, required=True, help="the command, in its environment's bin")
    parser.add_argument("--out", type=Path, required=True)
    for task in (MULTI30K, TATOEBA):
        parser.add_argument(f"--{task.name}", type=Path, metavar="FOLDER")
    parser.add_argument("--budgets", type=float, nargs="+", default=[300, 900, 1800], help="processor seconds")
    parser.add_argument("--rates", type=float, nargs="+", default=LEARNING_RATES, help="learning rates of eole")
    for split, most in {"train": None, "dev": 1000, "test": None}.items():
        parser.add_argument(f"--{split}", type=int, default=most, metavar="N", help="only the first N pairs")
    given = parser.parse_args()
    budgets, eole = sorted(given.budgets), given.eole.absolute()
    points = []
    for task in (MULTI30K, TATOEBA):
        data: Path | None = getattr(given, task.name)
        if data is None:
            continue
        contest = Contest(task, given.out.resolve() / task.name)
        write_texts(task, data, contest.folder / "texts", {split: getattr(given, split) for split in SPLITS})
        for found in (*nmt_points(contest, budgets), *eole_points(contest, eole, budgets, given.rates)):
            points.append({"data": task.label, **found, "processor": processor(), "date": f"{date.today()}"})
    rows = ",\n".join(f"  {json.dumps(point, ensure_ascii=False)}" for point in points)
    write(given.out / "beside_eole.json", f"[\n{rows}\n]\n")
    print(table(points))


if __name__ == "__main__":
    main()
