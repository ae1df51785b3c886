"""Constrained search: trees and nothing but trees, and otherwise the search that there is without; spellings."""

import json
import random
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from queues import Pile
from reference_search import assert_same, random_model, ruled_search

from nmt.parsing.linearization import ANY, LEAF, TreeVocabulary
from nmt.recipe import Decoding
from nmt.search.beam import SearchEngine
from nmt.search.constraints import SubwordIndex, TreeConstraint
from nmt.search.sources import Source
from nmt.search.state import Newest, Removal, joined, mapped
from nmt.text.vocabulary import EOS

CPU = torch.device("cpu")
FIRST_LABEL = LEAF + 1  # where XX is the only leaf


def vocabulary(labels=3, longest_run=2, tags=()):
    names = [f"L{n}" for n in range(labels)]
    content = {"tags": list(tags), "labels": names, "longest_run": longest_run}
    content |= {"punctuation": {}, "ambiguous": []}
    return TreeVocabulary(json.dumps(content).encode(), "a test's")


def allowed(prefix, words, cap, labels, longest_run):
    """The symbols that may follow, by the rules one by one; none where the brackets before do not match."""
    is_opener = range(FIRST_LABEL, FIRST_LABEL + labels).__contains__
    is_closer = range(FIRST_LABEL + labels, FIRST_LABEL + 2 * labels).__contains__
    stack, run = [], 0
    for symbol in prefix:
        run = run + 1 if is_opener(symbol) else 0
        if is_opener(symbol):
            stack.append(symbol)
        elif is_closer(symbol) and (not stack or stack.pop() != symbol - labels):
            return set()
    left = words - prefix.count(LEAF)
    found = set()
    for symbol in range(FIRST_LABEL + 2 * labels):
        if is_opener(symbol):
            fine, places = left > 0 and run < longest_run, left + len(stack) + 1
        elif is_closer(symbol):
            fine, places = run == 0 and stack[-1:] == [symbol - labels], left + len(stack) - 1
        elif symbol == LEAF:
            fine, places = left > 0, left - 1 + len(stack)
        else:
            fine, places = symbol == EOS and left == 0 and not stack, -1
        if fine and len(prefix) + 1 + places + 1 <= cap:
            found.add(symbol)
    return found


def forests(words, size, labels):
    """Every sequence of trees over so many words in at most `size` symbols."""
    if words == 0:
        yield ()
    for inside in range(1, words + 1):
        trees = [(LEAF,)] if inside == 1 else []
        for forest in forests(inside, size - 2, labels) if size > 2 else ():
            trees += [(FIRST_LABEL + n, *forest, FIRST_LABEL + labels + n) for n in range(labels)]
        for tree in trees:
            yield from ((*tree, *rest) for rest in forests(words - inside, size - len(tree), labels))


def all_outputs(words, cap, labels, longest_run):
    """The linear form of every tree that a search may give, without `</s>`."""

    def runs(forest):
        ends = [-1, *(place for place, symbol in enumerate(forest) if not FIRST_LABEL <= symbol < FIRST_LABEL + labels)]
        return [after - before - 1 for before, after in pairwise(ends)]

    found = [forest for forest in forests(words, cap - 1, labels) if len(forest) < cap]
    return {forest for forest in found if max(runs(forest)) <= longest_run}


# --- the rules ----------------------------------------------------------------------------------------------


def test_what_is_allowed_is_what_some_tree_goes_on_with():
    size, following = (3, 9, 2, 3), {}  # words, cap, labels, longest run
    for forest in all_outputs(*size):
        for place, symbol in enumerate((*forest, EOS)):
            following.setdefault(forest[:place], set()).add(symbol)
    for prefix, symbols in following.items():
        assert allowed(prefix, *size) == symbols


@pytest.mark.parametrize(("labels", "longest_run", "beam"), [(1, 1, 1), (3, 2, 4), (30, 9, 21)])
def test_the_mask_is_the_rules_whatever_comes_and_goes(labels, longest_run, beam):
    pick, symbols = random.Random(beam), vocabulary(labels, longest_run)
    constraint = TreeConstraint(symbols, beam, CPU)
    state, positions = None, torch.empty((0, 1), dtype=torch.int64)
    rows = []  # of each the source and its hypotheses, None where there is none
    compared = set()
    for step in range(100):
        if not rows or step % 8 == 0:
            words = [pick.choice((1, 2, 5, 40)) for _ in range(pick.randint(1, 9))]
            new = [Source(0, [], cap=count + pick.choice((1, 2, 5, 60)), kinds=[ANY] * count) for count in words]
            began = constraint.begin(new, int(positions.max()) + 1 if rows else 0)
            state = joined(state, began, constraint.padding) if rows else began
            positions = torch.cat((positions, torch.full((len(new), 1), -1)))
            rows += [(source, [()] + [None] * (beam - 1)) for source in new]
        positions = positions + 1
        log_probs = torch.zeros((len(rows), beam, len(symbols) + 3))
        for part in (slice(0, len(rows) // 2), slice(len(rows) // 2, None)):
            constraint.restrict(mapped(lambda of_state: of_state[part], state), positions[part], log_probs[part])  # noqa: B023
        assert not log_probs[:, :, len(symbols) :].any()
        parents, chosen, done = [], [], []
        for row, (source, hypotheses) in enumerate(rows):
            extensions = []
            for k, prefix in enumerate(hypotheses):
                if prefix is not None:
                    mask = allowed(prefix, source.words, source.cap, labels, longest_run)
                    assert mask
                    assert mask == set(log_probs[row, k, : len(symbols)].eq(0.0).nonzero().flatten().tolist())
                    compared.add(prefix)
                    extensions += [(k, symbol) for symbol in mask]
            alive = [(k, symbol) for k, symbol in extensions if symbol != EOS]
            picked = pick.sample(alive, min(len(alive), pick.randint(1, beam)))
            if not picked:
                done.append(row)
            rows[row] = source, [(*hypotheses[k], symbol) for k, symbol in picked] + [None] * (beam - len(picked))
            picked += [(pick.randrange(beam), pick.randrange(len(symbols))) for _ in range(beam - len(picked))]
            parents.append([k for k, _ in picked])
            chosen.append([symbol for _, symbol in picked])
        end = int(positions.max()) + 1
        state = constraint.advance(state, Newest(torch.tensor(parents), torch.tensor(chosen), positions, end))
        if done:
            removal = Removal(done, len(rows))
            state, positions = removal.remaining(state), removal.keep(positions)
            for hole, row in zip(removal.holes, removal.last, strict=True):
                rows[hole] = rows[row]
            del rows[removal.count :]
    assert len(compared) > 100


# --- in a search --------------------------------------------------------------------------------------------


def search(models, sources, symbols, n_best=1, **decoding):
    engine = SearchEngine(models, Decoding(**decoding), [partial(TreeConstraint, symbols)])
    return [hypotheses for _, hypotheses in sorted(engine.search(Pile(sources), n_best))]


def random_sources(count, most_words=9, extra=14, seed=1):
    pick, found = random.Random(seed), []
    for number in range(count):
        ids = [pick.randrange(4, 40) for _ in range(pick.randint(1, most_words))]
        found.append(
            Source(number, ids, cap=len(ids) + pick.randint(1, extra), kinds=[ANY] * pick.randint(1, len(ids)))
        )
    return found


@pytest.mark.parametrize(("members", "beam", "count"), [(1, 1, 20), (1, 3, 15), (1, 21, 6), (2, 3, 6)])
def test_the_fast_search_finds_what_the_plain_one_finds(members, beam, count):
    symbols, sources = vocabulary(4, 3), random_sources(count)
    models = [random_model(40, len(symbols), favourite=FIRST_LABEL + 1, liking=2.0, seed=n) for n in range(members)]
    rules = partial(allowed, labels=len(symbols.labels), longest_run=symbols.longest_run)
    expected = ruled_search(
        *(models, sources, lambda source, ids: rules(ids, source.words, source.cap)), beam=beam, alpha=0.3, n_best=beam
    )
    assert len({tuple(hypotheses[0].ids) for hypotheses in expected}) > count / 2  # worth comparing
    for batch_tokens in (1, 25, 5000):
        found = search(models, sources, symbols, beam, beam=beam, alpha=0.3, batch_tokens=batch_tokens)
        assert_same(found, expected)


@pytest.mark.parametrize(("words", "cap", "longest_run"), [(1, 2, 2), (1, 4, 1), (2, 6, 2), (2, 7, 1)])
def test_a_wide_beam_finds_every_tree_there_is_and_nothing_else(words, cap, longest_run):
    symbols = vocabulary(2, longest_run)
    expected = all_outputs(words, cap, 2, longest_run)
    assert len(expected) < 60
    model, source = random_model(9, len(symbols)), Source(0, [5, 6], cap, [ANY] * words)
    (found,) = search([model], [source], symbols, 60, beam=60)
    assert {tuple(hypothesis.ids) for hypothesis in found} == expected
    assert len(found) == len(expected)
    assert all(hypothesis.finished for hypothesis in found)


def test_leaves_may_be_tags():
    symbols, sources = vocabulary(4, 3, tags=["NN", "VB", "."]), random_sources(12, most_words=12, extra=40)
    assert (symbols.leaves, symbols.openers, symbols.closers) == (range(4, 7), range(7, 11), range(11, 15))
    seen = set()
    for favourite in (*symbols.leaves, symbols.openers.start):
        model = random_model(40, len(symbols), favourite=favourite, liking=2.0)
        for source, (best,) in zip(sources, search([model], sources, symbols, beam=4, alpha=0.3), strict=True):
            tree = symbols.tree(best.ids, ["word"] * source.words)
            assert tree.leaves() == ["word"] * source.words
            seen.update(tag for _, tag in tree.pos())
    assert seen == {"NN", "VB", "XX"}  # "word" is no punctuation


@pytest.mark.parametrize(("beam", "batch_tokens"), [(1, 60), (4, 25)])
def test_a_leaf_fits_its_word(beam, batch_tokens):
    symbols, pick = vocabulary(4, 3, tags=["NN", "VB", ".", "-NONE-"]), random.Random(beam)
    sources = random_sources(15, most_words=12, extra=40)
    sources = [replace(source, kinds=[pick.randrange(4) for _ in range(source.words)]) for source in sources]
    for favourite in symbols.leaves:
        model = random_model(40, len(symbols), favourite=favourite, liking=4.0)
        options = {"beam": beam, "batch_tokens": batch_tokens}
        for source, (best,) in zip(sources, search([model], sources, symbols, **options), strict=True):
            leaves = [symbol - LEAF for symbol in best.ids if symbol in symbols.leaves]
            assert all(symbols.fitting[kind][leaf] for kind, leaf in zip(source.kinds, leaves, strict=True))


# --- prefixes -----------------------------------------------------------------------------------------------


def test_spellings_lead_to_the_end_by_every_path():
    spelling = SubwordIndex(["", "a", "ab", "b", "bc", "abc", "c", "x"])
    assert spelling.steps("ab") == [{1: 1, 2: 2, 5: 2}, {3: 2, 4: 2}]
    assert spelling.steps("") == []
    assert spelling.steps("ay") is None
    assert spelling.steps("yb") is None
    assert spelling.steps("abx") == [{1: 1, 2: 2}, {3: 2}, {7: 3}]
    assert spelling.steps("abcx") == [{1: 1, 2: 2, 5: 3}, {3: 2, 4: 3}, {6: 3}, {7: 4}]
