from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from protofed.core import tree
from protofed.core.model import Model
from protofed.core.site import RoundContext, Site
from protofed.methods.fedavg import FedAvg
from protofed.ops.losses import fit_consensus, mutual_loss, public_logits
from protofed.testing import toy_sites

OWN, OTHER = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.6, 0.4]]).log()


def client() -> Site:
    return toy_sites(FedAvg())[1][1]


def random_logits(seed: int, rows: int = 20) -> torch.Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("student", "peer", "expected"), [(OWN, OTHER, 0.1046496288), (OTHER, OWN, 0.0915162218)]
)
def test_the_divergence_of_a_worked_case(
    student: torch.Tensor, peer: torch.Tensor, expected: float
) -> None:
    y = torch.tensor([0])
    value = mutual_loss(F.cross_entropy(student, y), student, peer, 1) - F.cross_entropy(student, y)
    assert value.item() == pytest.approx(expected, abs=1e-6)


def test_models_that_agree_have_only_cross_entropy() -> None:
    logits, y = random_logits(0), torch.arange(20) % 5
    value = mutual_loss(F.cross_entropy(logits, y), logits, logits.clone(), 7)
    assert value.item() == pytest.approx(F.cross_entropy(logits, y).item(), abs=1e-6)


def test_it_is_the_equation_written_as_a_loop() -> None:
    student, peer, y = random_logits(1), random_logits(2), torch.arange(20) % 5
    total = 0.0
    for own, other, label in zip(student.softmax(1), peer.softmax(1), y, strict=True):
        divergence = sum(float(q * (q / p).log()) for p, q in zip(own, other, strict=True))
        total += (3 * divergence - float(own[label].log())) / len(y)
    assert mutual_loss(F.cross_entropy(student, y), student, peer, 3).item() == pytest.approx(
        total, abs=1e-5
    )


def test_only_the_student_learns() -> None:
    student, peer = (random_logits(seed).requires_grad_() for seed in (1, 2))
    mutual_loss(
        F.cross_entropy(student, torch.zeros(20, dtype=torch.int64)), student, peer, 1
    ).backward()
    assert student.grad is not None
    assert student.grad.abs().sum() > 0
    assert peer.grad is None


def test_logits_stand_in_the_order_of_the_rows() -> None:
    site, rows = client(), torch.tensor([7, 0, 19])
    said = public_logits(site, site.initial_model(), rows)
    for row, logits in zip(rows.tolist(), said, strict=True):
        alone = site.forward_eval(
            site.initial_model(), site.pixels.normalize(site.public[row : row + 1])
        ).logits[0]
        torch.testing.assert_close(logits, alone)


def test_digesting_is_descent_on_the_absolute_error_in_a_loop() -> None:
    site, rows, consensus = client(), torch.arange(19, 2, -1), random_logits(3, 17)
    step, epochs = RoundContext(3, 9, 1), 2
    fitted = fit_consensus(site, site.initial_model(), rows, consensus, step, epochs)
    model = site.initial_model()
    free = [leaf.requires_grad_() for leaf in model.weights.values()]
    settings = site.training
    sgd = torch.optim.SGD(free, settings.lr, settings.momentum, weight_decay=1e-5)
    losses = []
    for epoch in range(epochs):
        order = torch.randperm(17, generator=site.rng("digest", 3, epoch)).tolist()
        for places in (order[:8], order[8:16], order[16:]):
            x = site.pixels.normalize(site.public[[19 - place for place in places]])
            logits = site.forward_train(model, x).logits
            error = torch.stack([(logits[i] - consensus[p]).abs() for i, p in enumerate(places)])
            sgd.zero_grad()
            error.mean().backward()
            sgd.step()
            losses.append(error.mean().item())
    for name, leaf in fitted.trained.weights.items():
        torch.testing.assert_close(leaf, model.weights[name].detach())
    assert fitted.loss == pytest.approx(sum(losses) / len(losses), abs=1e-6)
    assert fitted.steps == len(losses) == 6


def test_digesting_brings_a_model_nearer_and_leaves_the_given_one_alone() -> None:
    site, rows, consensus = client(), torch.arange(20), random_logits(4)
    site = replace(site, training=replace(site.training, lr=0.05))
    given = site.initial_model()
    model = fit_consensus(site, given, rows, consensus, RoundContext(0, 1, 1), 40).trained
    before, after = (
        F.l1_loss(public_logits(site, m, rows), consensus).item() for m in (given, model)
    )
    assert after < before / 2
    assert tree.equal(given, site.initial_model())


@pytest.mark.parametrize(("rows", "epochs"), [(20, 0), (0, 3)])
def test_with_nothing_to_digest_a_model_stays(rows: int, epochs: int) -> None:
    site = client()
    model: Model = site.initial_model()
    fitted = fit_consensus(
        site, model, torch.arange(rows), random_logits(0, rows), RoundContext(0, 1), epochs
    )
    assert tree.equal(fitted.trained, model)
    assert (fitted.steps, fitted.loss) == (0, 0)
