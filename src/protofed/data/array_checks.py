"""A user's arrays, checked: one kind and shape, finite numbers, named classes, a test part."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofed.data.folder_images import TEST_SHARE, digests_to_test
from protofed.data.npz_store import Array
from protofed.errors import ProtofedError, count_noun, display_path, printable_text

ArrayKind: TypeAlias = Literal["images", "rows"]
Examples: TypeAlias = NDArray[np.generic] | Tensor
Labels: TypeAlias = NDArray[np.generic] | Tensor | Sequence[int] | Sequence[str]
LabelledArrays: TypeAlias = tuple[Examples, Labels]

IMAGES = "images are uint8 [N, H, W] or [N, H, W, 1 or 3]"
SPLIT_NOTE = f"split by protofed, {TEST_SHARE:.0%} of each class to test"


class ArrayPart(NamedTuple):
    """Examples and their classes: uint8 [N, H, W] or [N, H, W, 3], or float32 [N, *shape].

    Labels are int64 [N] and index the classes.
    """

    x: Array
    y: NDArray[np.int64]


class PartName(NamedTuple):
    """Which part of the arrays it is: a domain's test part, or the rest; as text, for errors.

    A key, as no text could be: a domain may be called "a (test)" beside a domain "a".
    """

    domain: str
    test: bool = False

    def __str__(self) -> str:
        return f"{self.domain} (test)" if self.test else self.domain


class ArrayDomain(NamedTuple):
    """The training and the test part of one domain, and a note on how they were split."""

    train: ArrayPart
    test: ArrayPart
    note: str


@dataclass(frozen=True)
class ArrayBundle:
    """A user's arrays after all checks, as they are stored.

    `shape` is [H, W] of images, and the whole shape of one row otherwise.
    """

    kind: ArrayKind
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    domains: dict[str, ArrayDomain]  # by name, in order of names
    standardize: bool

    @cached_property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each domain's arrays and labels, by name; large arrays are read once."""
        return {name: arrays_digest((*d.train, *d.test)) for name, d in self.domains.items()}


def arrays_digest(arrays: Sequence[Array]) -> str:
    """SHA-256 of some arrays with their types and shapes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def check_arrays(
    given: Mapping[str, LabelledArrays],
    test: Mapping[str, LabelledArrays] | None = None,
    classes: Sequence[str] | None = None,
    *,
    channels_first: bool = False,
    standardize: bool = True,
) -> ArrayBundle:
    """Check arrays by domain, name their classes, and split off a test part where none is given.

    The first fault is a `ProtofedError` that says where it is and what is allowed.
    """
    _check_domains(given, test or {})
    parts = {PartName(name): given[name] for name in sorted(given)}
    parts |= {PartName(name, test=True): test[name] for name in sorted(test)} if test else {}
    for part, pair in parts.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ProtofedError(f"{part}: give a pair of examples and labels, (x, y)")
    stored = {part: _examples(str(part), x, channels_first) for part, (x, _) in parts.items()}
    kind, shape = _common_shape(stored)
    if kind == "images" and not standardize:
        raise ProtofedError("standardize: images are not standardised; leave it out")
    labels = {part: _labels(str(part), y, len(stored[part])) for part, (_, y) in parts.items()}
    called, codes = name_classes(labels, classes)
    whole = {part: ArrayPart(stored[part], codes[part]) for part in parts}
    domains = {name: _domain(name, whole) for name in sorted(given)}
    return ArrayBundle(kind, shape, called, domains, standardize)


def _check_domains(given: Mapping[str, object], test: Mapping[str, object]) -> None:
    """Raise for no domains, names that cannot be files, and test parts without training part."""
    if not isinstance(given, Mapping):
        raise ProtofedError(
            'give a dict of arrays by domain, as {"north": (x, y), "south": (x, y)}, not '
            f"{type(given).__name__}"
        )
    if not given:
        raise ProtofedError("no domains: give arrays by the name of their domain")
    for name in given:
        if not is_plain_name(name):
            raise ProtofedError(
                f"domain {name!r}: give a name without slashes, leading dots and outer spaces"
            )
    for name in test:
        if name not in given:
            known = ", ".join(map(str, given))
            raise ProtofedError(f"test: there is no domain {name!r} (known: {known})")


def is_plain_name(name: object) -> bool:
    """Whether a domain can have this name, which is part of a file's name."""
    plain = isinstance(name, str) and name.strip() == name and name.isprintable()
    return plain and bool(name) and str(name)[0] != "." and not set(str(name)) & set("/\\")


def to_array(where: str, given: object) -> Array:
    """A NumPy array of an array, a tensor or a list; objects and text are refused elsewhere."""
    if isinstance(given, Tensor):
        plain = given.detach().cpu()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    try:
        return np.asarray(given)
    except ValueError as fault:  # lists of different lengths
        raise ProtofedError(f"{where}: {fault}") from fault


def _examples(where: str, given: Examples, channels_first: bool) -> Array:
    """The examples of a part as they are stored."""
    x = to_array(where, given)
    found = f"{x.dtype} {list(x.shape)}"
    if x.dtype.kind not in "biuf":
        raise ProtofedError(
            f"{where}: x must hold numbers, is {found}\n"
            "an object array often means rows of different shapes: make them one shape"
        )
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise ProtofedError(f"{where}: x must be [N, ...], one row per example, is {found}")
    if not len(x):
        raise ProtofedError(f"{where}: holds no example: x is {found}")
    if channels_first:
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[1] not in (1, 3):
            raise ProtofedError(
                f"{where}: channels_first is for images, uint8 [N, 1 or 3, H, W]; x is {found}"
            )
        x = np.moveaxis(x, 1, -1)
    if x.dtype != np.uint8 or x.ndim == 2:
        return to_rows(where, x)
    return to_pictures(where, x)


def to_pictures(where: str, x: Array) -> Array:
    """Images [N, H, W] or [N, H, W, 1 or 3] uint8 as [N, H, W] or [N, H, W, 3], or an error."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or x.shape[3:] not in ((), (1,), (3,)):
        raise ProtofedError(
            f"{where}: {IMAGES}, x is {x.dtype} {list(x.shape)}",
            hint="pass <channels_first=True> for [N, 1 or 3, H, W]; "
            "floats of any shape are rows, not images",
        )
    return np.ascontiguousarray(x[..., 0] if x.shape[3:] == (1,) else x)


def to_rows(where: str, x: Array) -> Array:
    """Numbers of any shape as float32, all of them finite."""
    with np.errstate(over="ignore"):  # reported below
        rows = np.ascontiguousarray(x, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(rows).reshape(len(rows), -1).all(1))
    if len(bad):
        raise ProtofedError(
            f"{where}: NaN or infinity (as float32) in {count_noun(len(bad), 'row')}, the first is "
            f"row {bad[0]}\nremove these rows, or fill in their numbers"
        )
    return rows


def _common_shape(stored: Mapping[PartName, Array]) -> tuple[ArrayKind, tuple[int, ...]]:
    """The kind and the shape that all parts share; images may be grey in one domain only."""
    (first, one), *others = stored.items()
    for name, other in others:
        if _shape_of(other) != _shape_of(one):
            raise ProtofedError(
                f"{name} and {first} differ in shape: x is {other.dtype} {list(other.shape)} and "
                f"{one.dtype} {list(one.shape)}\nall domains need examples of one shape"
            )
    return _shape_of(one)


def _shape_of(x: Array) -> tuple[ArrayKind, tuple[int, ...]]:
    return ("images", x.shape[1:3]) if x.dtype == np.uint8 else ("rows", x.shape[1:])


def _labels(where: str, given: Labels, count: int) -> Array:
    """Labels [N] as int64 or text."""
    y = to_array(where, given)
    texts = y.dtype.kind == "O" and all(isinstance(label, str) for label in y.flat)
    if y.dtype.kind not in "biuUT" and not texts:
        raise ProtofedError(
            f"{where}: labels must be whole numbers or texts, y is {y.dtype}\n"
            "if its values are whole, convert it, as y.astype(int)"
        )
    if y.shape != (count,):
        raise ProtofedError(
            f"{where}: y must be [{count}], one label per example of x, is {list(y.shape)}"
        )
    return y.astype(np.int64) if y.dtype.kind in "biu" else y.astype(str)


def name_classes(
    labels: Mapping[PartName, Array], classes: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[PartName, NDArray[np.int64]]]:
    """The names of the classes, and the labels of each part as indices into them.

    Without `classes`, every value that occurs is a class, in order. With them, numbers are indices
    and texts are names.
    """
    if len({y.dtype.kind for y in labels.values()}) > 1:
        raise ProtofedError("labels are numbers in some domains and texts in others: use one kind")
    values = np.unique(np.concatenate(list(labels.values())))
    if len(values) < 2:
        raise ProtofedError(f"all labels are {values[0]!s}: there must be two classes at least")
    if classes is None:
        _check_class_names([str(value) for value in values])
        names = tuple(str(value) for value in values)
        return names, {where: np.searchsorted(values, y) for where, y in labels.items()}
    _check_class_names(classes)
    texts = values.dtype.kind == "U"
    known = {name if texts else number: number for number, name in enumerate(classes)}
    for where, y in labels.items():
        strange = [value for value in np.unique(y).tolist() if value not in known]
        if strange:
            allowed = ", ".join(classes) if texts else f"0 to {len(classes) - 1}"
            raise ProtofedError(
                f"{where}: label {printable_text(str(strange[0]), 60)} is none of the "
                f"{count_noun(len(classes), 'name')} in classes: {printable_text(allowed, 200)}"
            )
    numbers = np.array([known[value] for value in values.tolist()], dtype=np.int64)
    codes = {where: numbers[np.searchsorted(values, y)] for where, y in labels.items()}
    return tuple(classes), codes


def _check_class_names(classes: Sequence[str]) -> None:
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise ProtofedError(f"classes: give a list of names, got {classes!r}")
    for name in classes:
        if not name.strip() or not name.isprintable() or display_path(name) != name:
            raise ProtofedError(f"classes: {printable_text(repr(name), 60)} is no printable name")
    if len(set(classes)) < len(classes):
        raise ProtofedError("classes: a name occurs twice")


def _domain(name: str, parts: Mapping[PartName, ArrayPart]) -> ArrayDomain:
    """A domain with the test part that was given, or with one that is split off."""
    if PartName(name, test=True) in parts:
        return ArrayDomain(parts[PartName(name)], parts[PartName(name, test=True)], "")
    x, y = parts[PartName(name)]
    test = choose_test_rows(x, y)
    if not test.any():
        raise ProtofedError(
            f"{name}: none of its {count_noun(len(x), 'example')} can be split off for the test: "
            "each class needs two different ones",
            hint="add examples, or give <test>",
        )
    return ArrayDomain(ArrayPart(x[~test], y[~test]), ArrayPart(x[test], y[test]), SPLIT_NOTE)


def choose_test_rows(x: Array, y: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which examples become the test part, [N]: a fifth of each class, by SHA-256 of their bytes.

    So the split is the same in every run, and copies of one example stay on one side.
    """
    digests = np.array([hashlib.sha256(row.tobytes()).hexdigest() for row in x])
    test = np.zeros(len(x), dtype=bool)
    for label in np.unique(y):
        mine = np.flatnonzero(y == label)
        chosen = digests_to_test(digests[mine].tolist())
        test[mine] = [digest in chosen for digest in digests[mine]]
    return test
