"""Arithmetic on trees: nested dicts, lists and node dataclasses whose leaves are tensors.

Server states, client states and messages are trees, so one set of functions saves, sends,
compares and averages all of them. Leaves that are not tensors (numbers, text, None) ride along.
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
    """Make a class a frozen dataclass that may stand in states and messages.

    Only registered nodes can be read back from the wire or from disk, so no payload can
    name a class of its own choosing.
    """
    made = dataclass(frozen=True)(cls)
    name = f"{cls.__module__}.{cls.__qualname__}"
    NODES[name] = made
    return made


def children(tree: object) -> list[tuple[int | str, Any]] | None:
    """The named branches of a node, dict or list; None for a leaf."""
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
    """A tree of the same kind as `tree` with other branches."""
    if is_dataclass(tree) and not isinstance(tree, type):
        return cast(T, replace(tree, **{str(name): value for name, value in branches.items()}))
    if isinstance(tree, Mapping):
        return cast(T, dict(branches))
    return cast(T, list(branches.values()))


def map(fn: Callable[..., Tensor], tree: T, *others: T) -> T:
    """Apply `fn` to the tensors that stand at the same place in every tree."""
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
    """The tensors of a tree, in the order of its branches."""
    if isinstance(tree, Tensor):
        yield tree
    for _, child in children(tree) or ():
        yield from leaves(child)


def named_leaves(tree: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a tree with the path to each, such as ``model.weights.head.bias``."""
    if isinstance(tree, Tensor):
        yield path, tree
    for name, child in children(tree) or ():
        yield from named_leaves(child, f"{path}.{name}" if path else str(name))


def nbytes(tree: object) -> int:
    """The bytes that a tree's tensors take."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def clone(tree: T) -> T:
    """A copy that shares no memory and carries no gradient."""
    return map(lambda leaf: leaf.detach().clone(), tree)


def to(tree: T, device: torch.device) -> T:
    """A tree in a device's memory; what is there already is not copied."""
    return map(lambda leaf: leaf.to(device), tree)


def mean(trees: Iterable[T], weights: Sequence[float]) -> T:
    """The weighted mean; summed in float64 in the given order, whole numbers rounded.

    One tree is looked at after the other, so that they need not all be in memory.
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
    """The squared Euclidean distance between two trees, as a scalar that carries gradients."""
    terms = leaves(map(lambda a, b: (a - b).square().sum(), one, other))
    return torch.stack(list(terms)).sum()


def finite(tree: object) -> bool:
    """Whether no tensor of a tree holds NaN or infinity."""
    return all(bool(leaf.isfinite().all()) for leaf in leaves(tree))


def equal(one: object, other: object) -> bool:
    """Whether two trees are the same bit for bit: shape of the tree, dtypes and values."""
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
