"""Clients' models within a round, trained again: they are those that made the next checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from protofed.core import tree
from protofed.core.method import average_models
from protofed.core.model import Model
from protofed.core.site import RoundContext
from protofed.errors import ProtofedError
from protofed.experiment.local_models import replay_round
from protofed.experiment.runner import run
from protofed.experiment.trained_run import open_trained_run
from protofed.spec.spec_parser import parse_experiment

RAW: dict[str, Any] = {
    "data": {"name": "digits-mini", "domains": ["optical", "print"], "side": 8},
    "partition": {"kind": "shares", "clients": 4, "samples": 16},
    "training": {"epochs": 2, "batch": 8},
    "net": "moon-mlp",
    "rounds": 4,
    "evaluate_every": 2,
}


def played(folder: Path, method: dict[str, Any] | str, **changed: Any) -> Path:
    run(parse_experiment({**RAW, "method": method, **changed}), folder, workers=0, progress=False)
    return folder


@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        "fedprox",
        "fpl",
        "scaffold",
        "fedexg",
        "pgct",
        "local",
        {"name": "fedproto", "param_avg": False},
    ],
    ids=str,
)
def test_the_replayed_round_ends_where_the_run_did(method: Any, tmp_path: Path) -> None:
    opened = open_trained_run(played(tmp_path / "run", method))
    again = replay_round(tmp_path / "run", opened)
    assert tree.equal(again.server, opened.server)
    assert len(again.exchanges) == opened.method.exchanges
    for client in opened.federation.sites:
        assert tree.equal(again.exchanges[-1].states[client], opened.engine.state(client))


def test_the_models_are_those_that_were_averaged(tmp_path: Path) -> None:
    opened = open_trained_run(played(tmp_path / "run", "fedavg"))
    again = replay_round(tmp_path / "run", opened)
    assert tree.equal(average_models(again.exchanges[0].replies), opened.server.model)
    models = [again.local(client).model()[1] for client in again.exchanges[0].replies]
    for client, model in zip(again.exchanges[0].replies, models, strict=True):
        assert tree.equal(model, again.exchanges[0].replies[client].model)
    assert not tree.equal(models[0], models[1])


def test_training_by_hand_from_the_round_before_gives_the_same_model(tmp_path: Path) -> None:
    folder = played(tmp_path / "run", "fedavg", evaluate_every=1)
    before, opened = open_trained_run(folder, 3), open_trained_run(folder, 4)
    local = replay_round(folder, opened).local(1)
    site, context = opened.federation.sites[1], RoundContext(3, 4)
    reply, _ = before.method.train(
        site.at_round(context), before.method.publish(before.server), None, context
    )
    assert tree.equal(local.model()[1], reply.model)
    images = opened.federation.tests["print"]
    by_hand = site.forward_eval(reply.model, site.pixels.normalize(images.images))
    assert local.features(images).equal(by_hand.z)
    assert local.predictions(images).equal(by_hand.logits.argmax(1))
    assert not opened.features(images).equal(by_hand.z)


def test_a_client_of_a_personal_method_has_the_model_that_it_keeps(tmp_path: Path) -> None:
    opened = open_trained_run(played(tmp_path / "run", "local"))
    for client in opened.federation.sites:
        model = replay_round(tmp_path / "run", opened).local(client).model()[1]
        state = opened.engine.state(client)
        assert isinstance(state, Model)
        assert tree.equal(model, state)


def test_without_an_earlier_checkpoint_it_starts_at_the_beginning(tmp_path: Path) -> None:
    folder = played(tmp_path / "run", {"name": "fedproto", "param_avg": False})
    opened = open_trained_run(folder)
    first = replay_round(folder, opened)
    shutil.rmtree(folder / "checkpoints" / "round-00002")
    again = replay_round(folder, opened)
    assert tree.equal(first.server, again.server)
    for client in opened.federation.sites:
        assert tree.equal(first.local(client).model()[1], again.local(client).model()[1])


@pytest.mark.parametrize("method", ["fedexg", "pgct"])
def test_who_trains_a_model_further_got_exactly_that_model(method: str, tmp_path: Path) -> None:
    opened = open_trained_run(played(tmp_path / "run", method))
    again = replay_round(tmp_path / "run", opened)
    before, after = again.exchanges
    partners = {client: again.trained_further_by(client) for client in before.replies}
    assert sorted(partners.values()) == sorted(partners)
    for client, partner in partners.items():
        assert client != partner
        assert tree.equal(after.sent[partner].model, before.replies[client].model)
        assert tree.equal(again.local(client, 0).model()[1], before.replies[client].model)
        assert tree.equal(again.local(partner).model()[1], after.replies[partner].model)


def test_with_one_exchange_nobody_trains_a_model_further(tmp_path: Path) -> None:
    opened = open_trained_run(played(tmp_path / "run", "fedavg"))
    again = replay_round(tmp_path / "run", opened)
    assert [again.trained_further_by(c) for c in opened.federation.sites] == [0, 1, 2, 3]


def test_a_client_that_took_no_part_has_no_model(tmp_path: Path) -> None:
    opened = open_trained_run(played(tmp_path / "run", "fedavg", participation=0.5))
    again = replay_round(tmp_path / "run", opened)
    took_part = list(again.exchanges[0].replies)
    assert len(took_part) == 2
    away = next(client for client in opened.federation.sites if client not in took_part)
    there = ", ".join(map(str, took_part))
    with pytest.raises(ProtofedError, match=f"client {away} sent no model in round 4.*: {there}"):
        again.local(away)
