"""`nmt preprocess` and `nmt train`: prepare data, and train models."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.checkpoint.reading import AVERAGED, Bundle
from nmt.commands.process import show
from nmt.commands.recipes import find_given, find_together, minutes_to_meet
from nmt.exchange.resolve import initial_bundle, with_model_of
from nmt.system.console import Console
from nmt.system.device import choose_device
from nmt.system.errors import UserError
from nmt.system.launchers import World, find_world, is_by_nmt, nodes_of_script
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

    from nmt.commands.options import PreprocessOptions, TrainOptions
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


def refresh_report(ckpts: Path, console: Console, wanted: bool = False) -> None:
    """Rewrite the run's report, if it has one or if that is `wanted`, to include the averages' dev scores."""
    from nmt.report.page import attempt
    from nmt.training.directory import PAGE

    if not wanted and not (ckpts / PAGE).exists():
        return
    problem = attempt(ckpts)
    if problem is not None:
        console.say(f"{ckpts / PAGE} was not updated: {problem}")
