from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from protofed.core.prototypes import Prototypes, class_means, stack_prototypes
from protofed.core.rng import rng

CLASSES = 5  # class 3 has no row below


@pytest.fixture
def table() -> Prototypes:
    draw = rng("a table of prototypes")
    labels = torch.tensor([4, 0, 1, 0, 2, 4, 0])
    counts = torch.tensor([1, 99, 7, 3, 1, 20, 5])
    return Prototypes(torch.randn(len(labels), 6, generator=draw), labels, counts)


def slow_means(table: Prototypes, weigh: bool) -> dict[int, list[float]]:
    """Each class's mean, one number at a time."""
    found: dict[int, list[float]] = {}
    for label in sorted(set(table.labels.tolist())):
        rows = [k for k in range(len(table)) if int(table.labels[k]) == label]
        weights = [int(table.counts[k]) if weigh else 1 for k in rows]
        found[label] = [
            sum(w * float(table.vectors[k, d]) for w, k in zip(weights, rows, strict=True))
            / sum(weights)
            for d in range(table.vectors.shape[1])
        ]
    return found


@pytest.mark.parametrize("weigh", [False, True])
def test_means_are_those_of_a_loop(table: Prototypes, weigh: bool) -> None:
    means, slow = table.weighted_mean() if weigh else table.uniform_mean(), slow_means(table, weigh)
    assert means.labels.tolist() == list(slow)
    assert means.counts.tolist() == ([107, 7, 1, 21] if weigh else [3, 1, 1, 2])
    torch.testing.assert_close(means.vectors, torch.tensor(list(slow.values())))


def test_clients_with_1_and_99_examples_have_one_voice_each() -> None:
    two = Prototypes(
        torch.tensor([[0.0, 0.0], [2.0, 2.0]]), torch.tensor([3, 3]), torch.tensor([1, 99])
    )
    uniform, weighted = two.uniform_mean(), two.weighted_mean()
    assert uniform.vectors.tolist() == [[1.0, 1.0]]
    torch.testing.assert_close(weighted.vectors, torch.tensor([[1.98, 1.98]]))
    assert uniform.labels.tolist() == weighted.labels.tolist() == [3]
    assert weighted.counts.tolist() == [100]
    assert uniform.counts.tolist() == [2]  # who gets the mean does not learn the 100


def test_every_stream_shuffles_all_rows_its_own_way(table: Prototypes) -> None:
    numbered = replace(table, counts=torch.arange(7))
    batches = list(numbered.shuffled_batches(3, (rng("order", number) for number in range(2))))
    assert [len(batch) for batch in batches] == [3, 3, 1] * 2
    one, other = stack_prototypes(batches[:3]), stack_prototypes(batches[3:])
    for whole in (one, other):
        assert sorted(whole.counts.tolist()) == list(range(7))
        assert torch.equal(whole.vectors, table.vectors[whole.counts])
        assert torch.equal(whole.labels, table.labels[whole.counts])
    assert not torch.equal(one.counts, other.counts)


def test_dense_is_the_plain_mean_and_says_who_is_there(table: Prototypes) -> None:
    centres, present = table.class_matrix(CLASSES)
    slow = slow_means(table, weigh=False)
    assert present.tolist() == [label in slow for label in range(CLASSES)]
    rows = [slow.get(label, [0.0] * 6) for label in range(CLASSES)]
    torch.testing.assert_close(centres, torch.tensor(rows))


def slow_scores(table: Prototypes, z: Tensor, classes: int) -> Tensor:
    scores = torch.full((len(z), classes), -math.inf, dtype=z.dtype)
    for i in range(len(z)):
        for k in range(len(table)):
            label = int(table.labels[k])
            pairs = zip(z[i].tolist(), table.vectors[k].tolist(), strict=True)
            squared = sum((a - b) ** 2 for a, b in pairs)
            scores[i, label] = max(float(scores[i, label]), -squared)
    return scores


def test_nearest_is_that_of_a_loop(table: Prototypes) -> None:
    z = torch.randn(30, 6, generator=rng("features"))
    scores = table.nearest_scores(z, CLASSES)
    torch.testing.assert_close(scores, slow_scores(table, z, CLASSES))
    assert scores[:, 3].eq(-torch.inf).all()  # a class without a row is never chosen


def test_a_feature_on_a_row_is_nearest_to_it_far_from_the_origin_too(table: Prototypes) -> None:
    far = Prototypes(table.vectors + 1000, table.labels, table.counts)
    scores = far.nearest_scores(far.vectors, CLASSES)
    assert torch.equal(scores.argmax(1), far.labels)
    assert torch.equal(scores.amax(1), torch.zeros(len(far)))  # no cancellation


def test_margins_of_the_oracle() -> None:
    half = math.sqrt(0.5)
    anchors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [half, half]])
    margins = Prototypes(anchors, torch.arange(3), torch.ones(3, dtype=torch.int64)).class_margins()
    assert margins.tolist() == pytest.approx([0.7653668647] * 3, abs=1e-6)


def test_margins_are_those_of_a_loop(table: Prototypes) -> None:
    slow = [
        min(
            math.dist(table.vectors[k].tolist(), table.vectors[j].tolist())
            for j in range(len(table))
            if table.labels[j] != table.labels[k]
        )
        for k in range(len(table))
    ]
    assert table.class_margins().tolist() == pytest.approx(slow, abs=1e-6)


def test_class_means_are_those_of_a_loop() -> None:
    draw = rng("features and labels")
    features = torch.randn(40, 3, generator=draw)
    labels = torch.randint(1, 4, (40,), generator=draw)
    means = class_means(features, labels)
    assert means.labels.tolist() == [1, 2, 3]
    for label, vector, count in zip(means.labels, means.vectors, means.counts, strict=True):
        mine = [features[i] for i in range(40) if labels[i] == label]
        torch.testing.assert_close(vector, torch.stack(mine).mean(0))
        assert int(count) == len(mine)


def test_stack_keeps_the_order_of_tables_and_rows(table: Prototypes) -> None:
    both = stack_prototypes([table, table.uniform_mean()])
    assert len(both) == len(table) + 4
    assert torch.equal(both.vectors[: len(table)], table.vectors)
    assert both.labels[len(table) :].tolist() == [0, 1, 2, 4]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_every_helper_keeps_the_kind_of_number(table: Prototypes, kind: torch.dtype) -> None:
    own = Prototypes(table.vectors.to(kind), table.labels, table.counts)
    made = [
        own.class_matrix(CLASSES)[0],
        own.uniform_mean().vectors,
        own.weighted_mean().vectors,
        own.nearest_scores(own.vectors, CLASSES),
        own.class_margins(),
    ]
    assert {tensor.dtype for tensor in made} == {kind}
