"""What a run may change when it goes on."""

from __future__ import annotations

from pathlib import Path

from reverse_task import BARE, metrics, small

from nmt.checkpoint.reading import checkpoints
from nmt.checkpoint.writing import add_info

SMALL = small("updates: 6, log_updates: 1, checkpoint_updates: 2", *BARE)


def test_another_test_set_does_not_concern_a_run_and_another_dev_set_begins_its_scores_anew(train, task: Path) -> None:
    """The dev score so far is out of reach, so a run that compares with it ends by training.patience."""
    data = ("data.train=[{source: test.a, target: test.b}]", "data.valid=[{source: valid.a, target: valid.b}]")
    train("training.updates=2", *data)
    first = checkpoints(task / "ckpts")[-1]
    add_info(first.path, {"scores": {"chrf": 100.0, "bleu": 100.0, "perplexity": 1.0}, "without_improvement": 1})
    more = (*data, "training.patience=1", "training.updates=4")
    assert "no better dev chrF2 for 1 checkpoint" in train(*more, "data.test=[{source: valid.a, target: valid.b}]")
    (task / "valid.a").write_text((task / "valid.a").read_text().replace("a", "b", 1))
    assert "changed: data.valid; scores of earlier checkpoints are not compared with those from now on" in train(*more)
    dev = [row for row in metrics(task / "ckpts") if "valid_bleu" in row]
    assert [(row["step"], row.get("new_dev_set")) for row in dev] == [(2, True), (4, None)]
    scores, *_ = (bundle.scores["bleu"] for bundle in checkpoints(task / "ckpts"))
    assert scores < 100.0
    for name in ("test.a", "test.b"):
        with (task / name).open("a") as file:
            file.write("a\n")
    assert "error: data: the run in ckpts was started with other training files" in train(*more, code=1)


def test_a_run_from_a_bundle_goes_on_without_naming_it_again(train, task: Path) -> None:
    train("training.updates=2", out="first")
    train("training.updates=2", "training.init_from=first")
    assert "resuming at update 2:" in train("training.updates=4")
