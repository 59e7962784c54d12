from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import ServerState
from protofed.core.model import Model
from protofed.core.serialization import pack_tree, unpack_tree
from protofed.core.site import RoundContext, Site
from protofed.errors import ProtofedError
from protofed.methods.fedavg import FedAvg
from protofed.ops.model_exchange import (
    ExchangeServer,
    check_complete_model,
    exchange_models,
    phase_site,
    unwrap_state,
    wrap_state,
)
from protofed.testing import toy_sites


def server_site() -> Site:
    return toy_sites(FedAvg())[0]


def parcel(number: int) -> Message:
    extras = {"open": torch.tensor([number]), "secret": torch.tensor([-number])}
    return Message(Model({"w": torch.tensor([float(number)])}), extras=extras, size=number)


BOX = {client: parcel(client) for client in (1, 4, 6, 9)}


def with_epochs(site: Site, epochs: int) -> Site:
    return replace(site, training=replace(site.training, epochs=epochs))


@pytest.mark.parametrize(("epochs", "halves"), [(1, [1, 1]), (5, [2, 3])])
def test_the_legs_share_the_epochs(epochs: int, halves: list[int]) -> None:
    site = with_epochs(server_site(), epochs)
    assert [
        phase_site(site, RoundContext(0, 1, leg), "half").training.epochs for leg in (0, 1)
    ] == halves
    assert phase_site(site, RoundContext(0, 1, 0), "full") is site
    assert phase_site(site, RoundContext(0, 1, 1), "full") is site


def test_the_exchange_keeps_every_model_and_returns_none_to_its_owner() -> None:
    for number in range(10):
        sent = exchange_models(server_site(), BOX, list(BOX), RoundContext(number, 10, 1))
        weights = {client: int(message.model.weights["w"]) for client, message in sent.items()}
        assert sorted(weights.values()) == sorted(BOX)
        assert all(client != owner for client, owner in weights.items())


def test_only_the_model_and_what_is_named_are_passed_on() -> None:
    site, step = server_site(), RoundContext(0, 1, 1)
    for message in exchange_models(site, BOX, list(BOX), step, ("open",)).values():
        assert set(message.parts) == {"model", "open"}
        assert message.size == 0
        assert int(message.extras["open"][0]) == int(message.model.weights["w"])  # type: ignore[index]
    assert set(exchange_models(site, BOX, [4], step)[4].parts) == {"model"}


def test_rounds_pair_differently_and_the_order_of_clients_does_not_matter() -> None:
    site, clients = server_site(), list(BOX)
    draws = [
        exchange_models(site, BOX, clients, RoundContext(number, 10, 1)) for number in range(10)
    ]
    assert any(not tree.equal(draws[0], other) for other in draws)
    again = exchange_models(site, BOX, clients[::-1], RoundContext(0, 10, 1))
    assert all(tree.equal(again[client], draws[0][client]) for client in clients)


def test_who_was_lost_between_the_legs_takes_no_part() -> None:
    left = exchange_models(server_site(), BOX, [1, 6], RoundContext(0, 1, 1))
    assert {c: int(m.model.weights["w"]) for c, m in left.items()} == {1: 6, 6: 1}
    alone = exchange_models(server_site(), BOX, [9], RoundContext(0, 1, 1))
    assert int(alone[9].model.weights["w"]) == 9


def test_a_full_box_can_be_saved() -> None:
    state = ExchangeServer(Model({"w": torch.zeros(2)}), BOX)
    assert tree.equal(unpack_tree(pack_tree(state)), state)


def test_a_base_methods_state_comes_back_whole_and_its_model_is_kept_once() -> None:
    state = ServerState(Model({"w": torch.ones(3)}))
    wrapped = wrap_state(state)
    assert tree.equal(unwrap_state(wrapped), state)
    assert tree.nbytes(wrapped) == tree.nbytes(state)
    assert wrapped.pending_replies == {}


def test_a_model_without_all_its_parts_is_refused() -> None:
    site = server_site()
    check_complete_model(site, site.initial_model())
    with pytest.raises(ProtofedError, match=r"keeps encoder, neck at its client"):
        check_complete_model(site, site.initial_model().only("head"))
