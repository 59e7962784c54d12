from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from protofed.core import tree
from protofed.core.site import RoundContext
from protofed.methods.fedavg import FedAvg
from protofed.testing import toy_sites

SERVER, SITES = toy_sites(FedAvg())


def test_batches_cover_the_data_once_an_epoch_and_repeat_for_the_same_step() -> None:
    site = SITES[2]
    once = list(site.batches(RoundContext(3, 9)))
    again = list(site.batches(RoundContext(3, 9)))
    assert all(torch.equal(a.x, b.x) for a, b in zip(once, again, strict=True))
    for epoch in range(site.training.epochs):
        labels = torch.cat([batch.y for batch in once if batch.epoch == epoch])
        assert torch.equal(labels.sort().values, site.train.labels.sort().values)


@pytest.mark.parametrize("other", [RoundContext(4, 9), RoundContext(3, 9, exchange=1)])
def test_another_round_or_exchange_shuffles_otherwise(other: RoundContext) -> None:
    one, two = (torch.cat([b.y for b in SITES[2].batches(s)]) for s in (RoundContext(3, 9), other))
    assert not torch.equal(one, two)


def test_another_phase_site_or_seed_shuffles_otherwise() -> None:
    site, step = SITES[2], RoundContext(0, 1)
    orders = [
        torch.cat([b.y for b in s.batches(step, phase)])
        for s, phase in (
            (site, ""),
            (site, "second"),
            (replace(site, id=7), ""),
            (replace(site, seed=1), ""),
        )
    ]
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_zero_epochs_means_no_batch() -> None:
    assert list(SITES[0].batches(RoundContext(0, 1), epochs=0)) == []


def test_training_mode_moves_buffers_and_evaluation_does_not() -> None:
    site, model = SITES[0], SITES[0].initial_model()
    x = next(site.batches(RoundContext(0, 1))).x
    before = tree.clone(model)
    site.forward_eval(model, x)
    assert tree.equal(model, before)
    site.forward_train(model, x)
    assert tree.equal(model.weights, before.weights)
    assert not tree.equal(model.buffers, before.buffers)


def test_a_batch_of_one_with_batch_norm_uses_the_running_statistics() -> None:
    site, model = SITES[0], SITES[0].initial_model()
    x = next(site.batches(RoundContext(0, 1))).x[:1]
    before = tree.clone(model)
    out = site.forward_train(model, x)  # BatchNorm1d would raise in training mode
    assert torch.equal(out.logits, site.forward_eval(model, x).logits)
    assert out.logits.requires_grad is False
    assert tree.equal(model, before)


def test_evaluation_carries_no_gradient() -> None:
    site, model = SITES[0], SITES[0].initial_model()
    for weight in model.weights.values():
        weight.requires_grad_()
    x = next(site.batches(RoundContext(0, 1))).x
    assert not site.forward_eval(model, x).z.requires_grad
    assert site.forward_train(model, x).z.requires_grad


def test_evaluation_batches_give_every_example_once_in_order_without_noise() -> None:
    site = SITES[1]
    scanned = list(site.eval_batches(site.train))
    assert torch.equal(torch.cat([y for _, y in scanned]), site.train.labels)
    assert torch.equal(torch.cat([x for x, _ in scanned]), site.pixels.normalize(site.train.images))


def test_batches_are_numbered_through_all_epochs_and_know_their_step() -> None:
    batches = list(SITES[0].batches(RoundContext(3, 9, 1)))
    assert [batch.number for batch in batches] == list(range(len(batches)))
    assert {batch.context for batch in batches} == {RoundContext(3, 9, 1)}


def test_a_site_without_images_has_no_batch() -> None:
    assert list(SERVER.batches(RoundContext(0, 1))) == []
    assert list(SERVER.eval_batches(SERVER.train)) == []
