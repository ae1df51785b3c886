"""Resolve a path or hub name to a bundle, and training.init_from to the model of a new run.

Only files that nmt reads are downloaded from the Hugging Face hub, never pickled ones.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from nmt.checkpoint.reading import AVERAGED, MANIFEST, MAY_VARY, Bundle, best, survey
from nmt.exchange.foreign import explain, explain_path
from nmt.exchange.opus_mt import MarianBundle, is_marian
from nmt.recipe import Recipe, validated
from nmt.system.errors import UserError
from nmt.system.files import OutOfResources

NAME = re.compile(r"hf:(?P<model>[\w.-]+/[\w.-]+)(?:@(?P<revision>\S+))?")
FILES = ["*.json", "*.spm", "sentencepiece.bpe.model", "README.md", "model.safetensors"]
"""Glob patterns of the files to download"""
CONVERTER, PICKLED = "SFconvertbot", "pytorch_model.bin"
"""Hub account that proposes safetensors versions of pickled weights, and the pickled file's name"""
OTHER = "use another model, such as hf:Helsinki-NLP/opus-mt-en-de"


def resolve(path: Path) -> tuple[Bundle, str]:
    """Resolve a path to a bundle; return it with a sentence that explains the choice.

    A run directory resolves to its average if no checkpoint is newer, else to the best checkpoint by dev score, else to
    the newest. Damaged checkpoints are skipped, and the sentence names them. The path may also be a directory with a
    Marian model of transformers, or a hub name, hf:ORG/NAME. Raise UserError if there is no bundle.
    """
    found, note = _resolve(path)
    return found, note + ("; its tokenizer cannot spell every character" if found.lossy else "")


def _resolve(path: Path) -> tuple[Bundle, str]:
    if os.path.lexists(path / MANIFEST):
        return Bundle.read(path), f"model: {path}"
    folder = fetch(path) if str(path).startswith("hf:") else path
    if is_marian(folder):
        commit = f", commit {folder.name[:12]}" if folder != path else ""
        return MarianBundle.read(folder), f"model: {path}{commit} (of transformers{_licence(folder)})"
    if not path.is_dir():
        is_what = "is a file, and a model is a folder" if path.is_file() else "no such model"
        hint = "name a bundle or a run's directory; nmt train RECIPE writes one to ckpts/"
        raise explain_path(path) or UserError(f"{path}: {is_what}", hint)
    found, wrong = survey(path)
    if unsure := [error for error in wrong if isinstance(error, OutOfResources)]:
        raise unsure[0]
    note = "".join(f"; skipped: {error.message}" for error in wrong)
    if os.path.lexists(path / AVERAGED / MANIFEST):
        average = Bundle.read(path / AVERAGED)
        same_run = not found or average.info["run"] == found[-1].info["run"]
        if same_run and (not found or average.step >= found[-1].step):
            count = len(average.info.get("steps", []))
            return average, f"model: {average.path} (average of {count} checkpoint{'' if count == 1 else 's'}){note}"
        reason = "is older than the newest checkpoint" if same_run else "is of another run than the checkpoints"
        note += f"; {average.path} is not used, since it {reason}: nmt average {path} renews it"
    if not found:
        if wrong:
            raise wrong[0]
        problem = f"{path}: holds neither a bundle nor checkpoints"
        raise explain_path(path) or UserError(problem, f"train one: nmt train RECIPE --out {path}")
    chosen = best(found)
    if chosen is None:
        return found[-1], f"model: {found[-1].path} (newest checkpoint){note}"
    return chosen, f"model: {chosen.path} (best dev {chosen.task.label}, {chosen.dev_score:.2f}){note}"


def _licence(folder: Path) -> str:
    """Return the licence that a model's card names, after a comma; NLLB-200's forbids commercial use."""
    card = (folder / "README.md").read_text("utf-8", "replace") if (folder / "README.md").is_file() else ""
    found = re.match(r"---\n(?:.*\n)*?license: *[\"']?([\w.-]+)", card)
    return f", licence {found[1]}" if found else ""


def initial_bundle(recipe: Recipe) -> Bundle | None:
    """Return the bundle named by training.init_from, if set.

    Raise UserError if the bundle is for another task, or differs from the recipe in a key of `model`.
    """
    if recipe.training.init_from is None:
        return None
    found = resolve(Path(recipe.training.init_from))[0]
    found.check_task(recipe.task.name)
    known = found.tokenizer().source.languages if recipe.tokenizer.new_languages else {}
    for language in known.keys() & recipe.tokenizer.new_languages:
        problem = f"tokenizer.new_languages: {language} is a language of {found.path} already"
        raise UserError(problem, "remove it, and training goes on with what the model has for it")
    before, given = found.recipe.model, recipe.model
    names = {"d_k": "key_width", "d_v": "value_width", "decoder_layers": "decoder_depth"}  # with their defaults
    for key in sorted(given.model_fields_set - MAY_VARY):
        has, wants = (getattr(of, names.get(key, key)) for of in (before, given))
        if wants != has:
            raise UserError(
                f"training.init_from: {found.path} has model.{key} {has}, but the recipe has {wants}",
                f"remove model.{key} from the recipe, whose model is then that of training.init_from, or "
                f"--set model.{key}={has if isinstance(has, str) else json.dumps(has)}",
            )
    return found


def other_directions(recipe: Recipe, origin: Bundle) -> Iterator[str]:
    """Yield a note if training sets are of other directions than the model that training starts from.

    Of a model with a choice of languages they may be. Codes of Marian models are compared only if they are reversed,
    since theirs may be eng and deu where ours are en and de.
    """
    before, now = set(origin.recipe.data.directions), set(recipe.data.directions)
    reversed_ones = {way[::-1] for way in before}
    is_other = bool(now & reversed_ones) if origin.lossy else not now & before
    if is_other and not origin.tokenizer().source.languages:
        those, these = (" and ".join(sorted(map("-".join, ways))) for ways in (before, now))
        yield f"training.init_from: {origin.path} translates {those}, and data.train has {these}"


def unused_tokenizer(recipe: Recipe, origin: Bundle) -> Iterator[str]:
    """Yield a note if the recipe asks for another tokenizer than that of the model that training starts from."""
    given, before = recipe.tokenizer, origin.recipe.tokenizer
    keys = sorted(given.model_fields_set - {"new_languages", "new_vocab_size"})
    if others := [f"tokenizer.{key}" for key in keys if getattr(given, key) != getattr(before, key)]:
        yield f"{', '.join(others)}: not used, since the tokenizer is that of training.init_from, {origin.path}"


def with_model_of(recipe: Recipe, origin: Bundle | None) -> Recipe:
    """Return the recipe with the tokenizer and model of `origin`, except for the `model` keys that the recipe sets."""
    if origin is None or recipe.training.init_from is None:
        return recipe
    values, before = recipe.model_dump(), origin.recipe
    given = {key: getattr(recipe.model, key) for key in recipe.model.model_fields_set}
    new = recipe.tokenizer.model_dump(include={"new_languages", "new_vocab_size"})
    values |= {"model": {**before.model.model_dump(), **given}, "tokenizer": before.tokenizer.model_dump() | new}
    return validated(values, recipe.name)


@cache
def fetch(path: Path) -> Path:
    """Download hf:ORG/NAME[@REVISION] unless it is cached; return its directory in the hub's cache.

    The default revision is the head of main or, if that has no safetensors, the one proposed by the hub's converter.
    The hub is asked once per process. HF_HUB_OFFLINE, HF_ENDPOINT and the cache settings apply. Raise UserError if the
    model does not exist or cannot be downloaded.
    """
    given = NAME.fullmatch(str(path))
    if given is None:
        problem = f"{path}: is not the name of a model on the Hugging Face hub"
        raise UserError(problem, "write hf:ORG/NAME or hf:ORG/NAME@REVISION, such as hf:Helsinki-NLP/opus-mt-en-de")
    model, revision = given["model"], given["revision"]
    folder = _download(model, revision, str(path))
    if (folder / "model.safetensors").exists():
        return folder
    if revision is None and (proposed := _proposed(model)):
        return _download(model, proposed, str(path))
    raise explain(str(path), model, _names(model, revision)) or UserError(f"{path}: has no model.safetensors", OTHER)


def _download(model: str, revision: str | None, name: str) -> Path:
    from huggingface_hub import constants, errors, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=FILES))
    except errors.RevisionNotFoundError:
        raise UserError(f"{name}: the model has no revision {revision}", "name a branch, tag or commit of it") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        problem = f"{name}: the hub has no such model, or none that you may read"
        raise UserError(problem, f"look for it at {constants.ENDPOINT}; for a private one: hf auth login") from None
    except (OSError, errors.EntryNotFoundError) as error:
        offline = constants.HF_HUB_OFFLINE
        reason = "HF_HUB_OFFLINE is set" if offline else " ".join(str(error.__cause__ or error).split())
        raise UserError(
            f"{name}: is not in {constants.HF_HUB_CACHE}, and cannot be downloaded: {reason}",
            f"where there is a network: hf download {model}; then copy models--{model.replace('/', '--')} there, "
            "or name a folder with its files instead",
        ) from None


def _names(model: str, revision: str | None) -> list[str]:
    """Return the names of a model's files on the hub; if it cannot be reached, of the weights that they used to be."""
    from huggingface_hub import HfApi

    try:
        return HfApi().list_repo_files(model, revision=revision)
    except Exception:  # errors of the HTTP library, which depends on huggingface_hub's version
        return [PICKLED]


def _proposed(model: str) -> str | None:
    """Return the revision in which the hub's converter proposes main's weights as safetensors, if any.

    If the hub cannot be reached, look in the cache.
    """
    from huggingface_hub import HfApi, constants

    api = HfApi()
    try:
        for change in api.get_repo_discussions(model, author=CONVERTER, discussion_type="pull_request"):
            if change.author == CONVERTER and change.is_pull_request and (revision := change.git_reference):
                files = [file for r in (revision, None) for file in api.get_paths_info(model, PICKLED, revision=r)]
                if len(files) == 2 and len({getattr(file, "blob_id", "") for file in files}) == 1:
                    return revision
    except Exception:  # errors of the HTTP library, which depends on huggingface_hub's version
        references = Path(constants.HF_HUB_CACHE) / f"models--{model.replace('/', '--')}" / "refs/refs/pr"
        with suppress(OSError):
            return next((f"refs/pr/{number}" for number in sorted(os.listdir(references))), None)
    return None
