from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import ArrayShape, Model, Net
from protofed.core.prototypes import class_means, prototype_template
from protofed.core.site import ArrayDataset, ClientId, RoundContext, Site, TrainingBatch
from protofed.core.training import fit_model
from protofed.errors import ProtofedError
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedseproto import PRIVATE, FedSeProto, Work, build_decoder, phase_batches
from protofed.ops.prototype_collection import local_prototypes, stack_client_prototypes
from protofed.testing import check_method, toy_sites
from protofed.testing.method_checks import IMAGE
from tests.methods.playing import Played, after, play

SHARED = ("encoder", "neck", "head")
STEP = RoundContext(0, 1)


@cache
def plain() -> Played:
    return play(FedSeProto())


def test_domain_encoder_and_decoder_never_travel() -> None:
    messages = plain().messages
    names = {
        name for message in messages for name in (*message.model.weights, *message.model.buffers)
    }
    assert {name.split(".")[0] for name in names} == set(SHARED)
    assert all(not message.extras for message in messages)


def test_clients_agree_on_the_shared_parts_and_differ_in_their_own() -> None:
    states, last = plain().states, list(plain().exchanges[1][0].values())  # what round 1 began with
    assert all(tree.equal(message.model, last[0].model) for message in last)
    for state in states.values():
        assert {name.split(".")[0] for name in state.weights} == set(PRIVATE)
    assert not tree.equal(states[0].only("domain"), states[1].only("domain"))
    assert not tree.equal(states[0].only("decoder"), states[1].only("decoder"))


def test_domain_encoder_and_decoder_persist_across_rounds() -> None:
    method = FedSeProto(schedule="joint", alpha=0, beta=0)  # nothing trains them
    _, sites = toy_sites(method)
    kept = tree.map(lambda leaf: leaf + 1, method.init_client(sites[0]))
    received = method.publish(method.init_server(sites[0]))
    assert tree.equal(method.train(sites[0], received, kept, STEP)[1], kept)
    once = play(FedSeProto(), 1).states
    assert not tree.equal(once, plain().states)


def test_the_head_is_frozen_in_phase_two() -> None:
    method = FedSeProto()
    site = toy_sites(method)[1][1]
    received = Message(protos=local_prototypes(site, site.initial_model()))

    def loss(model: Model, work: Work) -> Tensor:
        return method.phase_loss(site, received, model, *work)

    batches: list[Work] = [("split", batch) for batch in site.batches(STEP)]
    start, end = (
        site.initial_model(),
        fit_model(site.initial_model(), batches, loss, site.training).trained,
    )
    assert tree.equal(start.only("head"), end.only("head"))
    for part in ("encoder", "neck", "domain", "decoder"):
        assert not tree.equal(start.only(part).weights, end.only(part).weights)


@pytest.mark.parametrize("schedule", ["two-phase", "sequential", "interleaved"])
def test_after_a_round_the_head_is_that_of_phase_one(schedule: Any) -> None:
    method = FedSeProto(schedule=schedule)
    site = toy_sites(method)[1][1]
    received, state = Message(site.initial_model().without(*PRIVATE)), method.init_client(site)
    head = method.train(site, received, state, STEP)[0].model.only("head")
    assert not tree.equal(head, site.initial_model().only("head"))
    if schedule != "interleaved":
        basic = [work for work in phase_batches(schedule, site, STEP) if work[0] == "basic"]
        only = fit_model(
            site.initial_model(),
            basic,
            lambda m, w: method.phase_loss(site, received, m, *w),
            site.training,
        )
        assert tree.equal(head, only.trained.only("head"))


def test_with_all_weights_zero_it_is_fedavg_on_the_same_net_bit_for_bit() -> None:
    method = FedSeProto(schedule="joint", posterior="unit", alpha=0, beta=0, lam=0)
    average = play(FedAvg(), net_of=method).server.model.only(*SHARED)
    assert tree.equal(after(method), average)


@pytest.mark.parametrize("name", ["alpha", "beta", "lam"])
def test_each_weight_changes_the_result(name: str) -> None:
    off: dict[str, Any] = {"alpha": 0, "beta": 0, "lam": 0, "posterior": "unit"}
    zero, moved = FedSeProto(**off), FedSeProto(**{**off, name: 0.5})
    assert not tree.equal(after(zero), after(moved))


@pytest.mark.parametrize(
    "change",
    [
        {"schedule": "two-phase"},
        {"schedule": "sequential"},
        {"schedule": "interleaved"},
        {"kd_form": "printed"},
        {"mi_reduction": "sum"},
        {"mi_reduction": "literal"},
        {"proto_dims": "sum"},
        {"balanced": False},
    ],
    ids=str,
)
def test_every_switch_changes_the_result(change: dict[str, Any]) -> None:
    assert not tree.equal(after(FedSeProto(**change)), plain().server.model)


def test_each_posterior_is_another_one() -> None:
    unit, moment = plain().server.model, after(FedSeProto(posterior="moment"))
    assert not tree.equal(unit, moment)
    width = after(FedSeProto(posterior="gaussian")).weights["neck.weight"].shape[0]
    assert width == 2 * unit.weights["neck.weight"].shape[0]  # a mean and a variance


def test_before_there_are_prototypes_lambda_does_nothing() -> None:
    assert tree.equal(after(FedSeProto(lam=0), 1), after(FedSeProto(), 1))


def test_prototypes_are_means_of_semantic_features_and_owners_count_alike() -> None:
    method, run = FedSeProto(), play(FedSeProto(), 1)
    _, replies = run.exchanges[0]
    vectors: dict[int, list[Tensor]] = {}
    for client, site in run.sites.items():
        whole = replies[client].model | run.states[client]
        z = torch.cat([site.forward_eval(whole, x).z for x, _ in site.eval_batches(site.train)])
        mine = class_means(z, site.train.labels)
        assert tree.equal(mine, replies[client].protos)
        for row, label in zip(mine.vectors, mine.labels.tolist(), strict=True):
            vectors.setdefault(label, []).append(row)
    protos = method.publish(run.server).protos
    assert protos is not None
    for row, label in zip(protos.vectors, protos.labels.tolist(), strict=True):
        torch.testing.assert_close(row, torch.stack(vectors[label]).mean(0))


@pytest.mark.parametrize("posterior", ["gaussian", "unit", "moment"])
def test_identical_images_of_one_class_lie_on_their_prototype(posterior: Any) -> None:
    near, off = FedSeProto(posterior=posterior), FedSeProto(posterior=posterior, lam=0)
    site = mixed(near, (12, 12))[0]  # without batch norm: training and looking agree
    images = site.train.images[:1].expand(7, -1, -1, -1)
    site = replace(site, train=ArrayDataset(images, torch.full((7,), 2)))
    x, y = next(site.eval_batches(site.train))
    received = Message(protos=local_prototypes(site, site.initial_model()))
    with_pull, without = (
        method.phase_loss(
            site, received, site.initial_model(), "split", TrainingBatch(x, y, STEP, 0, 0)
        )
        for method in (near, off)
    )
    assert with_pull.item() == pytest.approx(without.item(), abs=1e-6)


def mixed(method: FedSeProto, widths: tuple[int, int]) -> dict[ClientId, Site]:
    """The toy federation with two architectures: a linear encoder, and one with a convolution."""
    _, sites = toy_sites(FedAvg())

    def net(client: ClientId) -> Net:
        width, flat = widths[client % 2], nn.Flatten()
        one = nn.Sequential(flat, nn.Linear(192, width), nn.ReLU())
        two = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), flat, nn.Linear(36, width))
        bare = Net((one, two)[client % 2], nn.Linear(width, 8), nn.Linear(8, 5), width)
        return method.adapt(bare, IMAGE)

    return {client: replace(site, net=net(client)) for client, site in sites.items()}


def test_without_averaging_only_prototypes_travel_between_different_nets() -> None:
    method = FedSeProto(param_avg=False)
    run = play(method, sites=mixed(method, (12, 12)))
    assert {part for message in run.messages for part in message.parts} == {"protos"}
    shapes = [[tuple(w.shape) for w in s.weights.values()] for s in run.states.values()]
    assert shapes[0] != shapes[1]
    assert run.server.protos.vectors.shape == (5, 12)
    assert method.personal
    received = method.publish(run.server)
    for client, site in run.sites.items():
        x, _ = next(site.eval_batches(site.train))
        own = method.predict(site, received, run.states[client], x)
        assert torch.equal(own, site.forward_eval(run.states[client], x).logits)


def test_prototypes_of_different_widths_are_refused() -> None:
    method = FedSeProto(param_avg=False)
    with pytest.raises(ProtofedError, match=r"client 1: protos\.vectors: shape \[4, 16\]"):
        play(method, sites=mixed(method, (12, 16)))
    with pytest.raises(ProtofedError) as caught:
        stack_client_prototypes(
            {client: Message(protos=prototype_template(5, 12 + 4 * client)) for client in (0, 1)}
        )
    for part in ("widths", "client 0: 12", "client 1: 16", "same width"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "method",
    [
        FedSeProto(param_avg=False, schedule="joint", posterior="unit", kd_form="printed"),
        FedSeProto(schedule="interleaved", posterior="moment", balanced=False),
        FedSeProto(schedule="two-phase", posterior="gaussian", mi_reduction="literal"),
    ],
    ids=["prototypes only", "interleaved", "two-phase"],
)
def test_the_contract_holds_in_the_other_modes(method: FedSeProto) -> None:
    check_method(method)


@pytest.mark.parametrize("sizes", [(6,), (3, 4)])
def test_rows_are_rebuilt_in_their_own_shape(sizes: tuple[int, ...]) -> None:
    decoder = build_decoder(10, ArrayShape(sizes))
    assert decoder(torch.zeros(2, 10)).shape == (2, *sizes)
