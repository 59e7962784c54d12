"""What images are like, measured: whether they may be turned, and how far colours lie apart."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protofed.core.rng import numpy_rng
from protofed.core.site import ArrayDataset
from protofed.data.benchmark_info import Benchmark
from protofed.data.domain_shift import Floats, edge_color_features, fit_probe

MOST_IMAGES = 1600  # of all domains together; half of them teach a probe
LEAST_IMAGES = 40
QUARTERS = 4


class ImageTraits(NamedTuple):
    """What the training images of a benchmark are like; see `measure_traits`."""

    turning_loss: float | None  # share of a probe's gain that turning the images costs
    color_distance: float  # between domains, in standard deviations within a domain

    @property
    def turnable(self) -> bool:
        """Whether images have no up, so that turning them at random does no harm."""
        return self.turning_loss is not None and self.turning_loss < 1 / 3

    @property
    def colors_differ(self) -> bool:
        """Whether the places differ in colour about as much as the images of one place."""
        return self.color_distance >= 0.5


def measure_traits(benchmark: Benchmark) -> ImageTraits:
    """Measure what decides which augmentation suits the images; takes a few seconds."""
    return ImageTraits(turning_loss(benchmark), color_distance(benchmark))


def turning_loss(benchmark: Benchmark) -> float | None:
    """What a linear probe loses on turned images, as a share of what it gains on upright ones.

    The probe learns the classes from half of some training images, as they are. Its gain is its
    accuracy on the other half less that of a constant answer; its loss is how much lower the
    accuracy is on the same images turned by 90, 180 and 270 degrees, on average. Each half teaches
    once. Photographs and digits lose most of the gain (0.6 to 1), cells under a microscope little
    (0.1). None if there are too few images, or if the probe gains nothing.
    """
    images, labels = _some_images(benchmark)
    if len(labels) < LEAST_IMAGES or len(labels.unique()) < 2:
        return None
    half = len(labels) // 2
    first, second = slice(0, half), slice(half, None)
    gain = loss = 0.0
    for seen, fresh in ((first, second), (second, first)):
        if len(labels[seen].unique()) < 2:
            return None
        accuracy = _accuracy_by_turn(images[seen], labels[seen], images[fresh], labels[fresh])
        constant = float(labels[fresh].bincount().max()) / len(labels[fresh])
        gain += accuracy[0] - constant
        loss += accuracy[0] - sum(accuracy[1:]) / (QUARTERS - 1)
    return loss / gain if gain > 0 else None


def _accuracy_by_turn(seen: Tensor, taught: Tensor, fresh: Tensor, asked: Tensor) -> list[float]:
    """The accuracy on fresh images in all four turns of a probe that saw upright ones."""
    probe = fit_probe(_features(seen), taught)
    turned = (torch.rot90(fresh, turn, (1, 2)).contiguous() for turn in range(QUARTERS))
    answers = (probe(_features(images)) for images in turned)
    return [float((answer == asked.numpy()).mean()) for answer in answers]


def _features(images: Tensor) -> Floats:
    return edge_color_features(ArrayDataset(images, torch.zeros(len(images))))


def _some_images(benchmark: Benchmark) -> tuple[Tensor, Tensor]:
    """Training images [N, side, side, 3] and classes of all domains, shuffled, equally many."""
    each = MOST_IMAGES // len(benchmark.domains)
    chosen = []
    for domain in benchmark.domains:
        order = numpy_rng("traits", domain.name).permutation(len(domain.train))[:each]
        chosen.append(domain.train.take(torch.from_numpy(order)))
    images = torch.cat([part.images.expand(-1, -1, -1, 3) for part in chosen])
    shuffled = torch.from_numpy(numpy_rng("traits").permutation(len(images)))
    return images[shuffled], torch.cat([part.labels for part in chosen])[shuffled]


def color_distance(benchmark: Benchmark) -> float:
    """How far the domains' colours lie apart, in standard deviations of images within a domain.

    The standard deviation of the domains' mean colours, divided by the mean standard deviation of
    the images' mean colours within a domain; the mean over red, green and blue. Domains without
    training images do not count.
    """
    means, spreads = [], []
    for domain in benchmark.domains:
        if not len(domain.train):
            continue
        images = domain.train.images.expand(-1, -1, -1, 3)
        colours = torch.stack([image.float().mean((0, 1)) for image in images])
        means.append(colours.mean(0))
        spreads.append(colours.std(0, correction=0))
    if not means:
        return 0.0
    between = torch.stack(means).std(0, correction=0)
    within = torch.stack(spreads).mean(0)
    return float((between / within.clamp(min=1e-6)).mean())
