from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from protofed.core import tree
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.site import RoundContext, Site, TrainingBatch
from protofed.methods.fedavg import FedAvg
from protofed.methods.pgct import (
    Scope,
    add_noise,
    augmented_loss,
    fuse_features,
    pgct_prototypes,
    repeat_class_rows,
)
from protofed.ops.prototype_collection import local_prototypes
from protofed.testing import toy_sites

NOW = RoundContext(0, 1)
TABLE = Prototypes(
    torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]]),
    torch.tensor([0, 0, 2]),
    torch.ones(3).long(),
)


def client() -> Site:
    return toy_sites(FedAvg())[1][3]


def test_attention_and_fused_feature_of_the_oracle() -> None:
    z, near = torch.tensor([[1.0, 0.0]]), torch.eye(2)[None]
    weights = fuse_features(z, near) - z
    assert weights.tolist() == [pytest.approx([0.7310585786, 0.2689414214], abs=1e-6)]
    assert fuse_features(z, near).tolist() == [
        pytest.approx([1.7310585786, 0.2689414214], abs=1e-6)
    ]


@pytest.mark.parametrize("number", [1, 5])
def test_without_noise_the_classs_prototype_itself_is_added(number: int) -> None:
    z, y = torch.randn(6, 2, generator=client().rng("z")), torch.tensor([0, 2, 2, 0, 0, 2])
    found = fuse_features(z, repeat_class_rows(y, TABLE, 3, "own", number))
    own = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 5.0]])[y]
    assert torch.allclose(found, z + own, atol=1e-6)


@pytest.mark.parametrize(("scope", "vectors"), [("own", 4), ("all", 12)])
def test_copies_are_of_the_own_classs_mean_or_of_all_rows(scope: Scope, vectors: int) -> None:
    near = repeat_class_rows(torch.tensor([2, 0]), TABLE, 3, scope, 4)
    assert near.shape == (2, vectors, 2)
    wanted = [[0.0, 5.0], [2.0, 0.0]] if scope == "own" else [[5 / 3 * 0.8, 5 / 3]] * 2
    assert near.mean(1).tolist() == [pytest.approx(row) for row in wanted]


def test_noise_is_fresh_for_every_vector_and_as_large_as_eps() -> None:
    batch = TrainingBatch(torch.zeros(50, 1), torch.zeros(50).long(), NOW, 0, 0)
    near = torch.ones(50, 40, 2)
    noise = add_noise(near, 0.1, client(), batch) - near
    assert float(noise.std()) == pytest.approx(0.1, rel=0.05)
    assert abs(float(noise.mean())) < 0.01
    assert len(noise.flatten().unique()) > 3900
    assert torch.equal(add_noise(near, 0.0, client(), batch), near)


def test_the_head_sees_the_fused_features_and_learns_from_them() -> None:
    model = Model({"head.weight": torch.eye(3, 2) - 0.3, "head.bias": torch.ones(3)})
    for leaf in tree.leaves(model):
        leaf.requires_grad_()
    z, y = torch.arange(8.0).view(4, 2).div(9).requires_grad_(), torch.tensor([0, 1, 2, 0])
    near = repeat_class_rows(y, TABLE, 3, "own", 2)
    found = augmented_loss(model, z, y, near, TABLE)
    known = [0, 2, 3]
    logits = (
        fuse_features(z, near)[known] @ model.weights["head.weight"].T + model.weights["head.bias"]
    )
    wanted = F.cross_entropy(logits, y[known]) * 3 / 4
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)
    found.backward()
    assert z.grad is not None
    assert z.grad.abs().sum(1).bool().tolist() == [True, False, True, True]
    assert model.weights["head.weight"].grad is not None


def test_the_modes_of_prototypes() -> None:
    site = client()
    model, counts = site.initial_model(), torch.bincount(site.train.labels)
    plain = local_prototypes(site, model)
    assert tree.equal(pgct_prototypes("weighted", 3, site, model, NOW), plain)
    multi = pgct_prototypes("multi", 3, site, model, NOW)
    assert len(multi) == 3 * len(plain)
    assert torch.allclose(multi.weighted_mean().vectors, plain.vectors, atol=1e-6)
    assert torch.equal(torch.bincount(multi.labels, multi.counts).long(), counts)
    uniform = pgct_prototypes("uniform", 3, site, model, NOW)
    assert tree.equal(uniform, replace(multi.uniform_mean(), counts=plain.counts))
    assert not torch.allclose(uniform.vectors, plain.vectors, atol=1e-3)
    drawn = pgct_prototypes("bootstrap", 3, site, model, NOW)
    assert drawn.labels.bincount().tolist() == [5 if n >= 5 else min(int(n), 1) for n in counts]
    assert not tree.equal(drawn, pgct_prototypes("bootstrap", 3, site, model, RoundContext(1, 2)))
