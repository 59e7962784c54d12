from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.model import Model
from protofed.core.rng import rng
from protofed.core.site import ClientId, RoundContext, Site
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import Messages, run_round
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedsr import PRIVATE, FedSR
from protofed.testing import check_method, toy_sites
from tests.methods.playing import after

STEP = RoundContext(0, 1)
ALL = [0, 1, 2, 3]


class Run:
    """Some rounds on the toy federation with the net of FedSR, and what travelled."""

    def __init__(
        self,
        method: AnyMethod,
        who: Callable[[int], list[ClientId]] = lambda number: ALL,
        start: Callable[[Model], Model] = lambda model: model,
        rounds: int = 2,
    ):
        self.site, self.sites = toy_sites(FedSR())
        self.engine = LocalEngine(method, self.sites)
        self.messages: list[Message] = []
        server: Any = method.init_server(self.site)
        server = replace(server, model=start(server.model))
        for number in range(rounds):
            step = RoundContext(number, rounds)
            server = run_round(
                method, self.site, server, self.engine, who(number), step, self._listen
            )
        self.model = cast(Model, server.model)

    def _listen(self, sent: Messages, received: Messages) -> None:
        self.messages += [*sent.values(), *received.values()]


@cache
def plain() -> Run:
    return Run(FedSR())


def still(model: Model) -> Model:
    """The same model with deviations of about e^-100."""
    weight, bias = (model.weights[f"neck.{name}"].clone() for name in ("weight", "bias"))
    weight[8:], bias[8:] = 0, -100
    return model | Model({"neck.weight": weight, "neck.bias": bias})


def test_with_weights_zero_and_no_deviation_it_is_fedavg_on_the_mean_bit_for_bit() -> None:
    ours = Run(FedSR(alpha_l2r=0, alpha_cmi=0), start=still).model
    assert tree.equal(ours, Run(FedAvg(), start=still).model.without(*PRIVATE))


def test_the_deviation_alone_makes_another_model() -> None:
    ours = Run(FedSR(alpha_l2r=0, alpha_cmi=0)).model
    assert not tree.equal(ours, Run(FedAvg()).model.without(*PRIVATE))


@pytest.mark.parametrize(
    "change",
    [{"alpha_l2r": 0}, {"alpha_cmi": 0}, {"alpha_cmi": 0.1}, {"l2_squared": True}],
    ids=str,
)
def test_every_weight_and_switch_of_the_loss_changes_the_result(change: dict[str, Any]) -> None:
    assert not tree.equal(after(FedSR(**change)), after(FedSR()))


@pytest.mark.parametrize("squared", [False, True])
def test_the_loss_is_its_three_terms_written_as_a_loop(squared: bool) -> None:
    method = FedSR(alpha_l2r=0.3, alpha_cmi=0.2, l2_squared=squared)
    site = toy_sites(method)[1][2]
    batch, model = list(site.batches(RoundContext(3, 9)))[2], site.initial_model()
    model.weights["references.mean"].copy_(torch.randn(5, 8, generator=rng("references")))
    value = method.loss(site, Message(), Model(), tree.clone(model), batch)
    draw = site.rng("sample", 3, 0, 2)
    noise = torch.randn(len(batch.y), 8, generator=draw)
    linear = (model.weights[f"neck.{name}"] for name in ("weight", "bias"))
    both = F.linear(_encoded(site, batch.x), *linear)
    expected = 0.0
    for row, label in enumerate(batch.y.tolist()):
        mean, deviation = both[row, :8], F.softplus(both[row, 8:])
        z = mean + deviation * noise[row]
        logits = model.weights["head.weight"] @ z + model.weights["head.bias"]
        length = z.square().sum().sqrt()
        own = torch.distributions.Normal(mean, deviation)
        reference = torch.distributions.Normal(
            model.weights["references.mean"][label], F.softplus(torch.ones(8))
        )
        divergence = torch.distributions.kl_divergence(own, reference).sum()
        expected += float(
            -logits.log_softmax(0)[label]
            + 0.3 * (length**2 if squared else length)
            + 0.2 * divergence
        )
    assert value.item() == pytest.approx(expected / len(batch.y), rel=1e-5)


def _encoded(site: Site, x: torch.Tensor) -> torch.Tensor:
    """The encoder's output in training mode, from the initial weights."""
    model = site.initial_model().only("encoder")
    state = {k.removeprefix("encoder."): w for k, w in {**model.weights, **model.buffers}.items()}
    out: torch.Tensor = torch.func.functional_call(site.net.encoder.train(), state, (x,))
    return out


def test_the_length_of_three_four_is_five_and_its_square_twenty_five() -> None:
    """A net whose mean is (3, 4, 0, ...) and whose deviation is nothing, whatever it sees."""
    site = toy_sites(FedSR())[1][0]
    batch, fixed = next(site.batches(STEP)), still(site.initial_model())
    fixed.weights["neck.weight"].zero_()
    fixed.weights["neck.bias"][:8] = torch.tensor([3.0, 4, 0, 0, 0, 0, 0, 0])

    def loss(**fields: Any) -> float:
        return FedSR(alpha_cmi=0, **fields).loss(site, Message(), Model(), fixed, batch).item()

    none = loss(alpha_l2r=0)
    assert loss(alpha_l2r=1) - none == pytest.approx(5, abs=1e-5)
    assert loss(alpha_l2r=1, l2_squared=True) - none == pytest.approx(25, abs=1e-5)


def test_references_never_travel_and_stay_with_their_client() -> None:
    names = {
        name
        for message in plain().messages
        for name in (*message.model.weights, *message.model.buffers)
    }
    assert {name.split(".")[0] for name in names} == {"encoder", "neck", "head"}
    states = plain().engine.states
    for state in states.values():
        assert set(state.weights) == {f"references.{part}" for part in ("mean", "spread", "scale")}
    assert not tree.equal(states[0], states[1])


def test_a_client_goes_on_from_its_own_references() -> None:
    method, run = FedSR(), Run(FedSR(), rounds=1)
    received, step = Message(run.model), RoundContext(1, 2)
    _, one = method.train(run.sites[0], received, run.engine.states[0], step)
    _, other = method.train(run.sites[0], received, method.init_client(run.sites[0]), step)
    assert not tree.equal(one, other)
    assert tree.equal(one, plain().engine.states[0])


def test_a_reference_moves_only_where_its_class_is_held() -> None:
    mean = plain().engine.states[1].weights["references.mean"]  # client 1 lacks class 1
    assert mean[1].eq(0).all()
    assert all(mean[label].ne(0).any() for label in (0, 2, 3, 4))


def test_who_stays_away_keeps_its_references() -> None:
    run = Run(FedSR(), who=lambda number: [[0, 1], [1, 2]][number])
    first = Run(FedSR(), who=lambda number: [0, 1], rounds=1)
    assert tree.equal(run.engine.states[0], first.engine.states[0])
    assert not tree.equal(run.engine.states[1], first.engine.states[1])
    assert 3 not in run.engine.states


def test_models_are_averaged_by_examples() -> None:
    run = Run(FedSR(), rounds=1)
    replies = run.messages[4:]
    sizes = [len(run.sites[client].train) for client in ALL]
    assert tree.equal(run.model, tree.mean([reply.model for reply in replies], sizes))


def test_every_batch_and_round_draws_anew_and_the_same_twice() -> None:
    site = toy_sites(FedSR())[1][0]
    batch = next(site.batches(STEP))

    def loss(**when: Any) -> float:
        now = batch._replace(**when)
        return FedSR().loss(site, Message(), Model(), site.initial_model(), now).item()

    assert loss() == loss()
    assert (
        len(
            {
                loss(),
                loss(number=1),
                loss(context=RoundContext(1, 2)),
                loss(context=RoundContext(0, 1, 1)),
            }
        )
        == 4
    )


def test_a_prediction_is_the_mean_softmax_over_draws_in_a_loop() -> None:
    method, site, model = FedSR(samples=7), plain().site, plain().model
    x, _ = next(plain().sites[3].eval_batches(plain().sites[3].train))
    state = method.init_client(site)
    noise = torch.randn(7, 1, 8, generator=site.rng("test samples"))
    total = torch.zeros(len(x), 5)
    for draw in noise:
        total += site.forward_eval(model | state, x, draw.expand(len(x), 8)).logits.softmax(1)
    torch.testing.assert_close(method.predict(site, Message(model), state, x).exp(), total / 7)


def test_scores_do_not_depend_on_how_images_are_cut_nor_on_the_references() -> None:
    method, site, received = FedSR(), plain().site, Message(plain().model)
    x, _ = next(plain().sites[3].eval_batches(plain().sites[3].train))
    whole = method.predict(site, received, method.init_client(site), x)
    cut = [method.predict(site, received, plain().engine.states[2], part) for part in x.split(7)]
    torch.testing.assert_close(torch.cat(cut), whole)
    other = FedSR(samples=1).predict(site, received, method.init_client(site), x)
    assert not torch.allclose(other, whole, atol=1e-3)


def test_it_holds_the_contract_with_the_squared_length() -> None:
    check_method(FedSR(l2_squared=True, alpha_cmi=0.01, samples=2))


@pytest.mark.parametrize("wrong", [{"alpha_l2r": -1}, {"alpha_cmi": -1}, {"samples": 0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        FedSR(**wrong)
