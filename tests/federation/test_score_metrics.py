"""Every metric equals scikit-learn's on random answers; intervals cover as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from protofed.core.answer_counts import AnswerCounts, add_counts, reduce_tally, tally_answers
from protofed.federation.score_metrics import (
    METRICS,
    Estimate,
    MetricName,
    class_auroc,
    class_scores,
    estimate_metric,
    format_estimate,
    largest_share,
    metric_value,
    wilson_interval,
)


class Answers:
    """Random answers of some skill on images of which some classes are rare or absent."""

    def __init__(self, seed: int, images: int = 200):
        chance = torch.Generator().manual_seed(seed)
        self.classes = 2 + seed % 7
        frequent = torch.rand(self.classes, generator=chance) ** 3
        if seed % 4 == 3 and self.classes > 2:
            frequent[0] = 0.0
        self.y = torch.multinomial(frequent, images, replacement=True, generator=chance)
        scores = torch.randn(images, self.classes, generator=chance)
        scores[torch.arange(images), self.y] += float(torch.rand(1, generator=chance)) * 3
        self.scores = 2 * scores
        self.p = self.scores.double().softmax(1).numpy()
        self.answers = self.scores.argmax(1).numpy()
        self.counts = reduce_tally(tally_answers(self.scores, self.y))


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("seed", range(25))
def test_every_metric_equals_that_of_scikit_learn(seed: int) -> None:
    drawn = Answers(seed)
    y, said, counts = drawn.y.numpy(), drawn.answers, drawn.counts
    expected: dict[MetricName, float] = {
        "accuracy": sk.accuracy_score(y, said),
        "balanced_accuracy": sk.balanced_accuracy_score(y, said),
        "macro_f1": sk.f1_score(y, said, average="macro", zero_division=0),
        "kappa": sk.cohen_kappa_score(y, said),
    }
    for name, value in expected.items():
        assert metric_value(name, counts) == pytest.approx(100 * value, abs=1e-9), name
    matrix = sk.confusion_matrix(y, said, labels=range(drawn.classes))
    assert counts.matrix() == matrix.tolist()
    assert largest_share(counts) == pytest.approx(100 * matrix.sum(1).max() / 200)


@pytest.mark.parametrize("seed", range(25))
def test_auroc_is_within_two_thousandths_of_scikit_learn(seed: int) -> None:
    drawn = Answers(seed)
    exact = []
    for c, found in enumerate(class_auroc(drawn.counts)):
        own = drawn.y.numpy() == c
        if own.any() and not own.all():
            exact.append(sk.roc_auc_score(own, drawn.p[:, c]))
            assert found.value == pytest.approx(100 * exact[-1], abs=0.2)
        else:
            assert found.value is None
    mean = pytest.approx(100 * np.mean(exact), abs=0.2) if exact else None  # one class alone
    assert metric_value("auroc", drawn.counts) == mean


@pytest.mark.parametrize("seed", range(10))
def test_the_calibration_error_equals_that_of_scikit_learns_curve(seed: int) -> None:
    drawn = Answers(seed)
    sure, right = drawn.p.max(1), drawn.answers == drawn.y.numpy()
    true, told = calibration_curve(right, sure, n_bins=10)
    weights = np.histogram(sure, np.linspace(0, 1, 11))[0]
    expected = 100 * (weights[weights > 0] * np.abs(true - told)).sum() / len(sure)
    # confidences are added up in thousandths
    assert metric_value("calibration_error", drawn.counts) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("seed", range(10))
def test_scores_of_a_class_equal_those_of_scikit_learn(seed: int) -> None:
    drawn = Answers(seed)
    for c, found in enumerate(class_scores(drawn.counts)):
        own, said = drawn.y.numpy() == c, drawn.answers == c
        pairs = [(own, said), (~own, ~said)]
        recalls = [sk.recall_score(*pair, zero_division=np.nan) for pair in pairs]
        precisions = [sk.precision_score(*pair, zero_division=np.nan) for pair in pairs]
        values = [one.value for one in found[:4]]
        for value, expected in zip(values, [*recalls, *precisions], strict=True):
            if value is None:
                assert np.isnan(expected)
            else:
                assert value == pytest.approx(100 * expected)


def test_metrics_that_are_not_defined_have_no_value() -> None:
    nothing = AnswerCounts((0, 0), (0, 0), (0, 0))
    assert [metric_value(name, nothing) for name in METRICS] == [None] * len(METRICS)
    assert largest_share(nothing) is None
    single = AnswerCounts((5, 0), (5, 0), (5, 0), wins=(0, 0))
    assert metric_value("kappa", single) is None  # no other answer is possible by chance
    assert metric_value("auroc", single) is None
    assert metric_value("auroc", AnswerCounts((5, 5), (5, 0), (10, 0))) is None  # not kept
    assert format_estimate(Estimate(None)) == "-"
    assert format_estimate(Estimate(50.0)) == "50.00"
    assert format_estimate(Estimate(50.0, 40.0, 60.0)) == "50.00 [40.00, 60.00]"


def test_wilsons_interval_is_that_of_scipy() -> None:
    from scipy.stats import binomtest

    for hits, total in ((0, 7), (7, 7), (3, 11), (812, 1000)):
        exact = binomtest(hits, total).proportion_ci(method="wilson")
        found = wilson_interval(hits, total)
        assert found.low == pytest.approx(100 * exact.low)
        assert found.high == pytest.approx(100 * exact.high)
        assert found.n == total


def test_few_images_without_a_mistake_do_not_prove_that_there_is_none() -> None:
    y = torch.arange(12) % 3
    right = reduce_tally(tally_answers(torch.eye(3)[y], y))
    for name in METRICS[:-1]:  # all but the calibration error
        found = estimate_metric(name, right)
        assert found.value == found.high == 100
        assert found.low is not None
        assert found.low < 80
    for one in class_scores(right):
        assert all(part.value == 100 and (part.low or 0) < 80 for part in one)


@pytest.mark.parametrize("name", METRICS)
def test_intervals_cover_the_value_of_many_images_about_as_often_as_they_say(
    name: MetricName,
) -> None:
    chance = np.random.default_rng(0)
    scores = torch.from_numpy(chance.normal(size=(40_000, 3)))
    y = torch.from_numpy(chance.integers(3, size=40_000))
    scores[torch.arange(len(y)), y] += 1.0
    scores *= 2  # too sure: an error of nearly nothing is always overstated by few images
    truth = metric_value(name, reduce_tally(tally_answers(scores, y)))
    covered = 0
    for first in range(0, 40_000, 400):
        part = slice(first, first + 400)
        found = estimate_metric(name, reduce_tally(tally_answers(scores[part], y[part])))
        assert found.low is not None
        assert found.high is not None
        assert found.value is not None
        assert found.low <= found.value <= found.high
        assert found.n == 400
        covered += found.low <= (truth or 0) <= found.high
    assert covered >= 86


def test_several_models_on_one_test_set_do_not_make_more_images_of_it() -> None:
    drawn = Answers(2)
    twice = add_counts([drawn.counts, drawn.counts])
    for name in METRICS:
        assert estimate_metric(name, twice) == pytest.approx(estimate_metric(name, drawn.counts))
    for found, alone in zip(class_scores(twice), class_scores(drawn.counts), strict=True):
        for one, other in zip(found, alone, strict=True):
            assert one == pytest.approx(other)
