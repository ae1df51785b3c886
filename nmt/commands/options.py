"""Each command's options: a dataclass whose fields declare their flags, types and help texts."""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

from nmt.commands.command_line import (
    FILE,
    FilePath,
    NumberOrAuto,
    Options,
    Text,
    argument,
    option,
    refuse,
    values_without,
)
from nmt.decoding import MOST_SAMPLES
from nmt.metrics.string_metrics import METRICS
from nmt.system.parallelism import MOST_THREADS, MOST_WORKERS

WORKERS = click.IntRange(1, MOST_WORKERS)

in_run = partial(option, section="Run")
in_averaged = partial(option, section="What is averaged")
in_output = partial(option, section="Output")
in_machine = partial(option, section="Machine")
in_files = partial(option, section="Input and output")
in_search = partial(option, section="Search")
in_scored = partial(option, section="What is scored")
in_by_model = partial(option, section="By a model")
names_argument = partial(argument, type=FilePath(), nargs=-1, required=True, metavar="RECIPE | FILES")
threads_option = partial(in_machine, "--threads N  CPU threads; default: all.", click.IntRange(1, MOST_THREADS))
device_option = partial(
    in_machine, "--device DEVICE  auto, cpu, cuda or cuda:N.", Text("auto", "cpu", "cuda"), default="auto"
)
overrides_option = partial(option, "--set SECTION.KEY=VALUE  Override a recipe key; repeatable.", multiple=True)


def shares(text: str) -> tuple[float, ...]:
    """Parse comma-separated weights: finite, non-negative, with a positive sum."""
    with suppress(ValueError):
        found = tuple(map(float, text.split(",")))
        if all(0 <= share < math.inf for share in found) and 0 < sum(found) < math.inf:
            return found
    raise click.BadParameter(f"{text!r} is not a list of non-negative numbers, such as 0.3,0.7")


def licence(text: str) -> str:
    """Return the identifier of a licence as the Hugging Face hub spells it, in lower case."""
    if re.fullmatch("[A-Za-z0-9][A-Za-z0-9.+-]*", text):
        return text.lower()
    raise click.BadParameter(f"{text!r} is no identifier of a licence, such as cc-by-4.0")


@dataclass(frozen=True)
class PreprocessOptions(Options):
    """Options of `nmt preprocess`."""

    names: tuple[str, ...] = names_argument()
    overrides: tuple[str, ...] = overrides_option(section="Recipe")
    threads: int | None = threads_option()


@dataclass(frozen=True)
class TrainOptions(Options):
    """Options of `nmt train`."""

    names: tuple[str, ...] = names_argument()
    out: Path | None = in_run("--out FOLDER  Directory of the run; default: ckpts or, of FILES, their name.")
    plan: bool = in_run("--plan  Print parameters, memory, disk, FLOPs and time without training.")
    overrides: tuple[str, ...] = overrides_option(section="Run")
    device: str = device_option()
    devices: int | None = in_machine(
        "--devices N  Number of GPUs, or of processes on a CPU; default: all visible GPUs, or up to one per thread.",
        WORKERS,
    )
    threads: int | None = threads_option()


@dataclass(frozen=True)
class AverageOptions(Options):
    """Options of `nmt average`."""

    ckpts: tuple[Path, ...] = argument(type=FILE, nargs=-1, required=True)
    last: int | Literal["auto"] | None = in_averaged(
        "--last N|auto  Average the newest N; auto: as many as score best on the development set. Default: "
        "training.average_last, or fewer if the rate falls to zero.",
        NumberOrAuto(min=1),
    )
    best: int | None = in_averaged("--best N  Average the N with the best dev scores instead.")
    weights: tuple[float, ...] | None = in_averaged(
        "--weights W,W,…  Average several models of one shape, such as those before and after fine-tuning, with these "
        "weights.",
        Text(read=shares),
    )
    out: Path | None = in_output("--out PATH  Bundle to write; default: CKPTS/averaged, or averaged with --weights.")
    form: Literal["nmt", "huggingface", "ctranslate2", "argos", "marian", "html"] = in_output(
        "--format  Also export the average to --out: for transformers, CTranslate2, Argos Translate and "
        "LibreTranslate, or Marian, or as a web page that translates or parses.",
        click.Choice(["nmt", "huggingface", "ctranslate2", "argos", "marian", "html"]),
        default="nmt",
    )
    quantization: Literal["float32", "int8"] | None = in_output(
        "--quantization  Number format of the weights; default: float32 for CTranslate2, int8 for Argos Translate. "
        "int8 without --format: a bundle with the rounded weights of --format html.",
        click.Choice(["float32", "int8"]),
    )
    licence: str | None = in_output(
        "--license NAME  Licence that the export's README.md or page names, such as cc-by-4.0.", Text(read=licence)
    )
    device: str = device_option()
    threads: int | None = threads_option()


# Options of a search that are not in `SearchOptions.identity`
INPUTS = ("models", "source", "prefix", "terms", "memory")  # identified by their contents
DECODING = ("beam", "alpha", "overrides", "precision", "batch_tokens", "document")  # identified as decoding settings
IRRELEVANT = ("output", "resume", "attention", "ledger", "strict", "device", "devices", "threads")


@dataclass(frozen=True)
class SearchOptions(Options):
    """Options of the commands that search with a model: `nmt translate` and `nmt parse`."""

    models: tuple[Path, ...] = in_files(
        "--model PATH  Bundle or run's directory; default: $NMT_MODEL or ckpts/. Repeat for an ensemble.", multiple=True
    )
    source: Path | None = in_files(
        "--input FILE  Read from a file, plain or compressed, instead of stdin; nmt translate also takes PO, XLIFF, "
        "TMX, TS, strings.xml, or a folder or pattern of these."
    )
    output: Path | None = in_files(
        "--output FILE  Write to a file, plain, .gz, .bz2, .xz or, from Python 3.14 on, .zst, instead of stdout; a "
        "folder for several files of translators."
    )
    n_best: int | None = in_files(
        "--n-best N  Print up to N different results per line, separated by tabs: line, rank, score, result."
    )
    as_json: bool = in_files("--json  Print one JSON object per line, with scores, subwords and more.")
    resume: bool = in_files(
        "--resume  Save finished blocks beside --output and continue from them; leave out files of translators that "
        "are done."
    )
    beam: int | None = in_search("--beam N  Beam size; 1 is greedy search.")
    alpha: float | None = in_search("--alpha X  Exponent of the length penalty.", click.FloatRange(min=0))
    overrides: tuple[str, ...] = overrides_option(section="Search")
    attention: Path | None = in_files(
        "--attention FILE  Also write a page, .html, of what the model attends to in the first 50 sentences."
    )
    device: str = device_option()
    devices: int | None = in_machine(
        "--devices N  Number of workers, each on its own GPU or share of the CPU.", WORKERS
    )
    precision: str | None = in_machine(
        "--precision FORMAT  Precision of matrix products: auto, fp32, bf16, fp16 or int8.",
        Text("auto", "fp32", "bf16", "fp16", "int8"),
    )
    batch_tokens: str | None = in_machine(
        "--batch-tokens N|auto  Padded source tokens per batch, or auto.", Text("auto")
    )
    ledger: Path | None = in_files(
        "--ledger FILE  Also write a table of the strings of files with warnings, and of those left empty: file, unit, "
        "kind, source, translation.",
        only="translate",
    )
    strict: bool = option("--strict  Exit with 1 if the summary counts any warnings.")
    threads: int | None = threads_option()

    to: str | None = in_search(
        "--to CODE  Language to translate to, of a model with several.", Text(), only="translate"
    )
    source_language: str | None = in_search(
        "--from CODE  Language of the input, of a model with several.", Text(), only="translate"
    )
    sample: int | None = in_search(
        "--sample N  Sample N translations of each line, one per output line, instead of searching for the best.",
        click.IntRange(1, MOST_SAMPLES),
        only="translate",
    )
    prefix: Path | None = in_search("--prefix FILE  Begin translation N with line N of this file.", only="translate")
    terms: Path | None = in_search(
        "--terms FILE  Table of source term, tab, target term: translations of lines with the source term have the "
        "target term.",
        only="translate",
    )
    keep: tuple[str, ...] = in_search(
        "--keep PATTERN  Copy what this regular expression matches; repeatable.", multiple=True, only="translate"
    )
    memory: tuple[Path, ...] = in_files(
        "--memory FILE  Take the translations that this file has, such as .po, .tmx or .tsv; repeatable.",
        multiple=True,
        only="translate",
    )
    document: bool = in_files(
        "--document  Translate a whole text: join broken lines into paragraphs, and keep the layout.", only="translate"
    )
    markup: bool = in_files(
        "--markup  Keep HTML or XML tags: translate the text without them, and put them around the words that stand "
        "for theirs.",
        only="translate",
    )
    everything: bool = in_files(
        "--all  In files of translators, translate also what has a translation.", only="translate"
    )
    pretty: bool = in_files("--pretty  Draw each tree over several lines, followed by an empty one.", only="parse")

    @property
    def paths(self) -> tuple[Path, ...]:
        """Paths or hub names of the models"""
        return self.models or (Path(os.environ.get("NMT_MODEL") or "ckpts"),)

    @property
    def settings(self) -> list[str]:
        """Decoding overrides in increasing precedence: implied by --document, from --set, from flags"""
        flags = {"beam": self.beam, "alpha": self.alpha, "precision": self.precision, "batch_tokens": self.batch_tokens}
        given = [f"decoding.{key}={value}" for key, value in flags.items() if value is not None]
        implied = ["decoding.split=sentences"] if self.document else []
        return [*implied, *self.overrides, *given]

    @property
    def identity(self) -> dict[str, Any]:
        """Values of all options on which an output depends, beside inputs and decoding settings, by flag"""
        return values_without(self, (*INPUTS, *DECODING, *IRRELEVANT))

    def check(self) -> None:
        """Raise UsageError for incompatible options."""
        refuse(self, "as_json n_best", "cannot be combined with --pretty", self.pretty)
        if self.attention and self.attention.suffix != ".html":
            raise click.UsageError(f"--attention {self.attention}: must end in .html, since it is a page")
        ensemble = len(self.paths) > 1
        refuse(self, "attention", "goes with one --model: each model of an ensemble attends on its own", ensemble)
        refuse(self, "attention", "does not go with --resume, which searches in blocks", self.resume)
        refuse(self, "terms keep markup n_best", "cannot be combined with --sample", self.sample)
        others = "n_best as_json resume attention sample prefix markup"
        refuse(self, others, "cannot be combined with --document", self.document)


@dataclass(frozen=True)
class ScoreOptions(Options):
    """Options of `nmt score`."""

    files: tuple[Path, ...] = argument(type=FILE, nargs=-1, metavar="REF [HYP]...")
    metric: str | None = in_scored(
        "--metric NAME,…  bleu, chrf, ter, tokenised, paper or comet, separated by commas; default: bleu,chrf. Or "
        "brackets: F1 of trees. With --model: perplexity (default); logprob, which prints log-probability, tab, "
        "subwords for each line; or confidence, the probability that its chrF is at least 80.",
        Text(*METRICS, "comet", "brackets", "perplexity", "logprob", "confidence"),
    )
    baseline: Path | None = in_scored("--baseline FILE  HYP of the system to compare with, instead of the best HYP.")
    show: int | None = in_scored(
        "--show N  With --baseline: also print the N lines that gained most over it by chrF or COMET, and the N that "
        "lost most."
    )
    more_references: tuple[Path, ...] = in_scored("--reference FILE  A further reference; repeatable.", multiple=True)
    lowercase: bool = in_scored("--lowercase  Ignore case, as most figures on IWSLT and Multi30k do.")
    paper: bool = in_scored("--paper  Add the metric paper: BLEU as the papers of 2017 counted it.")
    language: str | None = in_scored(
        "--language CODE  Language of REF, which decides what a word is; default: REF's suffix. With --model of "
        "several languages, the target."
    )
    runs: bool = in_scored("--runs  Treat the files as runs: print the dev score and cost of each.")
    html: Path | None = in_scored("--html FILE  With --runs: also write a page that compares their curves.")
    as_json: bool = in_scored("--json  Print one JSON object.")
    models: tuple[Path, ...] = in_by_model(
        "--model PATH  Score REF by this bundle or run's directory; repeat for an ensemble. With --show: means by "
        "words of --source that its training has not seen.",
        multiple=True,
    )
    source: Path | None = in_by_model("--source FILE  Source of REF, line by line; required with --model and comet.")
    comet: Path = in_by_model(
        "--comet PATH  COMET model of the metric comet: a folder, or hf:ORG/NAME on the hub.",
        default=Path("hf:Unbabel/wmt22-comet-da"),
    )
    robust: bool = in_by_model(
        "--robust  Translate the source instead: plain, in capitals, in title case, without final punctuation, with "
        "typos. Print chrF of each."
    )
    overrides: tuple[str, ...] = overrides_option(section="By a model")
    device: str = device_option()
    threads: int | None = threads_option()

    @property
    def reference(self) -> Path:
        """REF, required by all modes but --runs"""
        return self.files[0]

    @property
    def hypothesis(self) -> Path | None:
        """The first HYP; None means stdin"""
        return self.files[1] if len(self.files) > 1 else None
