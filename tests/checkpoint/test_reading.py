"""Bundles: which one a directory stands for, averaging, pruning, and files that are broken."""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import threading
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from reverse_task import reseal
from safetensors.torch import save_file

import nmt
from nmt.checkpoint import writing
from nmt.checkpoint.reading import LARGEST_FIGURE, Bundle, checkpoint_folders, checkpoints, prune, ranked, read_tensors
from nmt.checkpoint.writing import add_info, average
from nmt.exchange.resolve import resolve
from nmt.formats.confidence import Confidence
from nmt.formats.sentences import TrainedLengths
from nmt.recipe import TASKS, TokenizerSettings
from nmt.system.console import Console
from nmt.system.errors import UserError
from nmt.system.files import OutOfResources
from nmt.text.tokenizer import Tokenizer
from nmt.training.run_state import BestScore

LENGTHS = TrainedLengths(
    language="a", sentences=1, usual_sentences=1, source=40, longest_source=60, least_ratio=0.5, greatest_ratio=2.5
).model_dump()

SURE = Confidence(means=(0.0,) * 6, scales=(1.0,) * 6, weights=(0.0,) * 6, bias=0.0).model_dump()


@pytest.fixture
def ckpts(reverse_run: Path, tmp_path: Path) -> Path:
    """A copy of a run's directory that a test may change."""
    return Path(shutil.copytree(reverse_run / "ckpts", tmp_path / "ckpts"))


def edit(path: Path, **changes: object) -> None:
    """Changes values of a bundle.json."""
    add_info(path, changes)


def test_a_newer_checkpoint_makes_an_average_stale_and_the_best_is_used(ckpts: Path) -> None:
    edit(ckpts / "averaged", step=600)
    edit(ckpts / "step-00000400", scores={"chrf": 100.5, "perplexity": 2.0})
    bundle, note = resolve(ckpts)
    assert bundle.step == 400
    assert "best dev chrF2, 100.50" in note
    assert "is older than the newest checkpoint" in note


def test_an_average_is_the_mean_in_fp32_and_names_its_checkpoints(ckpts: Path) -> None:
    result = average(ckpts, last=3)
    parts = [read_tensors(ckpts / f"step-{step:08d}" / "model.safetensors") for step in (400, 600, 800)]
    for name, tensor in read_tensors(result.path / "model.safetensors").items():
        mean = torch.stack([part[name].double() for part in parts]).mean(0)
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-6, atol=1e-7)
    assert result.info.steps == [400, 600, 800]
    assert result.info.run == Bundle.read(ckpts / "step-00000800").info.run
    assert not (result.path / "training.safetensors").exists()


def test_an_average_of_another_run_is_not_used(ckpts: Path) -> None:
    edit(ckpts / "averaged", run="another")
    bundle, note = resolve(ckpts)
    assert bundle.path.name.startswith("step-")
    assert "is of another run than the checkpoints" in note
    edit(ckpts / "averaged", run=bundle.info.run)
    edit(ckpts / "step-00000800", run="a third")  # it is the newest that counts
    assert "is of another run than the checkpoints" in resolve(ckpts)[1]


def test_the_best_by_dev_score_are_averaged_and_used(ckpts: Path) -> None:
    for scores, best, steps in (({200: 30.0, 400: 20.0, 600: 20.0, 800: 10.0}, 2, [200, 600]), ({400: 20.0}, 3, [400])):
        for path in checkpoint_folders(ckpts):
            chrf = scores.get(int(path.name[5:]))
            edit(path, scores={} if chrf is None else {"chrf": chrf, "perplexity": 2.0})
        result = average(ckpts, best=best)
        assert result.info.steps == steps  # of equals the later
        assert resolve(ckpts)[0].path == result.path  # as no checkpoint is newer than the choice
    edit(ckpts / "step-00000400", scores={})
    with pytest.raises(UserError, match="none of its checkpoints has a dev score"):
        average(ckpts, best=3)


@pytest.mark.parametrize(
    ("task", "metric", "scores", "ranks", "note"),
    [
        ("translate", "chrf", [math.nan, math.inf, 9.0, math.nan], [200, 400, 800, 600], "chrF2, 9.00"),
        ("parse", "f1", [61.5, 70.25, 70.25, 69.0], [200, 800, 400, 600], "F1, 70.25"),
    ],
)
def test_tasks_rank_by_their_metric_and_of_equals_the_later(
    ckpts: Path, task: str, metric: str, scores: list[float], ranks: list[int], note: str
) -> None:
    for step, score in zip((200, 400, 600, 800), scores, strict=True):
        edit(ckpts / f"step-{step:08d}", task=task, scores={"perplexity": 2.0, metric: score})
    assert [bundle.step for bundle in ranked(checkpoints(ckpts))] == ranks
    shutil.rmtree(ckpts / "averaged")
    bundle, said = resolve(ckpts)
    assert (bundle.step, said) == (600, f"model: {bundle.path} (best dev {note})")
    prune(ckpts, 1)
    assert [bundle.step for bundle in checkpoints(ckpts)] == [600, 800]


def test_a_tie_is_no_improvement_and_the_latest_of_equals_is_the_best(ckpts: Path) -> None:
    for step, chrf in ((200, 60.0), (400, 60.0), (600, 70.0), (800, 50.0)):
        edit(ckpts / f"step-{step:08d}", scores={"chrf": chrf, "bleu": -chrf, "perplexity": 2.0})
    found, top = checkpoints(ckpts), BestScore()
    assert [bundle.step for bundle in ranked(found)] == [800, 200, 400, 600]
    assert [top.add(bundle.scores, TASKS["translate"]) for bundle in found] == [True, False, True, False]
    assert (top.scores["chrf"], top.without_improvement) == (70.0, 1)


def test_checkpoints_that_do_not_fit_are_not_averaged(ckpts: Path) -> None:
    path = ckpts / "step-00000600/model.safetensors"
    weights = read_tensors(path)
    name, weight = next(iter(weights.items()))
    for other in ({**weights, name: weight[:1].clone()}, {**weights, "more": weight.clone()}):
        save_file(other, path)
        reseal(path.parent)
        with pytest.raises(UserError, match=r"step-00000600: weight .* is missing or of another shape"):
            average(ckpts, last=2)


def test_checkpoints_of_different_runs_are_not_averaged(ckpts: Path) -> None:
    edit(ckpts / "step-00000600", run="another")
    with pytest.raises(UserError, match="of different runs, another and"):
        average(ckpts, last=2)
    assert average(ckpts, last=1).info.steps == [800]


def test_half_precision_weights_are_summed_in_single(ckpts: Path) -> None:
    for step, value in ((600, 2048.0), (800, 1.0)):  # their sum is not a half-precision number
        path = ckpts / f"step-{step:08d}" / "model.safetensors"
        weights = {k: torch.full_like(v, value, dtype=torch.float16) for k, v in read_tensors(path).items()}
        save_file(weights, path)
        reseal(path.parent)
    result = read_tensors(average(ckpts, last=2).path / "model.safetensors")
    assert all(bool((tensor == 1024.5).all()) for tensor in result.values())


def test_a_damaged_checkpoint_hides_no_other(nmt, ckpts: Path) -> None:
    (ckpts / "step-00000800/bundle.json").write_text("{")
    bundle, note = resolve(ckpts)
    assert bundle.path == ckpts / "averaged"
    assert f"; skipped: {ckpts / 'step-00000800/bundle.json'}: damaged: is not valid JSON" in note
    shutil.rmtree(ckpts / "averaged")
    assert resolve(ckpts)[0].step in (200, 400, 600)
    done = nmt("score", "--runs", ckpts)
    assert (done.code, b"600" in done.out) == (0, True)
    prune(ckpts, keep_last=1)
    assert (ckpts / "step-00000800").exists()


def test_a_checkpoint_that_cannot_be_read_now_is_not_skipped(ckpts: Path, monkeypatch) -> None:
    path, read = ckpts / "step-00000600/bundle.json", Path.read_bytes

    def fail(self: Path) -> bytes:
        if self in (path, ckpts / "step-00000800/bundle.json"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(OutOfResources, match=f"{path}: cannot be read: Too many open files"):
        resolve(ckpts)


def test_weights_that_cannot_be_opened_now_are_not_called_damaged(ckpts: Path, monkeypatch) -> None:
    def fail(path: Path) -> None:
        raise FileNotFoundError(f"No such file or directory: {path}")  # what safetensors says without descriptors

    monkeypatch.setattr(safetensors.torch, "load_file", fail)
    bundle, _ = resolve(ckpts)
    with pytest.raises(OutOfResources, match="safetensors: cannot be opened"):
        bundle.weights()


def test_two_averages_of_one_name_are_written_one_after_the_other(nmt, ckpts: Path, tmp_path: Path) -> None:
    held, there = threading.Event(), []

    def average_first() -> None:
        with writing.alone(tmp_path / "out", Console(quiet=True)):
            held.set()
            time.sleep(0.5)
            there.append((tmp_path / "out").exists())

    first = threading.Thread(target=average_first)
    first.start()
    held.wait(60)
    done = nmt("average", ckpts, "--last", 2, "--out", tmp_path / "out")
    first.join(60)
    assert (done.code, there) == (0, [False])
    assert f"{tmp_path / 'out'}: another nmt is writing there; waiting until it ends\n" in done.err
    assert len(Bundle.read(tmp_path / "out").info.steps) == 2


def test_a_folder_whose_name_is_not_utf8_is_to_be_renamed(ckpts: Path) -> None:
    path = ckpts.rename(os.fsdecode(os.fsencode(ckpts) + b"\xe9"))
    bundle = checkpoints(path)[-1]
    with pytest.raises(UserError, match="is not valid UTF-8") as caught:
        bundle.weights()
    assert caught.value.hint.startswith(f"rename {bundle.path}")


def test_an_average_is_of_as_many_checkpoints_as_the_recipe_of_the_newest_says(ckpts: Path) -> None:
    for folder, number in zip(checkpoint_folders(ckpts), (1, 1, 1, 3), strict=True):
        recipe = (folder / "recipe.yaml").read_text()
        changed = re.sub("average_last: [0-9]+", f"average_last: {number}", recipe)
        (folder / "recipe.yaml").write_text(changed)
        edit(folder, hashes={})
    assert average(ckpts).info.steps == [400, 600, 800]


def test_an_average_is_refused_its_place_before_anything_is_computed(nmt, ckpts: Path, monkeypatch) -> None:
    shutil.rmtree(ckpts / "averaged")
    (ckpts / "averaged").write_text("precious")
    monkeypatch.setattr(writing.Mean, "add", pytest.fail)
    done = nmt("average", ckpts)
    assert done.code == 1
    assert done.err == (
        f"error: {ckpts / 'averaged'}: exists and is not a directory\nhint: name another directory, or move it away\n"
    )
    assert (ckpts / "averaged").read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "changes"),
    [("model.safetensors", True), ("recipe.yaml", True), ("tokenizer.model", True),
     ("training.safetensors", False), ("training.json", False), ("notes.txt", False)],
)  # fmt: skip
def test_the_content_of_a_bundle_is_what_outputs_depend_on(ckpts: Path, name: str, changes: bool) -> None:
    path = checkpoints(ckpts)[-1].path
    before = Bundle.read(path).content()
    edit(path, scores={"chrf": 1.0})
    assert Bundle.read(path).content() == before
    with (path / name).open("ab") as file:
        file.write(b"\n")
    assert (Bundle.read(path).content() != before) is changes


def test_an_ensembles_models_have_one_tokenizer(ckpts: Path) -> None:
    other = ckpts / "step-00000600"
    tokenizer = Tokenizer.train([("zz yy xx", "zz yy xx ww")] * 50, TokenizerSettings(vocab_size=266))
    (other / "tokenizer.model").write_bytes(tokenizer.source.serialized)
    reseal(other)
    names = f"{ckpts / 'averaged'} and {other} have different tokenizers"
    with pytest.raises(UserError, match=re.escape(names)):
        nmt.load([ckpts / "averaged", ckpts / "step-00000800", other])


@pytest.mark.parametrize(
    ("key", "value"),
    [("step", "x"), ("step", True), ("step", 10**30), ("steps", [True]), ("run", 3), ("signatures", ["x"]),
     ("scores", "x"), ("scores", {"bleu": 10**400}), ("cost", 3), ("cost", {"seconds": math.nan}),
     ("cost", {"flops": -1.0}), ("cost", {"flops": 2 * LARGEST_FIGURE}), ("cost", {"devices": {"CPU": "1"}}),
     ("format", "1"), ("task", "sing"),
     ("without_improvement", [1]), ("unscored", "x"), ("lengths", [1, 2]), ("lengths", LENGTHS | {"more": 1}),
     ("lengths", LENGTHS | {"source": -1}), ("lengths", LENGTHS | {"least_ratio": math.nan}),
     ("confidence", [1]), ("confidence", SURE | {"more": 1}), ("confidence", SURE | {"bias": math.nan}),
     ("confidence", SURE | {"weights": [1.0]}), ("confidence", SURE | {"scales": [0.0] * 6})],
)  # fmt: skip
def test_wrong_kinds_in_bundle_json_are_named(ckpts: Path, key: str, value: object) -> None:
    edit(ckpts / "averaged", **{key: value})
    with pytest.raises(UserError, match=f"bundle.json: damaged: {key}: "):
        resolve(ckpts)


def test_an_average_knows_the_lengths_of_training(ckpts: Path) -> None:
    (lengths,) = {bundle.lengths for bundle in checkpoints(ckpts)}
    assert lengths is not None
    assert (lengths.language, lengths.sentences) == ("a", 1)
    assert average(ckpts, last=2).lengths == lengths
    edit(ckpts / "step-00000800", lengths=LENGTHS)  # those of the newest count
    assert average(ckpts, last=2).lengths == TrainedLengths(**LENGTHS)


def test_an_average_does_not_take_the_place_of_a_checkpoint(ckpts: Path) -> None:
    with pytest.raises(UserError, match="is a checkpoint, and its training state would be lost"):
        average(ckpts, last=2, out=ckpts / "step-00000400")
    assert (ckpts / "step-00000400/training.safetensors").exists()


def test_a_bundle_json_that_is_no_mapping_is_damaged(nmt, ckpts: Path) -> None:
    (ckpts / "averaged/bundle.json").write_text("[]")
    for command in (["translate", "--model"], ["score", "--runs"]):
        done = nmt(*command, ckpts / "averaged")
        assert (done.code, done.out) == (1, b"")
        assert re.match(rf"error: {ckpts}/averaged/bundle.json: .*damaged.*\nhint: take .*another copy", done.err)


@pytest.mark.parametrize(
    ("key", "value"),
    [("model.d_model", 10**9), ("model.d_model", 10**6), ("model.layers", 100), ("model.d_ff", 10**6),
     ("model.heads", 2), ("tokenizer.vocab_size", 10**7), ("decoding.max_source", 10**12)],
)  # fmt: skip
def test_a_recipe_of_another_size_than_the_weights_is_refused(nmt, ckpts: Path, key: str, value: int) -> None:
    path = ckpts / "averaged"
    section, name = key.split(".")
    content = (path / "recipe.yaml").read_text()
    before, after = content.split(f"{section}:\n")
    (path / "recipe.yaml").write_text(
        f"{before}{section}:\n" + re.sub(rf"  {name}: .*", f"  {name}: {value}", after, count=1)
    )
    reseal(path)
    done = nmt("translate", "--model", path, stdin=b"a b c\n")
    if key in ("tokenizer.vocab_size", "model.heads"):  # which no weight depends on
        assert done.code == 0
    else:
        assert (done.code, done.out) == (1, b"")
        assert re.fullmatch(rf"(model: .*\n)?error: {path}[^\n]*\nhint: [^\n]*\n", done.err), done.err
