from __future__ import annotations

import torch

from protofed.core import tree
from protofed.core.site import RoundContext
from protofed.engines.engine import require_replies
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import run_round
from protofed.methods.fedavg import FedAvg
from protofed.methods.local import Local
from protofed.testing import toy_sites
from tests.methods.playing import play


def test_nothing_travels() -> None:
    site, sites = toy_sites(Local())
    method = Local()
    messages = method.send(site, method.init_server(site), sorted(sites), RoundContext(0, 1))
    replies = require_replies(LocalEngine(method, sites).exchange(messages, RoundContext(0, 1)))
    assert all(m.parts == {} for m in (*messages.values(), *replies.values()))


def test_each_client_is_a_federation_of_one() -> None:
    site, sites = toy_sites(Local())
    alone = LocalEngine(Local(), sites)
    server = Local().init_server(site)
    for number in range(2):
        server = run_round(Local(), site, server, alone, sorted(sites), RoundContext(number, 2))
    for client in sites:
        engine = LocalEngine(FedAvg(), sites)
        together = FedAvg().init_server(site)
        for number in range(2):
            together = run_round(
                FedAvg(), site, together, engine, [client], RoundContext(number, 2)
            )
        assert tree.equal(alone.states[client], together.model)


def test_a_client_predicts_with_its_own_model() -> None:
    run, method = play(Local()), Local()
    received = method.publish(run.server)
    x, _ = next(run.sites[0].eval_batches(run.sites[0].train))
    scores = [method.predict(run.sites[0], received, state, x) for state in run.states.values()]
    for mine, state in zip(scores, run.states.values(), strict=True):
        assert torch.equal(mine, run.sites[0].forward_eval(state, x).logits)
    assert not torch.equal(scores[0], scores[1])
