"""The recipes as shipped: what the rows of Table 3 change, what they count, and that all of them plan and train."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from tiny_treebank import write_treebank

from nmt.checkpoint.reading import checkpoints, read_tensors
from nmt.recipe import Recipe, load
from nmt.system.console import Console
from nmt.system.launchers import World
from nmt.training.distributed import Group
from nmt.training.plan import make_plan
from nmt.training.start import train
from parameters import counts

FOLDER = Path(__file__).parents[2] / "recipes"
EVERY = sorted({*FOLDER.rglob("*.yaml")} - {FOLDER / "finetune.yaml"})  # test_pretrained.py trains that one
CPU = torch.device("cpu")


# --- Table 3 --------------------------------------------------------------------------------------------------


def test_parameters_differ_from_base_as_the_paper_prints_them() -> None:
    found = {count.row.name: count for count in counts()}
    assert {name: (count.printed, count.play) for name, count in found.items() if count.printed is not None} == {
        "base": (0, 1.0),
        "b_dk16": (-7, 1.0),
        "b_dk32": (-5, 1.0),
        "c_layers2": (-29, 1.0),
        "c_layers4": (-15, 1.0),
        "c_layers8": (15, 1.0),
        "c_dmodel256": (-37, 1.0),
        "c_dmodel1024": (103, 3.2),
        "c_dff1024": (-12, 1.0),
        "c_dff4096": (25, 1.0),
        "big": (148, 3.2),
    }
    assert [name for name, count in found.items() if count.agrees is False] == []
    assert (found["base"].parameters, found["big"].parameters) == (63_045_632, 214_171_648)
    assert found["b_dk16"].difference == -18 * 2 * 512 * 8 * 48 / 1e6  # 18 attentions, queries and keys, 48 a head less


# --- every recipe ---------------------------------------------------------------------------------------------

NARROWER = 16  # times, which leaves the narrowest head of Table 3 one number wide


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs and trees, which are prepared by whoever needs them first."""
    folder = tmp_path_factory.mktemp("recipes")
    lines = [f"{verb} {count} {noun}" for verb in ("see", "draw") for count in range(40) for noun in ("trees", "cats")]
    (folder / "train.source").write_text("".join(f"{line}\n" for line in lines))
    (folder / "train.target").write_text("".join(f"{line[::-1]}\n" for line in lines))
    write_treebank(folder, ["02"], trees=20)
    return folder


def shrunk(path: Path, full: Recipe) -> Recipe:
    """A recipe with narrower layers, but all of them, for two short updates on tiny data."""
    widths = {key: getattr(full.model, key) for key in ("d_model", "d_ff", "d_k", "d_v")}
    if full.task.has_trees:
        data = "{name: trees, source: en, target: tree, train: [{trees: '02'}], max_length: 60}"
    else:
        data = (
            "{name: pairs, source: a, target: b, train: [{source: train.source, target: train.target}], max_length: 60}"
        )
    settings = [
        f"data={data}",
        "tokenizer.vocab_size=290",
        "training.updates=2",
        "training.warmup=1",
        "training.batch_tokens=64",
    ]
    settings += [f"model.{key}={width // NARROWER}" for key, width in widths.items() if width is not None]
    return load(path, settings)


@pytest.mark.parametrize("path", EVERY, ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))
def test_every_recipe_plans_and_trains(
    path: Path, workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nmt.training.meter.sustained_flops", lambda device: 1e12)  # measuring takes its time
    full = load(path)
    plan = make_plan(full, CPU)
    assert (plan.vocabularies[0], plan.assumed) == (full.tokenizer.vocab_size, True)

    monkeypatch.chdir(workplace)
    with ExitStack() as held:
        train(shrunk(path, full), tmp_path, Console(quiet=True), Group(World(), 1.0), 1, None, held)
    (trained,) = checkpoints(tmp_path)
    assert trained.step == 2
    kept = {"layers", "heads", "dropout", "attention_dropout", "norm", "positions", "max_positions", "tie_embeddings"}
    assert trained.recipe.model.model_dump(include=kept) == full.model.model_dump(include=kept)
    assert trained.recipe.training.label_smoothing == full.training.label_smoothing
    weights = read_tensors(trained.path / "model.safetensors").values()
    assert all(bool(weight.isfinite().all()) for weight in weights)
