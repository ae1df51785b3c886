"""Table 2's columns of a list of runs: `nmt score --runs`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nmt.checkpoint.reading import checkpoints
from nmt.checkpoint.writing import add_info

COST = {
    "seconds": 7200.0,
    "device_seconds": 50400.0,
    "tokens": 1_234_567,
    "flops": 1.25e18,
    "estimated_flops": 4.788e17,
    "devices": {"8 × Tesla P100": 6171.4, "1 × CPU (2 threads)": 1028.6},
}


def test_a_table_has_a_line_for_each_run(nmt: Callable[..., Any], runs: Path) -> None:
    shutil.copytree("a", "older")
    add_info(Path("a/averaged"), {"scores": {"bleu": 27.341}, "signature": "made up"})
    add_info(Path("a/step-00000800"), {"cost": COST})  # the whole run's, not what the chosen one had
    add_info(Path("older/averaged"), {"scores": {"bleu": 3.0}, "signature": "made up"})
    add_info(Path("older/step-00000800"), {"cost": {"seconds": 61.0, "tokens": 5, "flops": 2e9}})
    done = nmt("score", "--runs", "a", "older")
    assert done.code == 0, done.err
    assert done.out.decode() == (
        "model   dev score  FLOPs by the paper  FLOPs counted   time  target tokens  updates  devices\n"
        "a      BLEU 27.34             4.8e+17        1.2e+18  2h00m      1,234,567      800  "
        "8 × Tesla P100, 1 × CPU (2 threads)\n"
        "older   BLEU 3.00                   –        2.0e+09    61s              5      800  –\n"
        "dev BLEU: made up\n"
    )
    assert "model: a/averaged (average of 2 checkpoints)" in done.err


def test_an_average_without_a_score_is_scored_where_its_data_is(nmt: Callable[..., Any], runs: Path) -> None:
    (found,) = json.loads(nmt("score", "--runs", "a", "--json").out)["runs"]
    assert found["dev"]["score"] > 90
    assert "tok:13a" in found["dev"]["signature"]
    cost = checkpoints(Path("a"))[-1].cost
    assert {name: found[name] for name in COST} == cost
    assert cost["seconds"] > 0
    (runs / "data").unlink()
    done = nmt("score", "--runs", "a")
    assert done.code == 0
    assert "no dev score: data/reverse: holds no prepared data" in done.err
    assert done.out.splitlines()[1].split()[:2] == [b"a", "–".encode()]
    assert len(done.out.splitlines()) == 2  # and no signature
