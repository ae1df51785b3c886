"""How long the lines were that a translator was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

MOST = 2**31  # subwords or sentences of a line


@dataclass(frozen=True)
class TrainedLengths:
    """Quantiles over the training pairs. Lengths are in subwords, without `</s>`."""

    language: str
    """Code of the source's language."""
    sentences: int
    """99% of the sources have at most so many sentences."""
    usual_sentences: int
    """Half of the sources have at most so many sentences."""
    source: int
    """99% of the sources are at most so long."""
    longest_source: int
    """99.9% of the sources are at most so long."""
    least_ratio: float
    """The ratio (target + 1) / (source + 1) is at least this for 99.9% of the pairs."""
    greatest_ratio: float
    """That ratio is at most this for 99.9% of the pairs."""

    @classmethod
    def of(
        cls, language: str, sources: Sequence[int], targets: Sequence[int], sentences: Sequence[int]
    ) -> TrainedLengths:
        """Quantiles of the lengths of pairs, at least one, and of how many sentences their sources have."""
        ratios = sorted((target + 1) / (source + 1) for source, target in zip(sources, targets, strict=True))
        return cls(
            language=language,
            sentences=_quantile(sorted(sentences), 0.99),
            usual_sentences=_quantile(sorted(sentences), 0.5),
            source=_quantile(sorted(sources), 0.99),
            longest_source=_quantile(sorted(sources), 0.999),
            least_ratio=_quantile(ratios, 0.001),
            greatest_ratio=_quantile(ratios, 0.999),
        )

    @classmethod
    def read(cls, values: object) -> TrainedLengths:
        """The values that `as_dict` gave; raises ValueError if they are anything else."""
        names = cls.__dataclass_fields__
        if not isinstance(values, dict) or values.keys() != names.keys():
            raise ValueError(f"must hold {', '.join(names)}")
        for name, value in values.items():
            kinds = {"language": (str,), "least_ratio": (int, float), "greatest_ratio": (int, float)}.get(name, (int,))
            if type(value) not in kinds or not (isinstance(value, str) or 0 <= value <= MOST):
                raise ValueError(f"{name} must be of the kind {kinds[0].__name__}, and not negative or huge")
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """The values by name, as they stand in bundle.json."""
        return asdict(self)

    def is_unusual(self, source: int, target: int) -> bool:
        """Whether a target of this length is shorter or longer than targets of such sources are."""
        return not self.least_ratio <= (target + 1) / (source + 1) <= self.greatest_ratio


def _quantile(ordered: Sequence[Any], part: float) -> Any:
    """The least value that at least this part of all values do not exceed."""
    return ordered[max(0, ceil(part * len(ordered) - 1e-9) - 1)]  # less what rounding may have added
