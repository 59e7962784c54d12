from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.site import RoundContext
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedmlp import FedMLP, semantic_pull
from protofed.methods.fedproto import FedProto
from protofed.testing import check_method, toy_sites
from protofed.testing.method_checks import CLASSES
from tests.methods.playing import after, play


def product(method: AnyMethod, rounds: int = 3) -> Message:
    """What is published after some rounds, without a semantic level."""
    return replace(method.publish(play(method, rounds).server), extras={})


def rows(vectors: torch.Tensor, labels: list[int]) -> Prototypes:
    return Prototypes(vectors, torch.tensor(labels), torch.ones(len(labels), dtype=torch.int64))


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_with_all_weights_zero_it_is_fedavg_bit_for_bit() -> None:
    assert tree.equal(after(FedMLP(lam1=0, lam2=0, lam3=0), 3), after(FedAvg(), 3))


def test_with_the_first_level_alone_it_is_fedproto_bit_for_bit() -> None:
    assert tree.equal(product(FedMLP(lam1=1, lam2=0, lam3=0)), product(FedProto(lam=1)))
    assert tree.equal(product(FedMLP(lam1=0.3, lam2=0)), product(FedProto(lam=0.3)))


def test_each_level_changes_the_result() -> None:
    plain, *others = (
        after(FedMLP(lam1=one, lam2=two, lam3=three), 3)
        for one, two, three in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    )
    assert not any(tree.equal(plain, other) for other in others)


def test_the_defaults_are_those_of_static_data() -> None:
    method = FedMLP()
    assert (method.lam1, method.lam2, method.lam3) == (1, 0.1, 0)


def test_the_label_has_a_star_and_the_star_says_why() -> None:
    assert FedMLP.info.label == "FedMLP*"
    assert FedMLP.info.caveat == "reconstructed from the abstract"


def test_the_semantic_level_is_zero_where_outputs_are_the_class_means() -> None:
    logits = random(1, 4).expand(3, 4)
    value = semantic_pull(logits, torch.tensor([2, 2, 2]), rows(logits[:1].softmax(1), [2]), 4)
    assert value.item() == pytest.approx(0, abs=1e-6)


def test_the_semantic_level_is_the_equation() -> None:
    """Over a loop; class 1 has no row, so its images add nothing but count in the mean."""
    logits, y = random(6, 3), torch.tensor([0, 1, 2, 2, 1, 0])
    means = random(2, 3).softmax(1)
    total = 0.0
    for scores, label in zip(logits, y.tolist(), strict=True):
        if label != 1:
            s, own = means[0 if label == 0 else 1], scores.softmax(0)
            total += sum(float(p * (p / q).log()) for p, q in zip(s, own, strict=True))
    value = semantic_pull(logits, y, rows(means, [0, 2]), 3)
    assert value.item() == pytest.approx(total / 6, abs=1e-6)


def test_a_class_mean_with_zeros_is_no_trouble() -> None:
    logits = random(2, 3).requires_grad_()
    value = semantic_pull(logits, torch.tensor([0, 0]), rows(torch.eye(3)[:1], [0]), 3)
    value.backward()
    assert logits.grad is not None
    assert tree.finite([value.detach(), logits.grad])


def test_the_loss_is_the_sum_of_its_levels() -> None:
    method = FedMLP(lam1=2, lam2=3, lam3=5)
    site, sites = toy_sites(method)
    batch = next(sites[2].batches(RoundContext(1, 2)))
    protos, semantic = rows(random(4, 8), [0, 1, 3, 4]), rows(random(4, 5).softmax(1), [0, 1, 3, 4])
    previous = tree.map(lambda leaf: leaf * 2, site.initial_model())
    received = Message(model=site.initial_model(), protos=protos, extras={"semantic": semantic})
    value = method.loss(sites[2], received, previous, site.initial_model(), batch)

    out, before = (
        sites[2].forward_train(site.initial_model(), batch.x),
        sites[2].forward_eval(previous, batch.x),
    )
    row = {label: place for place, label in enumerate(protos.labels.tolist())}
    total = 0.0
    for i, y in enumerate(batch.y.tolist()):
        own, old = out.logits[i].softmax(0), before.logits[i].softmax(0)
        s = semantic.vectors[row[y]]
        total -= float(own[y].log())
        total += 2 * float((out.z[i] - protos.vectors[row[y]]).square().mean())
        total += 3 * float((s * (s / own).log()).sum())
        total += 5 * float((old * (old / own).log()).sum())
    assert value.item() == pytest.approx(total / len(batch.y), abs=1e-5)


def test_a_client_sends_the_mean_softmax_output_of_each_class_it_has() -> None:
    method = FedMLP()
    site, sites = toy_sites(method)
    reply, _ = method.train(sites[0], Message(model=site.initial_model()), None, RoundContext(0, 1))
    semantic = reply.extras["semantic"]
    assert isinstance(semantic, Prototypes)
    assert semantic.labels.tolist() == [1, 2, 3, 4]
    (x, y), *_ = sites[0].eval_batches(sites[0].train)
    outputs = sites[0].forward_eval(reply.model, x).logits.softmax(1)
    for vector, label in zip(semantic.vectors, semantic.labels, strict=True):
        torch.testing.assert_close(vector, outputs[y == label].mean(0))


def test_the_server_counts_every_client_that_has_a_class_alike() -> None:
    method = FedMLP()
    site, _ = toy_sites(method)
    tables = {0: rows(torch.eye(5)[:2], [0, 1]), 1: rows(torch.eye(5)[2:3], [1])}
    replies = {
        client: Message(
            model=site.initial_model(),
            protos=rows(random(len(table), 8), table.labels.tolist()),
            extras={"semantic": table},
            size=1 + 9 * client,
        )
        for client, table in tables.items()
    }
    semantic = method.merge(site, method.init_server(site), replies, RoundContext(0, 1)).semantic
    assert semantic is not None
    assert semantic.labels.tolist() == [0, 1]
    assert semantic.vectors.tolist() == [[1, 0, 0, 0, 0], [0, 0.5, 0.5, 0, 0]]
    assert semantic.vectors.shape[1] == CLASSES


def test_clients_keep_their_previous_model_only_for_the_third_level() -> None:
    assert set(play(FedMLP(), 1).states.values()) == {None}
    kept = play(FedMLP(lam3=0.5), 1).states
    assert all(isinstance(state, Model) for state in kept.values())
    assert not tree.equal(kept[0], kept[1])


def test_the_third_level_waits_for_a_previous_model() -> None:
    assert tree.equal(product(FedMLP(lam3=0.5), 1), product(FedMLP(), 1))
    assert not tree.equal(product(FedMLP(lam3=0.5), 2), product(FedMLP(), 2))


@pytest.mark.parametrize("method", [FedMLP(), FedMLP(lam3=0.5)], ids=["static", "three levels"])
def test_it_holds_the_contract(method: FedMLP) -> None:
    check_method(method)
