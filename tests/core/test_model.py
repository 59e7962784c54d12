"""A model is taken apart by module path and put together again without a trace."""

from __future__ import annotations

import torch
from torch import nn

from protofed.core import tree
from protofed.core.model import Model, Net, model_from_net
from protofed.testing.method_checks import toy_net


def test_every_cut_of_a_net_is_a_partition_and_the_parts_make_the_whole() -> None:
    whole = model_from_net(toy_net())
    for parts in (("head",), ("encoder",), ("encoder.1", "neck"), ("encoder.5",), ("nothing",)):
        inside, outside = whole.only(*parts), whole.without(*parts)
        for kind in ("weights", "buffers"):
            names = [set(getattr(part, kind)) for part in (inside, outside, whole)]
            assert not names[0] & names[1]
            assert names[0] | names[1] == names[2]
        for joined in (inside | outside, outside | inside):
            assert dict(joined.weights).keys() == whole.weights.keys()
            assert all(joined.weights[n] is leaf for n, leaf in whole.weights.items())
            assert all(joined.buffers[n] is leaf for n, leaf in whole.buffers.items())


def test_where_both_hold_an_entry_the_right_one_wins() -> None:
    left = Model({"a": torch.zeros(1), "b": torch.zeros(1)}, {"n": torch.zeros(1)})
    right = Model({"b": torch.ones(1)}, {"n": torch.ones(1)})
    both = left | right
    assert {n: leaf.item() for n, leaf in both.weights.items()} == {"a": 0, "b": 1}
    assert both.buffers["n"].item() == 1
    assert tree.equal(left | Model(), left)
    assert tree.equal(Model() | left, left)


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


def test_a_model_is_a_copy_of_what_torch_calls_the_state() -> None:
    net = toy_net()
    model = model_from_net(net)
    assert {**model.weights, **model.buffers}.keys() == net.state_dict().keys()
    before = tree.clone(model)
    nn.init.zeros_(net.head.weight)
    assert tree.equal(model, before)


def test_a_net_is_its_three_parts_in_a_row() -> None:
    encoder, head = nn.Linear(4, 3), nn.Linear(3, 2)
    net = Net(encoder, nn.Tanh(), head, width=3)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    out = net(x)
    torch.testing.assert_close(out.z, (x @ encoder.weight.T + encoder.bias).tanh())
    torch.testing.assert_close(out.logits, out.z @ head.weight.T + head.bias)
    assert (net.width, net.features, net.classes) == (3, 3, 2)
