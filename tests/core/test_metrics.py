"""Correct predictions are counted image by image, and parts of a test set add up."""

from __future__ import annotations

from collections import Counter

import pytest

from protofed.core.method import AnyMethod
from protofed.core.metrics import (
    MAIN,
    CorrectCount,
    CountedPart,
    count_correct,
    count_part,
    merge_counts,
)
from protofed.core.site import ArrayDataset
from protofed.methods.fedgh import FedGH
from protofed.methods.fedproto import FedProto
from protofed.methods.moon import MOON
from protofed.testing.method_checks import toy_data
from tests.methods.playing import play


@pytest.mark.parametrize("method", [MOON(), FedProto(), FedGH(server_epochs=2)])
def test_counts_are_those_of_a_loop_over_images(method: AnyMethod) -> None:
    played, test = play(method, 1), toy_data(1, 23)
    site, state = played.sites[0], played.states[0]
    product = method.publish(played.server)
    slow: Counter[str] = Counter()
    for row in range(len(test)):
        x = site.pixels.normalize(test.images[row : row + 1])
        predictions = {
            MAIN: method.predict(site, product, state, x),
            **method.auxiliary_predictions(site, product, state, x),
        }
        for name, scores in predictions.items():
            slow[name] += int(scores[0].argmax()) == int(test.labels[row])
    found = count_correct(method, site, product, state, test)
    assert {name: count.correct for name, count in found.items()} == slow
    assert {count.total for count in found.values()} == {23}
    answers = found[MAIN].answers
    assert answers is not None
    assert sum(answers.hits) == slow[MAIN]
    assert answers.images == tuple(test.labels.bincount(minlength=site.classes).tolist())
    assert answers.features[0] == site.net.features
    assert answers.features[2] == 23
    assert {count.answers for name, count in found.items() if name} <= {None}


def test_the_counts_of_parts_make_the_count_of_the_whole() -> None:
    played, test = play(FedProto(), 1), toy_data(2, 20)
    site, state = played.sites[0], played.states[0]
    product = FedProto().publish(played.server)

    def count(part: ArrayDataset) -> CountedPart:
        return count_part(FedProto(), site, product, state, part)

    parts = [count(test.slice(first, first + 7)) for first in range(0, 20, 7)]
    assert merge_counts(parts) == count_correct(FedProto(), site, product, state, test)


def test_accuracy_is_in_per_cent_and_unknown_without_images() -> None:
    assert CorrectCount(3, 8).accuracy == 37.5
    assert CorrectCount(0, 0).accuracy is None
