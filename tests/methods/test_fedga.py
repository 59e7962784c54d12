from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.model import Model
from protofed.core.site import ClientId, RoundContext, Site
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import Messages, run_round
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedga import FedGA, FedGAClient, FedGAServer, adjust_weights, split_site
from protofed.testing import check_method, toy_sites

ALL = [0, 1, 2, 3]
THIRDS = torch.full((3,), 1 / 3, dtype=torch.float64)


class Run:
    """Some rounds on the toy federation, or on given sites, and what travelled in each."""

    def __init__(
        self,
        method: AnyMethod,
        rounds: int = 3,
        who: Callable[[int], list[ClientId]] = lambda number: ALL,
        sites: Mapping[ClientId, Site] | None = None,
    ):
        self.site, toys = toy_sites(method)
        self.engine = LocalEngine(method, sites or toys)
        self.servers: list[Any] = [method.init_server(self.site)]
        self.exchanges: list[tuple[Messages, Messages]] = []
        for number in range(rounds):
            self.servers.append(
                run_round(
                    method,
                    self.site,
                    self.servers[-1],
                    self.engine,
                    who(number),
                    RoundContext(number, rounds),
                    lambda *both: self.exchanges.append(both),
                )
            )

    @property
    def model(self) -> Model:
        return cast(Model, self.servers[-1].model)

    def gaps(self, number: int) -> dict[ClientId, float]:
        replies = self.exchanges[number][1]
        return {c: cast(Tensor, r.extras["gap"]).item() for c, r in replies.items() if r.extras}


def told(value: float, gap: float | None = None) -> Message:
    """A reply with a model of one weight and buffer, and perhaps a gap."""
    model = Model({"w": torch.tensor([float(value)])}, {"b": torch.tensor([10.0 * value])})
    return Message(model, extras={} if gap is None else {"gap": torch.tensor(gap)}, size=7)


def test_shares_after_gaps_in_accuracy() -> None:
    before, after = (0.9, 0.8, 0.7), (0.8, 0.8, 0.72)
    gaps = {n: b - a for n, (b, a) in enumerate(zip(before, after, strict=True))}
    found = adjust_weights(THIRDS, gaps, 0.2 / 3, centred=False)
    assert found.tolist() == pytest.approx([0.37974684, 0.3164557, 0.30379747], abs=1e-8)


def test_shares_after_gaps_in_loss() -> None:
    gaps = {n: after - 0.5 for n, after in enumerate((0.7, 0.5, 0.4))}
    found = adjust_weights(THIRDS, gaps, 0.2 / 3, centred=False)
    assert found.tolist() == pytest.approx([0.38709677, 0.32258065, 0.29032258], abs=1e-8)


def test_centred_gaps_move_shares_by_their_distance_from_the_mean() -> None:
    """Gaps .3, .2, .1: minus .2 they are .1, 0, -.1, so the shares move by +step, 0, -step."""
    found = adjust_weights(THIRDS, {0: 0.3, 1: 0.2, 2: 0.1}, 0.05, centred=True)
    assert found.tolist() == pytest.approx([1 / 3 + 0.05, 1 / 3, 1 / 3 - 0.05])


@pytest.mark.parametrize(
    ("gaps", "centred"),
    [({}, True), ({}, False), ({0: 0.0, 1: 0.0, 2: 0.0}, False), ({0: 0.1, 1: 0.1, 2: 0.1}, True)],
)
def test_without_gaps_that_differ_the_shares_are_kept(
    gaps: dict[int, float], centred: bool
) -> None:
    assert torch.equal(adjust_weights(THIRDS, gaps, 0.1, centred), THIRDS)


def test_shares_stay_between_zero_and_one_and_sum_to_one() -> None:
    shares = torch.tensor([0.01, 0.04, 0.95], dtype=torch.float64)
    found = adjust_weights(shares, {0: -1.0, 1: 0.5, 2: 1.0}, 0.2, centred=False)
    assert found.tolist() == pytest.approx([0, 0.14 / 1.14, 1 / 1.14])
    assert torch.equal(adjust_weights(THIRDS, {0: -1.0, 1: -1.0, 2: -1.0}, 2.0, False), THIRDS)


def test_who_tells_no_gap_keeps_its_share() -> None:
    shares = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    found = adjust_weights(shares, {1: 0.2, 3: -0.1}, 0.06, centred=False)
    moved = [0.3 + 0.06, 0.1 - 0.03]
    scale = 0.4 / sum(moved)
    assert found.tolist() == pytest.approx([0.4, moved[0] * scale, 0.2, moved[1] * scale])
    assert adjust_weights(shares, {2: 0.7}, 0.06, centred=False).tolist() == pytest.approx(
        shares.tolist()
    )


def test_a_gap_acts_in_the_merge_that_it_comes_with_and_steps_shrink() -> None:
    """Gaps that arrive in round r are of t = r - 1, whose step is .2 (1 - (t - 1) / T)."""
    method, site = FedGA(), toy_sites(FedGA())[0]
    start = FedGAServer(told(0).model, torch.full((4,), 0.25, dtype=torch.float64))
    for number, size in ((1, 0.2 * 11 / 10), (2, 0.2), (9, 0.2 * 3 / 10)):
        replies = {c: told(c, gap) for c, gap in enumerate((0.4, 0.2, 0.0, -0.4))}
        server = method.merge(site, start, replies, RoundContext(number, 10))
        shares = [0.25 + size / 4 * part for part in (1, 0.5, 0, -1)]
        expected = [share / sum(shares) for share in shares]
        assert server.shares.tolist() == pytest.approx(expected)
        mean = sum(c * share for c, share in enumerate(expected))
        assert server.model.weights["w"].item() == pytest.approx(mean)
        assert server.model.buffers["b"].item() == pytest.approx(10 * mean)


def test_of_those_who_came_shares_are_made_whole_and_zeros_count_alike() -> None:
    method, site = FedGA(), toy_sites(FedGA())[0]
    start = FedGAServer(told(0).model, torch.tensor([0.6, 0.4, 0.0, 0.0], dtype=torch.float64))
    for who, mean in (([0, 1], 0.4), ([1, 3], 1.0), ([2, 3], 2.5)):
        server = method.merge(site, start, {c: told(c) for c in who}, RoundContext(0, 10))
        assert server.model.weights["w"].item() == pytest.approx(mean)
        assert torch.equal(server.shares, start.shares)


@pytest.mark.parametrize("metric", ["acc", "loss"])
def test_a_gap_is_the_received_model_against_the_own_one_on_held_out_images(metric: Any) -> None:
    method, run = FedGA(metric=metric, val_share=0.3), Run(FedGA(metric=metric, val_share=0.3))
    assert run.gaps(0) == {}
    for number in (1, 2):
        for client, gap in run.gaps(number).items():
            site = run.engine.sites[client]
            rest, held = split_site(site, 0.3)
            x = site.pixels.normalize(held.images)
            faults = []
            for model in (
                run.exchanges[number][0][client].model,
                run.exchanges[number - 1][1][client].model,
            ):
                logits = site.forward_eval(model, x).logits
                right = sum(
                    int(row.argmax() == y) for row, y in zip(logits, held.labels, strict=True)
                )
                loss = F.cross_entropy(logits, held.labels).item()
                faults.append(1 - right / len(held) if metric == "acc" else loss)
            assert gap == pytest.approx(faults[0] - faults[1], abs=1e-6)
            assert run.exchanges[number][1][client].size == len(rest.train)
        assert list(run.gaps(number)) == ALL
    assert method.payload.up == ("model", "gap")


def test_held_out_images_are_never_trained_on() -> None:
    site = toy_sites(FedGA())[1][3]
    reply, _ = FedGA().train(site, Message(site.initial_model()), None, RoundContext(0, 1))
    other, _ = FedAvg().train(
        split_site(site, 0.1)[0], Message(site.initial_model()), None, RoundContext(0, 1)
    )
    assert tree.equal(reply.model, other.model)


def test_with_step_zero_it_is_fedavg_of_equal_voices_bit_for_bit() -> None:
    run = Run(FedGA(step=0))
    for (_, replies), server in zip(run.exchanges, run.servers[1:], strict=True):
        models = [reply.model for reply in replies.values()]
        assert tree.equal(server.model, tree.mean(models, [1.0] * 4))
    assert torch.equal(run.servers[-1].shares, torch.full((4,), 0.25, dtype=torch.float64))


def test_the_first_round_is_that_of_step_zero_and_the_second_is_not() -> None:
    ours, none = Run(FedGA(metric="loss")), Run(FedGA(metric="loss", step=0))
    assert tree.equal(ours.servers[1].model, none.servers[1].model)
    assert not tree.equal(ours.servers[2].model, none.servers[2].model)
    assert ours.servers[2].shares.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("change", [{"metric": "acc"}, {"centred": True}, {"val_share": 0.3}])
def test_every_switch_changes_the_result(change: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"metric": "loss"}
    assert not tree.equal(Run(FedGA(**{**plain, **change})).model, Run(FedGA(**plain)).model)


def test_only_who_came_twice_in_a_row_tells_a_gap() -> None:
    who = [[0, 1, 2], [1, 2, 3], [0, 1, 3]]
    run = Run(FedGA(metric="loss"), who=lambda number: who[number])
    assert [sorted(run.gaps(number)) for number in range(3)] == [[], [1, 2], [1, 3]]
    first, second = run.servers[2].shares, run.servers[3].shares
    assert first[[0, 3]].tolist() == [0.25, 0.25]
    assert second[[0, 2]].tolist() == first[[0, 2]].tolist()
    assert not torch.equal(first, second)


def test_a_client_with_one_image_trains_on_it_and_tells_no_gap() -> None:
    _, sites = toy_sites(FedGA())
    one = replace(sites[2], train=sites[2].train.take(torch.tensor([5])))
    run = Run(FedGA(), sites={**sites, 2: one})
    assert [list(run.gaps(number)) for number in range(3)] == [[], [0, 1, 3], [0, 1, 3]]
    assert run.engine.states[2] is None
    assert run.exchanges[2][1][2].size == 1
    assert run.servers[-1].shares[2].item() == 0.25


def test_a_clients_state_is_two_numbers_of_its_last_round() -> None:
    states = Run(FedGA()).engine.states
    assert all(isinstance(state, FedGAClient) and state.round == 2 for state in states.values())


def test_it_holds_the_contract_with_losses_and_centred_gaps() -> None:
    check_method(FedGA(metric="loss", centred=True, val_share=0.2))


@pytest.mark.parametrize("wrong", [{"step": -1}, {"val_share": 0}, {"val_share": 1}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        FedGA(**wrong)


def test_weights_that_never_move_or_reach_zero_are_told() -> None:
    def warned(*shares: float, method: FedGA | None = None) -> str:
        state = FedGAServer(Model(), torch.tensor(shares, dtype=torch.float64))
        return (method or FedGA()).result_warning(state)

    assert warned(0.3, 0.7) == ""
    assert warned(0.5, 0.5) == "GA ended with equal weights: no gap has moved them"
    assert warned(0.5, 0.5, method=FedGA(step=0)) == ""
    assert warned(0.0, 1.0, 0.0) == "GA ended with weight 0 for 2 of 3 clients"
    assert warned(1.0) == ""  # a single client has nothing to weigh
    assert "equal weights" in FedGA().result_warning(Run(FedGA(), rounds=1).servers[-1])
