from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.core.message import Message
from protofed.core.model import ImageShape, Model
from protofed.core.rng import rng
from protofed.core.site import RoundContext
from protofed.core.training import SGD, fit_model
from protofed.methods.fedseproto import FedSeProto, SplitOutput, Work, build_decoder
from protofed.testing import toy_sites


@pytest.mark.parametrize("side", [4, 8, 9, 28, 32, 64, 225])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_decoder_makes_images_and_ends_linearly(side: int, channels: int) -> None:
    net = build_decoder(24, ImageShape(channels, side))
    images = net(torch.randn(4, 24, generator=rng("features")))
    assert images.shape == (4, channels, side, side)
    learned = [
        bool(list(layer.parameters())) for layer in net if not isinstance(layer, nn.ZeroPad2d)
    ]
    assert learned[-1] or not any(isinstance(layer, nn.ReLU) for layer in net)
    assert sum(leaf.numel() for leaf in net.parameters()) < 500_000


def test_a_decoder_learns_more_than_the_mean_image_at_the_default_weight() -> None:
    site = toy_sites(FedSeProto())[1][3]
    method = FedSeProto(alpha=0, lam=0)
    batches: list[Work] = [("split", b) for b in site.batches(RoundContext(0, 1), epochs=150)]

    def loss(model: Model, work: Work) -> Tensor:
        return method.phase_loss(site, Message(), model, *work)

    model = fit_model(site.initial_model(), batches, loss, SGD(lr=0.05)).trained
    x, _ = next(site.eval_batches(site.train))
    more = site.forward_eval(model, x, "split", rng("draw")).more
    assert isinstance(more, SplitOutput)
    assert F.mse_loss(more.rebuilt, x) < F.mse_loss(x.mean(0).expand_as(x), x)
