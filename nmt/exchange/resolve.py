"""Resolve a path or hub name to a bundle, and training.init_from to the model of a new run.

Only files that nmt reads are downloaded from the Hugging Face hub, never pickled ones.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.checkpoint.reading import AVERAGED, MANIFEST, MAY_VARY, Bundle, best, survey
from nmt.exchange.foreign import explain, explain_path
from nmt.exchange.from_marian import NpzBundle, find_npz
from nmt.exchange.opus_mt import MarianBundle, is_marian
from nmt.recipe import Model, Recipe, validated
from nmt.system.errors import UserError, counted
from nmt.system.files import OutOfResources
from nmt.system.hub import download, is_hub_name, split_name

if TYPE_CHECKING:
    from huggingface_hub import HfApi

FILES = ["*.json", "*.spm", "sentencepiece.bpe.model", "README.md", "model.safetensors"]
"""Glob patterns of the files to download"""
CONVERTER = "SFconvertbot"
"""Hub account that proposes safetensors versions of pickled weights"""
PICKLED = "pytorch_model.bin"
NEW = {"new_languages", "new_vocab_size"}
"""Keys of `tokenizer` that add to the tokenizer of training.init_from"""
SINUSOIDS = {"sinusoidal", "marian"}
"""Values of `model.positions` that are so alike that training can go from one to the other"""
OTHER = "use another model, such as hf:Helsinki-NLP/opus-mt-en-de"


def resolve(path: Path) -> tuple[Bundle, str]:
    """Resolve a path to a bundle; return it with a sentence that explains the choice.

    A run directory resolves to its average if no checkpoint is newer, else to the best checkpoint by dev score, else to
    the newest. Damaged checkpoints are skipped, and the sentence names them. The path may also be a directory with a
    model of transformers or Marian, an `.npz` of Marian, or a hub name, hf:ORG/NAME. Raise UserError if there is none.
    """
    found, note = _resolve(path)
    if found.lossy:
        note += "; its tokenizer cannot spell every character"
    return found, note


def _resolve(path: Path) -> tuple[Bundle, str]:
    if os.path.lexists(path / MANIFEST):
        return Bundle.read(path), f"model: {path}"
    folder = path
    commit = ""
    if is_hub_name(path):
        folder = fetch(path)
        commit = f", commit {folder.name[:12]}"  # the hub's cache has a folder for each commit
    if is_marian(folder):
        return MarianBundle.read(folder), f"model: {path}{commit} (of transformers{_licence(folder)})"
    npz = find_npz(path)
    if npz:
        bundle = NpzBundle.of(path, npz)
        return bundle, bundle.described()
    if path.is_dir():
        return _resolve_run(path)
    is_what = "is a file, and a model is a folder" if path.is_file() else "no such model"
    hint = "name a bundle or a run's directory; nmt train RECIPE writes one to ckpts/"
    raise explain_path(path) or UserError(f"{path}: {is_what}", hint)


def _resolve_run(path: Path) -> tuple[Bundle, str]:
    """Resolve a run's directory to its average, best or newest checkpoint, with a sentence about it."""
    found, wrong = survey(path)
    for error in wrong:
        if isinstance(error, OutOfResources):  # the checkpoint may be the best
            raise error
    note = "".join(f"; skipped: {error.message}" for error in wrong)
    if os.path.lexists(path / AVERAGED / MANIFEST):
        average = Bundle.read(path / AVERAGED)
        reason = _reason_against(average, found)
        if reason is None:
            checkpoints = counted(len(average.info.steps), "checkpoint")
            return average, f"model: {average.path} (average of {checkpoints}){note}"
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


def _reason_against(average: Bundle, checkpoints: Sequence[Bundle]) -> str | None:
    """Return why an average does not stand for a run with these checkpoints, oldest first; None if it does."""
    if not checkpoints:
        return None
    newest = checkpoints[-1]
    if average.info.run != newest.info.run:
        return "is of another run than the checkpoints"
    if average.step < newest.step:
        return "is older than the newest checkpoint"
    return None


def _licence(folder: Path) -> str:
    """Return the licence that a model's card names, after a comma; NLLB-200's forbids commercial use."""
    card = folder / "README.md"
    if not card.is_file():
        return ""
    found = re.match(r"---\n(?:.*\n)*?license: *[\"']?([\w.-]+)", card.read_text("utf-8", "replace"))
    return f", licence {found[1]}" if found else ""


def initial_bundle(recipe: Recipe) -> Bundle | None:
    """Return the bundle named by training.init_from, if set.

    Raise UserError if the bundle is for another task, or differs from the recipe in a key of `model`.
    """
    if recipe.training.init_from is None:
        return None
    found = resolve(Path(recipe.training.init_from))[0]
    found.check_task(recipe.task.name)
    new = recipe.tokenizer.new_languages
    known = found.tokenizer().source.languages if new else {}
    for language in new:
        if language in known:
            problem = f"tokenizer.new_languages: {language} is a language of {found.path} already"
            raise UserError(problem, "remove it, and training goes on with what the model has for it")
    for key in sorted(recipe.model.model_fields_set - MAY_VARY):
        has = _with_default(found.recipe.model, key)
        wants = _with_default(recipe.model, key)
        if wants != has and not (key == "positions" and {wants, has} == SINUSOIDS):
            written = has if isinstance(has, str) else json.dumps(has)
            raise UserError(
                f"training.init_from: {found.path} has model.{key} {has}, but the recipe has {wants}",
                f"remove model.{key} from the recipe, whose model is then that of training.init_from, or "
                f"--set model.{key}={written}",
            )
    return found


def _with_default(model: Model, key: str) -> Any:
    """Return the value of a key of a `model` section; of an optional key, what follows from the others."""
    properties = {"d_k": "key_width", "d_v": "value_width", "decoder_layers": "decoder_depth"}
    return getattr(model, properties.get(key, key))


def other_directions(recipe: Recipe, origin: Bundle) -> Iterator[str]:
    """Yield a note if training sets are of other directions than the model that training starts from.

    A model with a choice of languages may learn new ones, so it gets no note. Marian models get one only if the
    direction is reversed: their codes may be eng and deu where ours are en and de, so a difference says nothing.
    """
    before = set(origin.recipe.data.directions)
    now = set(recipe.data.directions)
    is_other = not now & before
    if origin.lossy:
        is_other = any(way[::-1] in before for way in now)
    if is_other and not origin.tokenizer().source.languages:
        those = " and ".join(sorted(map("-".join, before)))
        these = " and ".join(sorted(map("-".join, now)))
        yield f"training.init_from: {origin.path} translates {those}, and data.train has {these}"


def unused_tokenizer(recipe: Recipe, origin: Bundle) -> Iterator[str]:
    """Yield a note if the recipe asks for another tokenizer than that of the model that training starts from."""
    given = recipe.tokenizer
    before = origin.recipe.tokenizer
    keys = sorted(given.model_fields_set - NEW)
    others = [f"tokenizer.{key}" for key in keys if getattr(given, key) != getattr(before, key)]
    if others:
        yield f"{', '.join(others)}: not used, since the tokenizer is that of training.init_from, {origin.path}"


def with_model_of(recipe: Recipe, origin: Bundle | None) -> Recipe:
    """Return the recipe with the tokenizer and model of `origin`, except for the `model` keys that the recipe sets."""
    if origin is None or recipe.training.init_from is None:
        return recipe
    before = origin.recipe
    given = {key: getattr(recipe.model, key) for key in recipe.model.model_fields_set}
    values = recipe.model_dump()
    values["model"] = before.model.model_dump() | given
    values["tokenizer"] = before.tokenizer.model_dump() | recipe.tokenizer.model_dump(include=NEW)
    return validated(values, recipe.name)


@cache
def fetch(path: Path) -> Path:
    """Download hf:ORG/NAME[@REVISION] unless it is cached; return its directory in the hub's cache.

    The default revision is the head of main or, if that has no safetensors, the one proposed by the hub's converter.
    The hub is asked once per process. HF_HUB_OFFLINE, HF_ENDPOINT and the cache settings apply. Raise UserError if the
    model does not exist or cannot be downloaded.
    """
    model, revision = split_name(path, "hf:Helsinki-NLP/opus-mt-en-de")
    folder = download(model, revision, str(path), FILES)
    if (folder / "model.safetensors").exists():
        return folder
    if revision is None:
        proposed = _proposed(model)
        if proposed:
            return download(model, proposed, str(path), FILES)
    raise explain(str(path), model, _names(model, revision)) or UserError(f"{path}: has no model.safetensors", OTHER)


def _names(model: str, revision: str | None) -> list[str]:
    """List a model's files on the hub; if it cannot be reached, assume pickled weights, as old models have."""
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
            is_proposal = change.author == CONVERTER and change.is_pull_request
            if is_proposal and change.git_reference and _is_of_main(api, model, change.git_reference):
                return change.git_reference
    except Exception:  # errors of the HTTP library, which depends on huggingface_hub's version
        references = Path(constants.HF_HUB_CACHE) / f"models--{model.replace('/', '--')}" / "refs/refs/pr"
        with suppress(OSError):
            numbers = sorted(os.listdir(references))
            return f"refs/pr/{numbers[0]}" if numbers else None
    return None


def _is_of_main(api: HfApi, model: str, revision: str) -> bool:
    """Return whether a proposal has main's pickled weights; otherwise main has changed since they were converted."""
    there = api.get_paths_info(model, PICKLED, revision=revision)
    main = api.get_paths_info(model, PICKLED, revision=None)
    hashes = {getattr(file, "blob_id", "") for file in (*there, *main)}
    return len(there) == 1 and len(main) == 1 and len(hashes) == 1
