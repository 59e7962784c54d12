from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import ServerState
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.rng import rng
from protofed.core.site import RoundContext
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedproto import FedProto
from protofed.methods.fpl import FPL
from protofed.ops.losses import prototype_contrastive, prototype_mse
from protofed.testing import check_method, toy_sites
from tests.methods.playing import after, is_constant, play

Partition = Literal["first", "last", "none"]
PARTITIONS: tuple[Partition, ...] = ("first", "last", "none")
CIRCLE = (0, 10, 50, 60, 120, 125, 170, 180)  # FINCH: 4 clusters, then 2


def circle(label: int = 0) -> Prototypes:
    angles = torch.tensor(CIRCLE).double().deg2rad()
    vectors = torch.stack([angles.cos(), angles.sin()], 1).float()
    return Prototypes(vectors, torch.full((8,), label), torch.arange(1, 9))


def domains() -> Prototypes:
    """Eight clients in four places of R^8 for each of classes 0, 1, 2 and 4, two by two."""
    draw, labels = rng("eight clients"), torch.tensor([0, 1, 2, 4])
    circles = [torch.cat([circle().vectors, torch.zeros(8, 6)], 1) for _ in labels]
    turns = torch.linalg.qr(torch.randn(4, 8, 8, generator=draw))[0]
    vectors = torch.cat([c @ turn for c, turn in zip(circles, turns, strict=True)])
    return Prototypes(vectors, labels.repeat_interleave(8), torch.ones(32, dtype=torch.int64))


def test_without_its_terms_it_is_fedavg_bit_for_bit() -> None:
    assert tree.equal(after(FPL(cpcl=0, upcr=0), 3), after(FedAvg(), 3))


def test_with_global_prototypes_and_the_pull_alone_it_is_fedproto_bit_for_bit() -> None:
    ours, theirs = (
        play(method, 3).server for method in (FPL(cpcl=0, finch_partition="none"), FedProto(lam=1))
    )
    assert tree.equal(ours, theirs)


def test_the_first_round_is_fedavgs_bit_for_bit() -> None:
    assert tree.equal(after(FPL(), 1), after(FedAvg(), 1))


@pytest.mark.parametrize(
    "method",
    [
        FPL(cpcl=0),
        FPL(upcr=0),
        FPL(tau=0.02),
        FPL(upcr_reduction="sum"),
        FPL(collect="online"),
    ],
)
def test_each_term_and_switch_changes_the_second_round(method: FPL) -> None:
    assert not tree.equal(after(method, 2), after(FPL(), 2))


def test_the_loss_is_the_sum_of_its_three_terms() -> None:
    sites, protos = toy_sites(FPL())[1], domains()
    batch = next(sites[0].batches(RoundContext(1, 2)))
    method = FPL(tau=0.05, cpcl=0.3, upcr=0.7, upcr_reduction="sum")
    received = Message(sites[0].initial_model(), protos)
    value = method.loss(sites[0], received, None, sites[0].initial_model(), batch)
    out = sites[0].forward_train(sites[0].initial_model(), batch.x)
    expected = (
        F.cross_entropy(out.logits, batch.y)
        + 0.3 * prototype_contrastive(out.z, batch.y, protos, 0.05)
        + 0.7 * prototype_mse(out.z, batch.y, protos, 5, "sum")
    )
    torch.testing.assert_close(value, expected)


def test_received_prototypes_are_constants() -> None:
    for method in (FPL(), FPL(cpcl=0), FPL(upcr=0)):
        protos = domains()
        assert is_constant(protos.vectors, method, Message(protos=protos))


@pytest.mark.parametrize(
    ("partition", "clusters"),
    [
        ("first", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("last", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("none", [list(range(8))]),
    ],
)
def test_clusters_are_the_plain_means_of_their_members(
    partition: Partition, clusters: list[list[int]]
) -> None:
    table = circle(label=3)
    made = FPL(finch_partition=partition).clusters(table)
    means = torch.stack([table.vectors[members].mean(0) for members in clusters])
    torch.testing.assert_close(made.vectors, means)  # not of length 1
    assert made.labels.tolist() == [3] * len(clusters)
    assert made.counts.tolist() == [len(members) for members in clusters]


def test_which_partition_changes_what_is_sent_and_what_is_lost() -> None:
    site, sites = toy_sites(FPL())
    batch, values, sizes = next(sites[0].batches(RoundContext(1, 2))), set(), []
    for partition in PARTITIONS:
        method = FPL(finch_partition=partition)
        protos = method.clusters(domains())
        sizes.append(len(protos))
        received = Message(site.initial_model(), protos)
        values.add(method.loss(sites[0], received, None, site.initial_model(), batch).item())
    assert sizes == [16, 8, 4]
    assert len(values) == 3


def test_classes_are_clustered_apart_and_keep_their_names() -> None:
    made = FPL().clusters(domains())
    assert made.labels.tolist() == [0, 0, 1, 1, 2, 2, 4, 4]
    mixed = domains()
    order = torch.randperm(32, generator=rng("mixed"))
    turned = FPL().clusters(tree.map(lambda rows: rows[order], mixed))
    centres = [table.class_matrix(5)[0] for table in (made, turned)]
    torch.testing.assert_close(*centres)


def test_the_unbiased_mean_gives_each_cluster_one_voice() -> None:
    """Three clients in one place, two in another: G counts clients, U counts clusters."""
    vectors = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1], [0, 1]])
    table = Prototypes(vectors, torch.full((5,), 2), torch.tensor([9, 9, 9, 1, 1]))
    unbiased = FPL().clusters(table).class_matrix(3)[0][2]
    biased = FPL(finch_partition="none").clusters(table).class_matrix(3)[0][2]
    assert unbiased.tolist() == pytest.approx([0.5, 0.5], abs=1e-6)
    assert biased.tolist() == pytest.approx([0.6, 0.4], abs=1e-6)


def test_a_class_of_one_client_is_that_clients_mean_and_a_class_of_nobody_has_no_row() -> None:
    one = Prototypes(torch.tensor([[3.0, 4.0]]), torch.tensor([2]), torch.tensor([5]))
    for partition in PARTITIONS:
        made = FPL(finch_partition=partition).clusters(one)
        assert tree.equal(made, replace(one, counts=torch.tensor([1])))  # a client, not its images
        assert made.class_matrix(4)[1].tolist() == [False, False, True, False]


def test_images_of_a_class_of_nobody_get_cross_entropy_alone() -> None:
    site, protos = toy_sites(FPL())[1][0], FPL().clusters(domains())
    batch = next(site.batches(RoundContext(1, 2)))
    strangers = batch._replace(x=batch.x[batch.y == 3], y=batch.y[batch.y == 3])
    assert len(strangers.y) > 1
    with_terms, without = (
        FPL().loss(site, Message(protos=table), None, site.initial_model(), strangers)
        for table in (protos, None)
    )
    assert torch.equal(with_terms, without)


def test_the_server_keeps_a_model_and_prototypes_of_every_class() -> None:
    product = FPL().publish(play(FPL(), 1).server)
    assert product.protos is not None
    assert product.protos.labels.unique().tolist() == [0, 1, 2, 3, 4]
    assert set(product.parts) == {"model", "protos"}
    assert product.model != Model()


@pytest.mark.parametrize(
    "method",
    [
        FPL(finch_partition="first", upcr_reduction="sum", tau=0.01),
        FPL(finch_partition="none", collect="online"),
    ],
)
def test_it_holds_the_contract(method: FPL) -> None:
    check_method(method)


@pytest.mark.parametrize("wrong", [{"tau": 0.0}, {"cpcl": -1.0}, {"upcr": -1.0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="greater than"):
        FPL(**wrong)  # type: ignore[arg-type]


def test_one_cluster_per_class_is_told_unless_it_was_asked_for() -> None:
    table, one = domains(), domains().uniform_mean()
    for partition in ("first", "last"):
        method = FPL(finch_partition=partition)
        assert method.result_warning(ServerState(Model(), protos=method.clusters(table))) == ""
        assert "one cluster per class" in method.result_warning(ServerState(Model(), protos=one))
    for method in (FPL(finch_partition="none"), FPL(cpcl=0, upcr=0)):
        assert method.result_warning(ServerState(Model(), protos=one)) == ""


def test_three_clients_always_end_with_one_cluster_per_class() -> None:
    """FINCH links each of up to three points with another one, so they are one cluster."""
    method = FPL()
    assert "one cluster per class" in method.result_warning(play(method, who=[0, 1, 2]).server)
