"""Records of runs that never took place, to make reports of: as long and as large as a test wants them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nmt.recipe import validated
from nmt.report.record import About, RunRecord, Split
from nmt.training.dev_outputs import DevOutputs

DATA: dict[str, dict[str, Any]] = {
    "translate": {"source": "en", "target": "de", "train": [{"source": "a", "target": "b"}]},
    "parse": {"source": "en", "target": "tree", "train": [{"trees": "wsj"}]},
}


def synthetic_run(
    name: str = "demo", task: str = "translate", logged: int = 200, validations: int = 10, sentences: int = 30
) -> RunRecord:
    """A run that logged this often, and then was validated this often on this many sentences."""
    noise = np.random.default_rng(len(name))
    values: dict[str, Any] = {
        "name": name,
        "data": {"name": name, **DATA[task]},
        "training": {"updates": 20 * max(logged, 1), "batch_tokens": 2048},
        "model": {"layers": 2, "d_model": 128, "d_ff": 512, "heads": 4},
        "tokenizer": {"vocab_size": 4000, **({"shared": False} if task == "parse" else {})},
    }
    if task == "parse":
        values["model"]["tie_embeddings"] = "target"
    steps = np.arange(1, logged + 1, dtype=np.float64) * 16
    loss = 2 + 6 * np.exp(-steps / (4 * logged)) + noise.normal(0, 0.05, logged)
    figures = {
        "step": steps,
        "epoch": steps // 500,
        "seconds": steps * 0.31,
        "tokens": steps * 1900,
        "loss": loss,
        "perplexity": np.exp(loss - 1),
        "learning_rate": 128**-0.5 * np.minimum(steps**-0.5, steps * 400**-1.5),
        "gradient_norm": 0.6 + noise.gamma(2, 0.1, logged),
        "tokens_per_second": 6000 + noise.normal(0, 150, logged),
        "padding": 0.02 + noise.random(logged) * 0.01,
    }
    at = np.linspace(0, logged, validations + 1).astype(int)[1:] - 1 if logged else np.zeros(0, int)
    score = 38 * (1 - np.exp(-np.arange(1, len(at) + 1) / 3))
    validated_at = {key: figures[key][at] for key in ("step", "seconds", "tokens")}
    perplexities = np.exp(loss[at] - 0.8)
    sources = [f"sentence {n} of the development set" for n in range(sentences)]
    references = [f"Satz {n} der Entwicklungsdaten" for n in range(sentences)]
    outputs = [
        DevOutputs(
            step=int(step),
            outputs=[f"{line} {index}" for line in references],
            scores=noise.uniform(20, 90, sentences).tolist(),
        )
        for index, step in enumerate(validated_at["step"])
    ]
    return RunRecord(
        path=Path("runs") / name,
        recipe=validated(values, name),
        base={"training.updates": 100_000},
        base_name="base.yaml",
        about=About(parameters=1_318_400, data={"train": Split(kept=28_950)}),
        logged=figures,
        validated={**validated_at, "score": score, "perplexity": perplexities},
        signatures={"bleu": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1"},
        sources=sources,
        references=references,
        dev_outputs=outputs,
        cost={"seconds": 992.0, "tokens": 6_080_000, "flops": 2.4e13, "devices": {"1 × CPU": 992.0}},
        averages=[(1, 36.5), (2, 37.1), (5, 37.6)],
    )


def with_outputs(
    outputs: Sequence[list[str]],
    references: Sequence[str],
    scores: Sequence[list[float]],
    name: str = "demo",
    task: str = "translate",
) -> RunRecord:
    """A run whose checkpoints 100, 200, … made these outputs, a list each, with these scores."""
    record = synthetic_run(name, task, validations=len(outputs))
    steps = np.arange(1, len(outputs) + 1) * 100
    made = zip(steps, outputs, scores, strict=True)
    return replace(
        record,
        sources=[f"{'Strasse' if row % 2 else 'Weg'} {row}" for row in range(1, len(references) + 1)],
        references=references,
        dev_outputs=[DevOutputs(step=int(step), outputs=texts, scores=each) for step, texts, each in made],
        validated={**record.validated, "step": steps.astype(float), "score": steps / 10},
    )


def just_begun(record: RunRecord) -> RunRecord:
    """The same run before its first update."""
    nothing = {key: np.zeros(0) for key in record.logged}
    none_valid = {key: np.zeros(0) for key in record.validated}
    return replace(record, logged=nothing, validated=none_valid, dev_outputs=[], cost={}, averages=[], about=About())
