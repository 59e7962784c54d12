"""A user's arrays: what is accepted, how it is split, and one clear error for each fault."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import numpy as np
import pytest
import torch

from protofed.data.array_checks import ArrayBundle, check_arrays, choose_test_rows
from protofed.errors import ProtofedError
from tests.data.tables import images, vectors

GOOD_X, GOOD_Y = np.zeros((10, 4), np.float32), np.arange(10) % 2


def held_out_slowly(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> set[int]:
    """A fifth of each class by rank of SHA-256, one row after the other."""
    chosen: set[int] = set()
    for label in sorted(set(y.tolist())):
        ranked = sorted(
            (hashlib.sha256(x[row].tobytes()).hexdigest(), row)
            for row in range(len(y))
            if y[row] == label
        )
        cut = max(0, min(max(1, round(0.2 * len(ranked))), len(ranked) - 1))
        while cut and ranked[cut - 1][0] == ranked[cut][0]:
            cut -= 1
        chosen |= {row for _, row in ranked[:cut]}
    return chosen


def test_the_split_is_the_smallest_fifth_of_each_class() -> None:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 3, (200, 2)).astype(np.float32)  # full of copies
    y = draw.integers(0, 5, 200)
    mask = choose_test_rows(x, y)
    assert set(np.flatnonzero(mask).tolist()) == held_out_slowly(x, y)
    assert 0 < mask.sum() < 50
    for label in range(5):
        train = {row.tobytes() for row in x[(y == label) & ~mask]}
        assert not train & {row.tobytes() for row in x[(y == label) & mask]}


def test_the_split_does_not_depend_on_the_order_of_rows() -> None:
    x, y = vectors()["north"]
    order = np.random.default_rng(1).permutation(len(y))
    assert (choose_test_rows(x, y)[order] == choose_test_rows(x[order], y[order])).all()


def test_vectors_become_rows_of_floats_and_keep_their_order() -> None:
    given = vectors()
    made = check_arrays(given)
    assert (made.kind, made.shape, made.classes) == ("rows", (6,), ("0", "1", "2"))
    x, y = given["south"]
    test = choose_test_rows(x.astype(np.float32), y)
    train, tested, note = made.domains["south"]
    assert (train.x == x.astype(np.float32)[~test]).all()
    assert (tested.y == y[test]).all()
    assert note == "split by protofed, 20% of each class to test"


def test_a_domain_may_be_called_like_the_test_part_of_another() -> None:
    (x, y), (x2, y2) = vectors().values()
    made = check_arrays({"a": (x, y), "a (test)": (x2, y2)}, {"a": (x[:9], y[:9])})
    assert (made.domains["a"].train.x == x.astype(np.float32)).all()
    assert (made.domains["a"].test.x == x[:9].astype(np.float32)).all()
    held = choose_test_rows(x2.astype(np.float32), y2)
    assert (made.domains["a (test)"].train.x == x2.astype(np.float32)[~held]).all()
    assert (made.domains["a (test)"].test.x == x2.astype(np.float32)[held]).all()


@pytest.mark.parametrize(
    ("x", "kind", "shape"),
    [
        (np.zeros((10, 8, 9), np.uint8), "images", (8, 9)),
        (np.zeros((10, 8, 9, 1), np.uint8), "images", (8, 9)),
        (np.zeros((10, 8, 9, 3), np.uint8), "images", (8, 9)),
        (np.zeros((10, 4), np.uint8), "rows", (4,)),
        (np.zeros((10, 4), bool), "rows", (4,)),
        (np.zeros((10, 8, 9), np.int64), "rows", (8, 9)),
        (np.zeros((10, 3, 8, 8), np.float64), "rows", (3, 8, 8)),
        (torch.zeros(10, 5, dtype=torch.bfloat16), "rows", (5,)),
    ],
)
def test_kinds_of_arrays(x: Any, kind: str, shape: tuple[int, ...]) -> None:
    made = check_arrays({"a": (x, GOOD_Y)}, {"a": (x, GOOD_Y)})
    assert (made.kind, made.shape) == (kind, shape)


def test_channels_first_are_moved_last() -> None:
    x = np.random.default_rng(0).integers(0, 255, (10, 3, 5, 7)).astype(np.uint8)
    made = check_arrays({"a": (x, GOOD_Y)}, channels_first=True)
    again = check_arrays({"a": (np.moveaxis(x, 1, -1), GOOD_Y)})
    assert made.shape == (5, 7)
    assert (made.domains["a"].train.x == again.domains["a"].train.x).all()


def classes_of(made: ArrayBundle) -> list[str]:
    parts = made.domains["a"]
    return sorted({made.classes[label] for part in (parts.train, parts.test) for label in part.y})


def test_labels_are_numbers_or_texts() -> None:
    x = np.random.default_rng(0).normal(size=(10, 4))
    numbers = check_arrays({"a": (x, GOOD_Y * 4 - 1)})
    assert numbers.classes == ("-1", "3")
    texts = check_arrays({"a": (x, ["cat", "dog"] * 5)})
    assert texts.classes == ("cat", "dog")
    named = check_arrays({"a": (x, ["cat", "dog"] * 5)}, classes=["dog", "bird", "cat"])
    assert named.classes == ("dog", "bird", "cat")
    assert classes_of(named) == ["cat", "dog"]
    counted = check_arrays({"a": (x, GOOD_Y)}, classes=["dog", "bird", "cat"])
    assert classes_of(counted) == ["bird", "dog"]
    objects = check_arrays({"a": (x, np.array(["cat", "dog"] * 5, dtype=object))})
    assert objects.classes == texts.classes


NAN = GOOD_X.copy()
NAN[[3, 7], 1] = np.nan
FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no pair": ({"a": np.zeros((4, 3))}, {}, "a: give a pair of examples and labels"),
    "no domain": ({}, {}, "no domains"),
    "a list": (cast(Any, [(GOOD_X, GOOD_Y)]), {}, "give a dict of arrays by domain"),
    "nan": (
        {"a": (NAN, GOOD_Y)},
        {},
        "a: NaN or infinity (as float32) in 2 rows, the first is row 3",
    ),
    "too large": ({"a": (np.full((10, 4), 1e300), GOOD_Y)}, {}, "in 10 rows, the first is row 0"),
    "objects": (
        {"a": (np.array([[1], [1, 2]] * 5, dtype=object), GOOD_Y)},
        {},
        "x must hold numbers",
    ),
    "ragged": ({"a": ([[1], [1, 2]] * 5, GOOD_Y)}, {}, "a: setting an array element"),
    "complex": ({"a": (GOOD_X.astype(complex), GOOD_Y)}, {}, "x must hold numbers, is complex128"),
    "one axis": ({"a": (GOOD_X[:, 0], GOOD_Y)}, {}, "x must be [N, ...], one row per example"),
    "no width": ({"a": (GOOD_X[:, :0], GOOD_Y)}, {}, "x must be [N, ...]"),
    "empty": ({"a": (GOOD_X, GOOD_Y), "b": (GOOD_X[:0], GOOD_Y[:0])}, {}, "b: holds no example"),
    "shapes": (
        {"a": (GOOD_X, GOOD_Y), "b": (GOOD_X[:, :3], GOOD_Y)},
        {},
        "b and a differ in shape: x is float32 [10, 3] and float32 [10, 4]",
    ),
    "kinds": (
        {"a": (GOOD_X[:, :, None], GOOD_Y), "b": (np.zeros((10, 4, 1), np.uint8), GOOD_Y)},
        {},
        "b and a differ in shape: x is uint8 [10, 4, 1] and float32 [10, 4, 1]",
    ),
    "channels": (
        {"a": (np.zeros((10, 3, 8, 8), np.uint8), GOOD_Y)},
        {},
        "images are uint8 [N, H, W] or [N, H, W, 1 or 3], x is uint8 [10, 3, 8, 8]",
    ),
    "not first": (
        {"a": (GOOD_X, GOOD_Y)},
        {"channels_first": True},
        "channels_first is for images",
    ),
    "no images to leave": (
        {"a": (np.zeros((10, 8, 8), np.uint8), GOOD_Y)},
        {"standardize": False},
        "standardize: images are not standardised",
    ),
    "lengths": ({"a": (GOOD_X, GOOD_Y[:9])}, {}, "a: y must be [10], one label per example"),
    "float labels": ({"a": (GOOD_X, GOOD_Y / 2)}, {}, "convert it, as y.astype(int)"),
    "mixed labels": (
        {"a": (GOOD_X, GOOD_Y), "b": (GOOD_X, ["x", "y"] * 5)},
        {},
        "labels are numbers in some domains and texts in others",
    ),
    "one class": ({"a": (GOOD_X, GOOD_Y * 0)}, {}, "all labels are 0"),
    "one of two": ({"a": (GOOD_X, GOOD_Y * 0)}, {"classes": ["u", "v"]}, "all labels are 0"),
    "out of range": (
        {"a": (GOOD_X, GOOD_Y), "b": (GOOD_X, GOOD_Y * 2)},
        {"classes": ["u", "v"]},
        "b: label 2 is none of the 2 names in classes: 0 to 1",
    ),
    "unknown name": (
        {"a": (GOOD_X, ["u", "w"] * 5)},
        {"classes": ["u", "v"]},
        "a: label w is none of the 2 names in classes: u, v",
    ),
    "twice": ({"a": (GOOD_X, GOOD_Y)}, {"classes": ["u", "u"]}, "classes: a name occurs twice"),
    "no name": ({"a": (GOOD_X, GOOD_Y)}, {"classes": ["u", " "]}, "is no printable name"),
    "one text": ({"a": (GOOD_X, GOOD_Y)}, {"classes": "uv"}, "classes: give a list of names"),
    "slash": ({"a/b": (GOOD_X, GOOD_Y)}, {}, "domain 'a/b': give a name without slashes"),
    "dots": ({"..": (GOOD_X, GOOD_Y)}, {}, "domain '..'"),
    "stray test": ({"a": (GOOD_X, GOOD_Y)}, {"test": {"b": (GOOD_X, GOOD_Y)}}, "no domain 'b'"),
    "all copies": ({"a": (GOOD_X, GOOD_Y)}, {}, "none of its 10 examples can be split off"),
    "bad test": (
        {"a": (GOOD_X, GOOD_Y)},
        {"test": {"a": (GOOD_X[:, :2], GOOD_Y)}},
        "a (test) and a differ in shape",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_told_clearly(name: str) -> None:
    given, more, said = FAULTS[name]
    with pytest.raises(ProtofedError) as fault:
        check_arrays(given, **more)
    assert said in str(fault.value)
    assert len(str(fault.value).splitlines()) <= 2


def test_grey_and_colour_domains_may_stand_together() -> None:
    grey, colour = images()["day"], images()["night"]
    made = check_arrays({"grey": grey, "colour": (np.stack([colour[0]] * 3, -1), colour[1])})
    assert made.domains["grey"].train.x.ndim == 3
    assert made.domains["colour"].train.x.shape[1:] == (16, 16, 3)
