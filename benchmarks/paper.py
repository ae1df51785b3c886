"""Table 3 of *Attention Is All You Need* as the paper prints it, by the recipes of recipes/table3."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "recipes" / "table3"


@dataclass(frozen=True)
class Row:
    """What the paper reports of one model, on newstest2013."""

    name: str
    """File name of the recipe, without its ending."""
    change: str
    """What differs from base."""
    perplexity: float
    """Per word-piece."""
    bleu: float
    """Tokenised, cased."""
    millions: int | None = None
    """Parameters, in millions, of the rows for which they are printed."""

    @property
    def recipe(self) -> Path:
        """Where its recipe stands."""
        return RECIPES / f"{self.name}.yaml"


TABLE3 = (
    Row("base", "", 4.92, 25.8, 65),
    Row("a_heads1", "h = 1, d_k = d_v = 512", 5.29, 24.9),
    Row("a_heads4", "h = 4, d_k = d_v = 128", 5.00, 25.5),
    Row("a_heads16", "h = 16, d_k = d_v = 32", 4.91, 25.8),
    Row("a_heads32", "h = 32, d_k = d_v = 16", 5.01, 25.4),
    Row("b_dk16", "d_k = 16", 5.16, 25.1, 58),
    Row("b_dk32", "d_k = 32", 5.01, 25.4, 60),
    Row("c_layers2", "N = 2", 6.11, 23.7, 36),
    Row("c_layers4", "N = 4", 5.19, 25.3, 50),
    Row("c_layers8", "N = 8", 4.88, 25.5, 80),
    Row("c_dmodel256", "d_model = 256, d_k = d_v = 32", 5.75, 24.5, 28),
    Row("c_dmodel1024", "d_model = 1024, d_k = d_v = 128", 4.66, 26.0, 168),
    Row("c_dff1024", "d_ff = 1024", 5.12, 25.4, 53),
    Row("c_dff4096", "d_ff = 4096", 4.75, 26.2, 90),
    Row("d_dropout0.0", "P_drop = 0.0", 5.77, 24.6),
    Row("d_dropout0.2", "P_drop = 0.2", 4.95, 25.5),
    Row("d_smoothing0.0", "ε_ls = 0.0", 4.67, 25.3),
    Row("d_smoothing0.2", "ε_ls = 0.2", 5.47, 25.7),
    Row("e_learned", "learned positions instead of sinusoids", 4.92, 25.7),
    Row("big", "N = 6, d_model = 1024, d_ff = 4096, h = 16, P_drop = 0.3, 300 K updates", 4.33, 26.4, 213),
)
