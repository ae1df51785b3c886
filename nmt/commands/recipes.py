"""The recipe that `nmt train` and `nmt preprocess` are given: by its name, or by files, for which one is written."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import combining, normalize

from nmt.checkpoint.reading import AVERAGED, CHECKPOINT
from nmt.data.corrections import Start, make_corrections
from nmt.data.folders import DATA
from nmt.data.from_files import MARK, Made, first_line, given_by, make_recipe, mark_of, section
from nmt.data.shown import are_like, check_no_recipe, is_data
from nmt.recipe import Recipe, Training, load_with_base
from nmt.recipe.yaml_files import shipped_recipes
from nmt.system.compression import split_suffix
from nmt.system.errors import UserError, counted
from nmt.system.files import whole_file
from nmt.system.parallelism import is_gpu
from nmt.system.processes import wait_for
from nmt.training.directory import LOCK, place_of, undecided

if TYPE_CHECKING:
    from nmt.training.distributed import Group

LONGEST = 200  # characters of a name: file systems allow 255 with what is added
RUN = Path("ckpts")
"""Directory of a run if neither the user nor a recipe written for files names one"""


class Given(NamedTuple):
    """A recipe to train, and where."""

    recipe: Recipe
    base: Recipe | None
    """The recipe that it extends, if any"""
    run: Path
    """Directory of its run"""
    name: str
    """What it is called in a command"""


def find_together(
    names: Sequence[str],
    overrides: Sequence[str],
    device: str,
    group: Group,
    minutes: float,
    say: Callable[[str], None],
    out: Path | None,
) -> Given:
    """Return on each rank of a group what `find_given` returns on rank 0, which alone looks at files and writes.

    The others read the recipe after it, for up to so many `minutes` on a file system that does not show it yet.
    """
    found: Given | None = None

    def find() -> str:
        nonlocal found
        found = find_given(names, overrides, device, False, say, out)
        return found.name

    name = group.first(find)
    if found is not None:
        return found
    if [name] != list(names):
        wait_for(Path(name), 60 * minutes, group.check)
    return find_given([name], overrides, device, False, say, out)


def minutes_to_meet(names: Sequence[str], overrides: Sequence[str]) -> float:
    """Return training.timeout_minutes of a recipe; its default for files, or if the recipe is invalid."""
    if _is_recipe(names):
        with suppress(UserError):  # which rank 0 reports once the ranks have met
            return load_with_base(names[0], overrides)[0].training.timeout_minutes
    return Training().timeout_minutes


def find_given(
    names: Sequence[str],
    overrides: Sequence[str],
    device: str,
    only_planned: bool,
    say: Callable[[str], None],
    out: Path | None = None,
) -> Given:
    """Return the recipe that one name stands for, or the one for files, which is written unless it is there.

    Its run is in `out` if the user names that. Its sizes depend on `device`, the value of --device. Files with
    training.init_from are corrections of that model. A recipe that is `only_planned` is not written. Raise UserError if
    the recipe is invalid, if none can be made for the files, or if a file of its name is there that was not written for
    them.
    """
    name = names[0]
    if _is_recipe(names):
        if Path(name).is_dir():
            say(f"{name}: the recipe that comes with nmt, not the folder, whose name is {name}/")
        run = Path(Path(name).stem) if first_line(Path(name)) else RUN
        return Given(*load_with_base(name, overrides), out or run, name)
    check_no_recipe(names)
    _check_no_run(names)
    start = str(section(given_by(overrides), "training").get("init_from") or "")
    mark = mark_of(names, start)
    path = Path(f"{_name_for(name)}.yaml")
    place = place_of(Path(start)) if start else None
    if start:
        _check_elsewhere(place)
        path = _next_of(start, mark)
    run = out or Path(path.stem)
    if path.exists() or path.is_symlink():
        if not _is_for(first_line(path), mark):
            problem = f"{path}: is there already, and nmt has not written it for {shlex.join(names)}"
            raise UserError(problem, f"nmt train {path} trains it; to train these files, rename it or them")
        _check_languages(path, overrides)
        say(f"recipe: {path}, as it is")
        return Given(*load_with_base(path, overrides), run, str(path))
    if not only_planned:
        _check_writable(path, name)
    made = _made(names, start, path, overrides, device)
    say(made.said)
    if only_planned:
        say(f"recipe: {path} would be")
        for line in made.text.splitlines():
            if not line.startswith("#"):
                say(f"  {line}")
        return Given(made.recipe, None, run, str(path))
    _write(made, path)
    if start:
        Path(path.stem).mkdir(exist_ok=True)  # by which other processes, and this command again, know what is under way
    say(f"recipe: {path} is written, for {_length(made)}")
    if made.recipe.training.replace_init and place is not None:
        say(f"run: {run}/, until it takes the place of {place}")
    else:
        into = shlex.join(["--out", str(out)]) if out else ""
        commands = [f"nmt train {files} {into}".rstrip() for files in (mark.removeprefix(MARK), path)]
        say(f"run: {run}/; to start it or go on with it: {', or '.join(commands)}")
    return Given(*load_with_base(path), run, str(path))


def _is_for(line: str, mark: str) -> bool:
    """Return whether the first lines of two recipes name the same files, wherever these are seen from."""
    if line == mark:
        return True
    with suppress(ValueError):  # a person has changed the line
        found, wanted = ([os.path.abspath(word) for word in shlex.split(each)] for each in (line, mark))
        return found == wanted
    return False


def _check_languages(path: Path, overrides: Sequence[str]) -> None:
    """Raise UserError if settings change the languages of a recipe that was written for files, as its columns and files
    are in the order of these."""
    given = section(given_by(overrides), "data")
    wanted = (str(given.get("source") or ""), str(given.get("target") or ""))
    if not any(wanted):
        return
    recipe, _ = load_with_base(path)
    if not are_like(wanted, recipe.data.languages):
        key = "target" if are_like((wanted[0], ""), recipe.data.languages) else "source"
        problem = f"{path}: is written for {'-'.join(recipe.data.languages)}, but data.{key} is {given[key]}"
        raise UserError(problem, f"rename the files or, to start anew, remove {path} and {path.stem}/")


def _write(made: Made, path: Path) -> None:
    """Write a recipe, after the pairs that it reads from files beside it."""
    for file, pairs in made.repeated.items():
        with whole_file(file) as stream:
            for pair in pairs:
                stream.write(json.dumps(pair._asdict(), ensure_ascii=False).encode() + b"\n")
    with whole_file(path) as stream:
        stream.write(made.text.encode())


def _length(made: Made) -> str:
    """Say how long a recipe trains, and on what."""
    training = made.recipe.training
    on = f" on {made.device}" if made.device else ""
    if training.minutes is None:
        return f"{counted(training.updates, 'update')} of training{on}"
    plural = "" if training.minutes == 1 else "s"
    return f"{training.minutes:g} minute{plural} of training{on}"


def _is_recipe(names: Sequence[str]) -> bool:
    """Return whether these are the name of a recipe, and not of files to make one for."""
    return len(names) == 1 and (names[0] in shipped_recipes() or not is_data(names[0]))


def _made(names: Sequence[str], start: str, path: Path, overrides: Sequence[str], device: str) -> Made:
    """Return the recipe for files, or for corrections of the model `start`."""
    if not start:
        return make_recipe(names, path, overrides, is_gpu(device))
    from nmt.exchange.resolve import resolve
    from nmt.training.validation import find_prepared

    bundle, _ = resolve(Path(start))
    prepared = None
    with suppress(UserError):
        prepared = find_prepared(bundle, bundle.path.parent)
    return make_corrections(names, Start(start, bundle.recipe, bundle.tokenizer(), prepared), path, overrides)


def _check_elsewhere(place: Path | None) -> None:
    """Raise UserError if the folder that a run is to take the place of is the working directory, or is around it."""
    here = Path.cwd()
    if place is not None and place.resolve() in (here, *here.parents):
        problem = f"training.init_from: {place} is where you are, and a new model is to take its place"
        raise UserError(problem, "run this in another folder, such as where the model was trained")


def _check_writable(path: Path, name: str) -> None:
    """Raise UserError unless the recipe for files, of which `name` is the first, can be written here."""
    if not os.access(Path.cwd(), os.W_OK):
        hint = f"run this in a folder that you may write to, and name {os.path.abspath(name)} there"
        raise UserError(f"{path}: cannot be written to {Path.cwd()}", hint)


def _check_no_run(names: Sequence[str]) -> None:
    """Raise UserError if one of several names is of the folder of a run, in which no pairs are."""
    for name in names:
        if os.path.exists(Path(name) / LOCK):  # without an error if the folder may not be read
            recipe = Path(f"{Path(name)}.yaml")
            known = recipe if recipe.exists() else "RECIPE"
            raise UserError(f"{name}: is the folder of a run, not of pairs", f"nmt train {known} goes on with it")


def _next_of(start: str, mark: str) -> Path:
    """Return the recipe by which a model learns next: the first of a free number, or the last one if that is not done.

    A number is not free if anything is called by it, such as pairs that a killed process has written.
    """
    path = Path(start)
    is_in_run = path.name == AVERAGED or CHECKPOINT.fullmatch(path.name)
    stem = _plain(path.parent.name if is_in_run else path.name)
    number = 2
    while Path(f"{stem}-{number}").exists() or any(Path().glob(f"{stem}-{number}.*")):
        number += 1
    last = Path(f"{stem}-{number - 1}.yaml")
    run = Path(last.stem)
    is_done = not run.exists() or ((run / AVERAGED).exists() and undecided(run) is None)
    return last if first_line(last) == mark and not is_done else Path(f"{stem}-{number}.yaml")


def _name_for(name: str) -> str:
    """Return the name of the recipe and of the run for files of which `name` is the first.

    It is the file's without endings; with -model behind it if something else than a run is called so, as the folder of
    prepared data is.
    """
    path = Path(name)
    stem = path.resolve().name
    if not path.is_dir():
        stem = Path(split_suffix(path.name)[0]).stem
    stem = _plain(stem)
    folder = Path(stem)
    is_empty = folder.is_dir() and not any(folder.iterdir())
    is_taken = folder.exists() and not is_empty and not (folder / LOCK).exists()
    return f"{stem}-model" if is_taken or stem == DATA else stem


def _plain(stem: str) -> str:
    """Return a name of which a recipe and its data may be called: its letters are those of ASCII, without accents,
    and no more than `LONGEST`."""
    letters = "".join(each for each in normalize("NFKD", stem) if not combining(each))
    return re.sub("[^A-Za-z0-9._-]+", "-", letters)[:LONGEST].strip("._-") or "pairs"
