"""Calibration of a translator's confidence on the outputs of a development set."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nmt.formats.confidence import GOOD, SIGNS, Confidence

FEWEST = 20  # lines to calibrate on
STEPS = 1000  # of which each takes microseconds
PENALTIES = (1.0, *[10.0] * (len(SIGNS) - 1), 0.0)
"""L2 penalty of the weight of each sign, and of the bias: few bad lines tell what the probability means, but no more"""


def calibrated(signs: Sequence[Sequence[float]], scores: Sequence[float]) -> Confidence:
    """Fit the confidence to the signs (lines, signs) and chrF (lines,) of outputs.

    It is a logistic regression by Newton steps with an upper bound of the Hessian, which need no step size (Böhning
    1992), to targets that a few lines do not make certain (Platt 1999).
    """
    values = np.array(signs)  # (lines, signs)
    good = np.array(scores) >= GOOD
    means = values.mean(0)
    scales = values.std(0)
    scales[scales < 1e-9] = 1.0
    inputs = np.column_stack([(values - means) / scales, np.ones(len(values))])
    count = int(good.sum())
    others = len(good) - count
    targets = np.where(good, (count + 1) / (count + 2), 1 / (others + 2))
    penalties = np.array(PENALTIES)
    weights = np.zeros(len(penalties))  # and the bias
    weights[-1] = math.log((count + 1) / (others + 1))
    inverse = np.linalg.inv(inputs.T @ inputs / 4 + np.diag(penalties))
    for _ in range(STEPS):
        errors = 1 / (1 + np.exp(-inputs @ weights)) - targets
        weights -= inverse @ (inputs.T @ errors + penalties * weights)
    *of_signs, bias = weights.tolist()
    return Confidence(means=tuple(means.tolist()), scales=tuple(scales.tolist()), weights=tuple(of_signs), bias=bias)
