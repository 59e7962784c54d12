"""Weights of clients, balanced sampling and class weights, against slow loops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from protofed.core.message import Message
from protofed.core.method import ServerState, average_models
from protofed.core.model import Model
from protofed.core.serialization import pack_tree
from protofed.core.site import RoundContext
from protofed.core.training import Training
from protofed.engines.local_engine import LocalEngine
from protofed.errors import ProtofedError
from protofed.federation.build import build_federation
from protofed.federation.round import WeightedReplies, run_round
from protofed.methods import METHODS
from protofed.ops.control_variates import relative_size
from protofed.spec.spec_parser import parse_experiment

UNEQUAL: dict[str, Any] = {
    "rounds": 1,
    "training": {"epochs": 1},
    "partition": {
        "kind": "shares",
        "clients": {"optical": 1, "print": 1, "syn": 1, "street": 1},
        "samples": {"optical": 90, "print": 20, "syn": 40, "street": 10},
    },
}


def numbers(value: float) -> Model:
    return Model({"w": torch.tensor([value])})


@pytest.mark.parametrize("weights", ["size", "equal", "sqrt"])
def test_means_over_clients_follow_the_weights(weights: str) -> None:
    site = build_federation(parse_experiment({**UNEQUAL, "weights": weights})).server
    sizes = [90, 20, 40, 10]
    assert list(site.sizes.values()) == sizes
    replies = {n: Message(numbers(float(n)), size=size) for n, size in enumerate(sizes)}
    rule = {"size": float, "equal": lambda size: 1.0, "sqrt": math.sqrt}[weights]
    wanted = sum(n * rule(size) for n, size in enumerate(sizes)) / sum(map(rule, sizes))
    got = average_models(WeightedReplies(replies, site))
    assert float(got.weights["w"]) == pytest.approx(wanted, rel=1e-3)
    for client, size in site.sizes.items():
        share = rule(size) * len(sizes) / sum(map(rule, sizes))
        assert relative_size(site, client) == pytest.approx(share, rel=1e-3)


def test_weighted_replies_are_read_one_at_a_time() -> None:
    site = build_federation(parse_experiment({**UNEQUAL, "weights": "equal"})).server
    asked: list[int] = []

    class Disk(dict[int, Message]):
        def __getitem__(self, client: int) -> Message:
            asked.append(client)
            return super().__getitem__(client)

    replies: Mapping[int, Message] = Disk({n: Message(numbers(n), size=5) for n in range(3)})
    weighted = WeightedReplies(replies, site)
    assert (list(weighted), len(weighted), asked) == ([0, 1, 2], 3, [])
    assert [reply.size for reply in weighted.values()] == [1, 1, 1]
    assert asked == [0, 1, 2]


def model_after_a_round(spec: dict[str, Any]) -> torch.Tensor:
    found = one_round(spec)[1].model.weights
    return torch.cat([leaf.flatten() for leaf in found.values()])


def test_a_run_with_equal_sizes_does_not_depend_on_the_weights() -> None:
    equal = {"kind": "shares", "clients": 4, "samples": 30}
    spec = {**UNEQUAL, "partition": equal}
    size, same, root = (
        model_after_a_round({**spec, "weights": w}) for w in ("size", "equal", "sqrt")
    )
    assert torch.allclose(size, same, atol=1e-7)
    assert torch.allclose(size, root, atol=1e-7)


def test_weights_change_a_run_of_unequal_clients() -> None:
    size, same, root = (
        model_after_a_round({**UNEQUAL, "weights": w}) for w in ("size", "equal", "sqrt")
    )
    assert not torch.allclose(size, same, atol=1e-5)
    assert not torch.allclose(same, root, atol=1e-5)


def test_balanced_sampling_draws_each_class_alike() -> None:
    labels = torch.tensor([0] * 900 + [1] * 90 + [3] * 10)
    draw = torch.Generator().manual_seed(0)
    training = Training(sampling="balanced")
    drawn = torch.cat([training.epoch_order(labels, draw) for _ in range(20)])
    assert len(drawn) == 20 * len(labels)
    counts = Counter(labels[drawn].tolist())
    for label in (0, 1, 3):
        assert counts[label] / len(drawn) == pytest.approx(1 / 3, abs=0.01)
    rare = Counter(drawn[labels[drawn] == 3].tolist())
    assert len(rare) == 10  # every image of the rare class is seen
    assert len(training.epoch_order(labels[:0], draw)) == 0


def test_shuffling_sees_every_image_once() -> None:
    labels, draw = torch.tensor([0] * 50 + [1]), torch.Generator().manual_seed(0)
    assert sorted(Training().epoch_order(labels, draw).tolist()) == list(range(51))


def test_class_weights_are_a_weighted_mean_over_the_batch() -> None:
    (site, *_) = build_federation(parse_experiment(UNEQUAL)).sites.values()
    labels = torch.tensor([0] * 70 + [1] * 15 + [2] * 5)
    balanced = replace(
        site,
        train=replace(site.train, labels=labels),
        training=replace(site.training, class_weights="balanced"),
    )
    logits = torch.randn(8, site.classes, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    counts = {0: 70, 1: 15, 2: 5}
    each = [float(F.cross_entropy(logits[i : i + 1], y[i : i + 1])) for i in range(8)]
    weights = [1 / counts[int(label)] for label in y]
    wanted = sum(w * v for w, v in zip(weights, each, strict=True)) / sum(weights)
    assert float(balanced.task_loss(logits, y)) == pytest.approx(wanted, rel=1e-5)
    assert torch.equal(site.task_loss(logits, y), F.cross_entropy(logits, y))


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("field", ["sampling", "class_weights"])
def test_every_method_follows_what_a_client_balances(name: str, field: str) -> None:
    plain, balanced = (replies_of_a_round(name, value) for value in ({}, {field: "balanced"}))
    assert len(plain) == len(balanced) > 0
    assert plain != balanced


def replies_of_a_round(name: str, training: dict[str, Any]) -> list[bytes]:
    public = {"public": {"samples": 8}} if "public images" in METHODS[name]().needs else {}
    return one_round({**UNEQUAL, **public, "method": name, "training": {"epochs": 2, **training}})[
        0
    ]


def one_round(spec: dict[str, Any]) -> tuple[list[bytes], ServerState]:
    """All replies of a later round, in which a schedule's terms all count, and what they make."""
    made = parse_experiment(spec)
    federation = build_federation(made)
    replies: list[bytes] = []
    server = run_round(
        made.method,
        federation.server,
        made.method.init_server(federation.server),
        LocalEngine(made.method, federation.sites),
        list(federation.sites),
        RoundContext(round=1, rounds=2),
        tell=lambda sent, received: replies.extend(map(pack_tree, received.values())),
    )
    return replies, server


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"weights": "sizes"}, "weights: .*'size', 'equal' or 'sqrt'"),
        ({"training": {"sampling": "balance"}}, "training.sampling: .*did you mean 'balanced'"),
        ({"training": {"class_weights": True}}, "training.class_weights: .*'none' or 'balanced'"),
    ],
)
def test_a_fault_names_its_field(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtofedError, match=words):
        parse_experiment(spec)
