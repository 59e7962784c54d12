"""A term of weight 0 is left out, not multiplied by 0: what it would be made of may be anything."""

from __future__ import annotations

import pytest
import torch

from protofed.core.message import Extra, Message
from protofed.core.method import AnyMethod
from protofed.core.prototypes import Prototypes
from protofed.core.site import Step
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedlsa import FedLSA
from protofed.methods.fedmlp import FedMLP
from protofed.methods.fedproc import FedProc
from protofed.methods.fedproto import FedProto
from protofed.methods.fedtgp import FedTGP
from protofed.methods.fpl import FPL
from protofed.methods.pgct import GUIDE, PGCT
from protofed.testing import toy_sites

LAST = Step(3, 4)


def broken(width: int) -> Prototypes:
    """A row of NaN for each of the five classes."""
    labels = torch.arange(5)
    return Prototypes(torch.full((5, width), torch.nan), labels, torch.ones_like(labels))


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
    ids=lambda method: method.about.label,
)
def test_what_has_no_weight_is_not_computed(method: AnyMethod) -> None:
    _, sites = toy_sites(method)
    site, protos = sites[1], broken(sites[1].net.features)
    extras: dict[str, Extra] = {"semantic": broken(5), "anchors": protos.vectors, GUIDE: protos}
    inbox, batch = Message(protos=protos, extras=extras), next(site.batches(LAST))
    mine = method.loss(site, inbox, method.init_client(site), site.fresh(), batch)
    plain = FedAvg().loss(site, Message(), None, site.fresh(), batch)
    assert torch.equal(mine, plain)
