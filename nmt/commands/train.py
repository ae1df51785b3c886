"""`nmt preprocess` and `nmt train`: prepare data; train in this process or in one process per device."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from nmt import recipe as recipes
from nmt.commands.streams import show
from nmt.exchange.resolve import initial_bundle, with_model_of
from nmt.system.console import Console
from nmt.system.device import World, choose_device, cores, device_of, find_device, find_world

if TYPE_CHECKING:
    from nmt.commands.options import PreprocessOptions, TrainOptions


def preprocess(options: PreprocessOptions) -> None:
    """Train the recipe's tokenizer and encode its data, unless both are up to date."""
    recipe = recipes.load(options.recipe, options.overrides)
    from nmt.data.prepare import prepare

    initial = initial_bundle(recipe)
    prepared = prepare(recipe, options.console, options.threads or cores(), initial.path if initial else None)
    if not prepared.is_new:
        options.console.say(f"nothing to do: {prepared.path} is up to date")


def train(options: TrainOptions) -> None:
    """Train in this process if a launcher started it or there is one device; otherwise start one process per device.

    With --plan, only print the run's plan, on rank 0.
    """
    recipe, base = recipes.load_with_base(options.recipe, options.overrides)
    import torch

    from nmt.training import start

    found = find_world(os.environ)
    workers = 1 if found else start.count_workers(options.device, options.devices)
    world = found or World()
    if options.plan:
        if world.rank == 0:
            from nmt.training.cost import plan_run

            recipe = with_model_of(recipe, initial_bundle(recipe))
            device = choose_device(options.device, options.threads)
            show(plan_run(recipe, device, world.size if found else workers))
        return
    if workers > 1:
        find_device(options.device, torch.cuda.device_count())  # reports a missing device once, not once per worker
        start.launch(workers, sys.argv[1:], options.out, options.console)
        return
    threads = options.threads or cores()
    # At most one thread per core: waiting threads would slow down working ones.
    own_threads = world.threads(threads) if world.size > 1 else options.threads
    device = choose_device(device_of(options.device, world), own_threads)
    console = Console(options.console.quiet or world.rank > 0)
    with ExitStack() as held:
        start.train(recipe, options.out, console, device, threads, world, base, held)
        if recipe.training.minutes is not None and world.rank == 0:
            from nmt.commands.average import refresh_report
            from nmt.training.validation import average_and_score

            average_and_score(options.out, device, console)
            refresh_report(options.out, console)
