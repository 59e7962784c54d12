"""Gradient descent on a copy of any tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from protofed.core import tree
from protofed.core.errors import DivergedError
from protofed.core.model import Model
from protofed.core.training import SGD

T = TypeVar("T")
B = TypeVar("B")


class FitResult(NamedTuple, Generic[T]):
    """The trained copy, the number of steps it took and the mean loss over them."""

    trained: T
    steps: int
    loss: float


def fit_model(
    thing: T,
    batches: Iterable[B],
    loss: Callable[[T, B], Tensor],
    sgd: SGD,
    on_grads: Callable[[T], None] | None = None,
) -> FitResult[T]:
    """Train a copy of `thing`; what is not in it is constant, and so are a model's buffers.

    NaN or infinity, in a loss or at last in the copy, ends it with a `DivergedError`.
    """
    copy = tree.clone(thing)
    free = [leaf.requires_grad_() for leaf in _trainable(copy)]
    # Fused or foreach kernels round differently and gain next to nothing (docs/performance.md).
    optimiser = torch.optim.SGD(
        free, lr=sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay, foreach=False
    )
    steps = 0
    total: Tensor | float = 0.0
    for batch in batches:
        optimiser.zero_grad()
        value = loss(copy, batch)
        if not value.isfinite():
            raise DivergedError(steps + 1, _not_finite(copy) or "the loss, with finite weights,")
        value.backward()
        if on_grads is not None:
            on_grads(copy)
        optimiser.step()
        steps += 1
        total = total + value.detach()  # on its device: nobody waits for it
    if bad := _not_finite(copy):
        raise DivergedError(steps, bad)
    return FitResult(tree.clone(copy), steps, float(total) / max(steps, 1))


def _not_finite(thing: object) -> str:
    """The name of the first tensor of a tree that holds NaN or infinity; empty if none does."""
    return next((n for n, leaf in tree.named_leaves(thing) if not leaf.isfinite().all()), "")


def _trainable(thing: object) -> Iterable[Tensor]:
    """The floating-point leaves of a tree, buffers of models left out."""
    if isinstance(thing, Model):
        yield from thing.weights.values()
    elif isinstance(thing, Tensor):
        if thing.is_floating_point():
            yield thing
    else:
        for _, child in tree.children(thing) or ():
            yield from _trainable(child)
