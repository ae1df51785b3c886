"""Plans of runs: what is known without data, and what is taken from data that is prepared."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest
import torch
from recipe_files import RECIPES
from tiny_treebank import write_treebank

from nmt.compute import choice
from nmt.data.data_report import mean_lengths
from nmt.data.prepare import prepare
from nmt.parsing.linearization import load_tokenizer
from nmt.recipe import Model, Recipe, load
from nmt.system.console import Console
from nmt.training import plan as plans
from nmt.training.forecast import Amount, DevCurve, DevPoint
from nmt.training.plan import kept_per_token, make_plan, plan_run

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plans, "measured_flops", lambda device, precision: 1e12)


def lines(recipe: Recipe) -> dict[str, str]:
    """A plan by what its lines are called."""
    rows = plan_run(recipe, CPU).splitlines()[1:]
    return {row[:22].strip(): row[22:] for row in rows}


def test_a_plan_is_measured_in_the_precision_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "measured_flops", lambda device, precision: 2e12 if precision == "bf16" else 1e12)
    monkeypatch.setattr(choice, "narrowest_in_bf16", lambda: 256)
    monkeypatch.setattr(choice, "has_amx", lambda: False)
    content = {"name": "x", "data": {"source": "a", "target": "b", "train": [{"source": "a", "target": "b"}]}}

    def time(width: int) -> str:
        return lines(Recipe.model_validate({**content, "model": {"d_model": width, "heads": 4}}))["time"]

    assert "2,000 GFLOP/s measured just now in bf16" in time(256)
    assert f"1,000 GFLOP/s measured just now by {choice.fp32_multiplier()}" in time(64)


def test_a_parsers_plan_marks_what_nobody_knows_without_data() -> None:
    rows = lines(load(RECIPES / "wsj.yaml"))
    assert rows["vocabulary"] == "16,000 subwords in, 57 tree symbols out (assumed)"
    assert rows["sentences per update"] == "about 410, at 28 subwords in and 60 tree symbols out (assumed)"
    source, symbols, encoder, decoder = 16_000 * 1024, 57 * 1024, 4, 4
    attention, feed_forward, norm = 4 * 1024**2, 2 * 1024 * 2048 + 2048 + 1024, 2 * 1024
    layers = encoder * (attention + feed_forward + 2 * norm) + decoder * (2 * attention + feed_forward + 3 * norm)
    assert rows["parameters"] == f"{source + symbols + layers:,} (assumed)"


def test_prepared_data_tells_a_parsers_symbols_and_lengths(tmp_path: Path) -> None:
    write_treebank(tmp_path, ("02", "11", "20", "22", "23"), trees=30)
    recipe = load(RECIPES / "wsj.yaml", ["data.root=.", "tokenizer.vocab_size=300"])
    before = make_plan(recipe, CPU)
    prepare(recipe, Console(quiet=True), 1)
    after = make_plan(recipe, CPU)
    assert (before.assumed, after.assumed) == (True, False)
    assert after.vocabularies == (300, len(load_tokenizer(Path("data/wsj")).target)) != before.vocabularies
    assert after.lengths == mean_lengths(Path("data/wsj"))
    assert after.sentences == pytest.approx(25_000 / (max(after.lengths) + 1))
    assert "(assumed)" not in plan_run(recipe, CPU)


def test_the_dev_score_is_forecast_from_prepared_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def chrf(words: float, tokens: float) -> float:
        return float(100 - 60 * 0.95 ** math.log2(words / 1e3) * 0.9 ** math.log2(tokens / 1e6))

    amounts = [Amount(words, tokens) for words in (1e3, 1e4) for tokens in (1e5, 1e6)]
    curves = [DevCurve([DevPoint(1.0, chrf(*amount))], family, amount) for family, amount in product("abc", amounts)]
    monkeypatch.setattr(plans, "known_curves", lambda: curves)
    lines_of = {"x.en": "a b c d", "x.de": "e f g h"}  # 4 words of each pair
    for name, line in lines_of.items():
        Path(name).write_text("".join(f"{line} {number}\n" for number in range(800)))
    settings = ["data.source=en", "data.target=de", "data.train=[{source: x.en, target: x.de}]"]
    recipe = load(
        RECIPES / "laptop.yaml", [*settings, "data.valid=[{take: 9}]", "data.test=[]", "tokenizer.vocab_size=300"]
    )
    assert lines(recipe)["dev chrF2"] == "forecast once nmt preprocess has prepared the data"
    prepare(recipe, Console(quiet=True), 1)
    rows = lines(recipe)
    plan = make_plan(recipe, CPU)
    assert plan.words == 5 * 791
    updates = int(rows["FLOPs"].split(" for ")[1].split()[0].replace(",", ""))
    tokens = updates * plan.sentences * (plan.lengths[1] + 1)
    about = chrf(plan.words, tokens)
    longer = chrf(plan.words, 2 * tokens) - about
    more = chrf(2 * plan.words, tokens) - about
    gains = f"+{longer:.0f} in twice the time, +{more:.0f} with twice the pairs"
    assert rows["dev chrF2"] == f"about {about:.0f} ({about:.0f}–{about:.0f}) at the end; {gains}"
    assert "dev chrF2" not in lines(load(RECIPES / "laptop.yaml", [*settings, "data.valid=[]"]))
    assert "dev chrF2" not in lines(load(RECIPES / "laptop.yaml", [*settings, "model.d_model=256"]))
    assert "dev chrF2" not in lines(load(RECIPES / "laptop.yaml", [*settings, "training.schedule=constant"]))


def test_gpus_share_an_update_and_the_workers_of_a_cpu_share_its_speed() -> None:
    recipe = load(RECIPES / "wmt14_en_de.yaml")

    def seconds(device: str, devices: int) -> float:
        rows = plan_run(recipe, torch.device(device), devices).splitlines()
        return float(rows[-1].split(", ")[1].partition(" s per update")[0])

    flops = make_plan(recipe, CPU).flops_per_update
    assert seconds("cuda", 1) == seconds("cpu", 1) == seconds("cpu", 8) == pytest.approx(flops / 0.5e12, rel=0.01)
    assert seconds("cuda", 8) == pytest.approx(seconds("cuda", 1) / 8, rel=0.01)


def test_a_shorter_side_keeps_less() -> None:
    model = load(RECIPES / "wsj.yaml").model
    both, encoder = kept_per_token(model), kept_per_token(model, 1.0, 0.0)
    assert kept_per_token(model, 0.5, 1.0) == both - encoder / 2
    assert kept_per_token(model, 0.0, 1.0) == both - encoder


def test_an_activation_other_than_relu_keeps_what_it_was_applied_to() -> None:
    relu, silu = (kept_per_token(Model(layers=3, d_ff=100, activation=activation)) for activation in ("relu", "silu"))
    assert silu - relu == 6 * 100


def test_a_plans_disk_holds_the_checkpoints_that_are_written_and_kept() -> None:
    def disk(*overrides: str) -> str:
        settings = ("updates=1000", "checkpoint_updates=300", "optimizer=adam", *overrides)
        row = lines(load(RECIPES / "demo.yaml", [f"training.{setting}" for setting in settings]))["disk"]
        return row.partition(" per checkpoint, ")[2]

    assert disk() == "50.5 MB for 4"
    assert disk("optimizer=muon") == "35.8 MB for 4"  # one moment for the 0.92 million numbers of the layers' matrices
    assert disk("keep_last=2") == "37.8 MB at most: the newest 2 and the best of 4 are kept"
    assert disk("checkpoint_updates=9999") == "12.6 MB for 1"
    seconds = make_plan(load(RECIPES / "demo.yaml"), CPU).flops_per_update / 0.5e12
    assert disk("checkpoint_updates=null", f"checkpoint_minutes={400 * seconds / 60}") == "37.8 MB for about 3"
