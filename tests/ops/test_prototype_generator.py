from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from protofed.core import tree
from protofed.core.rng import rng
from protofed.ops.prototype_collection import generate_vectors, init_generator, train_generator


def test_vectors_grow_through_a_perceptron_with_one_hidden_layer() -> None:
    seeds = init_generator(5, 6, 3, rng("grow"))
    layers = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    names = ("hidden.weight", "hidden.bias", "out.weight", "out.bias")
    layers.load_state_dict(
        dict(zip(layers.state_dict(), (seeds[name] for name in names), strict=True))
    )
    assert seeds["seed"].shape == (5, 6)
    torch.testing.assert_close(generate_vectors(seeds), layers(seeds["seed"]).detach())


def test_a_generator_follows_its_stream_and_lies_in_torchs_range() -> None:
    one, same, other = (init_generator(5, 16, 3, rng("grow", key)) for key in (1, 1, 2))
    assert tree.equal(one, same)
    assert not tree.equal(one, other)
    layers = torch.cat([leaf.flatten() for name, leaf in one.items() if name != "seed"])
    assert 0.2 < layers.abs().max() <= 1 / math.sqrt(16)


def test_tending_is_descent_with_momentum_and_without_decay() -> None:
    """On the mean of all leaves the gradient is a constant, so two steps can be written out."""
    seeds = {"seed": torch.full((2, 2), 7.0)}

    def loss(now: dict[str, Tensor], factor: float) -> Tensor:
        return factor * now["seed"].mean()

    moved = train_generator(seeds, [1.0, 1.0], loss, lr=0.4, momentum=0.5)
    torch.testing.assert_close(moved["seed"], torch.full((2, 2), 7 - 0.1 * (1 + 1.5)))
    assert tree.equal(train_generator(seeds, [], loss, lr=0.4), seeds)
    assert seeds["seed"].eq(7).all()
