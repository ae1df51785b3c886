"""Intervals and p-values are those of sacreBLEU, but that equal differences count."""

import random
from unittest.mock import Mock

import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.metrics.base import Metric as SacrebleuMetric
from sacrebleu.metrics.base import Score as SacrebleuScore
from sacrebleu.significance import PairedTest

from nmt.metrics.metric import Metric
from nmt.metrics.significance import Comparison, Estimate, Sampled, interval
from nmt.metrics.string_metrics import StringMetric

REFERENCE = ["Ein Hund läuft schnell über die grüne Wiese.", "Zwei Frauen sitzen auf einer Bank im Park."] * 20
BETTER = [line.replace("grüne ", "") if number % 4 == 0 else line for number, line in enumerate(REFERENCE)]
WORSE = [
    line.replace("läuft", "geht").replace(" im ", " am ") if number % 3 == 0 else line
    for number, line in enumerate(REFERENCE)
]


def compared(metric, system, baseline):
    return Sampled(metric, system).compared(Sampled(metric, baseline))


@pytest.mark.parametrize(
    ("metric", "system", "baseline", "p_value", "p_bootstrap"),
    [
        ("bleu", (92.4269, 92.3966, 3.8633), (88.5564, 88.4851, 5.4051), 0.2082, 0.0919),
        ("chrf", (95.6710, 95.6616, 2.1778), (94.7703, 94.7527, 2.3948), 0.5484, 0.1998),
        # Of 16 lines, 10 need an edit less and 6 one more: by the binomial distribution, 0.4545; 0.2101 if more than 4
        ("ter", (3.1250, 3.1325, 1.5625), (4.3750, 4.3981, 2.0312), 0.4462, 0.1289),
    ],
)
def test_figures_of_a_comparison_are_those_of_sacrebleus_command(metric, system, baseline, p_value, p_bootstrap):
    # sacrebleu REFERENCE -i WORSE BETTER -m bleu chrf ter -w 4, with --paired-ar (whose TER has 0.2082) and --paired-bs
    found = compared(StringMetric(metric, [REFERENCE]), BETTER, WORSE)
    assert found == Comparison(
        Estimate(*(pytest.approx(figure, abs=1e-4) for figure in system)),
        Estimate(*(pytest.approx(figure, abs=1e-4) for figure in baseline)),
        pytest.approx(p_value, abs=1e-4),
        pytest.approx(p_bootstrap, abs=1e-4),
    )


class Means(SacrebleuMetric):
    """The mean of numbers, one of each line: how sacreBLEU's test sees a metric such as COMET."""

    def _extract_corpus_statistics(self, hypotheses, references):
        return [[float(line), 1.0] for line in hypotheses]

    def _compute_score_from_stats(self, stats):
        return SacrebleuScore("mean", stats[0] / stats[1])

    def _aggregate_and_compute(self, stats):
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    get_signature = Mock()
    _preprocess_segment = _extract_reference_info = _compute_segment_statistics = None


class OurMeans(Metric):
    label = signature = "mean"

    def counts(self, hypotheses):
        return [[float(line), 1.0] for line in hypotheses]

    def score(self, sums):
        return sums[0] / sums[1]


def test_the_test_is_sacrebleus_for_means_of_sentence_scores_too():
    dice = random.Random(1)
    baseline = [str(dice.gauss(0.8, 0.1)) for _ in range(77)]  # no multiple of the trials that are drawn at once
    system = [str(float(line) + dice.gauss(0.01, 0.05)) for line in baseline]
    p_values = []
    for kind in ("ar", "bs"):
        _, figures = PairedTest([("one", baseline), ("two", system)], {"": Means()}, None, kind)()
        p_values.append(figures["mean"][1].p_value)
    found = compared(OurMeans(), system, baseline)
    assert (found.p_value, found.p_bootstrap) == tuple(p_values)
    assert 0.001 < found.p_value < 0.9


def test_a_clear_difference_is_significant_and_none_is_not():
    joined = [line.replace(" ", "-", 2) for line in REFERENCE]
    bleu = StringMetric("bleu", [REFERENCE])
    clear, none = compared(bleu, BETTER, joined), compared(bleu, BETTER, BETTER)
    assert max(clear.p_value, clear.p_bootstrap) < 0.01
    assert (none.p_value, none.p_bootstrap, none.difference) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(("changed", "p_value"), [(1, 1.0), (2, 1 / 2), (4, 1 / 8), (8, 1 / 128)])
@pytest.mark.parametrize("metric", [StringMetric("chrf", [REFERENCE]), OurMeans()])
def test_few_lines_that_differ_are_as_likely_by_chance_as_all_on_one_side_are(metric, changed, p_value):
    baseline = ["0.7"] * 40
    system = ["0.1"] * changed + baseline[changed:]
    if metric.label != "mean":
        baseline = REFERENCE
        system = [line.replace("er", "") for line in REFERENCE[:changed]] + REFERENCE[changed:]
    assert compared(metric, system, baseline).p_value == pytest.approx(p_value, abs=0.01)


def bounds(name, hypotheses, *references):
    metric = StringMetric(name, references)
    return interval(metric.counts(hypotheses), metric.score)


def test_the_interval_of_bleu_is_sacrebleus():
    dice = random.Random(1)
    lines = [" ".join(dice.choices("abcdef", k=12)) for _ in range(300)]
    noisy = [" ".join(dice.choices([word, "x"], [5, 1])[0] for word in line.split()) for line in lines]
    others = [line.replace("a", "x") for line in lines]  # which allows for some of the noise
    expected = BLEU().corpus_score(noisy, [lines, others], n_bootstrap=1000)
    low, high = bounds("bleu", noisy, lines, others)
    assert (low + high) / 2 == pytest.approx(expected._mean, abs=0.5)
    assert (high - low) / 2 == pytest.approx(expected._ci, abs=0.5)
    assert low > bounds("bleu", noisy, lines)[1]
    low, high = bounds("chrf", noisy, lines)
    assert low < StringMetric("chrf", [lines]).corpus_score(noisy) < high
