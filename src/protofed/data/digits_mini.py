"""The built-in benchmark digits-mini: real and drawn digits, made here without a download."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from protofed.core.errors import require_known_name
from protofed.core.rng import numpy_rng
from protofed.core.site import ArrayDataset
from protofed.data.benchmark import Domain
from protofed.data.cache import Arrays, cached_file
from protofed.data.render import SIDE, render_digits

VERSION = 4  # raise it whenever the images change, so that no kept file outlives them
DOMAINS = ("optical", "print", "syn", "street")
CLASSES = 10
TRAIN, TEST = 1200, 300  # images of a domain
SYN_TRAIN, SYN_TEST = 10_000, 2_000


def digits_mini_domain(name: str) -> Domain:
    """One domain of digits-mini: 1,200 training and 300 test images, 32 x 32, ten classes."""
    require_known_name("domain of digits-mini", name, DOMAINS)
    if name == "optical":
        return _domain(name, cached_file(_key("digits-mini", name, "scikit-learn"), _optical))
    key = _key("digits-mini", name, "matplotlib")
    return _domain(name, cached_file(key, lambda: _drawn(name, TRAIN, TEST, "digits-mini")))


def synthetic_digits() -> Domain:
    """A stand-in for SYN at full size: 10,000 training and 2,000 test images [N, 32, 32, 3]."""
    key = _key("synthetic-digits", "syn", "matplotlib")
    drawn = cached_file(key, lambda: _drawn("syn", SYN_TRAIN, SYN_TEST, "synthetic-digits"))
    return _domain("syn", drawn)


def _key(purpose: str, name: str, source: str) -> str:
    """The cache's name for images, which other releases of their makers may draw otherwise."""
    makers = "-".join(f"{maker}{version(maker)}" for maker in ("pillow", source))
    return f"{purpose}-v{VERSION}-{name}-{makers}"


def _domain(name: str, arrays: Arrays) -> Domain:
    """A domain from the arrays `train_images`, `train_labels` and the same of `test`."""
    train, test = (
        ArrayDataset(
            torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"])
        )
        for part in ("train", "test")
    )
    return Domain(name, train, test)


def _drawn(style: str, train: int, test: int, purpose: str) -> Arrays:
    """Rendered images of both parts, every class equally often, in random order."""
    arrays: Arrays = {}
    for part, size in (("train", train), ("test", test)):
        labels = numpy_rng(purpose, style, part, "labels").permutation(np.arange(size) % CLASSES)
        arrays[f"{part}_images"] = render_digits(style, labels, (purpose, part))
        arrays[f"{part}_labels"] = labels
    return arrays


def _optical() -> Arrays:
    """Real handwritten digits: a balanced choice, dealt to both parts at random."""
    from sklearn.datasets import load_digits

    rows, labels = load_digits(return_X_y=True)  # [1797, 64] from 0 to 16, [1797]
    draw = numpy_rng("digits-mini", "optical", "split")
    arrays: Arrays = {}
    dealt = [draw.permutation(np.flatnonzero(labels == digit)) for digit in range(CLASSES)]
    for part, start, stop in (
        ("train", 0, TRAIN // CLASSES),
        ("test", TRAIN // CLASSES, (TRAIN + TEST) // CLASSES),
    ):
        chosen = draw.permutation(np.concatenate([of_class[start:stop] for of_class in dealt]))
        arrays[f"{part}_images"] = np.stack([_enlarged(rows[row]) for row in chosen])
        arrays[f"{part}_labels"] = labels[chosen].astype(np.int64)
    return arrays


def _enlarged(row: NDArray[np.float64]) -> NDArray[np.uint8]:
    """An image [64] of values from 0 to 16 as [32, 32, 1], light on dark."""
    small = Image.fromarray(np.rint(row.reshape(8, 8) * 255 / 16).astype(np.uint8))
    return np.asarray(small.resize((SIDE, SIDE), Image.Resampling.BICUBIC))[:, :, None]
