"""What must hold of every plan and every search, whatever is asked of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from queues import Pile
from random_bundle import WORDS, tokenizer_of_words
from reference_search import random_model
from strategies import PAIRS, arrays
from target import Target
from tiny_parser import make_model, train_tokenizer

from nmt.data.epochs import plan_epoch
from nmt.decoding.engine import Request
from nmt.decoding.forced import log_probabilities_of
from nmt.decoding.translator import Translator
from nmt.formats.terms import Term, Terms, missing
from nmt.model.transformer import Transformer
from nmt.parsing.linearization import ANY, TreeVocabulary
from nmt.recipe import Decoding
from nmt.search.beam import SearchEngine
from nmt.search.constraints import MakeConstraint, MinLength, NoRepeat, TreeConstraint
from nmt.search.sources import Hypothesis, Source
from nmt.system.errors import UserError
from nmt.text.vocabulary import BOS, EOS, PAD, UNK
from nmt.training.batches import split_update

# --- the plan of an epoch ----------------------------------------------------------------------------------------


def plan(value: dict[str, Any]) -> bool:
    """Every pair comes as often as its weight says, no budget is exceeded, and all ranks have equally much to do."""
    lengths = source, target = arrays(value["pairs"])
    sizes = [value["cut"] % (len(source) + 1)]
    sizes.append(len(source) - sizes[0])
    mixture = [] if value["weights"] is None else list(zip(sizes, value["weights"], strict=True))
    made = partial(plan_epoch, source, target, value["batch_tokens"], value["seed"], value["epoch"], mixture)
    try:
        found, again = made(), made()
    except UserError as refusal:
        if "weights are so small" not in refusal.message:
            raise
        return False
    assert (found.order.tolist(), found.bounds.tolist()) == (again.order.tolist(), again.bounds.tolist())
    updates = [found.rows(update) for update in range(len(found))]
    _check_counts(Counter(row for rows in updates for row in rows.tolist()), sizes, value["weights"] or (1.0, 1.0))
    for rows in updates:
        assert len(rows)
        for side in lengths:
            assert int(side[rows].sum()) + len(rows) <= value["batch_tokens"]
        _check_ranks(source[rows], target[rows], value["device_tokens"], value["devices"])
    return True


def _check_counts(counts: Counter[int], sizes: Sequence[int], weights: Sequence[float]) -> None:
    first = 0
    for size, weight in zip(sizes, weights, strict=True):
        times = [counts[row] for row in range(first, first + size)]
        assert sum(times) == int(weight) * size + round((weight - int(weight)) * size)
        assert not times or max(times) - min(times) <= 1
        first += size
    assert set(counts) <= set(range(first))


def _check_ranks(source: Any, target: Any, device_tokens: int, devices: int) -> None:
    """Micro-batches, padded and packed."""
    width = np.maximum(source, target) + 1
    padded, packed = (split_update(source, target, device_tokens, devices, packed) for packed in (False, True))
    for parts in (padded, packed):
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(source)))
        assert len(parts) % devices == 0, "ranks have different numbers of micro-batches"
    assert all(len(part) <= 1 or width[part].max() * len(part) <= device_tokens for part in padded)
    for side in (source, target):
        assert all(len(part) <= 1 or int((side[part] + 1).sum()) <= device_tokens for part in packed)


PLANS = st.fixed_dictionaries(
    {
        "pairs": PAIRS,
        "batch_tokens": st.integers(61, 400),
        "device_tokens": st.integers(1, 200),
        "devices": st.sampled_from([1, 2, 3, 8]),
        "seed": st.sampled_from([0, 1, 2**63 - 1]),
        "epoch": st.integers(0, 3),
        "cut": st.integers(0, 200),
        "weights": st.none() | st.tuples(st.sampled_from([1.0, 0.5, 2.25, 1e-3]), st.sampled_from([1.0, 0.3, 3.0])),
    }
)

# --- searches ----------------------------------------------------------------------------------------------------

VOCABULARY = 40


@cache
def _models(count: int, ending: float, shape: int) -> list[Transformer]:
    """Random models of one of two shapes; the larger `ending`, the shorter their outputs."""
    changes: dict[str, Any] = {"layers": 1, "d_model": 8, "d_ff": 12}
    changes |= {"norm": "pre", "output_bias": True} if shape else {}
    return [random_model(VOCABULARY, VOCABULARY, EOS, ending, seed, **changes) for seed in range(3, 3 + count)]


def _check_hypotheses(
    models: Sequence[Transformer], source: Source, found: Sequence[Hypothesis], n_best: int, alpha: float
) -> None:
    """At most as many as asked for, each once, the best first, none beyond its cap, and with the model's scores."""
    assert 1 <= len(found) <= n_best
    assert len({(tuple(one.ids), one.finished) for one in found}) == len(found), "an output comes twice"
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    pairs = []
    for one in found:
        assert not {PAD, UNK, BOS, EOS}.intersection(one.ids)
        assert len(one.ids) + one.finished <= source.cap
        assert one.finished or len(one.ids) == source.cap
        pairs.append((source.ids, [*one.ids, *([EOS] if one.finished else [])]))
    for one, (_, target), forced in zip(found, pairs, log_probabilities_of(models, pairs, 4096), strict=True):
        expected = float(forced.sum()) / ((5 + len(target)) / 6) ** alpha
        assert abs(one.score - expected) <= 1e-4 * max(1.0, abs(expected)), f"{one.score}, but forced {expected}"


def search(value: dict[str, Any]) -> bool:
    """A search under rules of length and repetition, of one model or two, in batches of any size."""
    models = _models(value["models"], value["ending"], value["shape"])
    sources = [Source(number, ids, cap) for number, (ids, cap) in enumerate(value["sources"])]
    beam, n_best, least, n = value["beam"], min(value["n_best"], value["beam"]), value["min_length"], value["no_repeat"]
    rules: list[MakeConstraint] = [partial(MinLength, least), *([partial(NoRepeat, n)] if n else [])]
    decoding = Decoding(beam=beam, alpha=value["alpha"], batch_tokens=value["batch_tokens"])
    found = list(SearchEngine(models, decoding, rules).search(Pile(sources), n_best))
    assert sorted(number for number, _ in found) == list(range(len(sources)))
    for number, hypotheses in found:
        _check_hypotheses(models, sources[number], hypotheses, n_best, value["alpha"])
        for one in hypotheses:
            assert len(one.ids) >= least or not one.finished
            grams = [tuple(one.ids[at : at + n]) for at in range(len(one.ids) - n + 1)] if n else []
            assert len(set(grams)) == len(grams), f"{n} symbols come twice in {one.ids}"
    return True


_IDS = st.lists(st.integers(4, VOCABULARY - 1), min_size=1, max_size=8)
SEARCHES = st.fixed_dictionaries(
    {
        "sources": st.lists(st.tuples(_IDS, st.integers(1, 14)), min_size=1, max_size=5),
        "models": st.sampled_from([1, 1, 2]),
        "shape": st.integers(0, 1),
        "ending": st.sampled_from([1.0, 3.0, 6.0]),
        "beam": st.sampled_from([1, 2, 4, 7]),
        "n_best": st.integers(1, 7),
        "alpha": st.sampled_from([0.0, 0.6, 1.0, 2.5]),
        "min_length": st.sampled_from([0, 0, 1, 5, 20]),
        "no_repeat": st.sampled_from([0, 0, 1, 2, 3]),
        "batch_tokens": st.sampled_from([1, 20, 4096]),
    }
)


@cache
def _parser() -> tuple[TreeVocabulary, Transformer]:
    tokenizer = train_tokenizer()
    assert isinstance(tokenizer.target, TreeVocabulary)
    return tokenizer.target, make_model(tokenizer)


def parse(value: dict[str, Any]) -> bool:
    """Every output of a parser's search is a tree over the words of its sentence."""
    vocabulary, model = _parser()
    given = enumerate(value["sources"])
    sources = [Source(number, ids, words + room, [ANY] * words) for number, (ids, words, room) in given]
    decoding = Decoding(beam=value["beam"], alpha=0.3, batch_tokens=value["batch_tokens"])
    engine = SearchEngine([model], decoding, [partial(TreeConstraint, vocabulary)])
    for number, hypotheses in engine.search(Pile(sources), value["beam"]):
        _check_hypotheses([model], sources[number], hypotheses, value["beam"], 0.3)
        for one in hypotheses:
            tree = vocabulary.tree(one.ids, ["word"] * sources[number].words)
            assert vocabulary.encode(str(tree)) == one.ids
            assert one.finished
    return True


_SENTENCES = st.tuples(st.lists(st.integers(4, 300), min_size=1, max_size=6), st.integers(1, 5), st.integers(1, 12))
PARSES = st.fixed_dictionaries(
    {
        "sources": st.lists(_SENTENCES, min_size=1, max_size=4),
        "beam": st.sampled_from([1, 2, 4]),
        "batch_tokens": st.sampled_from([1, 30, 4096]),
    }
)


@cache
def _translator(beam: int) -> Translator:
    tokenizer = tokenizer_of_words(True)
    size = len(tokenizer.source)
    model = random_model(size, size, EOS, 3.0, layers=1, d_model=8, d_ff=12).float()
    return Translator(model, tokenizer, Decoding(beam=beam, max_extra=40))


def constraints(value: dict[str, Any]) -> bool:
    """Translations begin as they must, and hold the terms of their source and what is to be kept of it."""
    terms = Terms(Term(*pair) for pair in value["terms"])
    requests = [Request(text, prefix, terms) for text, prefix in value["lines"]]
    results = list(_translator(value["beam"]).stream(requests, value["beam"]))
    assert len(results) == len(requests)
    for request, result in zip(requests, results, strict=True):
        assert len({*result.texts}) == len(result.texts), f"{result.texts} holds a text twice"
        blank = not request.text.strip()
        assert blank or all(_begins(text, request.prefix) for text in result.texts), (request, result.texts)
        source = request.text.strip()
        lacking = missing(terms.phrases(source), source, result.texts[0])
        assert lacking == result.missing, "what is missing is not said"
        assert blank or request.prefix or not lacking, f"{lacking} is not in {result.texts}"
    return any(request.prefix or terms.phrases(request.text) for request in requests)


def _begins(output: str, prefix: str) -> bool:
    """Whether an output begins with its prefix; space around a whole output is no part of it."""
    return output.startswith(prefix.lstrip()) or output == prefix.strip()


_WORDS = st.sampled_from([*WORDS[:6], "%s", "{name}", "https://x.org/a", "x@y.org"])
_TEXTS = st.lists(_WORDS, max_size=6).map(" ".join)
CONSTRAINTS = st.fixed_dictionaries(
    {
        "lines": st.lists(
            st.tuples(_TEXTS, st.sampled_from(["", "", "", "TREE", "TREE DO", "été "])), min_size=1, max_size=4
        ),
        "terms": st.lists(
            st.tuples(st.sampled_from(WORDS), st.sampled_from(["HUND", "alter Baum", "日本"])), max_size=3
        ),
        "beam": st.sampled_from([1, 2, 4]),
    }
)

TARGETS = (
    Target(plan, PLANS, ("nmt.data.epochs", "nmt.training.batches", "nmt.training.batches")),
    Target(search, SEARCHES, ("nmt.search.beam", "nmt.search.constraints", "nmt.decoding.forced")),
    Target(parse, PARSES, ("nmt.search.constraints", "nmt.search.beam")),
    Target(
        constraints,
        CONSTRAINTS,
        ("nmt.decoding.placement", "nmt.search.constraints", "nmt.formats.alignment", "nmt.formats.terms"),
    ),
)
