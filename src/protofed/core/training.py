"""Local training: optimisers, schedules, how rows become batches, and a fit of any tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import torch
from pydantic import ConfigDict, Field, Strict, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.model import Model
from protofed.errors import DivergedError, ProtofedError

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Number = Strict()  # refuses "3" and true


class Optimizer(Protocol):
    """What training asks of an optimiser, torch's or `SGDSteps`."""

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""

    def step(self) -> None:
        """Change the tensors by their gradients."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SGD:
    """Stochastic gradient descent with momentum and weight decay, as in torch.

    Each fit has its own optimiser, so momentum does not outlive an exchange.

    Fields:
        lr: learning rate, before the schedule
        momentum: share of the last step that is added to the next
        weight_decay: share of the weights that is added to the gradient
    """

    lr: Annotated[float, Number] = Field(default=0.01, ge=0)
    momentum: Annotated[float, Number] = Field(default=0.9, ge=0, lt=1)
    weight_decay: Annotated[float, Number] = Field(default=1e-5, ge=0)

    def make_optimizer(self, parameters: Sequence[Tensor]) -> Optimizer:
        """A new optimiser for some tensors."""
        return SGDSteps(self, parameters)

    def limit_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Change gradients before a step; plain SGD leaves them as they are."""


class SGDSteps:
    """The steps of `torch.optim.SGD`, bit for bit, without its second of import.

    The first optimiser of torch in a process imports torch's compiler, which every worker of a
    short run would wait for.
    """

    def __init__(self, sgd: SGD, parameters: Sequence[Tensor]):
        self.sgd, self.parameters = sgd, parameters
        self.velocities: list[Tensor | None] = [None] * len(parameters)

    def zero_grad(self) -> None:
        for leaf in self.parameters:
            leaf.grad = None

    @torch.no_grad()
    def step(self) -> None:
        sgd = self.sgd
        for number, leaf in enumerate(self.parameters):
            if leaf.grad is None:  # the loss does not depend on it
                continue
            move = leaf.grad
            if sgd.weight_decay:
                move.add_(leaf, alpha=sgd.weight_decay)  # in place: the step uses gradients up
            if sgd.momentum:
                velocity = self.velocities[number]
                move = move.clone() if velocity is None else velocity.mul_(sgd.momentum).add_(move)
                self.velocities[number] = move
            leaf.add_(move, alpha=-sgd.lr)


MOMENTUM = SGD().momentum  # also what stands in a spec whose optimiser has none
STEP_FACTOR = 0.1


@dataclass(frozen=True, kw_only=True)
class Training(SGD):
    """A client's local training: SGD or another optimiser, epochs, batches, and a schedule.

    `last_batch` says what happens to a short last batch: "keep" it, "merge" it into the one before,
    or "drop" it. The only batch of an epoch is always kept. The schedule sets the learning rate of
    each round, which is constant within the round; `site.training.lr` is the current round's.

    Fields:
        lr: learning rate, before the schedule
        momentum: of SGD; Adam and AdamW have none
        weight_decay: part of the gradient in SGD and Adam, apart from it in AdamW
        epochs: passes over a client's images in a round
        batch: images in a step
        last_batch: "keep", "merge" or "drop" a short last batch
        sampling: "shuffle" sees every image once an epoch; "balanced" draws as many, with
            replacement, such that the client's classes are equally likely
        class_weights: "balanced" weights each class in the loss by one over its images
        optimizer: "sgd", "adam" or "adamw"
        clip_norm: largest norm of the gradient of a step; 0 for no limit
        warmup: rounds in which the learning rate rises to its full value
        schedule: "constant", "cosine" or "step", over the rounds after warm-up
        final_lr_share: of the learning rate, towards which "cosine" falls
        step_every: rounds between two steps of "step"
        step_factor: by which "step" multiplies the learning rate
    """

    epochs: Annotated[int, Number] = Field(default=5, ge=1, le=100_000)
    batch: Annotated[int, Number] = Field(default=64, ge=1, le=1_000_000)
    last_batch: Literal["keep", "merge", "drop"] = "keep"  # what happens to a short last batch
    sampling: Literal["shuffle", "balanced"] = "shuffle"  # which images an epoch sees
    class_weights: Literal["none", "balanced"] = "none"  # in the loss of the client's own task
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    clip_norm: Annotated[float, Number] = Field(
        default=0.0, ge=0
    )  # largest norm of a step's whole gradient; 0: no limit
    warmup: Annotated[int, Number] = Field(default=0, ge=0)  # rounds below the full learning rate
    schedule: Literal["constant", "cosine", "step"] = "constant"  # of the rounds after warm-up
    final_lr_share: Annotated[float, Number] = Field(
        default=0.0, ge=0, le=1
    )  # of the learning rate, towards which "cosine" falls
    step_every: Annotated[int, Number] = Field(
        default=0, ge=0
    )  # rounds after which "step" multiplies the learning rate by `step_factor`
    step_factor: Annotated[float, Number] = Field(default=STEP_FACTOR, gt=0, le=1)

    @model_validator(mode="after")
    def _nothing_in_vain(self) -> Self:
        """Refuse a field that the chosen optimiser or schedule does not have."""
        if self.optimizer != "sgd" and self.momentum != MOMENTUM:
            raise ValueError(f"momentum belongs to sgd, {self.optimizer} has none: leave it out")
        if self.schedule == "step" and not self.step_every:
            raise ValueError('schedule "step" needs step_every, the rounds between its steps')
        if self.schedule != "step" and (self.step_every, self.step_factor) != (0, STEP_FACTOR):
            raise ValueError('step_every and step_factor belong to schedule "step"')
        if self.schedule != "cosine" and self.final_lr_share:
            raise ValueError('final_lr_share belongs to schedule "cosine"')
        return self

    def lr_factor(self, number: int, rounds: int) -> float:
        """By what the schedule multiplies the learning rate in a round, counted from 0.

        Warm-up rises linearly over its rounds, to 1 in the round after them; then the schedule
        begins. "cosine" falls from 1 along half a cosine and would reach `final_lr_share` in the
        round after the last.
        """
        if number < self.warmup:
            return (number + 1) / (self.warmup + 1)
        done, whole = number - self.warmup, rounds - self.warmup
        if self.schedule == "cosine":
            low = self.final_lr_share
            return low + (1 - low) * (1 + math.cos(math.pi * done / whole)) / 2
        if self.schedule == "step":
            return self.step_factor ** (done // self.step_every)
        return 1.0

    def at_round(self, number: int, rounds: int) -> Self:
        """The training of one round, counted from 0: its learning rate, and no schedule.

        So it changes no more if this is asked of the result again.
        """
        if self.schedule == "constant" and not self.warmup:
            return self
        lr = self.lr * self.lr_factor(number, rounds)
        return replace(
            self,
            lr=lr,
            warmup=0,
            schedule="constant",
            final_lr_share=0.0,
            step_every=0,
            step_factor=STEP_FACTOR,
        )

    def make_optimizer(self, parameters: Sequence[Tensor]) -> Optimizer:
        """A new optimiser for some tensors; Adam's betas and eps are torch's defaults."""
        if self.optimizer == "sgd":
            return super().make_optimizer(parameters)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, lr=self.lr, weight_decay=self.weight_decay, foreach=False)

    def limit_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Scale all gradients down together if their joint norm exceeds `clip_norm`."""
        if self.clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters, self.clip_norm, foreach=False)

    def split_epochs(self) -> tuple[int, int]:
        """The epochs of each half of a round that trains twice; an odd one goes to the second half.

        Each half has at least one epoch, so a round of one epoch becomes one of two.
        """
        first = max(1, self.epochs // 2)
        return first, max(1, self.epochs - first)

    def epoch_order(self, labels: Tensor, draw: torch.Generator) -> Tensor:
        """The rows [N] of one epoch, in the order in which they are seen."""
        if self.sampling == "shuffle" or not len(labels):
            return torch.randperm(len(labels), generator=draw)
        labels = labels.cpu()  # where `draw` is
        chances = 1 / torch.bincount(labels).float()[labels]
        return torch.multinomial(chances, len(labels), replacement=True, generator=draw)

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
    """What `fit_model` returns: the trained copy, the number of steps, the mean loss over them.

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
    """Train a copy of `thing`, a model or any tree of tensors, by one step per batch.

    ``loss(copy, batch)`` returns a scalar. All floating-point tensors of the copy are trained,
    except the buffers of models; what `loss` uses from elsewhere is constant. `thing` is not
    changed::

        head = fit_model(model.only("head"), batches, head_loss, SGD(lr=0.1)).trained

    `sgd` may be a site's `Training`, whose optimiser and gradient clipping then hold. `on_grads`
    may change gradients before each step, and before they are clipped. A loss or a result that is
    NaN or infinite raises a `DivergedError`.
    """
    copy = tree.clone(thing)
    parameters = [leaf.requires_grad_() for leaf in _trainable(copy)]
    optimiser = sgd.make_optimizer(parameters)
    steps = 0
    total: Tensor | float = 0.0
    for batch in batches:
        optimiser.zero_grad()
        value = loss(copy, batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ProtofedError(f"a loss must be a tensor with one number, got {_kind(value)}")
        if not value.isfinite():
            raise DivergedError(
                steps + 1, tree.not_finite(copy) or "the loss, with finite weights,"
            )
        value.backward()
        if on_grads is not None:
            on_grads(copy)
        sgd.limit_gradients(parameters)
        optimiser.step()
        steps += 1
        total = total + value.detach()  # stays on its device, so nothing waits for it
    if bad := tree.not_finite(copy):
        raise DivergedError(steps, bad)
    return FitResult(tree.clone(copy), steps, float(total) / max(steps, 1))


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"one of shape {list(value.shape)}: take its mean"
    return "nothing: return it from `loss`" if value is None else f"a {type(value).__name__}"


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
