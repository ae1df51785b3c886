"""Whether a GPU computes what a CPU does: losses, gradients, updates, a resumed run, searches, samples.

    python benchmarks/gpu_check.py [--no-compile]
    python benchmarks/gpu_check.py --device cpu              # whether the script itself works

Small models with random weights, and one that has learnt some sentences. The reference is a CPU in fp64 without
compilation, one micro-batch an update and one sentence a search. Each line has a figure and its limit, and a figure
above its limit fails; the exit status is 1 if any does. Figures of gradients are the largest relative error of a
parameter, in the 2-norm. A search's error is how far its scores are from what the reference gives to the same outputs;
its loss is how much better the reference's own outputs are than other ones, which is more than rounding only where the
search is wrong. On a GPU the default path, bf16 with packing and compilation together, is compared with padded batches.
The resumed run uses PyTorch's deterministic algorithms. It must be equal to the bit if two equal runs are; if they
differ, it may differ four times as much.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contest import Pile, random_bundle
from gpu_train import Ours
from nmt.data.corpus import Corpus, Rows
from nmt.data.epochs import plan_epoch
from nmt.decoding.constraints import MakeConstraint, MinLength, NoRepeat, PrefixConstraint, TreeConstraint
from nmt.decoding.engine import Hypothesis, Prefix, Source
from nmt.decoding.forced import align, log_probabilities_of
from nmt.decoding.search import SearchEngine
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model, Training
from nmt.system.console import Console
from nmt.system.device import World, choose_device
from nmt.text.vocabulary import EOS, Vocabulary
from nmt.training.arithmetic import device_name, factors_rounded, set_precision
from nmt.training.batches import Update, make_batch
from nmt.training.budget import Requests
from nmt.training.distributed import Group
from nmt.training.loss import chunk_softmax, smoothed_cross_entropy
from nmt.training.trainer import Trainer
from plain import PlainTransformer, smoothed_loss
from search_agreement import BATCHES, VOCABULARY, random_model, random_parser, random_sources, score
from synthetic import wmt_lengths, write_corpus

CPU = torch.device("cpu")
MODELS = {
    "post-norm": Model(layers=2, d_model=128, d_ff=256, heads=2, dropout=0.0),
    "pre-norm, learned positions, window 8, untied": Model(
        layers=2, d_model=128, d_ff=256, heads=2, dropout=0.0, norm="pre", positions="learned", attention_window=8,
        tie_embeddings="none", activation="gelu",
    ),
}  # fmt: skip
PAIRS, TOKENS, UPDATES = 1000, 1500, 4
SENTENCES = 30
PRECISIONS = {"fp32": 1e-4, "bf16": 0.1}  # and the largest error of gradients
PACKED = 0.02  # largest difference of gradients in bf16 between packed and padded micro-batches
LEARNT = 40  # sentences that a model learns by heart


class Check(NamedTuple):
    """A figure that must not be above its limit."""

    name: str
    figure: float
    limit: float

    @property
    def passed(self) -> bool:
        """Also false where the figure is not a number."""
        return self.figure <= self.limit


Weights = dict[str, Tensor]
"""Something of each parameter, on the CPU in fp64."""


def error(found: Weights, exact: Weights) -> float:
    """The largest relative error of a parameter."""
    return largest(float((found[name] - exact[name]).norm() / exact[name].norm()) for name in exact)


def distance(found: Weights, other: Weights) -> float:
    """The relative difference of all parameters together, which a few units of ReLU that change sides hardly move."""
    apart = sum(float((found[name] - other[name]).norm()) ** 2 for name in other)
    return math.sqrt(apart / sum(float(value.norm()) ** 2 for value in other.values()))


def largest(figures: Iterable[float]) -> float:
    """NaN where one of them is, unlike `max`."""
    return float(np.max(list(figures)))


# --- training ----------------------------------------------------------------------------------------------------


class Updates:
    """A model whose random weights are the same everywhere, and the gradients of its updates."""

    def __init__(
        self,
        config: Model,
        corpus: Corpus,
        device: torch.device,
        precision: str,
        compiled: bool = False,
        device_tokens: int = 2 * TOKENS,
        packing: bool = False,
    ) -> None:
        settings = Training(
            batch_tokens=2 * TOKENS,
            device_tokens=device_tokens,
            precision=precision,  # type: ignore[arg-type]
            packing=packing,
            compile=compiled,
            warmup=10,
        )
        torch.manual_seed(1)
        self.model = Transformer(config, VOCABULARY, VOCABULARY).to(device).train()
        set_precision(self.model, precision, device)
        self._corpus, group = corpus, Group(World(), timeout_minutes=1, device=device)
        self._trainer = Trainer(self.model, corpus, settings, group, Console(quiet=True))
        self._trainer.state.device_tokens = device_tokens
        self.optimizer = self._trainer.optimizer

    def rows(self, number: int) -> Rows:
        """The pairs of an update."""
        return plan_epoch(self._corpus.source_lengths, self._corpus.target_lengths, TOKENS, 1, 0).rows(number)

    def compute(self, number: int) -> tuple[float, Weights]:
        """The loss of an update, and its gradients, which the parameters keep."""
        self.optimizer.clear()
        rows = self.rows(number)
        with factors_rounded("fp32"):
            sums, _ = self._trainer.gradients(Update(0, number, rows, self._corpus.lengths(rows)), Requests())
        assert sums is not None, "memory ran out"
        return float(sums.loss), copied(self.model, lambda parameter: parameter.grad)


def copied(model: torch.nn.Module, of: Callable[[nn.Parameter], Tensor | None]) -> Weights:
    """Copies something of each parameter that has it."""
    found = {name: of(parameter) for name, parameter in model.named_parameters()}
    return {name: value.detach().double().cpu().clone() for name, value in found.items() if value is not None}


def gradients(corpus: Corpus, device: torch.device, compiled: bool) -> Iterator[Check]:
    """Losses and gradients of several updates: whole, in micro-batches, compiled, packed, and by default."""
    ways: dict[str, dict[str, Any]] = {"": {}, ", micro-batches": {"device_tokens": 300}}
    if compiled:
        ways[", compiled"] = {"compiled": True}
    packed: dict[str, dict[str, Any]] = {", packed": {"packing": True}}
    if compiled:  # what a GPU does by default, in bf16
        packed[", packed and compiled"] = {"packing": True, "compiled": True}
    for title, config in MODELS.items():
        reference = Updates(config, corpus, CPU, "fp64")
        exact = [reference.compute(number) for number in range(UPDATES)]
        for precision, limit in PRECISIONS.items():
            packs = device.type == "cpu" or precision == "bf16"  # on a GPU, the kernel of packed attention is for bf16
            gradients: list[list[Weights]] = []
            for way, how in (ways | (packed if packs else {})).items():
                updates = Updates(config, corpus, device, precision, **how)
                found = [updates.compute(number) for number in range(UPDATES)]
                gradients.append([of for _, of in found])
                losses = [abs(ours / right - 1) for (ours, _), (right, _) in zip(found, exact, strict=True)]
                errors = [error(ours, right) for (_, ours), (_, right) in zip(found, exact, strict=True)]
                yield Check(f"{title}, {precision}{way}: loss", largest(losses), limit / 10)
                yield Check(f"{title}, {precision}{way}: gradients", largest(errors), limit)
            if packs:  # both ways are compiled, or neither is
                padded = gradients[len(ways) - 1] if compiled else gradients[0]
                apart = [distance(one, other) for one, other in zip(gradients[-1], padded, strict=True)]
                yield Check(f"{title}, {precision}: packed against padded", largest(apart), min(PACKED, limit))


def learnt(device: torch.device, folder: Path, compiled: bool) -> Iterator[Check]:
    """The loss's gradient in bf16 for a model that knows its sentences: what is large in it cancels."""
    write_corpus(folder / "learnt.arrow", *wmt_lengths(LEARNT), vocabulary=VOCABULARY)
    corpus, smoothing = Corpus(folder / "learnt.arrow"), 0.1
    settings = Training(
        batch_tokens=TOKENS, device_tokens=TOKENS, warmup=100, learning_rate_scale=0.5, precision="fp32"
    )
    torch.manual_seed(1)
    model = Transformer(MODELS["post-norm"], VOCABULARY, VOCABULARY).to(device).train()
    Ours(model, corpus, settings, device, Console(quiet=True)).train(120)
    exact = copy.deepcopy(model).double().cpu()
    batch = make_batch(corpus, np.arange(len(corpus)))
    with torch.no_grad():
        states = exact.states(batch.source, batch.target_in).flatten(0, 1).index_select(0, batch.real)
    targets, weight = batch.target_out.flatten().index_select(0, batch.real), exact.output_embedding.weight.detach()
    known = float((states @ weight.t()).softmax(-1).gather(-1, targets[:, None]).mean())
    yield Check("a model that has learnt its sentences: mean probability of other symbols", 1 - known, 0.4)
    softmax = torch.compile(chunk_softmax) if compiled else chunk_softmax

    def ours(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return smoothed_cross_entropy(states, weight, targets, smoothing, softmax)[0]

    def plain(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(states, weight), targets, label_smoothing=smoothing, reduction="sum")

    def gradients(loss: Callable[[Tensor, Tensor, Tensor], Tensor], dtype: torch.dtype, where: torch.device) -> Weights:
        factors = [factor.detach().to(where, dtype).requires_grad_() for factor in (states, weight)]
        with torch.autocast(where.type, torch.bfloat16, enabled=dtype == torch.float32):
            total = loss(factors[0], factors[1], targets.to(where))
        of_states, of_weight = (each.double().cpu() for each in torch.autograd.grad(total, factors))
        return {"states": of_states, "their sum": of_states.sum(0), "weights": of_weight}

    exact_gradients = gradients(plain, torch.float64, CPU)
    found, autocast = gradients(ours, torch.float32, device), gradients(plain, torch.float32, device)
    for name in found:
        one, other = (error({name: of[name]}, {name: exact_gradients[name]}) for of in (found, autocast))
        yield Check(
            f"its loss in bf16, error of the gradient of {name}, over that of plain autocast", one / other, 1.15
        )


def plainly(corpus: Corpus) -> Iterator[Check]:
    """The reference itself beside `benchmarks/plain.py`, whose model and loss are other code."""
    ours, config = Updates(MODELS["post-norm"], corpus, CPU, "fp64"), MODELS["post-norm"]
    plain = PlainTransformer(config, VOCABULARY).double()
    plain.take(ours.model.state_dict())
    loss, exact = ours.compute(0)
    batch = make_batch(corpus, ours.rows(0))
    found = smoothed_loss(plain, batch, Training().label_smoothing)
    (found / batch.num_tokens).backward()
    yield Check("the reference beside plain PyTorch: loss", abs(float(found.detach()) / loss - 1), 1e-6)
    gradients = copied(plain, lambda parameter: parameter.grad)
    yield Check("the reference beside plain PyTorch: gradients", error(gradients, exact), 1e-5)


def updates(corpus: Corpus, device: torch.device) -> Iterator[Check]:
    """Adam on the device beside Adam in fp64 with the same gradients, and an update that is skipped."""
    config, go = MODELS["post-norm"], torch.tensor(False)
    ours, exact = Updates(config, corpus, device, "fp32"), Updates(config, corpus, CPU, "fp64")
    for step in range(1, UPDATES + 1):
        _, found = ours.compute(step)
        for name, parameter in exact.model.named_parameters():
            parameter.grad = found[name]
        ours.optimizer.update(step, go.to(device))
        exact.optimizer.update(step, go)
    weights, right = (copied(each.model, lambda parameter: parameter) for each in (ours, exact))
    yield Check(f"weights after {UPDATES} updates", error(weights, right), 1e-5)
    moments = {name: moment.clone() for name, moment in ours.optimizer.state().items()}
    ours.compute(0)
    next(ours.model.parameters()).grad.fill_(math.nan)  # type: ignore[union-attr]
    ours.optimizer.update(UPDATES + 1, torch.tensor(True, device=device))
    change = error(copied(ours.model, lambda parameter: parameter), weights)
    moved = largest(float((moments[name] - after).abs().max()) for name, after in ours.optimizer.state().items())
    yield Check("a skipped update changes weights and moments", largest((change, moved)), 0.0)


def resumption(corpus: Corpus, device: torch.device, compiled: bool) -> Iterator[Check]:
    """A run by default settings that is stopped and resumed, beside two that are not.

    Everything after it is deterministic, too.
    """
    torch.use_deterministic_algorithms(True)  # warn_only would leave attention as it is
    settings = Training(batch_tokens=TOKENS, device_tokens=TOKENS, warmup=10, log_updates=10, compile=compiled)
    config = MODELS["post-norm"].model_copy(update={"dropout": 0.1})

    def begin() -> tuple[Transformer, Ours]:
        torch.manual_seed(1)
        model = Transformer(config, VOCABULARY, VOCABULARY).to(device)
        return model, Ours(model, corpus, settings, device, Console(quiet=True))

    def finish(run: tuple[Transformer, Ours], updates: int) -> Weights:
        run[1].train(updates)
        return copied(run[0], lambda parameter: parameter)

    whole, again = finish(begin(), 2 * UPDATES), finish(begin(), 2 * UPDATES)
    (model, first), (resumed, second) = begin(), begin()
    first.train(UPDATES)
    resumed.load_state_dict(model.state_dict())
    second.optimizer.load(first.optimizer.state(), UPDATES)
    second.state = replace(first.state)
    apart = error(again, whole)
    yield Check("two equal runs differ", apart, math.inf)
    yield Check(
        "a resumed run differs from an unbroken one", error(finish((resumed, second), UPDATES), whole), 4 * apart
    )


# --- search ------------------------------------------------------------------------------------------------------


def found_by(
    model: Transformer, sources: list[Source], decoding: Decoding, constraints: list[MakeConstraint]
) -> list[Hypothesis]:
    """The best output of each source, in order."""
    engine = SearchEngine([model], decoding, constraints)
    found = {number: best for number, (best,) in engine.search(Pile(sources), 1)}
    return [found[source.number] for source in sources]


def searches(device: torch.device, folder: Path) -> Iterator[Check]:
    """Beam searches, with several rules for outputs, in batches of several sizes."""
    vocabulary = random_bundle(folder, {}, VOCABULARY).tokenizer().target
    assert isinstance(vocabulary, Vocabulary)
    rules: list[MakeConstraint] = [
        partial(MinLength, 8),
        partial(PrefixConstraint, vocabulary),
        partial(NoRepeat, 2),
    ]
    sources, model = random_sources(SENTENCES), random_model()
    ruled = [
        replace(source, prefix=Prefix([200, 201], "", []) if source.number % 3 == 0 else None) for source in sources
    ]
    yield from compare("search", model, sources, Decoding(), [], device)
    yield from compare("greedy search", model, sources, Decoding(beam=1), [], device)
    yield from compare("search under rules", model, ruled, Decoding(), rules, device)
    parser, trees, sentences = random_parser()
    rules = [partial(TreeConstraint, trees)]
    yield from compare("search for trees", parser.double(), sentences[:3], Decoding(), rules, device)


def compare(
    title: str,
    model: Transformer,
    sources: list[Source],
    decoding: Decoding,
    constraints: list[MakeConstraint],
    device: torch.device,
) -> Iterator[Check]:
    """Searches on the device beside one in fp64 on the CPU; the model is in fp64."""
    single = copy.deepcopy(model).float().to(device)
    exact = found_by(model, sources, decoding.model_copy(update={"batch_tokens": 1}), constraints)
    for precision, limit in (("fp32", 1e-4), ("auto", 0.1)):
        for rows in BATCHES:
            tokens = 1 if rows == 1 else rows * (max(len(source.ids) for source in sources) + 1)
            settings = decoding.model_copy(update={"batch_tokens": tokens, "precision": precision})
            found = found_by(single, sources, settings, constraints)
            scores = [score(model, *pair, decoding.alpha) for pair in zip(sources, found, strict=True)]
            wrong = largest(abs(each.score - right) for each, right in zip(found, scores, strict=True))
            loss = largest(best.score - right for best, right in zip(exact, scores, strict=True))
            name = f"{title}, {precision}, {rows} sentences at a time"
            yield Check(f"{name}: error", wrong, limit)
            yield Check(f"{name}: loss", loss, limit)


def rest(device: torch.device) -> Iterator[Check]:
    """What else a model is asked for: samples, probabilities of given outputs, alignments."""
    model, sources = random_model(), random_sources(SENTENCES)
    single = copy.deepcopy(model).float().to(device)

    def samples(of: Transformer) -> list[list[int]]:
        engine = SearchEngine([of], Decoding(precision="fp32"))
        drawn = dict(engine.sample(Pile(sources), 4))
        return [each.ids for source in sources for each in drawn[source.number]]

    exact = samples(model)
    differ = sum(a != b for a, b in zip(samples(single), exact, strict=True))
    yield Check("samples that differ, of all", differ / len(exact), 0.02)
    pairs = [(source.ids, ids or [EOS]) for source, ids in zip(sources, exact[::4], strict=True)]
    given, right = ([each.cpu() for each in log_probabilities_of([of], pairs, 500)] for of in (single, model))
    wrong = largest(float((a - b).abs().max()) for a, b in zip(given, right, strict=True))
    yield Check("probabilities of given outputs: error in nats", wrong, 1e-4)
    given_to, right_to = (np.concatenate(align([of], pairs)) for of in (single, model))
    yield Check("alignments that differ, of all", float((given_to != right_to).mean()), 0.01)


# --- the table -----------------------------------------------------------------------------------------------------


def failures(block: Iterator[Check]) -> int:
    """Prints a part of the table; how many of its checks fail. An error ends the part, and counts as one."""
    failed = 0
    try:
        for check in block:
            failed += not check.passed
            word = "ok" if check.passed else "FAILED"
            print(f"{word:6} {check.figure:9.1e} {check.limit:9.1e} {check.name}", flush=True)
    except Exception:
        traceback.print_exc()
        failed += 1
    return failed


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what deterministic algorithms ask for
    device, began = choose_device(given.device, None), time.perf_counter()
    print(f"{device_name(device)}, torch {torch.__version__}")
    print(f"{'':6} {'figure':>9} {'limit':>9}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "train.arrow", *wmt_lengths(PAIRS), vocabulary=VOCABULARY)
        corpus, compiled = Corpus(folder / "train.arrow"), device.type == "cuda" and not given.no_compile
        blocks = (
            plainly(corpus),
            gradients(corpus, device, compiled),
            learnt(device, folder, compiled),
            updates(corpus, device),
            searches(device, folder),
            rest(device),
            resumption(corpus, device, compiled),
        )
        failed = sum(map(failures, blocks))
    print(f"{failed} failed, {time.perf_counter() - began:.0f} s")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
