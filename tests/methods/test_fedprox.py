from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.core.site import RoundContext
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedprox import FedProx
from protofed.ops.losses import proximal_term
from protofed.testing import toy_sites
from tests.methods.playing import after


def test_with_mu_zero_it_is_fedavg_bit_for_bit() -> None:
    assert tree.equal(after(FedProx(mu=0)), after(FedAvg()))


def test_mu_moves_the_result_and_a_larger_one_keeps_it_nearer() -> None:
    start = toy_sites(FedAvg())[0].initial_model()
    away = [
        float(tree.squared_distance(after(FedProx(mu=mu), 1).weights, start.weights))
        for mu in (0, 1, 10, 50)
    ]
    assert away == sorted(away, reverse=True)
    assert away[0] > 2 * away[-1]


def test_the_first_step_of_a_round_is_fedavgs() -> None:
    site, sites = toy_sites(FedAvg())
    client, received = sites[0], Message(site.initial_model())
    batch = next(client.batches(RoundContext(0, 1)))
    losses = [
        method.loss(client, received, None, site.initial_model(), batch)
        for method in (FedAvg(), FedProx(mu=5))
    ]
    assert torch.equal(*losses)


def test_penalty_of_three_four_is_twelve_and_a_half_times_mu() -> None:
    here = Model({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}, {"n": torch.tensor(9.0)})
    there = Model({"a": torch.zeros(1), "b": torch.zeros(1, 1)}, {"n": torch.tensor(-9.0)})
    assert 0.1 * proximal_term(here, there).item() == pytest.approx(1.25)


def test_the_hidden_factor_of_the_rethink_code_is_a_hundredth() -> None:
    assert tree.equal(after(FedProx(mu=1, rethink_factor=True)), after(FedProx(mu=0.01)))


def test_a_negative_mu_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        FedProx(mu=-1)
