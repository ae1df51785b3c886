"""Names of the hub: what is downloaded, from which revision, and what is said of one that cannot be had.

Also what a recipe takes from the model that its training starts from.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from prepared import recipe

from nmt.exchange import resolve as hub
from nmt.system.errors import UserError

SAFE, PICKLED = {"config.json", "model.safetensors"}, {"config.json", "pytorch_model.bin"}
MODELS = {
    "org/safe": {None: SAFE, "old": SAFE},
    "org/pickled": {None: PICKLED},
    "org/proposed": {None: PICKLED, "main": PICKLED, "refs/pr/7": SAFE},
    "org/changed": {None: PICKLED, "refs/pr/2": SAFE},
    "org/foreign": {None: PICKLED, "refs/pr/3": SAFE},
    "org/adapter": {None: {"adapter_config.json", "adapter_model.safetensors"}},
    "org/quantised": {None: {"config.json", "model.Q8_0.gguf"}},
    "org/nothing": {None: {"README.md"}},
}
"""Files by revision, by model; what is proposed for `changed` is of other weights, for `foreign` of somebody else."""


class Response:
    """Of a server, as errors of the hub hold it."""

    headers: dict[str, str] = {}  # noqa: RUF012
    request = None


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache of a hub that has these models."""

    def download(model: str, revision: str | None, allow_patterns: list[str]) -> str:
        assert allow_patterns == ["*.json", "*.spm", "sentencepiece.bpe.model", "README.md", "model.safetensors"]
        if model not in MODELS:
            raise errors.RepositoryNotFoundError("none", response=Response())  # type: ignore[arg-type]
        if revision not in MODELS[model]:
            raise errors.RevisionNotFoundError("none", response=Response())  # type: ignore[arg-type]
        folder = tmp_path / f"{model}@{revision}"
        folder.mkdir(parents=True, exist_ok=True)
        for name in MODELS[model][revision] - {"pytorch_model.bin"}:
            (folder / name).touch()
        return str(folder)

    class Api:
        def get_repo_discussions(self, model: str, author: str, discussion_type: str) -> list[Any]:
            who = "somebody" if model == "org/foreign" else author
            return [
                SimpleNamespace(author=who, is_pull_request=True, git_reference=revision)
                for revision in MODELS[model]
                if str(revision).startswith("refs/pr/")
            ]

        def list_repo_files(self, model: str, revision: str | None) -> list[str]:
            return sorted(MODELS[model][revision])

        def get_paths_info(self, model: str, path: str, revision: str | None) -> list[Any]:
            return [SimpleNamespace(blob_id=revision if model == "org/changed" else "same")]

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.fetch.cache_clear()
    yield tmp_path
    hub.fetch.cache_clear()


@pytest.mark.parametrize(
    ("name", "revision"), [("org/safe", None), ("org/safe@old", "old"), ("org/proposed", "refs/pr/7")]
)
def test_a_name_is_the_folder_of_its_revision_with_safetensors(cache: Path, name: str, revision: str | None) -> None:
    assert hub.fetch(Path(f"hf:{name}")) == cache / f"{name.partition('@')[0]}@{revision}"


PICKLE = "has no model.safetensors, and nmt does not unpickle pytorch_model.bin"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/pickled", PICKLE),
        ("org/changed", PICKLE),
        ("org/foreign", PICKLE),
        ("org/proposed@main", PICKLE),
        ("org/adapter", "is an adapter, such as LoRA's, and no whole model"),
        ("org/quantised", "is a GGUF model, of llama.cpp"),
        ("org/nothing", "has no model.safetensors"),
        ("org/safe@none", "the model has no revision none"),
        ("org/none", "the hub has no such model, or none that you may read"),
        ("safe", "is not the name of a model on the Hugging Face hub"),
    ],
)
def test_what_cannot_be_had_is_named(cache: Path, name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        hub.fetch(Path(f"hf:{name}"))
    assert error.value.message == f"hf:{name}: {message}"
    assert error.value.hint


def test_without_the_hub_the_cache_serves(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: object, **options: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub.HfApi, "get_repo_discussions", unreachable)
    (cache / "models--org--proposed/refs/refs/pr").mkdir(parents=True)
    (cache / "models--org--proposed/refs/refs/pr/7").touch()
    assert hub.fetch(Path("hf:org/proposed")) == cache / "org/proposed@refs/pr/7"
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    for offline, reason in ((True, "HF_HUB_OFFLINE is set"), (False, "no network")):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        with pytest.raises(UserError) as error:
            hub.fetch(Path("hf:org/other"))
        assert error.value.message == f"hf:org/other: is not in {cache}, and cannot be downloaded: {reason}"
        assert "hf download org/other" in error.value.hint


def test_a_resumed_run_takes_the_model_of_its_checkpoint_only_if_it_began_with_another() -> None:
    own = recipe(model={"dropout": 0.3}, tokenizer={"normalization": "none"})
    checkpoint: Any = SimpleNamespace(recipe=own)
    fresh = recipe()
    assert hub.with_model_of(fresh, checkpoint) is fresh
    continued = recipe(training={"init_from": "ckpts"})
    found = hub.with_model_of(continued, checkpoint)
    assert (found.model, found.tokenizer) == (own.model, own.tokenizer)


def test_settings_of_a_tokenizer_that_is_not_trained_are_named() -> None:
    origin: Any = SimpleNamespace(recipe=recipe(tokenizer={"vocab_size": 6000}), path="m")
    (said,) = hub.unused_tokenizer(recipe(tokenizer={"vocab_size": 4000, "algorithm": "bpe"}), origin)
    assert said == "tokenizer.vocab_size: not used, since the tokenizer is that of training.init_from, m"
    assert list(hub.unused_tokenizer(recipe(tokenizer={"vocab_size": 6000}), origin)) == []
    assert list(hub.unused_tokenizer(recipe(tokenizer={"vocab_size": 6000, "new_vocab_size": 500}), origin)) == []


def test_sizes_of_a_model_that_follow_from_others_are_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = SimpleNamespace(
        recipe=recipe(model={"d_model": 64, "heads": 4, "layers": 3}), path="m", check_task=lambda name: None
    )
    found.tokenizer = lambda: SimpleNamespace(source=SimpleNamespace(languages={}))
    monkeypatch.setattr(hub, "resolve", lambda path: (found, ""))
    given = {"d_model": 64, "heads": 4, "layers": 3}
    same = recipe(model={**given, "d_k": 16, "decoder_layers": 3}, training={"init_from": "m"})
    assert hub.initial_bundle(same) is found
    with pytest.raises(UserError, match=r"has model\.decoder_layers 3, but the recipe has 2"):
        hub.initial_bundle(recipe(model={**given, "decoder_layers": 2}, training={"init_from": "m"}))


@pytest.mark.parametrize(
    ("before", "now", "lossy", "is_said"),
    [
        ("en-de", "en-de", False, False),
        ("en-de", "de-en", False, True),
        ("en-de", "en-fr", False, True),
        ("eng-deu", "en-de", True, False),  # codes of Marian models need not be ours
        ("en-de", "de-en", True, True),
    ],
)
def test_a_model_to_start_from_that_translates_the_other_way_is_said(
    before: str, now: str, lossy: bool, is_said: bool
) -> None:
    ways = [dict(zip(("source", "target"), way.split("-"), strict=True)) for way in (before, now)]
    of_both = [recipe(data={"name": "x", "train": [{"file": "x.tsv"}], **way}) for way in ways]
    tokenizer = SimpleNamespace(source=SimpleNamespace(languages={}))
    origin: Any = SimpleNamespace(recipe=of_both[0], lossy=lossy, path="m", tokenizer=lambda: tokenizer)
    said = [f"training.init_from: m translates {before}, and data.train has {now}"]
    assert list(hub.other_directions(of_both[1], origin)) == said * is_said
