"""How far domains lie apart: a linear probe trained on one domain and tested on another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofed.core.rng import numpy_rng
from protofed.core.site import ArrayDataset
from protofed.data import transforms
from protofed.data.augmentation import luminance
from protofed.data.benchmark_info import Benchmark

MOST_TRAIN, MOST_TEST = 1000, 1000  # images per domain
LEAST = 10  # images per domain, in training and in test, that a probe needs
SIDE, CELLS, TURNS = 32, 4, 8  # pixels; cells along a side; directions of an edge
LEVEL = 1.96  # standard errors of a 95 % interval

Floats = NDArray[np.float32]
Classes = NDArray[np.int64]


class AccuracyDrop(NamedTuple):
    """What a probe loses on `tested` if it was trained on `trained` instead.

    Points of accuracy, compared with the probe trained on `tested` itself.
    """

    trained: str
    tested: str
    points: float
    error: float  # half of the 95 % interval, from the paired answers on the same test images

    @property
    def beyond_noise(self) -> bool:
        """Whether the 95 % interval of the loss lies above zero."""
        return self.points > self.error


class DomainShift(NamedTuple):
    """The result of `measure_domain_shift`.

    ``accuracy[a][b]`` is the accuracy in per cent on domain b of a probe trained on domain a;
    `drops` has one entry for each ordered pair of different domains.
    """

    accuracy: dict[str, dict[str, float]]
    drops: list[AccuracyDrop]
    images: int  # that every probe was trained on

    @property
    def mean_drop(self) -> float:
        """The mean loss over all ordered pairs of domains."""
        return math.fsum(drop.points for drop in self.drops) / len(self.drops)

    @property
    def word(self) -> str:
        """The shift in words: "none beyond noise", "weak", "moderate" or "strong"."""
        if not any(drop.beyond_noise for drop in self.drops):
            return "none beyond noise"
        return "strong" if self.mean_drop >= 25 else "moderate" if self.mean_drop >= 10 else "weak"


def measure_domain_shift(benchmark: Benchmark) -> DomainShift | None:
    """Train a linear probe on each domain and test it on all domains.

    Returns None if fewer than two domains have enough images. All probes train on equally many
    images, so a loss does not reflect the size of a domain. Each loss is measured on the same test
    images as the score of that domain's own probe, so the difficulty of a domain cancels out.
    """
    domains = [d for d in benchmark.domains if min(len(d.train), len(d.test)) >= LEAST]
    if len(domains) < 2:
        return None
    size = min(MOST_TRAIN, *(len(domain.train) for domain in domains))
    tests = {d.name: _some(d.test, MOST_TEST, d.name, "test") for d in domains}
    right: dict[str, dict[str, NDArray[np.bool_]]] = {}
    seen = {name: probe_features(test) for name, test in tests.items()}
    for domain in domains:
        chosen = _some(domain.train, size, domain.name, "train")
        if len(chosen.labels.unique()) < 2:
            return None
        probe = fit_probe(probe_features(chosen), chosen.labels)
        right[domain.name] = {
            name: probe(seen[name]) == test.labels.numpy() for name, test in tests.items()
        }
    accuracy = {a: {b: 100 * float(r.mean()) for b, r in row.items()} for a, row in right.items()}
    drops = [_drop(right, a, b) for a in right for b in right if a != b]
    return DomainShift(accuracy, drops, size)


def fit_probe(features: Floats, labels: Tensor) -> Callable[[Floats], Classes]:
    """A linear probe that learnt classes [N] from features [N, D]; it answers for other rows."""
    from sklearn.linear_model import RidgeClassifier

    mean, std = features.mean(0), features.std(0) + 1e-6
    probe = RidgeClassifier(alpha=float(features.shape[1]))
    probe.fit((features - mean) / std, labels.numpy())

    def answer(rows: Floats) -> Classes:
        classes: Classes = probe.predict((rows - mean) / std)
        return classes

    return answer


def _drop(
    right: dict[str, dict[str, NDArray[np.bool_]]], trained: str, tested: str
) -> AccuracyDrop:
    lost = right[tested][tested].astype(float) - right[trained][tested]
    error = LEVEL * float(lost.std(ddof=1)) / math.sqrt(len(lost))
    return AccuracyDrop(trained, tested, 100 * float(lost.mean()), 100 * error)


def _some(data: ArrayDataset, most: int, *key: str) -> ArrayDataset:
    """At most `most` images, drawn the same way every time."""
    order = numpy_rng("shift", *key).permutation(len(data))[:most]
    return data.take(torch.from_numpy(np.sort(order)))


def probe_features(data: ArrayDataset) -> Floats:
    """What a probe sees: `edge_color_features` of images, and the numbers of rows themselves."""
    if not data.images.is_floating_point():
        return edge_color_features(data)
    rows: Floats = data.images.flatten(1).numpy()
    return rows


def edge_color_features(data: ArrayDataset) -> Floats:
    """Features [N, 320] of images: edge directions in 4 x 4 cells, and an 8 x 8 colour thumbnail.

    The edges are a histogram of oriented gradients over 8 directions. The features are fixed, fast,
    and change with the style of a domain.
    """
    small = transforms.resize_images(data.images, SIDE).float().expand(-1, -1, -1, 3)
    grey = luminance(small)[..., 0]
    down, right = torch.gradient(grey, dim=(1, 2))
    strength = torch.hypot(down, right)
    turn = (torch.atan2(down, right) / torch.pi % 1 * TURNS).long() % TURNS
    edges = torch.nn.functional.one_hot(turn, TURNS) * strength[..., None]  # [N, 32, 32, 8]
    cells = torch.nn.functional.avg_pool2d(edges.permute(0, 3, 1, 2), SIDE // CELLS).flatten(1)
    cells = (cells / (cells.norm(dim=1, keepdim=True) + 1e-6)).sqrt()
    thumbnail = torch.nn.functional.avg_pool2d(small.permute(0, 3, 1, 2), 4).flatten(1) / 255
    found: Floats = torch.cat([cells, thumbnail], dim=1).numpy()
    return found


def gray_thumbnails(data: ArrayDataset) -> Floats:
    """Grey thumbnails [N, 1024] of 32 x 32 pixels, values from 0 to 255."""
    small = transforms.resize_images(data.images, SIDE).float().expand(-1, -1, -1, 3)
    found: Floats = luminance(small).flatten(1).numpy()
    return found
