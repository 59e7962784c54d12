from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.serialization import pack_tree, unpack_tree
from protofed.errors import ProtofedError

shapes = st.lists(st.integers(0, 4), max_size=3)
tensors = st.builds(
    lambda shape, dtype, seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(
        dtype
    ),
    shapes,
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]),
    st.integers(0, 99),
)
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
models = st.builds(Model, st.dictionaries(st.text(), tensors), st.dictionaries(st.text(), tensors))
trees = st.recursive(
    st.one_of(tensors, plain, models),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(), st.integers(-9, 9)), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(trees)
@settings(max_examples=200, deadline=None)
def test_pack_and_unpack_give_the_same_tree_bit_for_bit(thing: object) -> None:
    assert tree.equal(thing, unpack_tree(pack_tree(thing)))


def test_a_whole_message_survives_the_wire() -> None:
    protos = Prototypes(torch.randn(3, 4), torch.tensor([0, 2, 2]), torch.tensor([5, 1, 9]))
    model = Model({"head.weight": torch.randn(2, 4)}, {"n": torch.tensor(7)})
    sent = Message(model, protos, {"anchors": torch.randn(2, 4).T}, 15, {"loss": 0.25})
    received = unpack_tree(pack_tree(sent))
    assert tree.equal(sent, received)
    assert received.parts == {"model": 2 * 4 * 4 + 8, "protos": 3 * 4 * 4 + 48, "anchors": 32}


@pytest.mark.parametrize("blob", [b"", b"garbage" * 9, pack_tree({"a": torch.ones(9)})[:-3]])
def test_broken_bytes_are_refused(blob: bytes) -> None:
    with pytest.raises(ProtofedError, match="not a packed tree"):
        unpack_tree(blob)


def test_a_payload_cannot_name_a_class_of_its_own_choosing() -> None:
    blob = pack_tree({"a": 1})
    forged = blob.replace(b'["dict", [["a"', b'["evil", [["a"')
    assert forged != blob
    with pytest.raises(ProtofedError, match="not a packed tree"):
        unpack_tree(forged)


def test_an_unregistered_class_is_refused_before_it_is_sent() -> None:
    class Stray(dict[str, int]):
        pass

    with pytest.raises(TypeError, match=r"@tree\.node"):
        pack_tree(Stray(a=1))


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


def test_model_parts_are_chosen_by_module_path() -> None:
    model = Model(
        {"encoder.bn1.weight": torch.ones(1), "encoder.bn10.weight": torch.ones(1)},
        {"encoder.bn1.running_mean": torch.ones(1)},
    )
    assert list(model.only("encoder.bn1").weights) == ["encoder.bn1.weight"]
    assert list(model.without("encoder.bn1").weights) == ["encoder.bn10.weight"]
    assert model.without("encoder.bn1").buffers == {}
    assert tree.equal(model.only("encoder.bn1") | model.without("encoder.bn1"), model)
    assert model.without("encoder") == Model()
