"""An untrained parser: a tokenizer trained on a few trees, and bundles with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reference_search import random_model

from nmt.checkpoint.writing import save_bundle
from nmt.model.transformer import Transformer
from nmt.parsing.linearization import TreeVocabulary
from nmt.parsing.tree import parse_tree
from nmt.recipe import Recipe, TokenizerSettings
from nmt.text.tokenizer import Tokenizer

TREES = [
    "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (NN house))) (. .)))",
    "(TOP (S (NP (DT the) (NN cat)) (, ,) (NP (PRP she)) (VP (VBZ likes) (NP (NN fish))) (. .)))",
    "(TOP (FRAG (`` ``) (NP (DT a) (NN tree) (PRN (-LRB- -LRB-) (ADJP (JJ old)) (-RRB- -RRB-))) ('' '') (. !)))",
    "(TOP (SBARQ (WHNP (WP what)) (SQ (VBZ is) (NP (NN it))) (. ?)))",
    "(TOP (UH yes))",
]
MODEL = {"layers": 1, "d_model": 16, "d_ff": 32, "heads": 2}
DECODING = {"beam": 3, "max_extra": 24, "max_source": 48}


def train_tokenizer() -> Tokenizer:
    """A tokenizer of words and bytes, with the symbols of these trees."""
    pairs = [(" ".join(parse_tree(tree).leaves()), tree) for tree in TREES * 30]
    return Tokenizer.train(pairs, TokenizerSettings(vocab_size=320, shared=False), target=TreeVocabulary.train)


def make_model(tokenizer: Tokenizer, **changes: Any) -> Transformer:
    """A random model whose outputs are not trees unless a constraint makes them so."""
    return random_model(len(tokenizer.source), len(tokenizer.target), **{**MODEL, **changes})


def write_parser(path: Path, tokenizer: Tokenizer, seed: int = 3) -> None:
    """Write a bundle with a random model."""
    recipe = Recipe.model_validate(
        {
            "name": "tiny",
            "data": {"name": "tiny", "source": "en", "target": "tree", "train": [{"trees": "train.mrg"}]},
            "tokenizer": {"vocab_size": 320},
            "model": {**MODEL, "tie_embeddings": "none"},
            "decoding": DECODING,
        }
    )
    weights = {name: weight.float() for name, weight in make_model(tokenizer, seed=seed).named_parameters()}
    save_bundle(path, weights, recipe, tokenizer, {"run": "tiny", "step": 1, "data": "none"})
