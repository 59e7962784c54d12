"""A term of weight 0 is left out, not multiplied by 0: what it would be made of may be anything."""

from __future__ import annotations

import math

import pytest
import torch

from protofed.core import tree
from protofed.core.message import Extra, Message
from protofed.core.method import AnyMethod
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.site import RoundContext
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedlsa import FedLSA
from protofed.methods.fedme import FedMe
from protofed.methods.fedmlp import FedMLP
from protofed.methods.fedproc import FedProc
from protofed.methods.fedproto import FedProto
from protofed.methods.fedsr import FedSR
from protofed.methods.fedtgp import FedTGP
from protofed.methods.fpl import FPL
from protofed.methods.moon import MOON
from protofed.methods.pgct import PGCT, PROTOTYPES
from protofed.testing import toy_sites

LAST = RoundContext(3, 4)


def broken(width: int) -> Prototypes:
    """A row of NaN for each of the five classes."""
    labels = torch.arange(5)
    return Prototypes(torch.full((5, width), torch.nan), labels, torch.ones_like(labels))


def ruined(model: Model) -> Model:
    """The same model with NaN for every weight."""
    return Model(tree.map(lambda w: torch.full_like(w, torch.nan), model.weights), model.buffers)


@pytest.mark.parametrize(
    "method",
    [
        FPL(cpcl=0, upcr=0),
        FedProto(lam=0),
        FedTGP(lam=0),
        FedMLP(lam1=0, lam2=0, lam3=0),
        FedProc(style="rethink"),  # whose contrast has no weight in the last round
        FedLSA(lam=0),
        PGCT(alpha=0, lam=0),
    ],
    ids=lambda method: method.info.label,
)
def test_what_has_no_weight_is_not_computed(method: AnyMethod) -> None:
    _, sites = toy_sites(method)
    site, protos = sites[1], broken(sites[1].net.features)
    extras: dict[str, Extra] = {
        "semantic": broken(5),
        "anchors": protos.vectors,
        PROTOTYPES: protos,
    }
    received, batch = Message(protos=protos, extras=extras), next(site.batches(LAST))
    mine = method.loss(site, received, method.init_client(site), site.initial_model(), batch)
    plain = FedAvg().loss(site, Message(), None, site.initial_model(), batch)
    assert torch.equal(mine, plain)


def test_moon_without_weight_looks_at_no_other_model() -> None:
    site = toy_sites(MOON())[1][1]
    batch, other = next(site.batches(LAST)), ruined(site.initial_model())
    mine = MOON(mu=0).loss(site, Message(other), other, site.initial_model(), batch)
    plain = FedAvg().loss(site, Message(), None, site.initial_model(), batch)
    assert torch.equal(mine, plain)


def test_fedme_without_weight_learns_nothing_from_the_other_model() -> None:
    method, site = FedMe(mutual=0), toy_sites(FedMe())[1][1]
    own, step = site.initial_model(), RoundContext(0, 1, 1)
    silent = Model(tree.map(torch.zeros_like, own.weights), own.buffers)
    beside_silent, beside_equal = (
        method.train(site, Message(other), own, step)[0].model for other in (silent, own)
    )
    assert tree.equal(beside_silent, beside_equal)


def test_fedsr_without_weights_asks_neither_for_the_length_nor_for_references() -> None:
    """Features so long that their squares overflow, and a head that says nothing of them."""
    method = FedSR(alpha_l2r=0, alpha_cmi=0, l2_squared=True)
    site = toy_sites(method)[1][1]
    model = site.initial_model() | ruined(site.initial_model().only("references"))
    model.weights["neck.bias"][: site.net.features] = 1e30
    for part in ("weight", "bias"):
        model.weights[f"head.{part}"].zero_()
    batch = next(site.batches(LAST))
    value = method.loss(site, Message(), method.init_client(site), model, batch)
    assert value.item() == pytest.approx(math.log(5))
