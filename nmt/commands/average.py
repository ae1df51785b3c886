"""`nmt average`: average checkpoints and models, and export them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nmt.checkpoint.reading import AVERAGED, MANIFEST, Bundle
from nmt.commands.command_line import refuse
from nmt.commands.train import refresh_report
from nmt.exchange.resolve import resolve
from nmt.system.device import choose_device
from nmt.system.errors import counted
from nmt.system.files import check_replaceable
from nmt.system.launchers import check_alone

if TYPE_CHECKING:
    from nmt.commands.options import AverageOptions


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
    check, write = {
        "huggingface": (huggingface.check_expressible, _to_huggingface),
        "marian": (to_marian.check_expressible, _to_marian),
        "argos": (ctranslate2.check_packageable, _to_argos),
        "html": (javascript.check_expressible, _to_page),
        "ctranslate2": (ctranslate2.check_expressible, _to_ctranslate2),
    }[form]
    check(bundle)  # before computing the average
    if not suffix:
        check_replaceable(out, None)
    if bundle.path != ckpts:
        bundle = _write_average_alone(options, None)
    options.console.say(f"exported for {write(bundle, out, options)}")
    new = bundle.tokenizer().new_languages
    if new:
        others = "spells texts of all languages with them, and keeps no output from them"
        options.console.say(f"note: {', '.join(new)} came with pieces of their own; this format {others}")


def _to_huggingface(bundle: Bundle, out: Path, options: AverageOptions) -> str:
    """Write a folder for transformers; return what to say about it."""
    from nmt.exchange.huggingface import export

    export(bundle, out, options.licence)
    return (
        f"transformers: {out}; its search differs: the length penalty is a power of the length, and the cap does "
        f"not depend on the input ({out / 'README.md'} lists all differences)"
    )


def _to_marian(bundle: Bundle, out: Path, options: AverageOptions) -> str:
    """Write a folder for Marian; return what to say about it."""
    from nmt.exchange.to_marian import export

    export(bundle, out)
    return f"Marian: {out}; its search differs: the length penalty is a power of the length, here fitted to ours"


def _to_ctranslate2(bundle: Bundle, out: Path, options: AverageOptions) -> str:
    """Write a folder for CTranslate2; return what to say about it."""
    from nmt.exchange.ctranslate2 import export

    quantization = options.quantization or "float32"
    export(bundle, out, quantization)
    return (
        f"CTranslate2, in {quantization}: {out}; pass beam and α to its translate_batch, whose length penalty is a "
        "power of the length"
    )


def _to_argos(bundle: Bundle, out: Path, options: AverageOptions) -> str:
    """Write a package for Argos Translate; return what to say about it."""
    from nmt.exchange.ctranslate2 import export_package

    quantization = options.quantization or "int8"
    export_package(bundle, out, quantization, options.licence)
    return (
        f"Argos Translate and LibreTranslate, in {quantization}: {out}; they search with a beam and a length "
        "penalty of their own, split sentences in their own way, and have no terms and nothing to keep"
    )


def _to_page(bundle: Bundle, out: Path, options: AverageOptions) -> str:
    """Write a page for browsers; return what to say about it."""
    from nmt.exchange.javascript import PRODUCTS
    from nmt.report.translating import export_page

    export_page(bundle, out, options.licence)
    said = f"browsers, in int8: {out}"
    if not PRODUCTS.is_file():
        said += "; slower than it could be: nmt was installed without a compiler for WebAssembly, such as clang"
    if options.licence is None:
        said += "; --license NAME says on the page what others may do with the weights"
    return said


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
        raise click.UsageError(
            f"--weights has {counted(len(shares), 'number')} for {counted(len(options.ckpts), 'model')}"
        )
    found = [resolve(path) for path in options.ckpts]
    for (_, note), share in zip(found, shares, strict=True):
        options.console.say(f"{share / sum(shares):.1%} of {note}")
    out = options.out or Path(AVERAGED)
    check_replaceable(out, MANIFEST)
    with alone(out, options.console):
        result = mix([bundle for bundle, _ in found], shares, out)
    options.console.say(f"averaged {counted(len(found), 'model')}: {result.path}")
