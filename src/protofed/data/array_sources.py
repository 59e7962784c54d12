"""Tables of other libraries as arrays: torch datasets by domain, and Hugging Face tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from PIL import Image
from torch import Tensor

from protofed.data.array_checks import LabelledArrays, to_array
from protofed.data.npz_store import Array
from protofed.errors import ProtofedError, printable_text

TRAIN, TEST = ("train", "validation"), "test"  # splits of a table, by their usual names


class MapDataset(Protocol):
    """A map-style dataset, as torch's: examples with their labels, by number."""

    def __len__(self) -> int:
        """How many examples there are."""

    def __getitem__(self, index: int, /) -> object:
        """An example and its label."""


class FeatureTable(Protocol):
    """The part of a Hugging Face `datasets.Dataset` that is used here."""

    @property
    def column_names(self) -> list[str]:
        """The names of its columns."""

    @property
    def features(self) -> Mapping[str, object]:
        """The types of its columns."""

    def __getitem__(self, column: str, /) -> Iterable[object]:
        """All values of a column."""


def dataset_arrays(domain: str, dataset: MapDataset, side: int | None = None) -> LabelledArrays:
    """All examples and labels of a map-style dataset, in order, as two arrays.

    Examples are tensors, arrays or PIL images of one shape; PIL images are resized to `side` if
    that is given.
    """
    examples, labels = [], []
    for number in range(len(dataset)):
        item = dataset[number]
        if not isinstance(item, Sequence) or len(item) != 2:
            raise ProtofedError(f"{domain}: item {number} is no pair of an example and its label")
        examples.append(_example(item[0], side))
        labels.append(_label(item[1]))
    return stack_examples(domain, examples), np.array(labels)


def _example(given: object, side: int | None) -> Array:
    if not isinstance(given, Image.Image):
        return to_array("an example", given)
    grey = given.mode in ("1", "L")
    plain = given.convert("L" if grey else "RGB")
    if side is not None and plain.size != (side, side):
        plain = plain.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(plain if grey else plain.convert("RGB"))


def _label(given: object) -> object:
    return given.item() if isinstance(given, Tensor | np.generic) else given


def stack_examples(domain: str, examples: Sequence[Array]) -> Array:
    """One array of examples that must have one shape; grey images beside colour get three channels.

    An error names the first two shapes that differ.
    """
    if not examples:
        raise ProtofedError(f"{domain}: holds no example")
    if len({example.ndim for example in examples}) > 1 and _are_images(examples):
        examples = [e if e.ndim == 3 else np.repeat(e[..., None], 3, 2) for e in examples]
    first = examples[0]
    for number, example in enumerate(examples):
        if (example.shape, example.dtype) != (first.shape, first.dtype):
            raise ProtofedError(
                f"{domain}: example {number} is {example.dtype} {list(example.shape)}, the first "
                f"is {first.dtype} {list(first.shape)}",
                hint="bring all examples to one shape; PIL images are resized by <side>",
            )
    return np.stack(examples)


def _are_images(examples: Sequence[Array]) -> bool:
    return all(
        e.dtype == np.uint8 and e.ndim in (2, 3) and e.shape[2:] in ((), (3,)) for e in examples
    )


def table_arrays(
    table: FeatureTable | Mapping[str, FeatureTable],
    image: str,
    label: str,
    domain: str,
    side: int | None = None,
) -> tuple[dict[str, LabelledArrays], dict[str, LabelledArrays], tuple[str, ...] | None]:
    """A Hugging Face table as training parts and test parts by domain, and its class names.

    Of a table with splits, "test" is the test part; "train" and "validation" are trained on.
    """
    splits = table if isinstance(table, Mapping) else {TRAIN[0]: table}
    unknown = [name for name in splits if name not in (*TRAIN, TEST)]
    if unknown or TRAIN[0] not in splits:
        raise ProtofedError(
            f"the table has the splits {', '.join(splits)}; known are {', '.join((*TRAIN, TEST))}, "
            f"and {TRAIN[0]} must be there"
        )
    names = _class_names(splits[TRAIN[0]], label)
    columns = (image, label, domain)
    train: dict[str, tuple[list[Array], list[object]]] = {}
    test: dict[str, tuple[list[Array], list[object]]] = {}
    for split, rows in splits.items():
        _read_rows(rows, columns, side, test if split == TEST else train)
    return _stacked(train), _stacked(test), names


def _class_names(table: FeatureTable, label: str) -> tuple[str, ...] | None:
    """The names that a column of class labels declares; None for plain numbers and texts."""
    declared = getattr(table.features.get(label), "names", None)
    return tuple(map(str, declared)) if declared else None


def _read_rows(
    table: FeatureTable,
    columns: Sequence[str],
    side: int | None,
    into: dict[str, tuple[list[Array], list[object]]],
) -> None:
    """Append the rows of a table to the lists of their domains."""
    for column in columns:
        if column not in table.column_names:
            known = ", ".join(map(str, table.column_names))
            raise ProtofedError(f"the table has no column {column!r} (known: {known})")
    domains = _class_names(table, columns[2])
    for example, label, home in zip(*(table[column] for column in columns), strict=True):
        name = domains[home] if domains and isinstance(home, int) else str(home)
        examples, labels = into.setdefault(printable_text(name), ([], []))
        examples.append(_example(example, side))
        labels.append(_label(label))


def _stacked(parts: Mapping[str, tuple[list[Array], list[object]]]) -> dict[str, LabelledArrays]:
    return {name: (stack_examples(name, x), np.array(y)) for name, (x, y) in parts.items()}
