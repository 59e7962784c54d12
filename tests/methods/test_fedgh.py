from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import ServerState
from protofed.core.model import Model, Net
from protofed.core.prototypes import Prototypes
from protofed.core.site import ClientId, RoundContext, Site
from protofed.errors import ProtofedError
from protofed.methods.fedgh import FedGH
from protofed.methods.local import Local
from protofed.testing import toy_sites
from tests.methods.playing import play


def zero_head(classes: int, features: int) -> ServerState:
    weights = {"head.weight": torch.zeros(classes, features), "head.bias": torch.zeros(classes)}
    return ServerState(Model(weights))


def table(vectors: Tensor, labels: Sequence[int]) -> Prototypes:
    return Prototypes(vectors, torch.tensor(labels), torch.ones(len(labels), dtype=torch.int64))


def other_net(features: int = 8) -> Net:
    """Another encoder, without batch norm, and by default with as many features as the toy net."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(192, 7), nn.ReLU())
        return Net(encoder, nn.Linear(7, features), nn.Linear(features, 5), width=7)


def mixed_sites(features: int = 8) -> dict[ClientId, Site]:
    return {
        client: replace(site, net=other_net(features)) if client % 2 else site
        for client, site in toy_sites(FedGH())[1].items()
    }


def test_a_step_of_the_head_from_zero() -> None:
    method = FedGH(server_lr=1, server_epochs=1)
    replies = {
        client: Message(protos=table(torch.eye(2)[client : client + 1], [client]), size=1)
        for client in (0, 1)
    }
    head = method.merge(
        toy_sites(method)[0], zero_head(2, 2), replies, RoundContext(0, 1)
    ).model.weights
    expected = torch.tensor([[0.25, -0.25], [-0.25, 0.25]])
    torch.testing.assert_close(head["head.weight"], expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(head["head.bias"], torch.zeros(2), rtol=0, atol=1e-6)


def test_the_heads_training_is_softmax_regression_in_a_loop() -> None:
    method, draw = FedGH(server_lr=0.5, server_epochs=3, server_batch=4), torch.Generator()
    z, labels = torch.randn(10, 3, generator=draw.manual_seed(0)), [0, 1, 2, 0, 1, 3, 3, 1, 0, 2]
    replies = {
        0: Message(protos=table(z[:4], labels[:4]), size=99),
        1: Message(protos=table(z[4:], labels[4:]), size=1),
    }
    site = toy_sites(method)[0]
    head = method.merge(site, zero_head(4, 3), replies, RoundContext(5, 9)).model.weights
    weight, bias = torch.zeros(4, 3), torch.zeros(4)
    for epoch in range(3):
        order = torch.randperm(10, generator=site.rng("head", 5, epoch)).tolist()
        for rows in (order[:4], order[4:8], order[8:]):
            slope, lift = torch.zeros(4, 3), torch.zeros(4)
            for row in rows:
                error = (weight @ z[row] + bias).softmax(0)
                error[labels[row]] -= 1
                slope += torch.outer(error, z[row]) / len(rows)
                lift += error / len(rows)
            weight, bias = weight - 0.5 * slope, bias - 0.5 * lift
    torch.testing.assert_close(head["head.weight"], weight)
    torch.testing.assert_close(head["head.bias"], bias)


def test_the_head_goes_on_from_where_it_was() -> None:
    method, run = FedGH(server_epochs=3), play(FedGH(server_epochs=3))
    again = method.merge(run.site, run.server, run.up[1], RoundContext(1, 2))
    assert not tree.equal(again, run.server)
    first = play(method, 1).server
    assert tree.equal(method.merge(run.site, first, run.up[1], RoundContext(1, 2)), run.server)


def test_without_server_training_clients_only_get_their_heads_reset() -> None:
    run = play(FedGH(server_epochs=0), 3)
    first = run.site.initial_model().only("head")
    assert tree.equal(run.server.model, first)
    for client, site in run.sites.items():
        model = site.initial_model()
        for number in range(3):
            _, model = Local().train(site, Message(), model | first, RoundContext(number, 3))
        assert tree.equal(run.states[client], model)


def test_the_trained_head_changes_what_clients_learn() -> None:
    still, moved = play(FedGH(server_epochs=0)), play(FedGH(server_epochs=5))
    for client in still.sites:
        assert not tree.equal(still.states[client], moved.states[client])


def test_one_clients_head_is_trained_on_its_own_prototypes() -> None:
    run = play(FedGH(), 1, who=[2])
    protos = run.up[0][2].protos
    assert protos is not None
    assert protos.labels.tolist() == [0, 1, 3, 4]  # client 2 lacks class 2
    site, model = run.sites[2], run.states[2]
    z = site.forward_eval(model, site.pixels.normalize(site.train.images)).z
    for vector, label in zip(protos.vectors, protos.labels, strict=True):
        torch.testing.assert_close(vector, z[site.train.labels == label].mean(0))
    start, end = (
        run.site.initial_model().weights["head.bias"],
        run.server.model.weights["head.bias"],
    )
    assert end[2] < start[2]  # a class that nobody holds is only pushed away


def test_only_the_head_goes_down_and_only_prototypes_come_up() -> None:
    run = play(FedGH(server_epochs=1))
    for down in (message for messages in run.down for message in messages.values()):
        assert down.parts.keys() == {"model"}
        assert set(down.model.weights) == {"head.weight", "head.bias"}
        assert down.model.buffers == {}
    for up in (message for messages in run.up for message in messages.values()):
        assert up.parts.keys() == {"protos"}


def test_a_client_is_scored_with_its_own_head_and_the_global_one_beside() -> None:
    method, run = FedGH(), play(FedGH())
    site, state, received = run.sites[1], run.states[1], method.publish(run.server)
    x = site.pixels.normalize(site.train.images)
    z, head = site.forward_eval(state, x).z, run.server.model.weights
    own = method.predict(site, received, state, x)
    assert torch.equal(own, site.forward_eval(state, x).logits)
    theirs = method.auxiliary_predictions(site, received, state, x)["global head"]
    torch.testing.assert_close(theirs, z @ head["head.weight"].T + head["head.bias"])
    assert not torch.equal(own, theirs)


def test_clients_may_have_different_extractors() -> None:
    run = play(FedGH(server_epochs=5), sites=mixed_sites())
    assert run.states[0].weights.keys() != run.states[1].weights.keys()
    assert tree.finite(run.states)
    assert not tree.equal(run.server.model, run.site.initial_model().only("head"))
    for client, site in run.sites.items():  # the second round began with the first one's head
        told = run.down[1][client].model
        before = play(FedGH(server_epochs=5), 1, sites=mixed_sites()).states[client]
        _, model = Local().train(site, Message(), before | told, RoundContext(1, 2))
        assert tree.equal(run.states[client], model)


def test_features_of_different_widths_are_refused() -> None:
    method, (site, _) = FedGH(), toy_sites(FedGH())
    replies = {
        client: Message(protos=table(torch.zeros(1, width), [0]))
        for client, width in enumerate((8, 3))
    }
    with pytest.raises(ProtofedError, match="client 0: 8, client 1: 3"):
        method.merge(site, method.init_server(site), replies, RoundContext(0, 1))


def test_who_is_absent_keeps_its_model() -> None:
    run = play(FedGH(server_epochs=1), who=[1, 3])
    assert tree.equal(run.states[0], run.sites[0].initial_model())
    assert not tree.equal(run.states[1], run.sites[1].initial_model())


@pytest.mark.parametrize("wrong", [{"server_lr": 0.0}, {"server_epochs": -1}, {"server_batch": 0}])
def test_wrong_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="greater than"):
        FedGH(**wrong)
