from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core.rng import rng
from protofed.data import transforms
from protofed.data.transforms import (
    CIFAR_MEAN,
    CIFAR_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    ImageTransform,
    resize_images,
)
from protofed.errors import ProtofedError

RAW = ImageTransform((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255))  # keeps the stored values


def images(count: int, side: int = 8, channels: int = 3, seed: int = 0) -> Tensor:
    size = (count, side, side, channels)
    return torch.randint(1, 256, size, generator=rng(seed), dtype=torch.uint8)


def whole(x: Tensor) -> Tensor:
    """What a net would see [B, C, H, W] as stored images [B, H, W, C]."""
    return x.round().to(torch.uint8).permute(0, 2, 3, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_crop_and_flip_agree_with_a_loop_over_images(channels: int) -> None:
    stored, pad = images(20, channels=channels), 3
    augment = ImageTransform(IMAGENET_MEAN, IMAGENET_STD, pad=pad, flip=True)
    got = augment.augment(stored, rng(1))

    draw = rng(1)
    flips = torch.randint(0, 2, (20, 1), generator=draw)[:, 0].tolist()
    tops, lefts = torch.randint(0, 2 * pad + 1, (2, 20, 1), generator=draw)[..., 0].tolist()
    assert 0 < sum(flips) < 20
    for n in range(20):
        canvas = torch.zeros(8 + 2 * pad, 8 + 2 * pad, channels, dtype=torch.uint8)
        canvas[pad : pad + 8, pad : pad + 8] = stored[n]
        window = canvas[tops[n] : tops[n] + 8, lefts[n] : lefts[n] + 8]
        if flips[n]:
            window = window.flip(1)
        for c in range(3):
            plane = window[:, :, c if channels == 3 else 0].double() / 255
            expected = (plane - IMAGENET_MEAN[c]) / IMAGENET_STD[c]
            torch.testing.assert_close(got[n, c].double(), expected, rtol=0, atol=1e-5)


def test_every_crop_is_a_window_of_the_padded_image() -> None:
    stored, pad = images(30), 4
    got = whole(ImageTransform(RAW.mean, RAW.std, pad=pad, flip=False).augment(stored, rng(2)))
    offsets = set()
    for n in range(30):
        canvas = F.pad(stored[n], (0, 0, pad, pad, pad, pad))
        windows = canvas.unfold(0, 8, 1).unfold(1, 8, 1).permute(0, 1, 3, 4, 2)  # [9, 9, 8, 8, C]
        found = (windows == got[n]).flatten(2).all(2).nonzero().tolist()
        assert len(found) == 1
        offsets.add(tuple(found[0]))
    assert len(offsets) > 15
    assert {axis for offset in offsets for axis in offset} == set(range(2 * pad + 1))


def test_half_of_the_images_are_mirrored() -> None:
    stored = images(2000, side=4)
    got = whole(ImageTransform(RAW.mean, RAW.std, pad=0, flip=True).augment(stored, rng(3)))
    kept = (got == stored).flatten(1).all(1)
    mirrored = (got == stored.flip(2)).flatten(1).all(1)
    assert torch.equal(kept, ~mirrored)
    assert abs(mirrored.float().mean().item() - 0.5) < 0.05  # 4.5 standard deviations


def test_the_same_stream_gives_the_same_bits() -> None:
    augment = ImageTransform(IMAGENET_MEAN, IMAGENET_STD)
    stored = images(16)
    kept = stored.clone()
    first = augment.augment(stored, rng(4))
    assert torch.equal(first, augment.augment(stored, rng(4)))
    assert not torch.equal(first, augment.augment(stored, rng(5)))
    assert torch.equal(stored, kept)


def test_without_crop_and_flip_training_is_testing_and_draws_nothing() -> None:
    augment = ImageTransform(CIFAR_MEAN, CIFAR_STD, pad=0, flip=False)
    draw = rng(6)
    assert torch.equal(augment.augment(images(5), draw), augment.normalize(images(5)))
    assert torch.equal(draw.get_state(), rng(6).get_state())


@pytest.mark.parametrize(("mean", "std"), [(IMAGENET_MEAN, IMAGENET_STD), (CIFAR_MEAN, CIFAR_STD)])
def test_black_and_white_span_the_range_of_values(
    mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    extremes = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 4, 4, 3)
    x = ImageTransform(mean, std).normalize(extremes)
    assert x.shape == (2, 3, 4, 4)
    assert x.dtype == torch.float32
    for c in range(3):
        low, high = -mean[c] / std[c], (1 - mean[c]) / std[c]
        torch.testing.assert_close(x[0, c], torch.full((4, 4), low))
        torch.testing.assert_close(x[1, c], torch.full((4, 4), high))
        assert -3 < low < high < 3


def test_the_constants_are_those_of_the_published_settings() -> None:
    assert [round(255 * v, 6) for v in CIFAR_MEAN] == [125.3, 123.0, 113.9]
    assert [round(255 * v, 6) for v in CIFAR_STD] == [63.0, 62.1, 66.7]
    assert IMAGENET_MEAN == (0.485, 0.456, 0.406)
    assert IMAGENET_STD == (0.229, 0.224, 0.225)


def test_grey_images_fill_three_channels() -> None:
    grey = images(6, channels=1)
    augment = ImageTransform(IMAGENET_MEAN, IMAGENET_STD)
    assert torch.equal(augment.normalize(grey), augment.normalize(grey.repeat(1, 1, 1, 3)))
    assert torch.equal(
        augment.augment(grey, rng(7)), augment.augment(grey.repeat(1, 1, 1, 3), rng(7))
    )


def test_colours_become_luma_for_a_net_with_one_channel() -> None:
    augment = ImageTransform(IMAGENET_MEAN, IMAGENET_STD, channels=1)
    colours = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]])
    stored = colours[:, None, None, :].to(torch.uint8)
    luma = torch.tensor([0.299, 0.587, 0.114, 1.0])
    expected = (luma - sum(IMAGENET_MEAN) / 3) / (sum(IMAGENET_STD) / 3)
    torch.testing.assert_close(augment.normalize(stored), expected[:, None, None, None])
    grey = images(3, channels=1)
    torch.testing.assert_close(augment.normalize(grey), augment.normalize(grey.repeat(1, 1, 1, 3)))
    assert augment.augment(images(3), rng(8)).shape == (3, 1, 8, 8)


def test_the_net_input_lies_channels_last() -> None:
    augment = ImageTransform(IMAGENET_MEAN, IMAGENET_STD)
    assert augment.augment(images(4), rng(9)).is_contiguous(memory_format=torch.channels_last)
    assert augment.normalize(images(4)).is_contiguous(memory_format=torch.channels_last)


def test_no_images_make_an_empty_batch() -> None:
    augment = ImageTransform(IMAGENET_MEAN, IMAGENET_STD)
    assert augment.augment(images(0), rng(10)).shape == (0, 3, 8, 8)
    assert augment.normalize(images(0)).shape == (0, 3, 8, 8)
    assert resize_images(images(0), 5).shape == (0, 5, 5, 3)


def test_images_that_fit_are_not_copied() -> None:
    stored = images(3)
    assert resize_images(stored, 8) is stored


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width", "side"), [(8, 8, 5), (8, 8, 13), (9, 6, 7)])
def test_resizing_agrees_with_one_image_at_a_time(
    height: int, width: int, side: int, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (7, height, width, channels)
    stored = torch.randint(0, 256, size, generator=rng(11), dtype=torch.uint8)
    monkeypatch.setattr(transforms, "RESIZE_VALUES", 2 * 13 * 13 * channels)  # several chunks
    got = resize_images(stored, side)
    assert got.dtype == torch.uint8
    assert got.shape == (7, side, side, channels)
    for n in range(7):
        planes = stored[n].permute(2, 0, 1)[None].double()
        exact = F.interpolate(planes, (side, side), mode="bilinear", antialias=True)[0]
        assert (got[n].permute(2, 0, 1) - exact).abs().max() <= 0.501


def test_resizing_keeps_a_flat_colour_and_averages_a_fine_pattern() -> None:
    flat = torch.full((1, 10, 10, 3), 255, dtype=torch.uint8)
    assert torch.equal(resize_images(flat, 4), torch.full((1, 4, 4, 3), 255, dtype=torch.uint8))
    stripes = torch.zeros(1, 64, 64, 1, dtype=torch.uint8)
    stripes[:, :, ::2] = 200
    inner = resize_images(stripes, 8)[:, 1:-1, 1:-1]
    assert inner.min() > 90  # without antialiasing whole columns would be black or bright
    assert inner.max() < 110


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"channels": 2}, "channels = 2"),
        ({"pad": -1}, "pad = -1"),
        ({"mean": (0.5,)}, "red, green and blue"),
        ({"std": (0.0, 1.0, 1.0)}, "positive std"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, object], says: str) -> None:
    settings: dict[str, object] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, **wrong}
    with pytest.raises(ProtofedError, match=says):
        ImageTransform(**settings)  # type: ignore[arg-type]
