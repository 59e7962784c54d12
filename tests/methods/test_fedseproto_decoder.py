from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.core.message import Message
from protofed.core.model import ImageShape, Model
from protofed.core.rng import rng
from protofed.core.site import RoundContext, Site, TrainingBatch
from protofed.core.training import SGD, fit_model
from protofed.errors import ProtofedError
from protofed.federation.build import build_federation
from protofed.methods.fedseproto import FedSeProto, Posterior, SplitOutput, Work, build_decoder
from protofed.spec.spec_parser import parse_experiment
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


@pytest.mark.parametrize("posterior", ["unit", "gaussian"])
def test_a_decoder_learns_more_than_the_mean_image_at_the_default_weight(
    posterior: Posterior,
) -> None:
    method = FedSeProto(alpha=0, lam=0, posterior=posterior)
    site = toy_sites(method)[1][3]
    batches: list[Work] = [("split", b) for b in site.batches(RoundContext(0, 1), epochs=150)]

    def loss(model: Model, work: Work) -> Tensor:
        return method.phase_loss(site, Message(), model, *work)

    model = fit_model(site.initial_model(), batches, loss, SGD(lr=0.05)).trained
    x, _ = next(site.eval_batches(site.train))
    more = site.forward_eval(model, x, "split", rng("draw")).more
    assert isinstance(more, SplitOutput)
    assert F.mse_loss(more.rebuilt, x) < F.mse_loss(x.mean(0).expand_as(x), x)


def digit_site(method: FedSeProto) -> Site:
    """A client with 128 coloured digits of 32 pixels, and the default training."""
    shares = {"kind": "shares", "clients": 4, "samples": 128}
    spec = {"data": "digits-mini", "method": method, "partition": shares}
    return build_federation(parse_experiment(spec)).sites[2]


@pytest.mark.parametrize("posterior", ["unit", "gaussian"])
@pytest.mark.parametrize("beta", [FedSeProto().beta, 1.0])
def test_sums_over_dimensions_and_pixels_do_not_diverge(posterior: Posterior, beta: float) -> None:
    method = FedSeProto(mi_reduction="sum", beta=beta, posterior=posterior)
    site = digit_site(method)
    received, state = method.publish(method.init_server(site)), method.init_client(site)
    losses: list[float] = []
    for number in range(3):
        reply, state = method.train(site, received, state, RoundContext(number, 3))
        received = Message(model=reply.model)  # without prototypes: the same loss in all rounds
        losses.append(reply.metrics["loss"])
    assert losses[0] > losses[1]
    assert losses[0] > losses[2]
    assert all(leaf.isfinite().all() for leaf in (reply.model | state).weights.values())


def test_a_decoder_trained_on_the_sum_over_pixels_diverges_in_the_same_place() -> None:
    method = FedSeProto()
    site = digit_site(method)

    def loss(model: Model, batch: TrainingBatch) -> Tensor:
        out = site.forward_train(model, batch.x, "split", None, method.beta)
        assert isinstance(out.more, SplitOutput)
        error = (out.more.rebuilt - batch.x).square().flatten(1).sum(1).mean() / 2
        bound = method.beta * out.more.bound.sum(1).mean()
        return F.cross_entropy(out.logits, batch.y) + bound + error

    with pytest.raises(ProtofedError, match="NaN or infinite"):
        fit_model(
            site.initial_model(), site.batches(RoundContext(0, 1), epochs=15), loss, site.training
        )
