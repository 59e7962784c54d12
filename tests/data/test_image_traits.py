"""What images are like, on images whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from protofed.core.site import ArrayDataset
from protofed.data.benchmark_info import Benchmark, Domain
from protofed.data.benchmarks import load_benchmark
from protofed.data.image_traits import ImageTraits, color_distance, measure_traits, turning_loss

SIDE = 16


def benchmark(*parts: ArrayDataset) -> Benchmark:
    domains = tuple(Domain(f"place {n}", part, part) for n, part in enumerate(parts))
    return Benchmark("made", ("a", "b"), domains)


def bars(count: int, seed: int, turned: bool) -> ArrayDataset:
    """Class 0 has a bar at the top, class 1 at the bottom; `turned` turns each at random."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, count)
    images = draw.integers(0, 60, (count, SIDE, SIDE, 3))
    images[labels == 0, 1:4] += 150
    images[labels == 1, -4:-1] += 100
    turns = draw.integers(0, 4, count) if turned else np.zeros(count, dtype=int)
    whole = [np.rot90(image, turn) for image, turn in zip(images, turns, strict=True)]
    return ArrayDataset(
        torch.from_numpy(np.stack(whole).astype(np.uint8)), torch.from_numpy(labels)
    )


def test_images_with_an_up_lose_by_turning_and_others_do_not() -> None:
    upright, turned = (turning_loss(benchmark(bars(300, 0, way))) for way in (False, True))
    assert upright is not None
    assert turned is not None
    assert turned < 1 / 3 < upright
    assert ImageTraits(turned, 0.0).turnable
    assert not ImageTraits(upright, 0.0).turnable


def test_digits_have_an_up() -> None:
    found = measure_traits(load_benchmark("digits-mini"))
    assert found.turning_loss is not None
    assert found.turning_loss > 0.7
    assert not found.turnable


def test_too_few_images_are_not_judged() -> None:
    assert turning_loss(benchmark(bars(20, 0, False))) is None
    one = bars(100, 0, False)
    assert turning_loss(benchmark(ArrayDataset(one.images, torch.zeros_like(one.labels)))) is None
    noise = torch.randint(0, 256, (200, SIDE, SIDE, 3), generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1] * 100)
    unknown = turning_loss(benchmark(ArrayDataset(noise.to(torch.uint8), labels)))
    assert unknown is None or not ImageTraits(unknown, 0.0).turnable or unknown < 1
    assert not ImageTraits(None, 0.0).turnable


@pytest.mark.parametrize("channels", [1, 3])
def test_colour_distance_is_a_ratio_of_standard_deviations(channels: int) -> None:
    draw = np.random.default_rng(1)
    places = [
        draw.integers(low, low + 90, (30, SIDE, SIDE, channels)).astype(np.uint8)
        + draw.integers(0, 60, (30, 1, 1, channels)).astype(np.uint8)
        for low in (0, 40, 80)
    ]
    labels = torch.zeros(30, dtype=torch.int64)
    got = color_distance(benchmark(*(ArrayDataset(torch.from_numpy(x), labels) for x in places)))
    means = [place.astype(float).mean((1, 2)) for place in places]  # [30, channels] each
    between = np.std([mean.mean(0) for mean in means], axis=0)
    within = np.mean([mean.std(0) for mean in means], axis=0)
    assert got == pytest.approx(float((between / within).mean()), rel=1e-4)
    assert ImageTraits(None, got).colors_differ


def test_one_place_has_no_colour_distance() -> None:
    assert color_distance(benchmark(bars(30, 0, False))) == 0


def test_domains_without_training_images_have_no_colours() -> None:
    first, second = bars(40, 0, False), bars(40, 1, False)
    empty = first.slice(0, 0)
    assert color_distance(benchmark(first, empty, second)) == color_distance(
        benchmark(first, second)
    )
    assert color_distance(benchmark(empty)) == 0
