"""Nets from a user's own file: any module with a stated head, checked before it trains."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from protofed.core.model import ArrayShape, ImageShape, Net, net_from_module
from protofed.errors import ProtofedError
from protofed.nets import build_net

NETS = """
import torch
from torch import nn
from protofed.api import ImageShape, Net, net_from_module


def layers(classes, image):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(image.channels * image.side**2, 6), nn.ReLU(), nn.Linear(6, classes)
    )


def good(classes: int, image: ImageShape) -> Net:
    return net_from_module(layers(classes, image), head="3")


def raw(classes, image):
    return layers(classes, image)


def wrong_classes(classes, image):
    return net_from_module(layers(classes + 1, image), head="3")


def no_rows(classes, image):
    return Net(nn.Identity(), nn.Identity(), nn.Linear(image.side, classes), width=image.side)


class Soft(nn.Module):
    def __init__(self, classes, image):
        super().__init__()
        self.fc = nn.Linear(image.channels * image.side**2, classes)

    def forward(self, x):
        return torch.log_softmax(self.fc(x.flatten(1)), 1)


def after_head(classes, image):
    return net_from_module(Soft(classes, image), head="fc")


def crashes(classes, image):
    return image.depth


def number(classes, image):
    return 3


CONSTANT = 3
"""
IMAGE = ImageShape(3, 8)


@pytest.fixture
def nets(tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "own_nets.py"
    file.write_text(NETS)
    path = list(sys.path)
    yield str(file)
    sys.modules.pop("own_nets", None)
    sys.path[:] = path


def test_a_net_from_a_file_is_seeded_and_has_the_stated_parts(nets: str) -> None:
    state = torch.random.get_rng_state()
    net, same = (build_net(f"{nets}:good", 4, IMAGE, seed=1) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (net.features, net.classes, net.width) == (6, 4, 6)
    for one, two in zip(net.parameters(), same.parameters(), strict=True):
        assert torch.equal(one, two)
    other = build_net(f"{nets}:good", 4, IMAGE, seed=2)
    assert not torch.equal(net.head.weight, other.head.weight)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("raw", r'return net_from_module\(module, head="3"\)'),
        (
            "wrong_classes",
            r"shapes \(2, 6\) and \(2, 5\).*expected \(2, 6\) and \(2, 4\).*4 outputs",
        ),
        ("no_rows", "one row of features for each input"),
        ("number", "returned a int, not a net"),
        ("after_head", "does something after its head 'fc'"),
        ("crashes", r"fails for 4 classes and inputs of shape \[3, 8, 8\]: AttributeError"),
        ("CONSTANT", "is not a function"),
        ("god", "did you mean 'good'"),
    ],
)
def test_what_is_no_net_is_told(nets: str, name: str, text: str) -> None:
    with pytest.raises(ProtofedError, match=f"(?s){text}"):
        build_net(f"{nets}:{name}", 4, IMAGE, seed=0)


def test_a_net_for_images_says_what_rows_need(nets: str) -> None:
    with pytest.raises(ProtofedError, match=r"shape \[7\](?s:.*)use shape.sizes"):
        build_net(f"{nets}:good", 4, ArrayShape((7,)), seed=0)


class Nested(nn.Module):
    """A module whose head is inside a part of it, as in many published nets."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Flatten()
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(12, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.body(x))  # type: ignore[no-any-return]


def test_any_module_becomes_a_net_with_the_same_output() -> None:
    module, x = Nested().eval(), torch.randn(5, 3, 2, 2)
    want = module(x)
    net = net_from_module(module, head="classifier.1")
    assert isinstance(net, Net)
    out = net.eval()(x)
    assert torch.equal(out.logits, want)
    assert torch.equal(out.z, x.flatten(1))
    with pytest.raises(ProtofedError, match="is a Dropout; it must be the linear layer"):
        net_from_module(Nested(), head="classifier.0")
