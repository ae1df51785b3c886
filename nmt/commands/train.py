"""`nmt preprocess`, `nmt train` and `nmt average`: prepare data, train models, average and export them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nmt.checkpoint.reading import AVERAGED, MANIFEST, Bundle
from nmt.commands.command_line import refuse
from nmt.commands.process import show
from nmt.commands.recipes import find_given, find_together, minutes_to_meet
from nmt.exchange.resolve import initial_bundle, resolve, with_model_of
from nmt.system.console import Console
from nmt.system.device import choose_device
from nmt.system.errors import UserError
from nmt.system.files import check_replaceable
from nmt.system.launchers import World, check_alone, find_world, is_by_nmt, nodes_of_script
from nmt.system.parallelism import (
    can_fork,
    count_ranks,
    device_of,
    ranks_on_cpu,
    threads_in_all,
    threads_of_rank,
    threads_of_torch,
)

if TYPE_CHECKING:
    import torch

    from nmt.commands.options import AverageOptions, PreprocessOptions, TrainOptions
    from nmt.recipe import Recipe
    from nmt.training.budget import Budget


def preprocess(options: PreprocessOptions) -> None:
    """Train a recipe's tokenizer and encode its data, unless both are up to date; write a page about the data.

    Of files of pairs, write the recipe.
    """
    say = options.console.say
    recipe = find_given(options.names, options.overrides, "auto", False, say).recipe
    from nmt.data.data_report import read_report, summary
    from nmt.data.prepare import prepare
    from nmt.parsing.linearization import load_tokenizer
    from nmt.report.first_look import write_look

    initial = initial_bundle(recipe)
    start = initial.tokenizer() if initial else None
    prepared = prepare(recipe, options.console, threads_in_all(options.threads), start)
    report = read_report(prepared.path)
    if not prepared.is_new:
        say(f"nothing to do: {prepared.path} is up to date")
        lines = summary(prepared.path, report, load_tokenizer(prepared.path), recipe.data)
        for line in islice(lines, 1, None):  # the first says that it is prepared
            say(line)
    with suppress(UserError):  # prepared data may be read-only
        say(f"page: {write_look(report, recipe.data, prepared.path)}")


def train(options: TrainOptions) -> None:
    """Train a recipe, or the one for files of pairs: in this process, with forks of it on a CPU; otherwise start one
    process per device.

    With --plan, only print the run's plan, on rank 0.
    """
    world = find_world(os.environ)
    if world is not None:
        _train_as_rank(options, world)
        return
    console = options.console
    given = find_given(options.names, options.overrides, options.device, options.plan, console.say, options.out)
    recipe = given.recipe
    out = given.run
    from nmt.training import start
    from nmt.training.distributed import Group
    from nmt.training.forked import ForkedGroup

    settings = recipe.training
    torch_threads = threads_of_torch(options.threads)
    on_cpu = ranks_on_cpu(torch_threads, settings.batch_tokens, bool(settings.compile))
    ranks = count_ranks(options.device, options.devices, on_cpu)
    if options.plan:
        _show_plan(recipe, options, ranks)
        return
    nodes = nodes_of_script(os.environ)
    if nodes > 1:
        console.say(f"this job of Slurm has {nodes} nodes, of which one is used here: srun nmt train uses all")
    group: Group
    if ranks > 1:
        if not can_fork(options.device):  # reports a missing device once
            start.launch(ranks, sys.argv[1:], out, console)
            return
        choose_device("cpu", 1)  # forks would not inherit other threads
        group = ForkedGroup(ranks, torch_threads)
    else:
        device = choose_device(options.device, options.threads)
        group = Group(World(), settings.timeout_minutes, device)
    with ExitStack() as held:
        with group:
            budget = start.train(recipe, out, console, group, threads_in_all(options.threads), given.base, held)
        if settings.minutes is not None:
            if ranks > 1:  # the forks have ended and left their threads to this process
                choose_device("cpu", torch_threads)
            _end(out, group.device, console, budget, settings.report)


def _train_as_rank(options: TrainOptions, world: World) -> None:
    """Train as a rank that a launcher has started.

    The ranks meet before they look at anything, so that one of them reports what is wrong, and all end.
    """
    console = Console(options.console.quiet or world.rank > 0)
    if options.plan:
        if world.rank == 0:
            count_ranks(options.device, options.devices, found=world)  # refuses another number
            given = find_given(options.names, options.overrides, options.device, True, console.say)
            _show_plan(given.recipe, options, world.size)
        return
    from nmt.training import start
    from nmt.training.distributed import Group

    minutes = minutes_to_meet(options.names, options.overrides)
    group = Group(world, minutes, say=options.console.say)
    with ExitStack() as held:
        with group:
            # Where nmt train has started the ranks, it has said what it found.
            finding = Console(console.quiet or is_by_nmt(os.environ))
            given = find_together(
                options.names, options.overrides, options.device, group, minutes, finding.say, options.out
            )
            recipe = given.recipe
            settings = recipe.training
            out = given.run
            count_ranks(options.device, options.devices, found=world)  # refuses another number
            device = choose_device(device_of(options.device, world), threads_of_rank(options.threads, world))
            group.use(device, settings.timeout_minutes)
            budget = start.train(recipe, out, console, group, threads_in_all(options.threads), given.base, held)
        if settings.minutes is not None and group.leads:
            _end(out, device, console, budget, settings.report)


def _show_plan(recipe: Recipe, options: TrainOptions, ranks: int) -> None:
    """Print what the training will take, with this many ranks."""
    from nmt.data.pairs import check_packages
    from nmt.training.plan import plan_run

    check_packages(recipe.data)
    recipe = with_model_of(recipe, initial_bundle(recipe))
    device = choose_device(options.device, options.threads)
    show(plan_run(recipe, device, ranks))


def _end(out: Path, device: torch.device, console: Console, budget: Budget, report: bool) -> None:
    """Average the checkpoints of a run that was given minutes, and refresh its `report`, if it is to have one.

    Put the run in the place of the model that it began with, if its recipe says so.
    """
    from nmt.checkpoint.writing import alone
    from nmt.training.directory import undecided
    from nmt.training.run import record_spent
    from nmt.training.selection import measure_robustness, write_final_average
    from nmt.training.succession import succeed

    average: Bundle | None = None
    try:
        with alone(out / AVERAGED, console):
            average = write_final_average(out, device, console, budget)
            if average is not None and report:
                measure_robustness(out, device, console, budget)
    finally:
        if budget.is_late:
            console.say("the report is not refreshed: training.minutes is used up")
        else:
            refresh_report(out, console, report)
    record_spent(out, budget)
    average = average or undecided(out)
    if average is None:
        return
    model = succeed(out, average, device, console) if average.recipe.training.replace_init else out
    command = f"{average.task.command} --model {shlex.quote(str(model))}"
    console.say(f"next: {command} < input.{average.recipe.data.source}")


# --- averages ------------------------------------------------------------------------------------------------


def average_or_export(options: AverageOptions) -> None:
    """Average a run's checkpoints or several models, and write a bundle or an export."""
    form = options.form
    rounds = form == "nmt" and options.quantization == "int8" and not options.weights
    quantises = rounds or form in ("ctranslate2", "argos")
    refuse(options, "quantization", "needs --format ctranslate2 or argos, or is int8 without --weights", not quantises)
    refuse(options, "licence", "needs --format huggingface, argos or html", form in ("nmt", "ctranslate2", "marian"))
    others = options.last or options.best or form != "nmt"
    refuse(options, "weights", "cannot be combined with --last, --best or --format", others)
    if len(options.ckpts) > 1 and not options.weights:
        raise click.UsageError("several CKPTS need --weights, one for each, such as --weights 0.3,0.7")
    refuse(options, "last", "cannot be combined with --best", options.best)
    check_alone("average into the same place", "without torchrun or srun; if each rank has a run of its own, ")
    if options.weights:
        _mix(options, options.weights)
    elif rounds:
        _write_rounded(options)
    elif options.form == "nmt":
        _write_average_alone(options, options.out)
    else:
        export(options)


def _write_average_alone(options: AverageOptions, out: Path | None) -> Bundle:
    """Call `_write_average` once no other process averages into the same directory."""
    from nmt.checkpoint.writing import alone, plan_average

    _, path = plan_average(options.ckpts[0], out)
    with alone(path, options.console):
        return _write_average(options, out)


def _write_average(options: AverageOptions, out: Path | None) -> Bundle:
    """Average a run's checkpoints into a bundle, and report which updates were averaged."""
    from nmt.checkpoint.writing import average
    from nmt.training import selection
    from nmt.training.directory import PAGE
    from nmt.training.lexicon import add_lexicon

    ckpts = options.ckpts[0]
    last = options.last
    best = options.best
    console = options.console
    device = choose_device(options.device, options.threads)
    if last == "auto":
        result = selection.write_best_average(ckpts, out, device, console)
    elif not (last or best):
        result = selection.write_default_average(ckpts, out, device, console)
    else:
        result = average(ckpts, last, out, best, console)
    result = selection.score_and_choose_split(result, ckpts, device, console)
    result = add_lexicon(result, ckpts, console, selection.UNLIMITED)
    if out is None and (ckpts / PAGE).exists():
        selection.measure_robustness(ckpts, device, console)
        refresh_report(ckpts, console, wanted=True)
    console.say(_described(result, options))
    selection.compare_with_one(result, ckpts, device, console)
    return result


def _described(average: Bundle, options: AverageOptions) -> str:
    """Describe an average: its updates, whether there were fewer than requested, its dev score and its path."""
    steps = average.info.steps
    listed = [f"{step:,}" for step in steps]
    plural = "s" if len(steps) > 1 else ""
    if options.best:
        updates = ", ".join(listed)
        limit = "have a dev score"
    else:
        updates = listed[0] if listed[0] == listed[-1] else f"{listed[0]} to {listed[-1]}"
        limit = "available"
    text = f"averaged {len(steps)} checkpoint{plural}, update{plural} {updates}"
    wanted = options.best or options.last
    if not wanted and not average.recipe.training.falls:  # otherwise, as many as helped were averaged
        wanted = average.recipe.training.average_last
    if isinstance(wanted, int) and len(steps) < wanted:
        text += f" (only {len(steps)} {limit}, {wanted} requested)"
    if average.described_score:
        text += f", {average.described_score}"
    return f"{text}: {average.path}"


def refresh_report(ckpts: Path, console: Console, wanted: bool = False) -> None:
    """Rewrite the run's report, if it has one or if that is `wanted`, to include the averages' dev scores."""
    from nmt.report.page import attempt
    from nmt.training.directory import PAGE

    if not wanted and not (ckpts / PAGE).exists():
        return
    problem = attempt(ckpts)
    if problem is not None:
        console.say(f"{ckpts / PAGE} was not updated: {problem}")


def export(options: AverageOptions) -> None:
    """Export a bundle or a run's averaged checkpoints, and report how the exported model's search differs."""
    from nmt.exchange import ctranslate2, huggingface, javascript, to_marian
    from nmt.report import translating

    ckpts = options.ckpts[0]
    out = options.out
    form = options.form
    suffix = {"argos": ctranslate2.ARGOS_SUFFIX, "html": translating.SUFFIX}.get(form)
    if suffix and (out is None or out.suffix != suffix):  # the suffix spares other files
        raise click.UsageError(f"--format {form} needs --out FILE{suffix}")
    if out is None:
        raise click.UsageError(f"--format {form} needs --out, the folder to write")
    bundle, _ = resolve(ckpts)  # `ckpts` itself, or a bundle inside of a run
    if bundle.path == ckpts and (options.last or options.best):
        raise click.UsageError(f"--last and --best need a run's directory, but {ckpts} is a bundle")
    if form == "huggingface":  # fail before computing the average
        huggingface.check_expressible(bundle)
    elif form == "marian":
        to_marian.check_expressible(bundle)
    elif form == "argos":
        ctranslate2.check_packageable(bundle)
    elif form == "html":
        javascript.check_expressible(bundle)
    else:
        ctranslate2.check_expressible(bundle)
    if not suffix:
        check_replaceable(out, None)
    if bundle.path != ckpts:
        bundle = _write_average_alone(options, None)
    quantization = options.quantization or ("int8" if form == "argos" else "float32")
    if form == "huggingface":
        huggingface.export(bundle, out, options.licence)
        said = (
            f"transformers: {out}; its search differs: the length penalty is a power of the length, and the cap does "
            f"not depend on the input ({out / 'README.md'} lists all differences)"
        )
    elif form == "marian":
        to_marian.export(bundle, out)
        said = f"Marian: {out}; its search differs: the length penalty is a power of the length, here fitted to ours"
    elif form == "argos":
        ctranslate2.export_package(bundle, out, quantization, options.licence)
        said = (
            f"Argos Translate and LibreTranslate, in {quantization}: {out}; they search with a beam and a length "
            "penalty of their own, split sentences in their own way, and have no terms and nothing to keep"
        )
    elif form == "html":
        translating.export_page(bundle, out, options.licence)
        said = f"browsers, in int8: {out}"
        if not javascript.PRODUCTS.is_file():
            said += "; slower than it could be: nmt was installed without a compiler for WebAssembly, such as clang"
        if options.licence is None:
            said += "; --license NAME says on the page what others may do with the weights"
    else:
        ctranslate2.export(bundle, out, quantization)
        said = (
            f"CTranslate2, in {quantization}: {out}; pass beam and α to its translate_batch, whose length penalty is a "
            "power of the length"
        )
    options.console.say(f"exported for {said}")
    new = bundle.tokenizer().new_languages
    if new:
        others = "spells texts of all languages with them, and keeps no output from them"
        options.console.say(f"note: {', '.join(new)} came with pieces of their own; this format {others}")


def _write_rounded(options: AverageOptions) -> None:
    """Write a bundle, or the average of a run, with the weights that its page would have."""
    from nmt.exchange import javascript

    if options.out is None:
        raise click.UsageError("--quantization int8 needs --out, the bundle to write")
    bundle, _ = resolve(options.ckpts[0])
    javascript.check_expressible(bundle)
    check_replaceable(options.out, MANIFEST)
    if bundle.path != options.ckpts[0]:
        bundle = _write_average_alone(options, None)
    javascript.write_rounded(bundle, options.out)
    options.console.say(f"rounded to the weights of --format html: {options.out}")


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
    plural = "s" if len(found) > 1 else ""
    options.console.say(f"averaged {len(found)} model{plural}: {result.path}")
