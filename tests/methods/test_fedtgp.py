from __future__ import annotations

import math

import pytest
import torch

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.site import RoundContext
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedtgp import FedTGP, FedTGPServer, server_loss
from protofed.ops.prototype_collection import generate_vectors
from protofed.testing import check_method, toy_sites
from tests.methods.playing import after, play


def table(vectors: list[list[float]], labels: list[int]) -> Prototypes:
    return Prototypes(
        torch.tensor(vectors), torch.tensor(labels), torch.ones(len(labels), dtype=torch.int64)
    )


def merged(method: FedTGP, *tables: Prototypes, server: FedTGPServer | None = None) -> FedTGPServer:
    site, _ = toy_sites(method)
    replies = {
        number: Message(model=site.initial_model(), protos=rows, size=1)
        for number, rows in enumerate(tables)
    }
    return method.merge(site, server or method.init_server(site), replies, RoundContext(0, 2))


def random_table(seed: int, labels: list[int]) -> Prototypes:
    draw = torch.Generator().manual_seed(seed)
    return table(torch.randn(len(labels), 8, generator=draw).tolist(), labels)


def test_with_lam_zero_it_is_fedavg_bit_for_bit() -> None:
    assert tree.equal(after(FedTGP(lam=0, server_epochs=2), 3), after(FedAvg(), 3))
    assert not tree.equal(after(FedTGP(server_epochs=2)), after(FedAvg()))


def test_the_servers_loss_of_a_worked_case() -> None:
    learned = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    value = server_loss(learned, torch.zeros(1, 2), torch.tensor([0]), margin=2)
    assert value.item() == pytest.approx(6.0024756851, abs=1e-6)


def test_equal_distances_without_a_margin_cost_ln_2() -> None:
    learned = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    value = server_loss(learned, torch.zeros(1, 2), torch.tensor([1]), margin=0)
    assert value.item() == pytest.approx(math.log(2), abs=1e-6)


def test_the_servers_loss_is_the_equation() -> None:
    draw = torch.Generator().manual_seed(0)
    learned, vectors = torch.randn(4, 3, generator=draw), torch.randn(6, 3, generator=draw)
    labels, delta, total = torch.tensor([0, 1, 2, 3, 1, 1]), 1.5, 0.0
    for c, k in zip(vectors, labels.tolist(), strict=True):
        far = [math.dist(c.tolist(), g.tolist()) for g in learned]
        own = math.exp(-(far[k] + delta))
        others = sum(math.exp(-d) for j, d in enumerate(far) if j != k)
        total -= math.log(own / (own + others)) / len(labels)
    assert server_loss(learned, vectors, labels, delta).item() == pytest.approx(total, abs=1e-6)


def test_gaps_of_three_points() -> None:
    rows = table([[0.0, 0.0], [0.0, 3.0], [4.0, 0.0]], [0, 1, 2])
    assert rows.class_margins().tolist() == [3, 3, 4]


def test_a_prototype_on_its_row_has_a_finite_gradient() -> None:
    learned = torch.zeros(2, 3, requires_grad=True)
    server_loss(learned, torch.zeros(1, 3), torch.tensor([0]), margin=1).backward()
    assert learned.grad is not None
    assert tree.finite(learned.grad)


def test_merge_is_plain_descent_with_the_adaptive_margin() -> None:
    """One step on one batch that holds all rows, written out."""
    tables = [random_table(1, [0, 1, 3]), random_table(2, [0, 3])]
    method = FedTGP(server_epochs=1, server_batch=100, server_lr=0.1)
    start = method.init_server(toy_sites(method)[0])
    means = [
        (tables[0].vectors[0] + tables[1].vectors[0]) / 2,
        tables[0].vectors[1],
        (tables[0].vectors[2] + tables[1].vectors[1]) / 2,
    ]
    gaps = [min(float((a - b).norm()) for b in means if b is not a) for a in means]
    seeds = {name: leaf.clone().requires_grad_() for name, leaf in start.generator.items()}
    vectors = torch.cat([rows.vectors for rows in tables])
    labels = torch.cat([rows.labels for rows in tables])
    server_loss(generate_vectors(seeds), vectors, labels, max(gaps)).backward()
    for name, leaf in merged(method, *tables, server=start).generator.items():
        grad = seeds[name].grad
        assert grad is not None
        torch.testing.assert_close(leaf, start.generator[name] - 0.1 * grad)


def test_the_margin_is_capped() -> None:
    rows = random_table(1, [0, 1, 3])
    free, low, zero = (
        merged(FedTGP(server_epochs=2, margin=cap), rows).generator for cap in (100.0, 0.5, 0.0)
    )
    assert tree.equal(free, merged(FedTGP(server_epochs=2, margin=1000), rows).generator)
    assert not tree.equal(free, low)
    assert not tree.equal(low, zero)


def test_one_class_alone_has_the_cap_as_margin() -> None:
    assert tree.finite(merged(FedTGP(server_epochs=2), random_table(1, [2])))


def test_training_brings_prototypes_near_their_rows_and_apart() -> None:
    rows = random_table(3, [0, 1, 2, 3, 4])
    short, long = (
        server_loss(generate_vectors(merged(method, rows).generator), rows.vectors, rows.labels, 1)
        for method in (FedTGP(server_epochs=0), FedTGP(server_epochs=300, server_lr=0.05))
    )
    assert long.item() < 0.5 * short.item()


def test_only_classes_that_were_ever_held_are_sent_and_they_stay() -> None:
    method = FedTGP(server_epochs=1)
    first = merged(method, random_table(1, [0, 3]))
    second = merged(method, random_table(2, [1, 3]), server=first)
    assert first.protos is not None
    assert second.protos is not None
    assert first.protos.labels.tolist() == [0, 3]
    assert second.protos.labels.tolist() == [0, 1, 3]
    assert torch.equal(second.protos.vectors, generate_vectors(second.generator)[[0, 1, 3]])


def test_the_servers_layers_go_on_where_they_stood() -> None:
    method, rows = FedTGP(server_epochs=1), random_table(1, [0, 1])
    first = merged(method, rows)
    assert not tree.equal(merged(method, rows, server=first).generator, first.generator)


def test_the_order_of_rows_is_new_each_round() -> None:
    method = FedTGP(server_epochs=1, server_batch=1)
    site, _ = toy_sites(method)
    start = method.init_server(site)
    replies = {
        0: Message(model=site.initial_model(), protos=random_table(1, [0, 1, 2, 3, 4]), size=1)
    }
    one, other = (method.merge(site, start, replies, RoundContext(number, 9)) for number in (0, 1))
    assert not tree.equal(one.generator, other.generator)


def test_a_client_is_pulled_to_the_learned_prototypes_which_are_constants() -> None:
    method = FedTGP(lam=3)
    site, sites = toy_sites(method)
    rows = random_table(1, [0, 2])
    batch = next(sites[1].batches(RoundContext(1, 2)))
    received = Message(model=site.initial_model(), protos=rows)
    value = method.loss(sites[1], received, Model(), site.initial_model(), batch)
    out = sites[1].forward_train(site.initial_model(), batch.x)
    expected = float(FedAvg().loss(sites[1], received, None, site.initial_model(), batch))
    for z, y in zip(out.z, batch.y.tolist(), strict=True):
        for vector, label in zip(rows.vectors, rows.labels.tolist(), strict=True):
            if label == y:
                expected += 3 * float((z - vector).square().mean()) / len(batch.y)
    assert value.item() == pytest.approx(expected, abs=1e-6)
    assert not any(leaf.requires_grad for leaf in tree.leaves(merged(method, rows)))


def test_without_averaging_only_prototypes_travel_and_each_client_has_its_model() -> None:
    method = FedTGP(param_avg=False, server_epochs=2)
    run = play(method, 1)
    site, state = run.sites[0], run.states[0]
    assert method.personal
    assert run.server.model == Model()
    assert not tree.equal(state, run.states[1])
    product, (x, _) = method.publish(run.server), next(site.eval_batches(site.train))
    assert method.auxiliary_predictions(site, Message(), state, x) == {}
    (name,) = method.auxiliary_predictions(site, product, state, x)
    assert name == "nearest prototype"


@pytest.mark.parametrize(
    "method",
    [
        FedTGP(server_epochs=3),
        FedTGP(server_epochs=3, param_avg=False),
        FedTGP(server_epochs=1, collect="online"),
    ],
    ids=["averaged", "apart", "online"],
)
def test_it_holds_the_contract(method: FedTGP) -> None:
    check_method(method)
