"""`nmt train` and `nmt average`: which processes train on which devices, and what is said of an average."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click

from nmt.bundle import Bundle, resolve
from nmt.console import Console
from nmt.device import choose_device, cores, find_device
from nmt.files import check_replaceable
from nmt.place import Place, device_of, find_place
from nmt.recipe import Recipe

ALIKE = 0.8
"""Of the better dev score, what the worse one of two checkpoints has at least that are worth averaging"""


def train(
    recipe: Recipe,
    base: Recipe | None,
    out: Path,
    devices: int | None,
    device: str,
    threads: int | None,
    console: Console,
) -> None:
    """Trains in this process, in the place that a launcher gave it, or else starts a process for each device.

    `base` is the recipe that `recipe` extends, if it extends one.
    """
    import torch

    from nmt.training.launcher import count_workers, launch

    place = find_place(os.environ)
    if place is None:
        workers = count_workers(device, devices)
        if workers > 1:
            find_device(device, torch.cuda.device_count())  # says once if there is none
            launch(workers, sys.argv[1:], out, console)
            return
        place = Place()
    from nmt.training.run import train as run

    # As many as there are cores and no more: threads that wait for one another take the time of those that work.
    threads_each = place.threads(threads or cores()) if place.size > 1 else threads
    chosen = choose_device(device_of(device, place), threads_each)
    run(recipe, out, Console(console.quiet or place.rank > 0), chosen, threads or cores(), place, base)


def show_plan(recipe: Recipe, devices: int | None, device: str, threads: int | None) -> None:
    """Prints what training would take; of a launcher's processes the first does."""
    from nmt.bundle import initial_bundle, with_model_of
    from nmt.training.launcher import count_workers
    from nmt.training.plan import plan_run

    place = find_place(os.environ)
    if place is None or place.rank == 0:
        recipe = with_model_of(recipe, initial_bundle(recipe))
        workers = place.size if place else count_workers(device, devices)
        click.echo(plan_run(recipe, choose_device(device, threads), workers))


def average(
    ckpts: Path,
    last: int | Literal["auto"] | None,
    best: int | None,
    out: Path | None,
    device: str,
    threads: int | None,
    console: Console,
) -> Bundle:
    """Averages checkpoints of a run into a bundle and says which they were."""
    if last and best:
        raise click.UsageError("--last does not go with --best")
    if last == "auto":
        from nmt.training.averaging import average_by_score

        result = average_by_score(ckpts, out, choose_device(device, threads), console)
        _refresh_report(ckpts, console)
    else:
        from nmt.bundle import average as average_checkpoints

        result = average_checkpoints(ckpts, last, out, best, console)
    steps, wanted = result.info["steps"], best or last or result.recipe.decoding.average_last
    listed = [f"{step:,}" for step in steps]
    updates = ", ".join(listed) if best else " to ".join(dict.fromkeys((listed[0], listed[-1])))
    there = f"only {len(steps)} there{' with a dev score' if best else ''}"
    fewer = f" ({there}, {wanted} asked for)" if isinstance(wanted, int) and len(steps) < wanted else ""
    scored = "" if result.dev_score is None else f", dev {result.kind.label} {result.dev_score:.2f}"
    plural = "s" if len(steps) > 1 else ""
    console.say(f"averaged {len(steps)} checkpoint{plural}, update{plural} {updates}{fewer}{scored}: {result.path}")
    if last != "auto":
        _say_how_they_differ(ckpts, steps, console)
    return result


def _say_how_they_differ(ckpts: Path, steps: Sequence[int], console: Console) -> None:
    """Says if the worst of the checkpoints that were averaged is far from the best, as early ones are."""
    from nmt.bundle import checkpoints, ranked

    chosen = ranked([bundle for bundle in checkpoints(ckpts) if bundle.step in steps])
    scores = [bundle.dev_score or 0.0 for bundle in chosen]
    if scores and min(scores) < ALIKE * max(scores):
        ends = [f"{scores[end]:.2f} at update {chosen[end].step:,}" for end in (0, -1)]
        console.say(f"  dev {chosen[0].kind.label} was {' and '.join(ends)}: --last auto tries how many to average")


def _refresh_report(ckpts: Path, console: Console) -> None:
    """Shows the dev scores of averages in the report of a run, if it has one."""
    from nmt.report.page import attempt
    from nmt.training.refreshing import PAGE

    if (ckpts / PAGE).exists() and (problem := attempt(ckpts)) is not None:
        console.say(f"{ckpts / PAGE} is not refreshed: {problem}")


def export(
    ckpts: Path,
    last: int | Literal["auto"] | None,
    best: int | None,
    out: Path | None,
    form: Literal["huggingface", "ctranslate2"],
    quantization: Literal["float32", "int8"] | None,
    device: str,
    threads: int | None,
    console: Console,
) -> None:
    """Write a bundle, or the average of a run's checkpoints, in the format of other programs; say what differs."""
    from nmt.bundle import conversion, huggingface

    if out is None:
        raise click.UsageError(f"--format {form} needs --out, the folder to write")
    bundle, _ = resolve(ckpts)
    (huggingface if form == "huggingface" else conversion).check_expressible(bundle)  # before averages are computed
    check_replaceable(out, None)
    if bundle.path != ckpts:
        bundle = average(ckpts, last, best, None, device, threads, console)
    elif last or best:
        raise click.UsageError(f"--last and --best are for a run's directory, and {ckpts} is a bundle")
    if form == "huggingface":
        huggingface.export(bundle, out)
        console.say(
            f"written for transformers: {out}; its search differs, since its length penalty is a power of the length "
            f"and its cap does not depend on the input ({out / 'README.md'} lists all differences)"
        )
    else:
        conversion.export(bundle, out, quantization or "float32")
        console.say(
            f"written for CTranslate2, in {quantization or 'float32'}: {out}; beam and α are arguments of its "
            "translate_batch, and its length penalty is a power of the length"
        )


def mix(models: Sequence[Path], shares: Sequence[float], out: Path | None, console: Console) -> None:
    """Averages models with shares into a bundle and says which they were."""
    from nmt.bundle import mix as mix_bundles

    if len(shares) != len(models):
        raise click.UsageError(f"--weights has {len(shares)} numbers for {len(models)} models")
    found = [resolve(path) for path in models]
    for (_, note), share in zip(found, shares, strict=True):
        console.say(f"{share / sum(shares):.1%} of {note}")
    result = mix_bundles([bundle for bundle, _ in found], shares, out or Path("averaged"))
    console.say(f"averaged {len(found)} model{'s' if len(found) > 1 else ''}: {result.path}")
