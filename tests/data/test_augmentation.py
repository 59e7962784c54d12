"""Augmentation against loops over single pixels, scipy and exact special cases."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from protofed.data.augmentation import (
    LUMA,
    Augmentation,
    blur_images,
    jitter_colours,
    luminance,
    mix_stains,
    random_rectangles,
    warp_images,
)
from protofed.data.transforms import IMAGENET_MEAN, IMAGENET_STD, ImageTransform
from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from protofed.spec.spec_parser import parse_experiment

EACH: list[dict[str, Any]] = [
    {"rotate": 180.0},
    {"zoom": 0.5},
    {"stain": 0.3},
    {"jitter": 0.4},
    {"grey": 0.5},
    {"blur": 0.5},
    {"erase": 0.5},
]
ALL = {name: value for one in EACH for name, value in one.items()}


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photos(count: int = 6, height: int = 12, width: int = 12, channels: int = 3) -> Tensor:
    numbers = torch.rand(count, height, width, channels, generator=draw(99))
    return (255 * numbers).round()


def turned(degrees: float) -> Tensor:
    angle = math.radians(degrees)
    sine, cosine = math.sin(angle), math.cos(angle)
    return torch.tensor([[[cosine, -sine, 0.0], [sine, cosine, 0.0]]])


@pytest.mark.parametrize(("degrees", "quarters"), [(0, 0), (90, 1), (180, 2), (270, 3)])
def test_quarter_turns_move_whole_pixels(degrees: float, quarters: int) -> None:
    images = photos(1)
    got = warp_images(images, turned(degrees))
    assert torch.allclose(got, torch.rot90(images, quarters, (1, 2)), atol=1e-2)


def test_a_window_is_an_enlarged_part() -> None:
    images = photos(1, 8, 8)
    window = torch.tensor([[[0.5, 0.0, -0.5], [0.0, 0.5, 0.5]]])  # the lower left quarter
    got = warp_images(images, window)
    part = images[:, 4:, :4].permute(0, 3, 1, 2)
    want = torch.nn.functional.interpolate(part, (8, 8), mode="bilinear", align_corners=False)
    inside = slice(1, -1)  # at its edge a window sees the pixels beside it, an image does not
    assert torch.allclose(
        got[:, inside, inside], want.permute(0, 2, 3, 1)[:, inside, inside], atol=1e-3
    )


def test_random_windows_lie_inside_and_keep_the_stated_share() -> None:
    positions = Augmentation(zoom=0.3)._positions(500, draw())
    wide, high = positions[:, 0, 0], positions[:, 1, 1]
    assert bool((positions[:, 0, 2].abs() + wide <= 1 + 1e-6).all())
    assert bool((positions[:, 1, 2].abs() + high <= 1 + 1e-6).all())
    area = wide * high
    assert 0.25 <= float(area.min()) <= 0.35
    assert float(area.max()) > 0.9
    assert float((wide / high).log().abs().max()) <= math.log(4 / 3) + 1e-6
    angles = Augmentation(rotate=30.0)._positions(500, draw())
    degrees = torch.rad2deg(torch.atan2(angles[:, 1, 0], angles[:, 0, 0]))
    assert 25 < float(degrees.abs().max()) <= 30 + 1e-4
    assert bool((angles[:, :, 2] == 0).all())


def test_stains_mix_in_optical_density() -> None:
    images, mix = photos(2, 3, 4), torch.eye(3) + 0.2 * torch.rand(2, 3, 3, generator=draw())
    got = mix_stains(images, mix)
    for n, y, x in np.ndindex(2, 3, 4):
        density = [-math.log((float(v) + 1) / 256) for v in images[n, y, x]]
        for c in range(3):
            mixed = sum(float(mix[n, c, k]) * density[k] for k in range(3))
            want = min(max(256 * math.exp(-mixed) - 1, 0), 255)
            assert float(got[n, y, x, c]) == pytest.approx(want, abs=1e-2)
    same = mix_stains(images, torch.eye(3).expand(2, 3, 3))
    assert torch.allclose(same, images, atol=1e-2)


def test_jitter_follows_its_formula_pixel_by_pixel() -> None:
    images = photos(2, 3, 4)
    bright, spread, colour = (torch.tensor(pair) for pair in ((0.7, 1.3), (1.4, 0.6), (0.5, 1.5)))
    got = jitter_colours(images, bright, spread, colour)
    for n in range(2):
        lit = np.clip(images[n].numpy().astype(np.float64) * float(bright[n]), 0, 255)
        mean = (lit @ np.array(LUMA)).mean()
        lit = np.clip(mean + (lit - mean) * float(spread[n]), 0, 255)
        grey = (lit @ np.array(LUMA))[..., None]
        want = np.clip(grey + (lit - grey) * float(colour[n]), 0, 255)
        assert np.abs(got[n].numpy() - want).max() < 1e-2


def test_jitter_of_grey_images_has_no_saturation() -> None:
    images, ones = photos(2, channels=1), torch.ones(2)
    assert torch.equal(jitter_colours(images, ones, ones, 3 * ones), images)
    assert torch.equal(luminance(images), images)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("shape", [(16, 16, 3), (9, 13, 1)])
def test_blur_is_a_gaussian_filter(sigma: float, shape: tuple[int, int, int]) -> None:
    images = photos(1, *shape)
    got = blur_images(images, torch.tensor([sigma]))
    want = gaussian_filter(
        images[0].double().numpy(), (sigma, sigma, 0), mode="mirror", radius=(6, 6, 0)
    )
    assert np.abs(got[0].numpy() - want).max() < 1e-2


def test_no_blur_is_exact() -> None:
    images = photos()
    assert torch.equal(blur_images(images, torch.zeros(6)), images)


def test_rectangles_lie_inside_and_have_the_stated_area() -> None:
    masks = random_rectangles(3000, torch.Size([20, 30]), draw())
    for mask in masks:
        rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
        assert int(mask.sum()) == len(rows) * len(columns) > 0
        assert rows.tolist() == list(range(int(rows[0]), int(rows[-1]) + 1))
        assert columns.tolist() == list(range(int(columns[0]), int(columns[-1]) + 1))
        assert 0.01 <= float(mask.float().mean()) <= 0.23
    assert float(masks.any(0).float().mean()) == 1  # every place can be hidden


@pytest.mark.parametrize("fields", [*EACH, ALL], ids=lambda fields: "+".join(fields))
@pytest.mark.parametrize("channels", [1, 3])
def test_every_change_keeps_shape_and_range_and_follows_its_draws(
    fields: dict[str, Any], channels: int
) -> None:
    changes, images = Augmentation(**fields), photos(16, channels=channels)
    before = images.clone()
    got, again, other = (changes.apply(images, draw(seed)) for seed in (1, 1, 2))
    assert torch.equal(images, before)
    assert got.shape == images.shape
    assert got.is_contiguous()
    assert 0 <= float(got.min()) <= float(got.max()) <= 255 + 1e-3
    assert torch.equal(got, again)
    colours_only = channels == 1 and fields.keys() <= {"stain", "grey"}
    assert torch.equal(got, images) == colours_only
    assert torch.equal(got, other) == colours_only


@pytest.mark.parametrize("fields", [{"grey": 1.0}, {"grey": 0.25}])
def test_a_share_of_the_images_loses_its_colours(fields: dict[str, Any]) -> None:
    got = Augmentation(**fields).apply(photos(400, 2, 2), draw())
    grey = ((got[..., 0] == got[..., 1]) & (got[..., 1] == got[..., 2])).all((1, 2))
    assert float(grey.float().mean()) == pytest.approx(fields["grey"], abs=0.06)


def test_nothing_on_is_nothing_drawn_and_nothing_changed() -> None:
    images, generator = photos(), draw(5)
    state = generator.get_state()
    assert torch.equal(Augmentation().apply(images, generator), images)
    assert torch.equal(generator.get_state(), state)
    assert not Augmentation().active


def test_a_transform_changes_training_images_only() -> None:
    stored = photos(4).to(torch.uint8)
    plain = ImageTransform(IMAGENET_MEAN, IMAGENET_STD, pad=2)
    changed = ImageTransform(IMAGENET_MEAN, IMAGENET_STD, pad=2, changes=Augmentation(jitter=0.3))
    assert torch.equal(plain.normalize(stored), changed.normalize(stored))
    assert not torch.equal(plain.augment(stored, draw()), changed.augment(stored, draw()))
    assert plain.augment(stored, draw()).stride() == changed.augment(stored, draw()).stride()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rotate": 200}, "augment.rotate: .*less than or equal to 180"),
        ({"zoom": 0.0}, "augment.zoom: .*greater than 0"),
        ({"jitter": -0.1}, "augment.jitter: .*greater than or equal to 0"),
        ({"stain": float("nan")}, "augment.stain: .*finite"),
        ({"rotation": 10.0}, "augment.rotation: no such field"),
        ({"blur": "yes"}, "augment.blur: .*valid number"),
    ],
)
def test_a_fault_names_its_field(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtofedError, match=words):
        parse_experiment({"augment": fields})


def test_the_spec_keeps_what_is_on() -> None:
    made = parse_experiment({"augment": {"rotate": 180, "jitter": 0.2}})
    assert made.to_dict()["augment"] == {"rotate": 180.0, "jitter": 0.2}
    assert parse_experiment(made.to_dict()) == made
    assert made.digest != parse_experiment({}).digest
    assert "augment" not in parse_experiment({}).to_dict()


def test_workers_augment_to_the_same_bits(tmp_path: Path) -> None:
    partition = {"kind": "shares", "samples": 70}
    spec = {"rounds": 1, "augment": ALL, "partition": partition, "training": {"epochs": 1}}
    made = parse_experiment(spec)
    for workers in (0, 2):
        run(made, tmp_path / str(workers), workers=workers)
    alone, shared = (tmp_path / str(n) / "scores.jsonl" for n in (0, 2))
    assert alone.read_bytes() == shared.read_bytes()
