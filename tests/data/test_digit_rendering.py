from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from protofed.data import digits_mini as module
from protofed.data.digits_mini import FONTS, MASK, SIDE, GlyphPose, draw_glyphs, render_digits
from protofed.errors import ProtofedError

STYLES = ("print", "syn", "street")
LABELS = np.arange(60) % 10


def pose(**changes: float) -> GlyphPose:
    """One upright digit of the first font in the middle, 20 pixels high, but for `changes`."""
    plain = {"height": 20.0, "stretch": 1.0, "angle": 0.0, "shear": 0.0, "x": 0.0, "y": 0.0}
    numbers = {name: np.array([value], np.float32) for name, value in {**plain, **changes}.items()}
    return GlyphPose(font=np.array([0]), **numbers)


def ink(digit: int, where: GlyphPose) -> NDArray[np.float32]:
    return module._ink(np.array([digit]), where)[0, :, :, 0]


@pytest.mark.parametrize("style", STYLES)
def test_same_key_same_bytes_and_other_key_other_bytes(style: str) -> None:
    one = render_digits(style, LABELS, (0, "train"))
    assert one.tobytes() == render_digits(style, LABELS, (0, "train")).tobytes()
    for other in ((1, "train"), (0, "test")):
        different = (one != render_digits(style, LABELS, other)).any(axis=(1, 2, 3))
        assert different.all()


@pytest.mark.parametrize(("style", "channels"), [("print", 1), ("syn", 3), ("street", 3)])
def test_shape_and_dtype(style: str, channels: int) -> None:
    images = render_digits(style, LABELS, (0,))
    assert images.shape == (60, 32, 32, channels)
    assert images.dtype == np.uint8


@pytest.mark.parametrize("style", STYLES)
def test_work_in_chunks_never_repeats_an_image(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 25)
    images = render_digits(style, np.zeros(60, np.int64), (0,))
    assert len(images) == 60
    assert len({image.tobytes() for image in images}) == 60


def test_styles_do_not_share_their_draws() -> None:
    syn, street = (render_digits(style, LABELS, (0,)) for style in ("syn", "street"))
    assert abs(float(syn.std()) - float(street.std())) > 10


@pytest.mark.parametrize("font", FONTS)
def test_ten_digits_of_a_font_are_ten_different_signs(font: str) -> None:
    masks = [np.asarray(mask, np.float64) / 255 for mask in draw_glyphs(font)]
    for mask in masks:
        assert mask.shape == (MASK, MASK)
        assert 100 < mask.sum() < MASK * MASK / 3
        edge = np.concatenate([mask[0], mask[-1], mask[:, 0], mask[:, -1]])
        assert edge.max() == 0  # nothing is cut off
    for first in range(10):
        for second in range(first):
            assert np.abs(masks[first] - masks[second]).sum() > 0.1 * masks[first].sum()


def directions(font: str) -> NDArray[np.float64]:
    """The ten masks, coarse and as unit vectors: [10, 1024]."""
    return unit(np.stack([np.asarray(mask.reduce(4), float).ravel() for mask in draw_glyphs(font)]))


def unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    scaled: NDArray[np.float64] = rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))
    return scaled


@pytest.mark.parametrize("font", FONTS)
def test_digits_of_a_font_look_like_those_of_the_others(font: str) -> None:
    others = unit(np.mean([directions(other) for other in FONTS if other != font], axis=0))
    assert (directions(font) @ others.T).argmax(axis=1).tolist() == list(range(10))


def test_font_with_other_signs_in_the_digits_places_is_told_apart() -> None:
    others = unit(np.mean([directions(font) for font in FONTS], axis=0))
    likeness = (directions("cmsy10") @ others.T).argmax(axis=1)
    assert (likeness == np.arange(10)).sum() <= 2


def test_back_is_the_inverse_of_stretch_shear_turn_scale_and_shift() -> None:
    height, stretch, angle, shear, x, y = 22.0, 0.8, 0.4, 0.3, 3.0, -2.0
    where = pose(height=height, stretch=stretch, angle=angle, shear=shear, x=x, y=y)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    lean = np.array([[1, -shear], [0, 1]])
    forward = (height * 2 / 60) * turn @ lean @ np.diag([stretch, 1])
    for point in np.array([[64.0, 64.0], [10.0, 20.0], [100.0, 70.0]]):
        drawn = forward @ (point - MASK / 2) + 2 * np.array([16 + x, 16 + y])
        a, b, c, d, e, f = where.back()[0]
        back = [a * drawn[0] + b * drawn[1] + c, d * drawn[0] + e * drawn[1] + f]
        np.testing.assert_allclose(back, point, atol=1e-4)


def test_digit_has_the_height_asked_for_and_stands_in_the_middle() -> None:
    rows, columns = np.nonzero(ink(8, pose(height=20)) > 0.25)
    assert abs(rows.max() - rows.min() + 1 - 20) <= 1
    assert abs((rows.max() + rows.min()) / 2 - (SIDE - 1) / 2) <= 0.5
    assert abs((columns.max() + columns.min()) / 2 - (SIDE - 1) / 2) <= 0.5


def test_shift_moves_the_ink_by_whole_pixels() -> None:
    still, moved = ink(5, pose()), ink(5, pose(x=3, y=-2))
    np.testing.assert_allclose(np.roll(still, (-2, 3), axis=(0, 1)), moved, atol=1e-6)


def test_half_turn_swaps_six_for_a_flipped_six() -> None:
    upright, turned = ink(6, pose()), ink(6, pose(angle=np.pi))
    np.testing.assert_allclose(turned, upright[::-1, ::-1], atol=0.05)


def test_blur_matches_a_slow_loop_and_leaves_the_others_alone() -> None:
    pictures = np.random.default_rng(0).random((2, 6, 5, 1), np.float32)
    slow = np.zeros((6, 5))
    for row in range(6):
        for column in range(5):
            for down, heavy in ((-1, 1), (0, 2), (1, 1)):
                for right, weight in ((-1, 1), (0, 2), (1, 1)):
                    near = min(max(row + down, 0), 5), min(max(column + right, 0), 4)
                    slow[row, column] += heavy * weight / 16 * pictures[1, near[0], near[1], 0]
    blurred = module._blur(pictures, np.array([0, 1]))
    np.testing.assert_array_equal(blurred[0], pictures[0])
    np.testing.assert_allclose(blurred[1, :, :, 0], slow, rtol=1e-5)


def test_print_is_black_on_white_and_street_is_either() -> None:
    printed = render_digits("print", LABELS, (0,)).reshape(60, -1)
    assert (np.median(printed, axis=1) > 200).all()
    assert (printed.min(axis=1) < 100).all()
    street = render_digits("street", np.full(200, 8), (0,)).astype(np.float64).mean(axis=3)
    lighter = street[:, 11:21, 11:21].mean(axis=(1, 2)) > street[:, [0, 1, -2, -1]].mean(
        axis=(1, 2)
    )
    assert 0.25 < lighter.mean() < 0.75


def test_unknown_style_and_labels_are_told() -> None:
    with pytest.raises(ProtofedError, match="did you mean 'street'"):
        render_digits("stret", LABELS, (0,))
    for labels in ([], [10], [-1]):
        with pytest.raises(ProtofedError, match="from 0 to 9"):
            render_digits("print", np.array(labels, np.int64), (0,))
