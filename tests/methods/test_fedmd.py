from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model, Net
from protofed.core.site import ArrayDataset, ClientId, RoundContext, Site
from protofed.methods.fedmd import FedMD
from protofed.methods.local import Local
from protofed.ops.losses import fit_consensus, public_logits
from protofed.testing import toy_sites
from tests.methods.playing import play


def extra(message: Message, name: str) -> Tensor:
    value = message.extras[name]
    assert isinstance(value, Tensor)
    return value


def narrow_net() -> Net:
    """Another architecture, with 3 features where the toy net has 8, and no batch norm."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(192, 7), nn.ReLU())
        return Net(encoder, nn.Linear(7, 3), nn.Linear(3, 5), width=7)


def mixed_sites() -> dict[ClientId, Site]:
    return {
        client: replace(site, net=narrow_net()) if client % 2 else site
        for client, site in toy_sites(FedMD())[1].items()
    }


def two_classes(site: Site) -> Site:
    """A site with a linear net and two classes that trains without moving."""
    net = Net(nn.Flatten(), nn.Identity(), nn.Linear(192, 2), width=192)
    train = ArrayDataset(site.train.images, site.train.labels % 2)
    training = replace(site.training, lr=0.0)
    return replace(site, net=net, classes=2, train=train, training=training)


def test_two_parties_meet_in_the_middle() -> None:
    """Logits (0, 2) and (2, 0) make (1, 1), a mean absolute error of 1 for each."""
    method, (site, toys) = FedMD(), toy_sites(FedMD())
    sites = {client: two_classes(toys[client]) for client in (0, 1)}
    biases = {0: torch.tensor([0.0, 2.0]), 1: torch.tensor([2.0, 0.0])}
    states = {
        client: Model({"head.weight": torch.zeros(2, 192), "head.bias": bias})
        for client, bias in biases.items()
    }
    ask = method.send(site, method.init_server(site), [0, 1], RoundContext(0, 1))
    said = {c: method.train(sites[c], ask[c], states[c], RoundContext(0, 1))[0] for c in sites}
    server = method.merge(site, method.init_server(site), said, RoundContext(0, 1))
    torch.testing.assert_close(server.consensus, torch.ones(20, 2), rtol=0, atol=1e-6)
    told = method.send(site, server, [0, 1], RoundContext(0, 1, 1))
    for client in sites:
        reply, _ = method.train(sites[client], told[client], states[client], RoundContext(0, 1, 1))
        assert reply.metrics["digest"] == pytest.approx(1, abs=1e-6)


def test_the_consensus_is_the_plain_mean_over_those_who_replied() -> None:
    method, run = FedMD(), play(FedMD(), 1)
    some = {client: reply for client, reply in run.up[0].items() if client != 2}
    server = method.merge(run.site, method.init_server(run.site), some, RoundContext(0, 1))
    assert [reply.size for reply in some.values()] == [17, 24, 40]  # sizes do not count
    for row in range(20):
        total = sum((extra(reply, "logits")[row] for reply in some.values()), torch.zeros(5))
        torch.testing.assert_close(server.consensus[row], total / 3)


@pytest.mark.parametrize("who", range(4))
def test_a_party_alone_is_local_bit_for_bit(who: ClientId) -> None:
    run = play(FedMD(digest_epochs=3), who=[who])
    assert tree.equal(run.states, play(Local(), who=[who]).states)
    assert run.down[1][who].parts == {}


def test_without_digesting_it_is_local_bit_for_bit() -> None:
    alone = play(Local()).states
    assert tree.equal(play(FedMD(digest_epochs=0)).states, alone)
    assert not tree.equal(play(FedMD()).states, alone)


def test_digesting_makes_parties_say_more_alike() -> None:
    def spread(method: FedMD) -> float:
        nets = {c: replace(s, net=narrow_net()) for c, s in toy_sites(method)[1].items()}
        run, rows = play(method, sites=nets), torch.arange(20)
        said = [public_logits(s, run.states[c], rows) for c, s in run.sites.items()]
        return float(torch.stack(said).std(0).mean())

    spreads = [spread(FedMD(digest_epochs=epochs)) for epochs in (0, 1, 2)]
    assert spreads[0] > spreads[1] > spreads[2]


def test_a_round_is_digesting_and_then_private_training() -> None:
    run, method = play(FedMD(digest_epochs=2), 1), FedMD(digest_epochs=2)
    site, told, start = run.sites[1], run.down[1][1], run.sites[1].initial_model()
    rows, consensus = extra(told, "rows"), extra(told, "consensus")
    middle = fit_consensus(
        site, start, rows, consensus, RoundContext(0, 1, 1), method.digest_epochs
    ).trained
    _, end = Local().train(site, Message(), middle, RoundContext(0, 1))
    assert tree.equal(end, run.states[1])
    assert not tree.equal(middle, start)


def test_all_parties_get_the_same_rows_and_each_round_draws_anew() -> None:
    run = play(FedMD(public_batch=6), 3)
    drawn = []
    for legs in (run.down[:2], run.down[2:4], run.down[4:]):
        tables = [extra(message, "rows") for messages in legs for message in messages.values()]
        assert len(tables) == 8
        assert all(torch.equal(rows, tables[0]) for rows in tables)
        assert len(tables[0].unique()) == 6
        drawn.append(tuple(tables[0].tolist()))
    assert len(set(drawn)) == 3


def test_a_larger_draw_than_there_are_images_takes_all() -> None:
    run = play(FedMD(), 1)
    assert sorted(extra(run.down[0][0], "rows").tolist()) == list(range(20))


def test_a_party_answers_in_the_order_of_the_rows() -> None:
    run = play(FedMD(public_batch=5), 1)
    rows, said = extra(run.down[0][3], "rows"), extra(run.up[0][3], "logits")
    assert said.shape == (5, 5)
    site = run.sites[3]
    for row, logits in zip(rows.tolist(), said, strict=True):
        x = site.pixels.normalize(site.public[row : row + 1])
        torch.testing.assert_close(logits, site.forward_eval(site.initial_model(), x).logits[0])


def test_no_weights_travel_and_the_second_reply_carries_nothing() -> None:
    run = play(FedMD(), 1)
    asked, told = run.down
    assert all(message.parts.keys() == {"rows"} for message in asked.values())
    assert all(message.parts.keys() == {"rows", "consensus"} for message in told.values())
    assert all(message.parts.keys() == {"logits"} for message in run.up[0].values())
    assert all(message.parts == {} for message in run.up[1].values())
    assert run.server.model == Model()
    assert len(run.server.consensus) == 0  # nothing is left over for the next round


def test_parties_may_have_nets_of_any_width() -> None:
    run = play(FedMD(), sites=mixed_sites())
    alone = play(Local(), sites=mixed_sites())
    assert run.states[0].weights.keys() != run.states[1].weights.keys()
    for client, site in run.sites.items():
        state = run.states[client]
        assert tree.finite(state)
        assert not tree.equal(state, alone.states[client])
        x = site.pixels.normalize(site.train.images)
        scores = FedMD().predict(site, FedMD().publish(run.server), state, x)
        assert torch.equal(scores, site.forward_eval(state, x).logits)


def test_who_is_absent_keeps_its_model() -> None:
    run = play(FedMD(), who=[1, 3])
    assert tree.equal(run.states[0], run.sites[0].initial_model())
    assert not tree.equal(run.states[1], run.sites[1].initial_model())


@pytest.mark.parametrize("wrong", [{"public_batch": 0}, {"digest_epochs": -1}])
def test_wrong_numbers_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to"):
        FedMD(**wrong)
