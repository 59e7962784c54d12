from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.core import tree
from protofed.core.model import Model


@given(
    st.lists(st.tuples(st.floats(-9, 9), st.integers(1, 50)), min_size=1, max_size=6),
)
@settings(deadline=None)
def test_mean_is_the_weighted_mean(pairs: list[tuple[float, int]]) -> None:
    trees = [{"w": torch.tensor([value], dtype=torch.float64)} for value, _ in pairs]
    weights = [weight for _, weight in pairs]
    by_hand = sum(v * w for v, w in pairs) / sum(weights)
    assert tree.mean(trees, weights)["w"].item() == pytest.approx(by_hand, abs=1e-12)


def test_mean_of_two_clients_of_one_and_three_examples() -> None:
    zero, four = {"w": torch.tensor(0.0)}, {"w": torch.tensor(4.0)}
    assert tree.mean([zero, four], [1, 3])["w"].item() == 3.0


def test_mean_keeps_whole_numbers_whole() -> None:
    counts = [{"n": torch.tensor(10)}, {"n": torch.tensor(11)}]
    mean = tree.mean(counts, [1, 3])["n"]
    assert mean.dtype == torch.int64
    assert mean.item() == 11  # 10.75


def test_mean_of_equal_trees_is_each_of_them_bit_for_bit() -> None:
    leaf = {"w": torch.randn(100, generator=torch.Generator().manual_seed(3))}
    assert tree.equal(tree.mean([leaf] * 3, [7, 11, 13]), leaf)


def test_trees_of_different_kinds_are_refused_not_averaged() -> None:
    one = {"w": torch.ones(3)}
    for other, word in (
        ({"w": torch.ones(1)}, "different kinds"),
        ({"w": torch.ones(3, dtype=torch.float64)}, "different kinds"),
        ({"w": torch.ones(3), "v": torch.ones(1)}, "only one of them has v"),
        ({"v": torch.ones(3)}, "only one of them has v, w"),
    ):
        with pytest.raises(ValueError, match=word):
            tree.mean([one, other], [1, 1])


def test_distance_pairs_by_name_whatever_the_order() -> None:
    one = Model({"a": torch.tensor(1.0), "b": torch.tensor(5.0)}, {})
    other = Model({"b": torch.tensor(5.0), "a": torch.tensor(4.0)}, {})
    assert tree.squared_distance(one.weights, other.weights).item() == 9.0


@pytest.mark.parametrize("leaf", [(torch.ones(1),), {1, 2}, object()])
def test_what_cannot_stand_in_a_tree_is_refused(leaf: object) -> None:
    with pytest.raises(TypeError, match="cannot stand in a tree"):
        tree.clone({"a": leaf})


def test_mean_without_weight_is_an_error() -> None:
    with pytest.raises(ValueError, match="positive"):
        tree.mean([{"w": torch.ones(1)}], [0])


def test_clone_shares_no_memory_and_carries_no_gradient() -> None:
    one = Model({"w": torch.ones(2, requires_grad=True)}, {})
    two = tree.clone(one)
    two.weights["w"].add_(1)
    assert one.weights["w"].tolist() == [1, 1]
    assert not two.weights["w"].requires_grad


def test_equal_sees_dtype_shape_names_and_values() -> None:
    base = {"a": torch.ones(2)}
    assert tree.equal(base, {"a": torch.ones(2)})
    assert not tree.equal(base, {"a": torch.ones(2, dtype=torch.float64)})
    assert not tree.equal(base, {"a": torch.ones(3)})
    assert not tree.equal(base, {"b": torch.ones(2)})
    assert not tree.equal(base, {"a": torch.zeros(2)})
    assert not tree.equal({"a": 1}, {"a": 1.0})
    assert not tree.equal({"a": 1}, {"a": None})


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_the_first_tensor_that_is_not_finite_is_named(bad: float) -> None:
    huge = torch.full((4,), torch.finfo(torch.float32).max)  # its sum is infinite, it is not
    fine = {"a": torch.zeros(0), "b": huge, "c": torch.tensor([3]), "d": torch.tensor([True])}
    assert tree.not_finite(fine) == ""
    assert tree.finite(fine)
    wrong = {**fine, "e": [huge, torch.tensor([1.0, bad])], "f": torch.tensor([torch.nan])}
    assert tree.not_finite(wrong) == "e.1"
    assert not tree.finite(wrong)
    assert tree.not_finite({"both": torch.tensor([torch.inf, -torch.inf])}) == "both"
