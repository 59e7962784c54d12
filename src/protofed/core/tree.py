"""Arithmetic on trees: nested dicts, lists and node dataclasses whose leaves are tensors.

Server states, client states and messages are trees, so one set of functions saves, sends,
compares and averages all of them. Leaves that are not tensors (numbers, text, None) are kept as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar, cast, dataclass_transform

import torch
from torch import Tensor

T = TypeVar("T")
NODES: dict[str, type] = {}
LEAVES = (Tensor, bool, int, float, str, type(None))


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def node(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass that may be part of states and messages.

    Without it a class cannot be sent, saved or averaged. Fields are tensors, other nodes, dicts,
    lists, numbers, text or None::

        @tree.node
        class MomentumServer(ServerState):
            momentum: dict[str, Tensor]

    Only registered nodes are built from received bytes, so no sender can name a class of its
    choice.
    """
    made = dataclass(frozen=True)(cls)
    name = f"{cls.__module__}.{cls.__qualname__}"
    NODES[name] = made
    return made


def children(tree: object) -> list[tuple[int | str, Any]] | None:
    """The named branches of a node, dict or list; None for a leaf.

    Anything else, such as a tuple or an array, raises a `TypeError`.
    """
    if is_dataclass(tree) and not isinstance(tree, type):
        return [(f.name, getattr(tree, f.name)) for f in fields(tree)]
    if isinstance(tree, Mapping):
        return list(tree.items())
    if isinstance(tree, list):
        return list(enumerate(tree))
    if isinstance(tree, LEAVES):
        return None
    raise TypeError(f"{type(tree).__name__} cannot stand in a tree: use a list, dict or node")


def rebuild(tree: T, branches: Mapping[int | str, Any]) -> T:
    """A tree of the same kind as `tree`, with other branches under the same names.

    The inverse of `children`: ``rebuild(x, dict(children(x)))`` equals x.
    """
    if is_dataclass(tree) and not isinstance(tree, type):
        return cast(T, replace(tree, **{str(name): value for name, value in branches.items()}))
    if isinstance(tree, Mapping):
        return cast(T, dict(branches))
    return cast(T, list(branches.values()))


def map(fn: Callable[..., Tensor], tree: T, *others: T) -> T:
    """Apply `fn` to the tensors at the same place of every tree; a tree like the first.

    ``tree.map(torch.sub, model.weights, other.weights)`` subtracts weight by weight. Trees that
    differ in their branches raise a `ValueError`; leaves that are not tensors come from `tree`.
    """
    if isinstance(tree, Tensor):
        return cast(T, fn(tree, *others))
    branches = children(tree)
    if branches is None:
        return tree
    rest = [dict(children(other) or ()) for other in others]
    for other in rest:
        if other.keys() != {name for name, _ in branches}:
            odd = sorted(str(name) for name in other.keys() ^ dict(branches).keys())
            raise ValueError(f"trees differ: only one of them has {', '.join(odd)}")
    return rebuild(
        tree, {name: map(fn, child, *(r[name] for r in rest)) for name, child in branches}
    )


def leaves(tree: object) -> Iterator[Tensor]:
    """The tensors of a tree, depth first, in the order of its branches.

    Two trees of one shape give their tensors in the same order, so `zip` pairs them.
    """
    if isinstance(tree, Tensor):
        yield tree
    for _, child in children(tree) or ():
        yield from leaves(child)


def named_leaves(tree: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a tree with the path to each, such as ``model.weights.head.bias``.

    For messages that must say which tensor is meant.
    """
    if isinstance(tree, Tensor):
        yield path, tree
    for name, child in children(tree) or ():
        yield from named_leaves(child, f"{path}.{name}" if path else str(name))


def nbytes(tree: object) -> int:
    """The number of bytes that the tensors of a tree take.

    This is what travels in a message, but for a small header.
    """
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def clone(tree: T) -> T:
    """A copy that shares no memory with the tree and carries no gradient.

    Use it to freeze part of a model inside a loss: ``model | tree.clone(model.only("head"))``.
    """
    return map(lambda leaf: leaf.detach().clone(), tree)


def to(tree: T, device: torch.device) -> T:
    """A tree with its tensors in a device's memory; those that are already there are not copied."""
    return map(lambda leaf: leaf.to(device), tree)


def mean(trees: Iterable[T], weights: Sequence[float]) -> T:
    """The weighted mean of trees: sum_i w_i x_i / sum_i w_i for each tensor.

    Sums are taken in float64 in the given order; integer tensors are rounded. The trees are read
    one after the other, so they need not all be in memory.
    """
    total = float(sum(weights))
    if not total > 0:
        raise ValueError(f"weights must have a positive sum, got {list(weights)}")
    sums: list[Tensor] = []
    first: T | None = None
    for each, weight in zip(trees, weights, strict=True):
        if first is None:
            first = map(lambda leaf: torch.empty_like(leaf, device="meta"), each)
            sums = [torch.zeros_like(leaf, dtype=torch.float64) for leaf in leaves(each)]
        map(_of_one_kind, first, each)
        for exact, part in zip(sums, leaves(each), strict=True):
            exact.add_(part, alpha=weight / total)
    means = iter(sums)
    return map(lambda leaf: _as_kind_of(leaf, next(means)), cast(T, first))


def _of_one_kind(one: Tensor, other: Tensor) -> Tensor:
    if one.shape != other.shape or one.dtype != other.dtype:
        found = sorted({(str(part.dtype), tuple(part.shape)) for part in (one, other)})
        raise ValueError(f"cannot average tensors of different kinds: {found}")
    return one


def _as_kind_of(leaf: Tensor, exact: Tensor) -> Tensor:
    return (exact if leaf.is_floating_point() else exact.round()).to(leaf.dtype)


def squared_distance(one: T, other: T) -> Tensor:
    """The squared Euclidean distance between two trees: a scalar that carries gradients.

    sum over all tensors of sum (a - b)^2; the trees need the same branches and shapes.
    """
    terms = leaves(map(lambda a, b: (a - b).square().sum(), one, other))
    return torch.stack(list(terms)).sum()


def finite(tree: object) -> bool:
    """Whether no tensor of a tree holds NaN or infinity; true for a tree without tensors."""
    return not not_finite(tree)


def not_finite(tree: object) -> str:
    """The path of the first tensor of a tree that holds NaN or infinity; empty if none does."""
    return next((path for path, leaf in named_leaves(tree) if not _finite_tensor(leaf)), "")


def _finite_tensor(leaf: Tensor) -> bool:
    # NaN and infinity never leave a sum, which is one pass without temporary tensors; only a sum
    # that is not finite, as large numbers may also make it, needs a look at each number.
    return bool(leaf.sum().isfinite()) or bool(leaf.isfinite().all())


def equal(one: object, other: object) -> bool:
    """Whether two trees are equal bit for bit: their structure, dtypes and values.

    The order of branches counts too. NaN differs from itself, as in `torch.equal`.
    """
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return (
            isinstance(one, Tensor)
            and isinstance(other, Tensor)
            and one.dtype == other.dtype
            and torch.equal(one, other)
        )
    left, right = children(one), children(other)
    if left is None or right is None:
        return type(one) is type(other) and one == other
    return [name for name, _ in left] == [name for name, _ in right] and all(
        equal(a, b) for (_, a), (_, b) in zip(left, right, strict=True)
    )
