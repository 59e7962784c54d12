"""Counts of answers are those of a slow loop, parts add up, and AUROC is nearly exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from protofed.core.answer_counts import (
    AnswerCounts,
    add_counts,
    add_tallies,
    empty_tally,
    log_odds,
    reduce_tally,
    tally_answers,
)


def drawn(
    seed: int, images: int, classes: int, skill: float, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (images,), generator=chance)
    scores = torch.randn(images, classes, generator=chance)
    scores[torch.arange(images), y] += skill
    return scale * scores, y


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_those_of_a_loop_over_images(seed: int) -> None:
    classes = 2 + seed
    scores, y = drawn(seed, 90, classes, 1.0, 2.0)
    found = reduce_tally(tally_answers(scores, y))
    matrix = [[0] * classes for _ in range(classes)]
    sure = [[0, 0, 0] for _ in range(10)]
    for row, true in zip(scores, y.tolist(), strict=True):
        answer = int(row.argmax())
        matrix[true][answer] += 1
        chance = math.exp(row[answer]) / sum(math.exp(one) for one in row)
        bin_ = sure[min(9, int(10 * chance))]
        bin_[0] += 1
        bin_[1] += answer == true
        bin_[2] += round(1000 * chance)
    assert found.matrix() == matrix
    assert found.images == tuple(map(sum, matrix))
    assert found.answers == tuple(map(sum, zip(*matrix, strict=True)))
    assert found.hits == tuple(matrix[c][c] for c in range(classes))
    assert found.sure == tuple(number for one in sure for number in one)
    assert found.total == 90


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0, 300.0])  # from nearly equal scores to 0 and 1
@pytest.mark.parametrize(("classes", "skill"), [(2, 0.5), (5, 1.0), (10, 2.0), (40, 0.1)])
def test_auroc_from_histograms_is_within_two_thousandths(
    scale: float, classes: int, skill: float
) -> None:
    scores, y = drawn(classes, 1500, classes, skill, scale)
    found = reduce_tally(tally_answers(scores, y))
    exact = log_odds(scores)
    for c in range(classes):
        images = found.images[c]
        area = found.wins[c] / (2 * images * (1500 - images))
        assert area == pytest.approx(roc_auc_score(y == c, exact[:, c]), abs=0.002)


def test_log_odds_order_images_as_probabilities_do() -> None:
    scores, _ = drawn(1, 200, 6, 1.0, 1.0)
    p = scores.double().softmax(1)
    torch.testing.assert_close(log_odds(scores), (p / (1 - p)).log() + math.log(5))
    assert log_odds(torch.zeros(1, 6)).abs().max() < 1e-12
    far = log_odds(torch.tensor([[200.0, 0.0], [201.0, 0.0]]))  # both are 1 as probabilities
    assert far[0, 0] < far[1, 0]
    assert far[0, 1] > far[1, 1]


def test_the_tallies_of_parts_make_the_counts_of_the_whole() -> None:
    scores, y = drawn(3, 70, 4, 1.0, 1.0)
    parts = [tally_answers(scores[i : i + 20], y[i : i + 20]) for i in range(0, 70, 20)]
    whole = reduce_tally(tally_answers(scores, y))
    assert reduce_tally(add_tallies([empty_tally(4), *parts])) == whole
    nothing = reduce_tally(empty_tally(4))
    assert nothing.total == 0
    assert nothing.cells == ()


def test_several_models_on_one_test_set_add_up() -> None:
    parts = [drawn(seed, 50, 3, 1.0, 1.0) for seed in range(3)]
    counted = [reduce_tally(tally_answers(scores, parts[0][1])) for scores, _ in parts]
    found = add_counts(counted)
    assert found.models == 3
    assert found.images == tuple(3 * n for n in counted[0].images)
    assert np.array_equal(found.matrix(), sum(np.array(one.matrix()) for one in counted))
    assert found.wins == tuple(map(sum, zip(*(one.wins for one in counted), strict=True)))
    trimmed = [counted[0], counted[1]._replace(wins=())]
    assert add_counts(trimmed).wins == ()  # a sum of only some of them would be wrong


def test_dead_and_identical_features_are_counted() -> None:
    scores, y = drawn(0, 40, 3, 1.0, 1.0)
    features = torch.rand(40, 6)
    features[:, 4:] = 0.5
    assert reduce_tally(tally_answers(scores, y, features)).features == (6, 2, 40, 40)
    features[1:30] = features[0]
    assert reduce_tally(tally_answers(scores, y, features)).features == (6, 2, 40, 11)
    assert reduce_tally(tally_answers(scores, y, torch.full((40, 6), torch.nan))).features[1] == 6
    assert reduce_tally(tally_answers(scores, y)).features == ()


def test_scores_that_are_no_numbers_are_counted_all_the_same() -> None:
    lost = torch.tensor([[-torch.inf, 1.0], [torch.nan, torch.nan], [torch.inf, 0.0]])
    found = reduce_tally(tally_answers(lost, torch.tensor([1, 0, 0])))
    assert found.total == 3
    assert sum(found.answers) == 3
    alone = reduce_tally(tally_answers(torch.ones(4, 1), torch.zeros(4, dtype=torch.long)))
    assert alone == AnswerCounts((4,), (4,), (4,), 1, (0,), (*[0] * 27, 4, 4, 4000), (0, 4))
