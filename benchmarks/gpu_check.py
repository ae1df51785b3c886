"""Whether a GPU computes what a CPU does: searches, samples, losses, gradients, updates, a resumed run.

    python benchmarks/gpu_check.py [--all] [--no-compile] [--only searches|updates] [--device cpu]

Small models with random weights, and one that has learnt some sentences. The reference is a CPU in fp64 without
compilation, one micro-batch an update and one sentence a search. Each line has a figure and its limit, and a figure
above its limit fails; the exit status is 1 if any does. Figures of gradients are the largest relative error of a
parameter, in the 2-norm. A search's error is how far its scores are from what the reference gives to the same outputs;
its loss is how much better the reference's own outputs are than other ones, which is more than rounding only where the
search is wrong. What has never run on a GPU comes first, then the default path, bf16 with packing and compilation;
`--all` adds every other way. The resumed run uses PyTorch's deterministic algorithms. It must be equal to the bit if
two equal runs are; if they differ, it may differ four times as much.
"""

from __future__ import annotations

import copy
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contest import Pile, random_vocabulary
from nmt.compute.choice import factors_rounded, for_training, set_precision
from nmt.data.corpus import Corpus
from nmt.data.epochs import Update
from nmt.decoding.forced import attention_of, log_probabilities_of
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding, Model, Training
from nmt.search import on_gpu
from nmt.search.beam import SearchEngine
from nmt.search.constraints import MakeConstraint, MinLength, NoRepeat, PrefixConstraint, TreeConstraint
from nmt.search.plain import Plain
from nmt.search.sources import Prefix, Source
from nmt.system.device import choose_device
from nmt.text.vocabulary import EOS
from nmt.training.batches import make_batch
from nmt.training.distributed import Requests
from nmt.training.loss import smoothed_cross_entropy
from nmt.training.run_state import RunState
from results import Results, parser
from search_agreement import BATCHES, VOCABULARY, found_by, random_model, random_parser, random_sources, score
from synthetic import wmt_lengths, write_corpus
from updates import Ours, plan_of

CPU = torch.device("cpu")
POST, PRE = "post-norm", "pre-norm, learned positions, untied"
SMALL: dict[str, Any] = {"layers": 2, "d_model": 128, "d_ff": 256, "heads": 2, "dropout": 0.0}
OTHER: dict[str, Any] = {"norm": "pre", "positions": "learned", "tie_embeddings": "none"}
MODELS = {POST: Model(**SMALL), PRE: Model(**SMALL, **OTHER, activation="gelu")}
PAIRS, TOKENS, UPDATES = 1000, 1500, 4
SENTENCES = 30
LIMITS = {"fp32": 1e-4, "bf16": 0.1}  # of errors of gradients
PACKED = 0.02  # largest difference of gradients in bf16 between packed and padded micro-batches
LEARNT = 40  # sentences that a model learns by heart
SEARCHED = {"fp32": 1e-4, "bf16": 0.2}  # of errors and losses of scores, in nats; a CPU in bf16 has 0.08


Check = tuple[str, float, float]
"""A name, a figure and its limit, which it must not be above."""

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

    def __init__(self, config: Model, corpus: Corpus, device: torch.device, precision: Any, **settings: Any) -> None:
        fixed = {"batch_tokens": 2 * TOKENS, "device_tokens": 2 * TOKENS, "packing": False, "compile": False}
        given = Training(precision=precision, warmup=10, **fixed | settings)
        torch.manual_seed(1)
        self.model = Transformer(config, VOCABULARY, VOCABULARY).to(device).train()
        set_precision(self.model, precision, device)
        self._corpus, self._trainer = corpus, Ours(self.model, corpus, given, device).trainer
        self.optimizer = self._trainer.optimizer

    def compute(self, number: int) -> tuple[float, Weights]:
        """The loss of an update, and its gradients, which the parameters keep."""
        self.optimizer.clear()
        rows = plan_of(self._corpus, TOKENS)(0).rows(number)
        with factors_rounded("fp32"):
            losses, _ = self._trainer.gradients(Update(0, number, rows, self._corpus.lengths(rows)), Requests())
        assert losses is not None, "memory ran out"
        return float(sum(loss for loss, _, _ in losses)), copied(self.model, lambda parameter: parameter.grad)


def copied(model: torch.nn.Module, of: Callable[[nn.Parameter], Tensor | None]) -> Weights:
    """Copy something of each parameter that has it."""
    found = {name: of(parameter) for name, parameter in model.named_parameters()}
    return {name: value.detach().double().cpu().clone() for name, value in found.items() if value is not None}


def ways(device: torch.device, compiled: bool, every: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """How gradients are computed: a name, the precision and settings; the last two of a precision are compared."""
    for precision in ("fp32", "bf16") if every else ("bf16",):
        if every:
            yield f"{precision}, micro-batches", precision, {"device_tokens": 300}
            yield f"{precision}, eager", precision, {}
        if every and precision == "bf16":
            yield f"{precision}, packed, eager", precision, {"packing": True}
        yield f"{precision}, padded", precision, {"compile": compiled}
        if device.type == "cpu" or precision == "bf16":  # on a GPU, the kernel of packed attention is for bf16
            yield f"{precision}, packed", precision, {"compile": compiled, "packing": True}


def gradients(title: str, corpus: Corpus, device: torch.device, compiled: bool, every: bool) -> Iterator[Check]:
    """Losses and gradients of several updates."""
    reference = Updates(MODELS[title], corpus, CPU, "fp64")
    exact = [reference.compute(number) for number in range(UPDATES)]
    padded: list[tuple[float, Weights]] = []
    for way, precision, settings in ways(device, compiled, every):
        updates, limit = Updates(MODELS[title], corpus, device, precision, **settings), LIMITS[precision]
        found = [updates.compute(number) for number in range(UPDATES)]
        losses = [abs(ours / right - 1) for (ours, _), (right, _) in zip(found, exact, strict=True)]
        errors = [error(ours, right) for (_, ours), (_, right) in zip(found, exact, strict=True)]
        yield (f"{title}, {way}: loss", largest(losses), limit / 10)
        yield (f"{title}, {way}: gradients", largest(errors), limit)
        if way.endswith("packed"):
            apart = [distance(one, other) for (_, one), (_, other) in zip(found, padded, strict=True)]
            yield (f"{title}, {precision}: packed against padded", largest(apart), min(PACKED, limit))
        padded = found


@lru_cache
def taught(device: torch.device, folder: Path) -> tuple[Transformer, Corpus]:
    """A model in fp32 that knows its sentences by heart."""
    write_corpus(folder / "learnt.arrow", *wmt_lengths(LEARNT), vocabulary=VOCABULARY)
    corpus = Corpus(folder / "learnt.arrow")
    settings = Training(
        batch_tokens=TOKENS, device_tokens=TOKENS, warmup=100, learning_rate_scale=0.5, precision="fp32", compile=False
    )
    torch.manual_seed(1)
    model = Transformer(MODELS["post-norm"], VOCABULARY, VOCABULARY).to(device).train()
    ours = Ours(model, corpus, settings, device)
    ours.train(ours.updates(plan_of(corpus, TOKENS), 120))
    return model, corpus


def learnt(device: torch.device, folder: Path, compiled: bool) -> Iterator[Check]:
    """The loss's gradient in bf16 for a model that knows its sentences: what is large in it cancels."""
    (model, corpus), smoothing = taught(device, folder), 0.1
    exact = copy.deepcopy(model).double().cpu()
    batch = make_batch(corpus, np.arange(len(corpus)))
    assert batch.real is not None, "the batch is packed"
    with torch.no_grad():
        states = exact.states(batch.source, batch.target_in).flatten(0, 1).index_select(0, batch.real)
    targets, weight = batch.target_out.flatten().index_select(0, batch.real), exact.output_embedding.weight.detach()
    known = float((states @ weight.t()).softmax(-1).gather(-1, targets[:, None]).mean())
    yield ("a model that has learnt its sentences: mean probability of other symbols", 1 - known, 0.4)
    operations = for_training(device, torch.bfloat16)
    softmax = torch.compile(operations.softmax) if compiled else None

    def own(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return smoothed_cross_entropy(states, weight, targets, smoothing, operations, softmax)[0]

    def plain(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(states, weight), targets, label_smoothing=smoothing, reduction="sum")

    def gradients(loss: Callable[[Tensor, Tensor, Tensor], Tensor], dtype: torch.dtype, where: torch.device) -> Weights:
        factors = [factor.detach().to(where, dtype).requires_grad_() for factor in (states, weight)]
        with torch.autocast(where.type, torch.bfloat16, enabled=dtype == torch.float32):
            total = loss(factors[0], factors[1], targets.to(where))
        of_states, of_weight = (each.double().cpu() for each in torch.autograd.grad(total, factors))
        return {"states": of_states, "their sum": of_states.sum(0), "weights": of_weight}

    exact_gradients = gradients(plain, torch.float64, CPU)
    found, autocast = gradients(own, torch.float32, device), gradients(plain, torch.float32, device)
    for name in found:
        one, other = (error({name: of[name]}, {name: exact_gradients[name]}) for of in (found, autocast))
        yield (f"its loss in bf16, error of the gradient of {name}, over that of plain autocast", one / other, 1.15)


def updates(corpus: Corpus, device: torch.device) -> Iterator[Check]:
    """Adam on the device beside Adam in fp64 with the same gradients, and an update that is skipped."""
    config, go = MODELS["post-norm"], torch.tensor(False)
    ours, exact = Updates(config, corpus, device, "fp32"), Updates(config, corpus, CPU, "fp64")
    for step in range(1, UPDATES + 1):
        _, found = ours.compute(step)
        for name, parameter in exact.model.named_parameters():
            parameter.grad = found[name]
        rate = exact.optimizer.rate(step)
        ours.optimizer.update(rate, go.to(device))
        exact.optimizer.update(rate, go)
    weights, right = (copied(each.model, lambda parameter: parameter) for each in (ours, exact))
    yield (f"weights after {UPDATES} updates", error(weights, right), 1e-5)
    moments = {name: moment.clone() for name, moment in ours.optimizer.state().items()}
    ours.compute(0)
    next(ours.model.parameters()).grad.fill_(math.nan)  # type: ignore[union-attr]
    ours.optimizer.update(ours.optimizer.rate(UPDATES + 1), torch.tensor(True, device=device))
    change = error(copied(ours.model, lambda parameter: parameter), weights)
    moved = largest(float((moments[name] - after).abs().max()) for name, after in ours.optimizer.state().items())
    yield ("a skipped update changes weights and moments", largest((change, moved)), 0.0)


def resumption(corpus: Corpus, device: torch.device, compiled: bool) -> Iterator[Check]:
    """A run by default settings that is stopped and resumed, beside two that are not.

    Everything after it is deterministic, too.
    """
    torch.use_deterministic_algorithms(True)  # warn_only would leave attention as it is
    settings = Training(batch_tokens=TOKENS, device_tokens=TOKENS, warmup=10, log_updates=10, compile=compiled)
    config = MODELS["post-norm"].model_copy(update={"dropout": 0.1})

    def begin(state: RunState | None = None) -> tuple[Transformer, Ours]:
        torch.manual_seed(1)
        model = Transformer(config, VOCABULARY, VOCABULARY).to(device)
        return model, Ours(model, corpus, settings, device, state)

    def finish(run: tuple[Transformer, Ours], updates: int) -> Weights:
        run[1].train(run[1].updates(plan_of(corpus, TOKENS), updates))
        return copied(run[0], lambda parameter: parameter)

    whole, again = finish(begin(), 2 * UPDATES), finish(begin(), 2 * UPDATES)
    model, first = begin()
    finish((model, first), UPDATES)
    resumed, second = begin(replace(first.trainer.state))
    resumed.load_state_dict(model.state_dict())
    second.trainer.optimizer.load(first.trainer.optimizer.state(), UPDATES)
    apart = error(again, whole)
    yield ("two equal runs differ", apart, math.inf)
    yield ("a resumed run differs from an unbroken one", error(finish((resumed, second), UPDATES), whole), 4 * apart)


# --- search ------------------------------------------------------------------------------------------------------


def searches(device: torch.device, folder: Path) -> Iterator[Check]:
    """Beam searches, with several rules for outputs, in batches of several sizes.

    Random models, which have many near ties, in fp32; in bf16 a model that knows what is right.
    """
    prefixes = partial(PrefixConstraint, random_vocabulary(VOCABULARY))
    rules: list[MakeConstraint] = [partial(MinLength, 8), prefixes, partial(NoRepeat, 2)]
    sources, model = random_sources(SENTENCES), random_model()
    yield from compare("search", model, sources, Decoding(), [], device)
    yield from compare("greedy search", model, sources, Decoding(beam=1), [], device)
    yield from compare("search under rules", model, prefixed(sources), Decoding(), rules, device)
    parser, trees, sentences = random_parser()
    for_trees: list[MakeConstraint] = [partial(TreeConstraint, trees)]
    yield from compare("search for trees", parser.double(), sentences[:3], Decoding(), for_trees, device)
    known, corpus = taught(device, folder)
    given = zip(*corpus.sources(np.arange(SENTENCES)), strict=True)
    sources = [Source(number, ids[:length].tolist(), 2 * length + 50) for number, (ids, length) in enumerate(given)]
    model = copy.deepcopy(known).double().cpu().eval()
    yield from compare("search", model, sources, Decoding(precision="bf16"), [], device)
    yield from compare("greedy search", model, sources, Decoding(beam=1, precision="bf16"), [], device)
    yield from compare("search under rules", model, prefixed(sources), Decoding(precision="bf16"), rules, device)


def prefixed(sources: list[Source]) -> list[Source]:
    """Give every third source a prefix that its output must begin with."""
    prefix = Prefix([200, 201], "", [])
    return [replace(source, prefix=prefix if source.number % 3 == 0 else None) for source in sources]


def compare(
    title: str,
    model: Transformer,
    sources: list[Source],
    decoding: Decoding,
    constraints: list[MakeConstraint],
    device: torch.device,
) -> Iterator[Check]:
    """Searches on the device beside one in fp64 on the CPU; the model is in fp64."""
    single, precision = copy.deepcopy(model).float().to(device), "fp32" if decoding.precision == "auto" else "bf16"
    alone = decoding.model_copy(update={"batch_tokens": 1, "precision": "auto"})
    exact = found_by(model, sources, alone, constraints)
    for rows in BATCHES:
        tokens = 1 if rows == 1 else rows * (max(len(source.ids) for source in sources) + 1)
        settings = decoding.model_copy(update={"batch_tokens": tokens, "precision": precision})
        found = found_by(single, sources, settings, constraints)
        scores = [score(model, *pair, decoding.alpha) for pair in zip(sources, found, strict=True)]
        wrong = largest(abs(each.score - right) for each, right in zip(found, scores, strict=True))
        name = f"{title}, {precision}, {rows} sentences at a time"
        yield (f"{name}: error", wrong, SEARCHED[precision])
        if precision == "fp32" or not constraints:  # rules lead to near ties, between which bf16 decides
            loss = largest(best.score - right for best, right in zip(exact, scores, strict=True))
            yield (f"{name}: loss", loss, SEARCHED[precision])


def steps(device: torch.device) -> Iterator[Check]:
    """Searches with an ensemble, step by step in every way; an engine's second one has the graphs of the first."""
    model, sources = random_model(), random_sources(SENTENCES)
    other = copy.deepcopy(model)
    nn.utils.vector_to_parameters(1.05 * nn.utils.parameters_to_vector(other.parameters()), other.parameters())
    settings = Decoding(precision="fp32", batch_tokens=150, beam=3)

    def found(models: list[Transformer], how: str, times: int = 1) -> list[list[int]]:
        engine = SearchEngine(models, settings, [partial(MinLength, 4), partial(NoRepeat, 3)])
        if how == "plainly":
            engine.way = partial(Plain, engine.models)
        for _ in range(times):
            outputs = {number: best.ids for number, (best,) in engine.search(Pile(sources), 1)}
        return [outputs[source.number] for source in sources]

    exact, single = (
        found([model, other], "on a CPU"),
        [copy.deepcopy(each).float().to(device) for each in (model, other)],
    )
    for how, widest in (("graphs", 4096), ("singly", 4096), ("graphs", 0), ("singly", 0), ("plainly", 0)):
        with patch.multiple(on_gpu, by_graphs=Mock(return_value=how == "graphs"), WIDEST=widest):
            differ = sum(a != b for a, b in zip(found(single, how, 2), exact, strict=True))
        yield (f"an ensemble's outputs that differ, steps {how}, kernel to {widest}", differ / len(exact), 0.1)


def rest(device: torch.device) -> Iterator[Check]:
    """What else a model is asked for: samples, probabilities of given outputs, alignments."""
    model, sources = random_model(), random_sources(SENTENCES)
    single = copy.deepcopy(model).float().to(device)

    def samples(of: Transformer) -> list[list[int]]:
        engine = SearchEngine([of], Decoding(precision="fp32"))
        drawn = dict(engine.search(Pile(sources), 4, sample=True))
        return [each.ids for source in sources for each in drawn[source.number]]

    exact = samples(model)
    differ = sum(a != b for a, b in zip(samples(single), exact, strict=True))
    yield ("samples that differ, of all", differ / len(exact), 0.02)
    pairs = [(source.ids, ids or [EOS]) for source, ids in zip(sources, exact[::4], strict=True)]
    given, right = ([each.cpu() for each in log_probabilities_of([of], pairs, 500)] for of in (single, model))
    wrong = largest(float((a - b).abs().max()) for a, b in zip(given, right, strict=True))
    yield ("probabilities of given outputs: error in nats", wrong, 1e-4)
    given_to, right_to = (
        np.concatenate([weights.argmax(-1) for weights in attention_of([of], pairs)]) for of in (single, model)
    )
    yield ("alignments that differ, of all", float((given_to != right_to).mean()), 0.01)


# --- the table -----------------------------------------------------------------------------------------------------


def check(results: Results, title: str, block: Iterator[Check]) -> int:
    """Add a part of the table; return how many of its checks failed. An error ends the part, and counts as one."""
    passed: list[bool] = []

    def run() -> None:
        for name, figure, limit in block:
            passed.append(figure <= limit)  # false where the figure is not a number
            results.add(name, figure=figure, limit=limit, passed=passed[-1])

    ended = results.attempt(title, run)
    results.add(f"checks: {title}", ok=sum(passed), of=len(passed))
    return len(passed) - sum(passed) + (not ended)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--all", action="store_true")
    options.add_argument("--no-compile", action="store_true")
    options.add_argument("--only", choices=["searches", "updates"])
    given = options.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what deterministic algorithms ask for
    device, results = choose_device(given.device, None), Results(given.out)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "train.arrow", *wmt_lengths(PAIRS), vocabulary=VOCABULARY)
        corpus, compiled = Corpus(folder / "train.arrow"), device.type == "cuda" and not given.no_compile
        decoding = {"searches": searches(device, folder), "steps": steps(device), "samples": rest(device)}
        training = {
            "the default path": gradients(POST, corpus, device, compiled, given.all),
            "trained weights": learnt(device, folder, compiled),
            "updates": updates(corpus, device),
            "another model": gradients(PRE, corpus, device, compiled, given.all),
            "resuming": resumption(corpus, device, compiled),
        }
        blocks = {"searches": decoding, "updates": training}.get(given.only, decoding | training)
        failed = sum(check(results, title, block) for title, block in blocks.items())
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
