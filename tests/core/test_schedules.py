"""The learning rate of each round: closed forms, and torch's schedulers as oracles."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, StepLR

from protofed.core.site import RoundContext
from protofed.core.training import Training
from protofed.methods.fedavg import FedAvg
from protofed.testing import toy_sites

LR = 0.3


def rates(training: Training, rounds: int) -> list[float]:
    return [training.at_round(number, rounds).lr for number in range(rounds)]


def rates_of_torch(
    make: Callable[[torch.optim.Optimizer], LRScheduler], rounds: int
) -> list[float]:
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=LR)
    scheduler, found = make(optimiser), list[float]()
    for _ in range(rounds):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_cosine_is_torchs_over_all_rounds(share: float) -> None:
    training = Training(lr=LR, schedule="cosine", final_lr_share=share)
    oracle = rates_of_torch(lambda o: CosineAnnealingLR(o, T_max=12, eta_min=share * LR), 12)
    assert rates(training, 12) == pytest.approx(oracle, rel=1e-12)
    closed = [LR * (share + (1 - share) * math.cos(math.pi * t / 24) ** 2) for t in range(12)]
    assert rates(training, 12) == pytest.approx(closed, rel=1e-12)
    assert min(rates(training, 12)) > 0  # no round trains in vain


@pytest.mark.parametrize(("every", "factor"), [(1, 0.5), (4, 0.1), (20, 0.1), (3, 1.0)])
def test_step_is_torchs(every: int, factor: float) -> None:
    training = Training(lr=LR, schedule="step", step_every=every, step_factor=factor)
    oracle = rates_of_torch(lambda o: StepLR(o, every, factor), 12)
    assert rates(training, 12) == pytest.approx(oracle, rel=1e-12)


def test_warm_up_rises_evenly_to_the_full_rate_and_then_the_schedule_begins() -> None:
    constant = Training(lr=LR, warmup=3)
    assert rates(constant, 6) == pytest.approx([LR / 4, LR / 2, 3 * LR / 4, LR, LR, LR])
    for later in (
        Training(lr=LR, schedule="cosine", final_lr_share=0.1),
        Training(lr=LR, schedule="step", step_every=2),
    ):
        warmed = rates(replace(later, warmup=3), 12)
        assert warmed[:3] == rates(constant, 12)[:3]
        assert warmed[3:] == rates(later, 9)


def test_the_training_of_a_round_changes_no_more_and_keeps_the_rest() -> None:
    for training in (
        Training(lr=LR, epochs=7, optimizer="adamw", clip_norm=2, schedule="cosine", warmup=2),
        Training(lr=LR, batch=3, schedule="step", step_every=2, step_factor=0.5),
    ):
        now = training.at_round(5, 9)
        assert now.lr == LR * training.lr_factor(5, 9) != LR
        assert now.at_round(7, 9) is now
        kept = ("epochs", "batch", "momentum", "weight_decay", "optimizer", "clip_norm")
        assert all(getattr(now, name) == getattr(training, name) for name in kept)


def test_without_a_schedule_training_and_site_are_the_same_objects() -> None:
    _, sites = toy_sites(FedAvg())
    training, context = Training(optimizer="adam", clip_norm=1), RoundContext(3, 4)
    assert training.at_round(3, 4) is training
    assert sites[0].at_round(context) is sites[0]
    scheduled = replace(sites[0], training=Training(lr=LR, schedule="cosine"))
    assert scheduled.at_round(context).training.lr == rates(scheduled.training, 4)[3]
