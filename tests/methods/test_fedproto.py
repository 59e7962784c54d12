from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.site import RoundContext
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedproto import FedProto
from protofed.methods.local import Local
from protofed.testing import check_method, toy_sites
from tests.methods.playing import after, is_constant, play


def test_with_lambda_zero_it_is_fedavg_bit_for_bit() -> None:
    assert tree.equal(after(FedProto(lam=0), 3), after(FedAvg(), 3))


def test_the_first_round_is_fedavgs_bit_for_bit() -> None:
    assert tree.equal(after(FedProto(), 1), after(FedAvg(), 1))


def test_with_lambda_zero_and_models_kept_it_is_local_bit_for_bit() -> None:
    ours, theirs = play(FedProto(lam=0, param_avg=False), 3), play(Local(), 3)
    assert tree.equal(ours.states, theirs.states)


@pytest.mark.parametrize("method", [FedProto(lam=0), FedProto(lam=10), FedProto(collect="online")])
def test_lambda_and_collect_change_the_second_round(method: FedProto) -> None:
    assert not tree.equal(after(method), after(FedProto()))


def test_the_loss_is_cross_entropy_and_a_pull_written_as_a_loop() -> None:
    run = play(FedProto(), 1)
    site, method = run.sites[0], FedProto(lam=3)
    batch = next(site.batches(RoundContext(1, 2)))
    received = method.publish(run.server)
    protos = received.protos
    assert protos is not None
    value = method.loss(site, received, Model(), tree.clone(received.model), batch)
    out = site.forward_train(tree.clone(received.model), batch.x)
    total = torch.zeros(())
    for z, label in zip(out.z, batch.y, strict=True):
        for row, name in zip(protos.vectors, protos.labels, strict=True):
            if name == label:
                total += F.mse_loss(z, row)
    expected = F.cross_entropy(out.logits, batch.y) + 3 * total / len(batch.y)
    torch.testing.assert_close(value, expected)


def test_an_image_without_a_prototype_adds_nothing_but_counts_in_the_mean() -> None:
    site = toy_sites(FedProto())[1][0]
    batch = next(site.batches(RoundContext(1, 2)))
    label = int(batch.y[0])
    one = Prototypes(torch.zeros(1, 8), torch.tensor([label]), torch.tensor([1]))
    received = Message(site.initial_model(), one)
    with_pull, without = (
        method.loss(site, received, Model(), site.initial_model(), batch)
        for method in (FedProto(), FedProto(lam=0))
    )
    z = site.forward_train(site.initial_model(), batch.x).z[batch.y == label]
    assert 0 < len(z) < len(batch.y)
    torch.testing.assert_close(with_pull - without, z.square().sum() / (8 * len(batch.y)))


def test_every_owner_of_a_class_has_one_voice() -> None:
    """Prototypes (0, 0) behind 1 image and (2, 2) behind 99 make (1, 1)."""
    site = toy_sites(FedProto())[0]
    replies = {
        client: Message(
            Model({"w": torch.full((1,), vector)}),
            Prototypes(torch.full((1, 2), vector), torch.tensor([4]), torch.tensor([size])),
            size=size,
        )
        for client, vector, size in ((0, 0.0, 1), (1, 2.0, 99))
    }
    server = FedProto().merge(site, FedProto().init_server(site), replies, RoundContext(0, 1))
    assert server.protos is not None
    assert server.protos.vectors.tolist() == [[1.0, 1.0]]
    assert server.protos.labels.tolist() == [4]
    assert server.model.weights["w"].item() == pytest.approx(1.98)  # models are weighted


def test_the_servers_prototypes_are_the_mean_over_owners_in_a_loop() -> None:
    run = play(FedProto(), 1)
    replies = [reply.protos for reply in run.exchanges[0][1].values() if reply.protos is not None]
    assert len(replies) == 4
    for label, vector in zip(run.server.protos.labels, run.server.protos.vectors, strict=True):
        rows = [r.vectors[r.labels == label][0] for r in replies if (r.labels == label).any()]
        assert len(rows) == (4 if label == 4 else 3)  # client k lacks class k
        torch.testing.assert_close(vector, sum(rows, torch.zeros(8)) / len(rows))


def test_only_prototypes_travel_when_models_stay() -> None:
    run = play(FedProto(param_avg=False), 2)
    sent = [message for both in run.exchanges for messages in both for message in messages.values()]
    assert {part for message in sent for part in message.parts} == {"protos"}
    assert all(message.model == Model() for message in sent)
    assert run.server.model == Model()
    assert FedProto(param_avg=False).personal
    assert not FedProto().personal


def test_models_that_stay_go_on_from_round_to_round_under_the_pull() -> None:
    method = FedProto(param_avg=False)
    one, two, free = play(method, 1), play(method, 2), play(Local(), 2)
    received, step = method.publish(one.server), RoundContext(1, 2)
    _, state = method.train(one.sites[2], received, one.states[2], step)
    assert tree.equal(state, two.states[2])
    assert not tree.equal(state, free.states[2])


@pytest.mark.parametrize("param_avg", [True, False])
def test_the_nearest_prototype_decides_as_in_a_loop(param_avg: bool) -> None:
    method = FedProto(param_avg=param_avg)
    run = play(method, 2)
    site, state, received = run.sites[1], run.states[1], method.publish(run.server)
    x = site.pixels.normalize(site.train.images)
    scores = method.auxiliary_predictions(site, received, state, x)["nearest prototype"]
    model = received.model if param_avg else state
    assert received.protos is not None
    for row, z in zip(scores, site.forward_eval(model, x).z, strict=True):
        distances = [((z - c) ** 2).sum() for c in received.protos.vectors]
        torch.testing.assert_close(row, -torch.stack(distances))
        assert int(row.argmax()) == min(range(5), key=lambda k: float(distances[k]))
    logits = method.predict(site, received, state, x)
    assert torch.equal(logits, site.forward_eval(model, x).logits)


def test_before_the_first_round_there_is_no_nearest_prototype() -> None:
    site, sites = toy_sites(FedProto())
    received = FedProto().publish(FedProto().init_server(site))
    x = site.pixels.normalize(sites[0].train.images)
    assert FedProto().auxiliary_predictions(sites[0], received, Model(), x) == {}


def test_received_prototypes_are_constants() -> None:
    labels = torch.arange(5)
    protos = Prototypes(torch.ones(5, 8), labels, torch.ones_like(labels))
    assert is_constant(protos.vectors, FedProto(), Message(protos=protos))


def test_clients_keep_an_empty_model_when_models_are_averaged() -> None:
    assert all(state == Model() for state in play(FedProto(), 1).states.values())


@pytest.mark.parametrize(
    "method", [FedProto(param_avg=False), FedProto(param_avg=False, collect="online")]
)
def test_it_holds_the_contract(method: FedProto) -> None:
    check_method(method)


def test_a_negative_lambda_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        FedProto(lam=-1)
