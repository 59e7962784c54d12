"""EfficientNet-Lite0 beside the package that published its weights in torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from efficientnet_lite_pytorch import EfficientNet as PublishedNet

from protofed.core.model import ImageShape, Net
from protofed.nets import build_net
from protofed.nets.efficientnet import own_name
from protofed.nets.pretrained import IMAGENET, load_pretrained, weight_file, weights_sha256

NAME = "efficientnet-lite0"


def published_weights() -> dict[str, Any]:
    found: dict[str, Any] = torch.load(weight_file(NAME, IMAGENET), weights_only=True)
    return found


def ours(side: int) -> Net:
    net = build_net(NAME, 10, ImageShape(3, side), seed=0)
    load_pretrained(net, NAME, IMAGENET, weights_sha256(NAME, IMAGENET))
    return net.eval()


@pytest.mark.parametrize("side", [224, 64, 45, 32])
def test_features_and_scores_are_those_of_the_published_net(side: int) -> None:
    weights, net = published_weights(), ours(side)
    theirs = PublishedNet.from_name(NAME, image_size=side).eval()
    theirs.load_state_dict(weights)
    x = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(side))
    with torch.no_grad():
        z, scores = net(x).z, theirs(x)
        maps = theirs.extract_features(x)
    assert torch.allclose(z, maps.mean((2, 3)), atol=1e-4)
    assert torch.allclose(
        F.linear(z, weights["_fc.weight"], weights["_fc.bias"]), scores, atol=1e-4
    )
    assert scores.std() > 0.1  # they are no constants


def test_training_moves_the_statistics_as_the_published_net_does() -> None:
    net = ours(64).train()
    theirs = PublishedNet.from_name(NAME, image_size=64, drop_connect_rate=0).train()
    theirs.load_state_dict(published_weights())
    x = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        net(x)
        theirs.extract_features(x)
    own = {f"encoder.{own_name(name)}": one for name, one in theirs.named_buffers()}
    mine = dict(net.named_buffers())
    assert mine.keys() == own.keys()
    for name, one in mine.items():
        assert torch.allclose(one.float(), own[name].float(), rtol=1e-3, atol=1e-4), name


def test_every_entry_of_the_encoder_comes_from_the_file() -> None:
    fresh, net = build_net(NAME, 10, ImageShape(3, 32), seed=0), ours(32)
    found = {f"encoder.{own_name(name)}": one for name, one in published_weights().items()}
    for name, one in net.state_dict().items():
        wanted = fresh.state_dict() if name.startswith("head.") else found
        assert torch.equal(one, wanted[name]), name


def test_grey_images_are_repeated_in_the_three_channels() -> None:
    grey = build_net(NAME, 10, ImageShape(1, 32), seed=0).eval()
    x = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    assert torch.equal(grey(x).z, grey(x.repeat(1, 3, 1, 1)).z)


def test_the_net_with_a_neck_has_the_same_encoder_and_a_neck_of_its_own() -> None:
    name = f"{NAME}-neck"
    net, fresh = (build_net(name, 10, ImageShape(3, 32), seed=0) for _ in range(2))
    load_pretrained(net, name, IMAGENET, weights_sha256(name, IMAGENET))
    encoder = ours(32).encoder.state_dict()
    assert all(torch.equal(one, encoder[n]) for n, one in net.encoder.state_dict().items())
    assert torch.equal(net.neck.state_dict()["0.weight"], fresh.neck.state_dict()["0.weight"])
