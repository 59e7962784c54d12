from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
import torch.nn.functional as F

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.prototypes import Prototypes
from protofed.core.site import RoundContext
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedproc import FedProc, add_absent_classes
from protofed.ops.losses import prototype_contrastive
from protofed.testing import check_method, toy_sites
from tests.methods.playing import after, is_constant

STYLES: tuple[Literal["official", "rethink"], ...] = ("official", "rethink")


def table(vectors: list[list[float]], labels: list[int], counts: list[int]) -> Prototypes:
    return Prototypes(torch.tensor(vectors), torch.tensor(labels), torch.tensor(counts))


def loss_at(method: AnyMethod, context: RoundContext, protos: Prototypes | None) -> torch.Tensor:
    """The loss on a fixed batch of client 1 with the initial model."""
    site, sites = toy_sites(method)
    batch = next(sites[1].batches(RoundContext(0, 1)))._replace(context=context)
    received = Message(model=site.initial_model(), protos=protos)
    return method.loss(sites[1], received, None, site.initial_model(), batch)


def centres(labels: list[int]) -> Prototypes:
    draw = torch.Generator().manual_seed(5)
    vectors = torch.randn(len(labels), 8, generator=draw)
    return table(vectors.tolist(), labels, [1] * len(labels))


def merged(method: FedProc, *tables: Prototypes, old: Prototypes | None = None) -> Prototypes:
    site, _ = toy_sites(method)
    replies = {
        number: Message(model=site.initial_model(), protos=rows, size=1)
        for number, rows in enumerate(tables)
    }
    server = replace(method.init_server(site), protos=old)
    protos = method.merge(site, server, replies, RoundContext(0, 2)).protos
    assert protos is not None
    return protos


def test_contrast_of_a_worked_case() -> None:
    rows = table([[1.0, 0.0], [0.0, 1.0]], [0, 1], [1, 1])
    value = prototype_contrastive(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), rows, tau=1)
    assert value.item() == pytest.approx(0.3132616875, abs=1e-6)


def test_round_0_is_fedavg_bit_for_bit() -> None:
    assert tree.equal(after(FedProc(), 1, planned=4), after(FedAvg(), 1, planned=4))
    assert not tree.equal(after(FedProc(), 2, planned=4), after(FedAvg(), 2, planned=4))


def test_at_the_end_of_the_schedule_cross_entropy_stands_alone() -> None:
    protos = centres([0, 1, 2, 3, 4])
    plain = loss_at(FedAvg(), RoundContext(0, 1), None)
    assert torch.equal(loss_at(FedProc(), RoundContext(8, 8), protos), plain)
    assert torch.equal(loss_at(FedProc(style="rethink"), RoundContext(7, 8), protos), plain)


@pytest.mark.parametrize(
    ("style", "share"), [("official", 3 / 8), ("rethink", 3 / 7)], ids=["official", "rethink"]
)
def test_the_loss_is_the_equation(style: str, share: float) -> None:
    """A loop over samples and classes; class 3 has no centre, so its images add no contrast."""
    method = FedProc(style="official" if style == "official" else "rethink")
    site, sites = toy_sites(method)
    protos, batch = centres([0, 1, 2, 4]), next(sites[1].batches(RoundContext(0, 1)))
    out = sites[1].forward_train(site.initial_model(), batch.x)
    assert 3 in batch.y
    expected = 0.0
    for z, logits, y in zip(out.z, out.logits, batch.y.tolist(), strict=True):
        likeness = {
            label: float(F.cosine_similarity(z, vector, dim=0))
            for vector, label in zip(protos.vectors, protos.labels.tolist(), strict=True)
        }
        total = torch.tensor(list(likeness.values())).exp().sum().log()
        near = float(total) - likeness[y] if y in likeness else 0.0
        expected += share * -float(logits.log_softmax(0)[y]) + (1 - share) * near
    value = loss_at(method, RoundContext(3, 8), protos).item()
    assert value == pytest.approx(expected / len(batch.y), abs=1e-6)


def test_cross_entropy_counts_more_each_round() -> None:
    official, rethink = FedProc(), FedProc(style="rethink")
    assert [official.share(RoundContext(t, 4)) for t in range(4)] == [0, 0.25, 0.5, 0.75]
    assert [rethink.share(RoundContext(t, 3)) for t in range(3)] == [0, 0.5, 1]
    assert rethink.share(RoundContext(0, 1)) == 0  # one round alone


def test_in_the_rethink_style_round_0_has_no_loss() -> None:
    value = loss_at(FedProc(style="rethink"), RoundContext(0, 4), None)
    assert value.item() == 0
    start = toy_sites(FedAvg())[0].initial_model()
    moved = {
        style: float(tree.squared_distance(after(method, 1, planned=4).weights, start.weights))
        for style, method in (("rethink", FedProc(style="rethink")), ("official", FedProc()))
    }
    assert moved["rethink"] < 1e-6 * moved["official"]  # weight decay alone


def test_centres_are_means_over_samples_of_all_clients() -> None:
    one = table([[0.0, 8.0], [1.0, 1.0]], [0, 1], [3, 5])
    other = table([[4.0, 0.0]], [0], [1])
    official = merged(FedProc(), one, other)
    assert official.labels.tolist() == [0, 1]
    assert official.vectors.tolist() == [[1, 6], [1, 1]]
    assert official.counts.tolist() == [4, 5]
    rethink = merged(FedProc(style="rethink"), one, other)
    assert rethink.vectors.tolist() == [[2, 4], [1, 1]]
    assert rethink.counts.tolist() == [2, 1]  # clients


def test_with_equal_counts_both_means_are_the_same() -> None:
    one, other = table([[0.0, 8.0]], [2], [7]), table([[4.0, 1.0]], [2], [7])
    official, rethink = (merged(FedProc(style=s), one, other) for s in STYLES)
    assert torch.equal(official.vectors, rethink.vectors)


def test_the_counts_that_travel_are_a_clients_samples_by_class() -> None:
    method = FedProc()
    site, sites = toy_sites(method)
    reply, _ = method.train(sites[0], Message(model=site.initial_model()), None, RoundContext(0, 1))
    assert reply.protos is not None
    held = torch.bincount(sites[0].train.labels, minlength=5)
    assert reply.protos.counts.tolist() == held[reply.protos.labels].tolist()


def test_a_class_that_nobody_has_keeps_its_old_centre() -> None:
    old = table([[1.0, 0.0], [2.0, 0.0]], [0, 3], [1, 2])
    now = merged(FedProc(), table([[5.0, 5.0], [6.0, 6.0]], [1, 3], [4, 4]), old=old)
    rows = dict(zip(now.labels.tolist(), now.vectors.tolist(), strict=True))
    assert rows == {0: [1, 0], 1: [5, 5], 3: [6, 6]}
    assert len(now) == 3
    assert tree.equal(add_absent_classes(old, None), old)


def test_centres_are_constants() -> None:
    protos = centres([0, 1, 2, 3, 4])
    assert is_constant(protos.vectors, FedProc(), Message(protos=protos))


@pytest.mark.parametrize(
    "method",
    [FedProc(), FedProc(style="rethink"), FedProc(collect="online")],
    ids=["official", "rethink", "online"],
)
def test_it_holds_the_contract(method: FedProc) -> None:
    check_method(method)
