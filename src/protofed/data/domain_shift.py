"""How far domains lie apart: a linear probe learnt on one domain and tested on another."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from protofed.core.rng import numpy_rng
from protofed.core.site import ArrayDataset
from protofed.data import transforms
from protofed.data.benchmark import Benchmark

MOST_TRAIN, MOST_TEST = 1000, 1000  # images a domain: a quick look
LEAST = 10  # images a domain, in training and in test, below which no probe is learnt
SIDE, CELLS, TURNS = 32, 4, 8  # pixels; cells along a side; directions of an edge
LEVEL = 1.96  # standard errors of a 95 % interval

Floats = NDArray[np.float32]


class AccuracyDrop(NamedTuple):
    """What a probe loses on a domain if it was learnt on another, in points of accuracy."""

    trained: str
    tested: str
    points: float
    error: float  # half of the 95 % interval, from the paired answers on the same test images

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval lies above zero."""
        return self.points > self.error


class DomainShift(NamedTuple):
    """The probes' accuracy in per cent, by the domain they learnt and the domain of the test."""

    accuracy: dict[str, dict[str, float]]
    drops: list[AccuracyDrop]
    images: int  # that every probe learnt from

    @property
    def mean_drop(self) -> float:
        """The mean loss over all ordered pairs of domains."""
        return math.fsum(drop.points for drop in self.drops) / len(self.drops)

    @property
    def word(self) -> str:
        """The shift in a word."""
        if not any(drop.beyond_noise for drop in self.drops):
            return "none beyond noise"
        return "strong" if self.mean_drop >= 25 else "moderate" if self.mean_drop >= 10 else "weak"


def measure_domain_shift(benchmark: Benchmark) -> DomainShift | None:
    """Probes between all domains; None if there are not two with enough images.

    All probes learn from equally many images, so that a loss is not one of size; and each loss is
    taken on the same test images as the home probe's score, so that their difficulty cancels.
    """
    from sklearn.linear_model import RidgeClassifier

    domains = [d for d in benchmark.domains if min(len(d.train), len(d.test)) >= LEAST]
    if len(domains) < 2:
        return None
    size = min(MOST_TRAIN, *(len(domain.train) for domain in domains))
    tests = {d.name: _some(d.test, MOST_TEST, d.name, "test") for d in domains}
    right: dict[str, dict[str, NDArray[np.bool_]]] = {}
    seen = {name: edge_color_features(test) for name, test in tests.items()}
    for domain in domains:
        chosen = _some(domain.train, size, domain.name, "train")
        if len(chosen.labels.unique()) < 2:
            return None
        x = edge_color_features(chosen)
        mean, std = x.mean(0), x.std(0) + 1e-6
        probe = RidgeClassifier(alpha=float(x.shape[1])).fit(
            (x - mean) / std, chosen.labels.numpy()
        )
        right[domain.name] = {
            name: probe.predict((seen[name] - mean) / std) == test.labels.numpy()
            for name, test in tests.items()
        }
    accuracy = {a: {b: 100 * float(r.mean()) for b, r in row.items()} for a, row in right.items()}
    drops = [_drop(right, a, b) for a in right for b in right if a != b]
    return DomainShift(accuracy, drops, size)


def _drop(
    right: dict[str, dict[str, NDArray[np.bool_]]], trained: str, tested: str
) -> AccuracyDrop:
    lost = right[tested][tested].astype(float) - right[trained][tested]
    error = LEVEL * float(lost.std(ddof=1)) / math.sqrt(len(lost))
    return AccuracyDrop(trained, tested, 100 * float(lost.mean()), 100 * error)


def _some(data: ArrayDataset, most: int, *key: str) -> ArrayDataset:
    """At most so many images, drawn the same way every time."""
    order = numpy_rng("shift", *key).permutation(len(data))[:most]
    return data.take(torch.from_numpy(np.sort(order)))


def edge_color_features(data: ArrayDataset) -> Floats:
    """Edges and colours [N, 320]: in 4 x 4 cells how strong the edges of 8 directions are, as in
    a histogram of oriented gradients, and an 8 x 8 thumbnail.

    Simple and fixed, and no net to train: what changes with a domain's style changes them.
    """
    small = transforms.resize_images(data.images, SIDE).float().expand(-1, -1, -1, 3)
    grey = small @ torch.tensor(transforms.LUMA)
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
    """Grey thumbnails [N, 1024] from 0 to 255."""
    small = transforms.resize_images(data.images, SIDE).float().expand(-1, -1, -1, 3)
    found: Floats = (small @ torch.tensor(transforms.LUMA)).flatten(1).numpy()
    return found
