"""What a difference between two systems' scores means to people."""

from __future__ import annotations

import math

SOURCE = "Kocmi et al., 2024, https://aclanthology.org/2024.acl-long.110"
CURVES = {"bleu": (88.33, 0.9664), "chrf": (93.00, 1.1143), "wmt22-comet-da": (96.22, 2.8359)}
"""By metric, the height in percent and the slope per point of the sigmoid that the paper fits: `agreement`. The figures
are those of its tool, https://github.com/kocmitom/MT-Thresholds, which reproduce its table of thresholds"""
CHANCE = 50.0


def agreement(metric: str, points: float) -> float | None:
    """Return in percent how often people prefer the system that scores higher by some points of 100.

    Of small differences it is what a coin would say. None if the metric has not been studied.
    """
    if metric not in CURVES:
        return None
    height, slope = CURVES[metric]
    return max(CHANCE, height / (1 + math.exp(-slope * abs(points))))
