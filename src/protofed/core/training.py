"""Local training: the numbers of SGD, how rows become batches, and SGD on a copy of any tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

import torch
from pydantic import ConfigDict, Field, Strict
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.model import Model
from protofed.errors import DivergedError

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Number = Strict()  # refuses "3" and true


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SGD:
    """Stochastic gradient descent with momentum and weight decay, as in torch.

    Each fit has its own optimiser, so momentum does not outlive an exchange.
    """

    lr: Annotated[float, Number] = Field(default=0.01, ge=0)
    momentum: Annotated[float, Number] = Field(default=0.9, ge=0, lt=1)
    weight_decay: Annotated[float, Number] = Field(default=1e-5, ge=0)


@dataclass(frozen=True, kw_only=True)
class Training(SGD):
    """A client's local training in one round: SGD, epochs and batches.

    `last_batch` says what happens to a short last batch: "keep" it, "merge" it into the one before,
    or "drop" it. The only batch of an epoch is always kept.
    """

    epochs: Annotated[int, Number] = Field(default=5, ge=1, le=100_000)
    batch: Annotated[int, Number] = Field(default=64, ge=1, le=1_000_000)
    last_batch: Literal["keep", "merge", "drop"] = "keep"  # what happens to a short last batch

    def split_epochs(self) -> tuple[int, int]:
        """The epochs of each half of a round that trains twice; an odd one goes to the second half.

        Each half has at least one epoch, so a round of one epoch becomes one of two.
        """
        first = max(1, self.epochs // 2)
        return first, max(1, self.epochs - first)

    def batch_indices(self, order: Tensor) -> list[Tensor]:
        """Split shuffled row numbers [N] into batches; at least one, unless there are no rows."""
        batches = list(order.split(self.batch)) if len(order) else []
        if len(batches) > 1 and len(batches[-1]) < self.batch and self.last_batch != "keep":
            short = batches.pop()
            if self.last_batch == "merge":
                batches[-1] = torch.cat([batches[-1], short])
        return batches


T = TypeVar("T")
B = TypeVar("B")


class FitResult(NamedTuple, Generic[T]):
    """What `fit_model` returns: the trained copy, the number of SGD steps, the mean loss over them.

    Without any batch the copy equals the original, and steps and loss are 0.
    """

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
    """Train a copy of `thing`, a model or any tree of tensors, by one SGD step per batch.

    ``loss(copy, batch)`` returns a scalar. All floating-point tensors of the copy are trained,
    except the buffers of models; what `loss` uses from elsewhere is constant. `thing` is not
    changed::

        head = fit_model(model.only("head"), batches, head_loss, SGD(lr=0.1)).trained

    `on_grads` may change gradients before each step. A loss or a result that is NaN or infinite
    raises a `DivergedError`.
    """
    copy = tree.clone(thing)
    parameters = [leaf.requires_grad_() for leaf in _trainable(copy)]
    # Fused and foreach kernels round differently and gain next to nothing (docs/performance.md).
    optimiser = torch.optim.SGD(
        parameters, lr=sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay, foreach=False
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
        total = total + value.detach()  # stays on its device, so nothing waits for it
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


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Compute with `count` threads inside the block, then restore the previous number.

    For results that must not depend on the number of cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
