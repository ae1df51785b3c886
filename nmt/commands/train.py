"""`nmt preprocess`, `nmt train` and `nmt average`: prepare data, train models, average and export them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nmt import recipe as recipes
from nmt.checkpoint.reading import AVERAGED, MANIFEST, Bundle
from nmt.commands.command_line import refuse
from nmt.commands.process import show
from nmt.exchange.resolve import initial_bundle, resolve, with_model_of
from nmt.system.console import Console
from nmt.system.device import choose_device, cores, device_of, find_device
from nmt.system.files import check_replaceable
from nmt.system.launchers import World, check_alone, find_world, nodes_of_script

if TYPE_CHECKING:
    import torch

    from nmt.commands.options import AverageOptions, PreprocessOptions, TrainOptions
    from nmt.training.budget import Budget


def preprocess(options: PreprocessOptions) -> None:
    """Train the recipe's tokenizer and encode its data, unless both are up to date."""
    recipe = recipes.load(options.recipe, options.overrides)
    from nmt.data.prepare import prepare

    initial = initial_bundle(recipe)
    prepared = prepare(recipe, options.console, options.threads or cores(), initial.path if initial else None)
    if not prepared.is_new:
        options.console.say(f"nothing to do: {prepared.path} is up to date")


def train(options: TrainOptions) -> None:
    """Train in this process, with forks of it on a CPU; otherwise start one process per device.

    With --plan, only print the run's plan, on rank 0.
    """
    recipe, base = recipes.load_with_base(options.recipe, options.overrides)
    import torch

    from nmt.training import start
    from nmt.training.distributed import Group
    from nmt.training.forked import ForkedGroup, forks, ranks_on_cpu

    found, threads = find_world(os.environ), options.threads or cores()
    computing = options.threads or min(torch.get_num_threads(), cores())
    on_cpu = ranks_on_cpu(computing, recipe.training)
    workers = start.count_workers(options.device, options.devices, on_cpu, found)
    world = found or World()
    if options.plan:
        if world.rank == 0:
            from nmt.data.pairs import check_packages
            from nmt.training.cost import plan_run

            check_packages(recipe.data)
            recipe = with_model_of(recipe, initial_bundle(recipe))
            device = choose_device(options.device, options.threads)
            show(plan_run(recipe, device, world.size if found else workers))
        return
    if found is None and (nodes := nodes_of_script(os.environ)) > 1:
        options.console.say(f"this job of Slurm has {nodes} nodes, of which one is used here: srun nmt train uses all")
    group: Group
    if workers > 1:
        kind = find_device(options.device, torch.cuda.device_count())  # reports a missing device once
        if kind != "cpu" or not forks():
            start.launch(workers, sys.argv[1:], options.out, options.console)
            return
        choose_device("cpu", 1)  # forks would not inherit other threads
        group = ForkedGroup(workers, computing)
    else:
        # At most one thread per core: waiting threads would slow down working ones.
        own_threads = world.threads(threads) if world.size > 1 else options.threads
        device = choose_device(device_of(options.device, world), own_threads)
        group = Group(world, recipe.training.timeout_minutes, device, options.console.say)
    console = Console(options.console.quiet or world.rank > 0)
    with ExitStack() as held:
        budget = start.train(recipe, options.out, console, group, threads, base, held)
        if recipe.training.minutes is not None and group.leads:
            if workers > 1:
                choose_device("cpu", computing)
            _end(options.out, group.device, console, budget, recipe.training.report)


def _end(out: Path, device: torch.device, console: Console, budget: Budget, report: bool) -> None:
    """Average the checkpoints of a run that was given minutes, and refresh its `report`, if it is to have one."""
    from nmt.checkpoint.writing import alone
    from nmt.training.run import record_spent
    from nmt.training.selection import average_and_score

    try:
        with alone(out / AVERAGED, console):
            average_and_score(out, device, console, budget)
    finally:
        if budget.is_late:
            console.say("the report is not refreshed: training.minutes is used up")
        else:
            refresh_report(out, console, report)
    record_spent(out, budget)


# --- averages ------------------------------------------------------------------------------------------------


def average(options: AverageOptions) -> None:
    """Average a run's checkpoints or several models, and write a bundle or an export."""
    quantizable, licensable = ("ctranslate2", "argos"), ("huggingface", "argos")
    refuse(options, "quantization", "needs --format ctranslate2 or argos", options.form not in quantizable)
    refuse(options, "licence", "needs --format huggingface or argos", options.form not in licensable)
    others = options.last or options.best or options.form != "nmt"
    refuse(options, "weights", "cannot be combined with --last, --best or --format", others)
    if len(options.ckpts) > 1 and not options.weights:
        raise click.UsageError("several CKPTS need --weights, one for each, such as --weights 0.3,0.7")
    refuse(options, "last", "cannot be combined with --best", options.best)
    check_alone("average into the same place", "without torchrun or srun; if each rank has a run of its own, ")
    if options.weights:
        _mix(options, options.weights)
    elif options.form == "nmt":
        _average_alone(options, options.out)
    else:
        export(options)


def _average_alone(options: AverageOptions, out: Path | None) -> Bundle:
    """Call `_average` once no other process averages into the same directory."""
    from nmt.checkpoint.writing import alone, averageable

    with alone(averageable(options.ckpts[0], out)[1], options.console):
        return _average(options, out)


def _average(options: AverageOptions, out: Path | None) -> Bundle:
    """Average a run's checkpoints into a bundle, and report which updates were averaged."""
    from nmt.training.selection import average_by_score, average_newest, compare_with_one, score_average

    ckpts, last, best, console = options.ckpts[0], options.last, options.best, options.console
    device = choose_device(options.device, options.threads)
    if last == "auto":
        result = average_by_score(ckpts, out, device, console)
    elif not (last or best):
        result = average_newest(ckpts, out, device, console)
    else:
        from nmt.checkpoint.writing import average as average_checkpoints

        result = average_checkpoints(ckpts, last, out, best, console)
    result = score_average(result, ckpts, device, console)
    if out is None:
        refresh_report(ckpts, console)
    steps, recipe = result.info.steps, result.recipe
    wanted = best or last or (None if recipe.training.falls else recipe.training.average_last)
    listed = [f"{step:,}" for step in steps]
    updates = ", ".join(listed) if best else " to ".join(dict.fromkeys((listed[0], listed[-1])))
    there = f"only {len(steps)} {'have a dev score' if best else 'available'}"
    fewer = f" ({there}, {wanted} requested)" if isinstance(wanted, int) and len(steps) < wanted else ""
    scored = f", {result.described_score}" if result.described_score else ""
    plural = "s" if len(steps) > 1 else ""
    console.say(f"averaged {len(steps)} checkpoint{plural}, update{plural} {updates}{fewer}{scored}: {result.path}")
    compare_with_one(result, ckpts, device, console)
    return result


def refresh_report(ckpts: Path, console: Console, wanted: bool = False) -> None:
    """Rewrite the run's report, if it has one or if that is `wanted`, to include the averages' dev scores."""
    from nmt.report.page import attempt
    from nmt.training.run_files import PAGE

    if (wanted or (ckpts / PAGE).exists()) and (problem := attempt(ckpts)) is not None:
        console.say(f"{ckpts / PAGE} was not updated: {problem}")


def export(options: AverageOptions) -> None:
    """Export a bundle or a run's averaged checkpoints, and report how the exported model's search differs."""
    from nmt.exchange import ctranslate2, huggingface

    ckpts, out, form, suffix = options.ckpts[0], options.out, options.form, ctranslate2.ARGOS_SUFFIX
    if out is None or (form == "argos" and out.suffix != suffix):  # the suffix spares other files
        wanted = f" FILE{suffix}" if form == "argos" else ", the folder to write"
        raise click.UsageError(f"--format {form} needs --out{wanted}")
    bundle, _ = resolve(ckpts)
    if bundle.path == ckpts and (options.last or options.best):
        raise click.UsageError(f"--last and --best need a run's directory, but {ckpts} is a bundle")
    check = {"huggingface": huggingface.check_expressible, "argos": ctranslate2.check_packageable}
    check.get(form, ctranslate2.check_expressible)(bundle)  # fail before computing the average
    if form != "argos":
        check_replaceable(out, None)
    if bundle.path != ckpts:
        bundle = _average_alone(options, None)
    quantization = options.quantization or ("int8" if form == "argos" else "float32")
    if form == "huggingface":
        huggingface.export(bundle, out, options.licence)
        said = (
            f"transformers: {out}; its search differs: the length penalty is a power of the length, and the cap does "
            f"not depend on the input ({out / 'README.md'} lists all differences)"
        )
    elif form == "argos":
        ctranslate2.export_package(bundle, out, quantization, options.licence)
        said = (
            f"Argos Translate and LibreTranslate, in {quantization}: {out}; they search with a beam and a length "
            "penalty of their own, split sentences in their own way, and have no terms and nothing to keep"
        )
    else:
        ctranslate2.export(bundle, out, quantization)
        said = (
            f"CTranslate2, in {quantization}: {out}; pass beam and α to its translate_batch, whose length penalty is a "
            "power of the length"
        )
    options.console.say(f"exported for {said}")
    if new := bundle.tokenizer().new_languages:
        others = "spells texts of all languages with them, and keeps no output from them"
        options.console.say(f"note: {', '.join(new)} came with pieces of their own; this format {others}")


def _mix(options: AverageOptions, shares: Sequence[float]) -> None:
    """Average models weighted by `shares` into a bundle, and report each model's share."""
    from nmt.checkpoint.writing import alone, mix

    if len(shares) != len(options.ckpts):
        raise click.UsageError(f"--weights has {len(shares)} numbers for {len(options.ckpts)} models")
    found = [resolve(path) for path in options.ckpts]
    for (_, note), share in zip(found, shares, strict=True):
        options.console.say(f"{share / sum(shares):.1%} of {note}")
    out = options.out or Path(AVERAGED)
    check_replaceable(out, MANIFEST)
    with alone(out, options.console):
        result = mix([bundle for bundle, _ in found], shares, out)
    options.console.say(f"averaged {len(found)} model{'s' if len(found) > 1 else ''}: {result.path}")
