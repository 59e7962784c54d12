from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.model import Model
from protofed.core.site import ClientId, RoundContext, Site
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import Messages, run_round
from protofed.methods.fedexg import FedExg
from protofed.methods.fedme import FedMe, assign_partners
from protofed.ops.model_exchange import ExchangeServer
from protofed.testing import toy_sites
from tests.methods.playing import after


class Played:
    """A round on the toy federation: states, and what travelled down and up in each leg."""

    def __init__(self, method: AnyMethod, who: Sequence[ClientId] = (0, 1, 2, 3)):
        self.site, self.sites = toy_sites(method)
        self.down: list[Messages] = []
        self.up: list[Messages] = []
        self.engine: LocalEngine[Any, Any] = LocalEngine(method, self.sites)
        start = method.init_server(self.site)
        self.server = run_round(
            method, self.site, start, self.engine, who, RoundContext(0, 1), self._listen
        )

    def _listen(self, down: Messages, up: Messages) -> None:
        self.down.append(down)
        self.up.append(up)


def other(message: Message) -> Model:
    model = message.extras["other"]
    assert isinstance(model, Model)
    return model


def scalar(value: float) -> Model:
    return Model({"w": torch.tensor([value])}, {"seen": torch.tensor(int(value))})


def merged(
    sizes: dict[ClientId, int], replied: dict[ClientId, tuple[float, float]]
) -> ExchangeServer:
    """The server after a mutual phase, from each client's own and its partner's trained model."""
    site = toy_sites(FedMe())[0]
    box = {client: Message(scalar(0), size=size) for client, size in sizes.items()}
    replies = {
        client: Message(scalar(own), extras={"other": scalar(theirs)}, size=sizes[client])
        for client, (own, theirs) in replied.items()
    }
    return FedMe().merge(site, ExchangeServer(scalar(0), box), replies, RoundContext(0, 1, 1))


def test_every_client_gets_anothers_model_and_both_come_back() -> None:
    run = Played(FedMe())
    who = assign_partners(run.site, run.sites, RoundContext(0, 1))
    for client in run.sites:
        assert who[client] != client
        assert tree.equal(run.down[1][client].model, run.up[0][who[client]].model)
        assert run.up[1][client].parts.keys() == {"model", "other"}
    assert all(
        message.parts.keys() == {"model"} for messages in run.down for message in messages.values()
    )
    assert run.server.pending_replies == {}
    assert all(tree.equal(state, Model()) for state in run.engine.states.values())


def test_the_mutual_phase_is_two_descents_written_as_a_loop() -> None:
    """Both losses are taken from the outputs before either model's step."""
    method, run = FedMe(mutual=2), Played(FedMe(mutual=2))
    site, step = run.sites[2], RoundContext(0, 1, 1)
    received = run.down[1][2]
    reply, _ = method.train(site, received, run.up[0][2].model, step)
    own, theirs = tree.clone(run.up[0][2].model), tree.clone(received.model)
    one, two = (
        torch.optim.SGD(
            [leaf.requires_grad_() for leaf in model.weights.values()],
            site.training.lr,
            site.training.momentum,
            weight_decay=site.training.weight_decay,
        )
        for model in (own, theirs)
    )
    for batch in site.batches(step, epochs=1):
        a, b = site.forward_train(own, batch.x).logits, site.forward_train(theirs, batch.x).logits
        p, q = a.softmax(1), b.softmax(1)
        towards_b = (q.detach() * (q.detach() / p).log()).sum(1).mean()
        towards_a = (p.detach() * (p.detach() / q).log()).sum(1).mean()
        one.zero_grad()
        two.zero_grad()
        (F.cross_entropy(a, batch.y) + 2 * towards_b).backward()
        (F.cross_entropy(b, batch.y) + 2 * towards_a).backward()
        one.step()
        two.step()
    for mine, trained in ((own, reply.model), (theirs, other(reply))):
        for name, leaf in trained.weights.items():
            torch.testing.assert_close(leaf, mine.weights[name].detach())
        for name, leaf in trained.buffers.items():
            torch.testing.assert_close(leaf, mine.buffers[name])


def test_without_mutual_learning_the_other_model_is_fedexgs() -> None:
    me, exchanged = Played(FedMe(mutual=0)), Played(FedExg())
    for client in me.sites:
        assert tree.equal(other(me.up[1][client]), exchanged.up[1][client].model)
    assert not tree.equal(me.server.model, exchanged.server.model)  # own copies count too


def test_the_weight_of_mutual_learning_draws_the_two_models_together() -> None:
    apart = []
    for mutual in (0, 1, 30):
        run = Played(FedMe(mutual=mutual))
        x = run.site.pixels.normalize(run.site.public)
        said = [
            [run.site.forward_eval(m, x).logits.softmax(1) for m in (reply.model, other(reply))]
            for reply in run.up[1].values()
        ]
        apart.append(sum(float((a - b).abs().sum()) for a, b in said))
    assert apart[0] > apart[1] > apart[2]
    assert not tree.equal(after(FedMe(mutual=0)), after(FedMe()))


def test_copies_are_averaged_alike_and_models_by_their_owners_images() -> None:
    sizes = {0: 1, 1: 2, 2: 3, 3: 10}
    replied = {0: (1.0, 20.0), 1: (2.0, 40.0), 2: (3.0, 60.0), 3: (4.0, 80.0)}
    who = assign_partners(toy_sites(FedMe())[0], sizes, RoundContext(0, 1))
    total = 0.0
    for owner, size in sizes.items():
        [host] = [client for client in sizes if who[client] == owner]
        total += size * (replied[owner][0] + replied[host][1]) / 2
    server = merged(sizes, replied)
    assert server.model.weights["w"].item() == pytest.approx(total / 16, abs=1e-5)
    assert server.model.buffers["seen"].dtype == torch.int64
    assert server.pending_replies == {}


def test_a_lost_reply_leaves_one_copy_of_two_models() -> None:
    sizes = {0: 1, 1: 2, 2: 3, 3: 10}
    replied = {0: (1.0, 20.0), 1: (2.0, 40.0), 3: (4.0, 80.0)}
    who = assign_partners(toy_sites(FedMe())[0], sizes, RoundContext(0, 1))
    total = 0.0
    for owner, size in sizes.items():
        copies = [replied[owner][0]] if owner in replied else []
        copies += [replied[c][1] for c in replied if who[c] == owner]
        assert len(copies) == (1 if owner in (2, who[2]) else 2)
        total += size * sum(copies) / len(copies)
    value = merged(sizes, replied).model.weights["w"].item()
    assert value == pytest.approx(total / 16, abs=1e-5)


def test_a_model_without_any_copy_is_left_out() -> None:
    """Who alone replies speaks for two models, its own and its partner's, by their owners."""
    assert merged({0: 1, 1: 3}, {0: (4.0, 8.0)}).model.weights["w"].item() == pytest.approx(7)
    sizes = {0: 1, 1: 2, 2: 3, 3: 10}
    who = assign_partners(toy_sites(FedMe())[0], sizes, RoundContext(0, 1))
    lone = merged(sizes, {0: (4.0, 8.0)}).model.weights["w"].item()
    theirs = sizes[who[0]]
    assert lone == pytest.approx((4 + 8 * theirs) / (1 + theirs), abs=1e-5)


def test_a_client_alone_trains_its_own_model_twice_the_same() -> None:
    run, exchanged = Played(FedMe(), [2]), Played(FedExg(), [2])
    assert tree.equal(run.up[1][2].model, other(run.up[1][2]))
    assert tree.equal(run.server.model, run.up[1][2].model)
    for name, leaf in run.server.model.weights.items():
        torch.testing.assert_close(leaf, exchanged.server.model.weights[name])


def test_a_model_kept_from_a_lost_exchange_has_no_effect() -> None:
    site, sites = toy_sites(FedMe())
    received, stale = Message(site.initial_model()), scalar(5)
    one, two = (
        FedMe().train(sites[1], received, state, RoundContext(1, 2)) for state in (Model(), stale)
    )
    assert tree.equal(list(one), list(two))


def test_epochs_are_shared_by_the_two_phases() -> None:
    def steps(site: Site, method: FedMe) -> tuple[int, ...]:
        """Batches that a model has seen after each phase, by the counter of its batch norm."""
        received = Message(site.initial_model())
        first, state = method.train(site, received, Model(), RoundContext(0, 1, 0))
        second, _ = method.train(site, received, state, RoundContext(0, 1, 1))
        name = "encoder.1.num_batches_tracked"
        return tuple(int(reply.model.buffers[name]) for reply in (first, second))

    site = toy_sites(FedMe())[1][1]  # 24 images: three batches an epoch
    site = replace(site, training=replace(site.training, epochs=5))
    assert steps(site, FedMe()) == (6, 15)
    assert steps(site, FedMe(phase_epochs="full")) == (15, 30)


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        FedMe(mutual=-1)
