"""Bracket F1 by a second opinion: the rules of EVALB again, over strings, on files perturbed at random."""

from __future__ import annotations

import random
import re
from collections import Counter
from copy import deepcopy
from itertools import pairwise

from nmt.parsing.brackets import BracketScores, score_brackets
from nmt.parsing.tree import parse_tree, read_tree_lines

Figures = dict[str, str]


def naive_tree(line: str) -> tuple[list[str], list[tuple[str, int, int]], int]:
    """Words and brackets that are scored, by rewriting the line, and its length."""
    leaf = r"\(([^()\s]+)\s+([^()\s]+)\s*\)"
    length = sum(tag != "-NONE-" for tag, _ in re.findall(leaf, line))
    line = re.sub(r"\((TOP|-NONE-|,|:|``|''|\.)\s+[^()\s]+\s*\)", "", line)
    words = [word for _, word in re.findall(leaf, line)]
    line = re.sub(leaf, "*", line)  # a star is a word
    while (emptied := re.sub(r"\([^()\s*]*\s*\)", "", line)) != line:
        line = emptied
    brackets = []
    for opening, character in enumerate(line):
        if character == "(":
            closing, depth = opening, 0
            while depth or closing == opening:
                depth += {"(": 1, ")": -1}.get(line[closing], 0)
                closing += 1
            label = re.split("[-=]", re.match(r"[^()\s*]*", line[opening + 1 :])[0])[0]
            if label not in ["TOP", ",", ":", "``", "''", "."]:
                start = line[:opening].count("*")
                brackets.append((label, start, start + line[opening:closing].count("*")))
    return words, brackets, length


def naive_figures(gold: list[str], tests: list[str], longest: float) -> Figures:
    """What EVALB prints, of sentences with at most so many words, and F1 with failures missed."""
    sums: Counter[str] = Counter()
    for one, other in zip(gold, tests, strict=True):
        words, brackets, length = naive_tree(one)
        test_words, test_brackets, _ = naive_tree(other)
        if length > longest:
            continue
        sums["sentences"] += 1
        if test_words == [] or test_words != words:
            sums["errors" if test_words else "skips"] += 1
            sums["missed"] += len(brackets)
            continue
        left, match = list(test_brackets), 0
        for label, start, end in brackets:
            for alike in {"ADVP": ["ADVP", "PRT"], "PRT": ["ADVP", "PRT"]}.get(label, [label]):
                if (alike, start, end) in left:
                    left.remove((alike, start, end))
                    match += 1
                    break
        exact = len(brackets) == len(test_brackets) == match
        sums.update(matches=match, gold=len(brackets), test=len(test_brackets), exact=exact)
    valid = sums["sentences"] - sums["errors"] - sums["skips"] or 1
    precision = 100 * sums["matches"] / (sums["test"] or 1)
    recall, whole = (100 * sums["matches"] / (count or 1) for count in (sums["gold"], sums["gold"] + sums["missed"]))
    figures = {
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall) if sums["matches"] else 0,
        "f1_all": 2 * precision * whole / (precision + whole) if sums["matches"] else 0,
        "recall_all": whole,
        "exact": 100 * sums["exact"] / valid,
    }
    figures |= {name: sums[name] for name in ("sentences", "errors", "skips")}
    return {name: f"{value:.2f}" for name, value in figures.items()}


# --- random trees, as nested lists: [label, child, ...], a leaf being [tag, word] -------------------------------------

Nested = list
LABELS = ["S", "NP", "VP", "ADVP", "PRT", "NP-SBJ", "S=2", "ADVP-TMP", "PRT-X", "NP|S", "TOP", "-X", ":", "."]
TAGS = ["NN", "VB", "DT", ",", ":", ".", "``", "''", "-NONE-", "-LRB-", "TOP", "$", "PRT"]
CHANGES = ["relabel", "drop", "move", "move", "adopt", "adopt", "chain", "tag", "mark", "length"]
WORDS = ["rain", "Rain", "falls", "-LRB-", ",", "*T*-1", "a=b", "über"]


def random_leaf(draw: random.Random) -> Nested:
    return [draw.choice(TAGS[:3] if draw.random() < 0.7 else TAGS), draw.choice(WORDS)]


def random_tree(draw: random.Random, budget: int) -> Nested:
    if budget <= 1 or draw.random() < 0.1:
        return random_leaf(draw) if draw.random() < 0.8 else [draw.choice(LABELS), random_leaf(draw)]
    parts = draw.randint(1, min(4, budget))
    return [draw.choice(LABELS), *(random_tree(draw, budget // parts) for _ in range(parts))]


def is_leaf(tree: Nested) -> bool:
    return isinstance(tree[1], str)


def nodes(tree: Nested) -> list[Nested]:
    return [tree] if is_leaf(tree) else [tree, *(below for child in tree[1:] for below in nodes(child))]


def perturb(draw: random.Random, root: Nested) -> None:
    """Changes a tree in place, in one way."""
    everything = nodes(root)
    inner = [node for node in everything if not is_leaf(node)]
    leaves = [node for node in everything if is_leaf(node)]
    node = draw.choice(inner)
    index = draw.randrange(1, len(node))
    child = node[index]
    match draw.choice(CHANGES):
        case "relabel":
            node[0] = draw.choice(LABELS)
        case "drop" if not is_leaf(child):
            node[index : index + 1] = child[1:]
        case "move" if len(node) > 2:  # most often other words follow, an error
            del node[index]
            target = draw.choice([one for one in nodes(root) if not is_leaf(one)])
            target.insert(draw.randrange(1, len(target) + 1), child)
        case "adopt" if neighbours := [
            (left, right)
            for one in inner
            for left, right in pairwise(one[1:])
            if not is_leaf(left) and not is_leaf(right) and len(right) > 2
        ]:  # a boundary moves, which crosses
            left, right = draw.choice(neighbours)
            left.append(right.pop(1))
        case "chain":
            node[index] = [draw.choice(LABELS), [draw.choice(LABELS), child]]
        case "tag":
            draw.choice(leaves)[0] = draw.choice(TAGS)
        case "mark":
            node.insert(index, draw.choice([[",", ","], [".", "!"], ["-NONE-", "*"], ["NP", ["-NONE-", "0"]]]))
        case "length" if draw.random() < 0.3:
            if len(node) > 2 and draw.random() < 0.5:
                del node[index]
            else:
                node.insert(index, random_leaf(draw))


def as_line(tree: Nested) -> str:
    return "(" + " ".join(part if isinstance(part, str) else as_line(part) for part in tree) + ")"


def random_files(seed: int) -> tuple[list[str], list[str]]:
    draw = random.Random(seed)
    gold, tests = [], []
    for _ in range(draw.randint(1, 12)):
        root = [draw.choice(["TOP", "TOP", "ROOT", "S1"]), random_tree(draw, draw.choice([1, 5, 12, 90]))]
        other = deepcopy(root)
        for _ in range(draw.choice([0, 1, 2, 5])):
            perturb(draw, other)
        gold.append(as_line(root))
        tests.append(draw.choice(["", "(())"]) if draw.random() < 0.05 else as_line(other))
    return gold, tests


def assert_both_scorers_agree(seed: int) -> BracketScores:
    gold, tests = random_files(seed)
    scores = score_brackets(map(parse_tree, gold), read_tree_lines(tests))
    for longest, sums in ((float("inf"), scores), (40, scores.short)):
        expected = naive_figures(gold, tests, longest)
        assert {name: f"{sums.figures()[name]:.2f}" for name in expected} == expected, (seed, longest)
    return scores


def test_two_scorers_print_the_same_of_random_files() -> None:
    found = [assert_both_scorers_agree(seed) for seed in range(100)]
    for name in ("errors", "skips", "missed", "exact_matches"):
        assert sum(getattr(scores, name) for scores in found) > 20, name  # the files are not all alike
    assert sum(scores.valid for scores in found) > sum(scores.sentences for scores in found) / 2
    assert sum(scores.sentences - scores.short.sentences for scores in found) > 20
    assert len({f"{scores.total.f1:.2f}" for scores in found}) > 50
