"""Parameters of every row of Table 3, counted on the recipes' models, beside the figures that the paper prints.

python benchmarks/parameters.py

No vocabulary gives all that the paper prints: base has 65 M there, and 63.05 M with 37,000 subwords. A row is therefore
compared by its difference from base, in which the vocabulary cancels out as long as embeddings are as wide as those of
base. Two rounded figures leave a difference 1 M of play; at a d_model of 1024, 2,000 subwords more or less are another.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nmt.model.transformer import Transformer, parameter_groups
from nmt.recipe import Recipe, load
from paper import TABLE3, Row

PLAY = 1.0  # millions, by which a difference may miss the paper's
PLAY_WIDE = 3.2  # the same where the embeddings are wider than those of base


@dataclass(frozen=True)
class Count:
    """A row's parameters, and how its difference from base compares with the paper's; in millions."""

    row: Row
    parameters: int
    """Not in millions."""
    difference: float
    """From base, ours."""
    printed: int | None
    """From base, the paper's; None where it prints no count."""
    play: float
    """By how much the two may differ."""

    @property
    def apart(self) -> float | None:
        """How far our difference is from the paper's."""
        return None if self.printed is None else abs(self.difference - self.printed)

    @property
    def agrees(self) -> bool | None:
        """Whether that is within the play."""
        return None if self.apart is None else self.apart <= self.play


def parameters(recipe: Recipe) -> int:
    """Of the model that a translator's recipe describes; a shared matrix counts once."""
    vocabulary = recipe.tokenizer.vocab_size
    with torch.device("meta"):  # shapes without memory
        return sum(parameter_groups(Transformer(recipe.model, vocabulary, vocabulary)).values())


def counts() -> list[Count]:
    """A count for every row, base first."""
    base, *_ = TABLE3
    assert base.millions is not None
    recipes = [load(row.recipe) for row in TABLE3]
    sizes = [parameters(recipe) for recipe in recipes]
    return [
        Count(
            row,
            size,
            difference=(size - sizes[0]) / 1e6,
            printed=None if row.millions is None else row.millions - base.millions,
            play=PLAY_WIDE if recipe.model.d_model > recipes[0].model.d_model else PLAY,
        )
        for row, recipe, size in zip(TABLE3, recipes, sizes, strict=True)
    ]


def main() -> None:
    """Prints a table in Markdown."""
    print("| row | change | parameters | less base, M | the paper, M | less base, M | apart, M | within |")
    print("|---|---|---:|---:|---:|---:|---:|---|")
    found = counts()
    for count in found:
        cells = [count.row.name, count.row.change, f"{count.parameters:,}", f"{count.difference:+.2f}"]
        if count.apart is not None:
            verdict = f"{count.play:g}" if count.agrees else f"not {count.play:g}"
            cells += [str(count.row.millions), f"{count.printed:+d}", f"{count.apart:.2f}", verdict]
        print(f"| {' | '.join(cells + [''] * (8 - len(cells)))} |")
    compared = [count for count in found if count.agrees is not None]
    print(f"\n{sum(bool(count.agrees) for count in compared)} of {len(compared)} printed counts agree.")


if __name__ == "__main__":
    main()
