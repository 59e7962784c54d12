"""The built-in benchmark digits-mini: handwritten digits, and digits rendered in three styles."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from protofed.core.rng import numpy_rng
from protofed.core.site import ArrayDataset
from protofed.data.benchmark_info import Domain
from protofed.data.npz_store import Arrays, cached_arrays
from protofed.errors import ProtofedError, require_known_name

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

SIDE = 32  # of a picture
FINE = 2  # digits are drawn this much finer, then averaged down
HEIGHT = 60  # of a digit in its mask
MASK = 128  # side of a mask: the widest digit, and room around it
CHUNK = 1000  # pictures made at once, to bound memory
# By name: other fonts there have no digits, or other signs in the digits' places (cmsy10).
FONTS = (
    *(f"DejaVuSans{face}" for face in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{face}" for face in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{face}" for face in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{face}" for face in ("", "Bol", "Italic", "BolIta")),
    *(f"cm{face}10" for face in ("b", "r", "ss", "ti", "tt")),
)


def render_digits(style: str, labels: Ints, seed_key: tuple[int | str, ...]) -> NDArray[np.uint8]:
    """Images [N, 32, 32, 1 or 3] uint8 of the digits `labels` [N] in a style of `STYLES`.

    ``print`` is small dark type on paper (one channel), ``syn`` colourful and distorted, ``street``
    resembles house numbers. Equal keys give equal images.
    """
    paint = STYLES[require_known_name("style of digits", style, STYLES)]
    if len(labels) == 0 or labels.min() < 0 or labels.max() > 9:
        raise ProtofedError("cannot draw these labels: give at least one, each from 0 to 9")
    parts = []
    for start in range(0, len(labels), CHUNK):
        draw = numpy_rng(*seed_key, "render", style, start)
        light = paint(labels[start : start + CHUNK], draw)
        parts.append(np.rint(light.clip(0, 1) * 255).astype(np.uint8))
    return np.concatenate(parts)


@cache
def draw_glyphs(font: str) -> tuple[Image.Image, ...]:
    """The ten digits of a font as grey masks of side MASK, each centred by its ink.

    `font` is the name of a TrueType file that matplotlib ships.
    """
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    trial = ImageFont.truetype(path, HEIGHT)
    _, top, _, bottom = trial.getbbox("8")
    drawn = ImageFont.truetype(path, HEIGHT * HEIGHT / (bottom - top))
    return tuple(_mask(drawn, str(digit)) for digit in range(10))


def _mask(font: ImageFont.FreeTypeFont, digit: str) -> Image.Image:
    """One digit in white on black, the middle of its ink in the middle."""
    sheet = Image.new("L", (2 * MASK, 2 * MASK))
    ImageDraw.Draw(sheet).text((MASK, MASK), digit, fill=255, font=font, anchor="mm")
    # The box of the drawn ink, not the font's own: that of a slanted digit is off its middle.
    left, top, right, bottom = sheet.getbbox() or (0, 0, *sheet.size)
    corner = (left + right - MASK) // 2, (top + bottom - MASK) // 2
    return sheet.crop((*corner, corner[0] + MASK, corner[1] + MASK))


class GlyphPose(NamedTuple):
    """Font, size and position of each of N digits.

    Every field is [N]; lengths are in pixels of the final image.
    """

    font: Ints
    height: Floats
    stretch: Floats  # width against the font's own
    angle: Floats  # radians
    shear: Floats
    x: Floats  # of the digit's middle from the picture's
    y: Floats

    def back(self) -> NDArray[np.float64]:
        """The affine maps [N, 6] from the enlarged canvas to the masks, as Pillow takes them."""
        size = self.height.astype(np.float64) * FINE / HEIGHT
        cos, sin = np.cos(self.angle) / size, np.sin(self.angle) / size
        a, b = (cos - self.shear * sin) / self.stretch, (sin + self.shear * cos) / self.stretch
        c, d = -sin, cos
        x, y = FINE * (SIDE / 2 + self.x), FINE * (SIDE / 2 + self.y)
        return np.stack([a, b, MASK / 2 - a * x - b * y, c, d, MASK / 2 - c * x - d * y], axis=1)


def _ink(digits: Ints, pose: GlyphPose) -> Floats:
    """How much of each pixel the digits cover, [N, 32, 32, 1] from 0 to 1."""
    side = SIDE * FINE
    fine = np.empty((len(digits), side, side), np.uint8)
    for row, (font, digit, back) in enumerate(zip(pose.font, digits, pose.back(), strict=True)):
        mask = draw_glyphs(FONTS[font])[digit]
        drawn = mask.transform(
            (side, side), Image.Transform.AFFINE, tuple(back), Image.Resampling.BILINEAR
        )
        fine[row] = np.asarray(drawn)
    blocks = fine.reshape(-1, SIDE, FINE, SIDE, FINE, 1)
    covered: Floats = blocks.mean(axis=(2, 4), dtype=np.float32) / np.float32(255)
    return covered


def _print(labels: Ints, draw: Generator) -> Floats:
    """Small black type somewhere on white paper, with a little noise: [N, 32, 32, 1]."""
    n = len(labels)
    pose = GlyphPose(
        font=draw.integers(len(FONTS), size=n),
        # Small and off the middle: a model that knows large digits only must not read it.
        height=_between(draw, 9, 14, n),
        stretch=_between(draw, 0.9, 1.1, n),
        angle=_between(draw, -0.03, 0.03, n),
        shear=_between(draw, 0, 0, n),
        x=_between(draw, -5, 5, n),
        y=_between(draw, -5, 5, n),
    )
    paper, black = _between(draw, 0.92, 1, n, 1, 1, 1), _between(draw, 0.8, 1, n, 1, 1, 1)
    return paper - black * _ink(labels, pose) + _grain(draw, 0.02, n, 1)


def _syn(labels: Ints, draw: Generator) -> Floats:
    """Coloured, turned, sheared and blurred on a coloured texture: [N, 32, 32, 3]."""
    n = len(labels)
    pose = GlyphPose(
        font=draw.integers(len(FONTS), size=n),
        height=_between(draw, 15, 26, n),
        stretch=_between(draw, 0.7, 1.3, n),
        angle=_between(draw, -0.5, 0.5, n),
        shear=_between(draw, -0.35, 0.35, n),
        x=_between(draw, -4, 4, n),
        y=_between(draw, -4, 4, n),
    )
    ground, colour = _two_colours(draw, n)
    field = ground + _blotches(draw, 0.22, n) + _stripes(draw, 0.16, n)
    stroke = colour + _blotches(draw, 0.08, n)
    ink = _ink(labels, pose)
    picture = _blur(field + ink * (stroke - field), draw.integers(4, size=n))
    return picture + _grain(draw, 0.03, n, 3)


def _street(labels: Ints, draw: Generator) -> Floats:
    """A house number's middle digit between cut-off ones, badly lit: [N, 32, 32, 3]."""
    n = len(labels)
    pose = GlyphPose(
        font=draw.integers(len(FONTS), size=n),
        height=_between(draw, 18, 27, n),
        stretch=_between(draw, 0.75, 1.1, n),
        angle=_between(draw, -0.12, 0.12, n),
        shear=_between(draw, -0.12, 0.12, n),
        x=_between(draw, -2, 2, n),
        y=_between(draw, -2.5, 2.5, n),
    )
    ink = _with_neighbours(labels, pose, draw)
    contrast = _between(draw, 0.18, 0.5, n, 1, 1, 1) * _sign(draw, n)
    middle = _between(draw, 0.35, 0.65, n, 1, 1, 1) + _between(draw, -0.12, 0.12, n, 1, 1, 3)
    tint = 1 + _between(draw, -0.25, 0.25, n, 1, 1, 3)
    picture = middle + contrast * tint * (ink - 0.5) + _blotches(draw, 0.07, n)
    lit = _blur(picture, draw.integers(1, 5, size=n)) * _lighting(draw, n)
    return lit + _grain(draw, 0.05, n, 3)


STYLES: dict[str, Callable[[Ints, Generator], Floats]] = {
    "print": _print,
    "syn": _syn,
    "street": _street,
}


def _with_neighbours(labels: Ints, pose: GlyphPose, draw: Generator) -> Floats:
    """The ink of the digits and, more often than not, of another one on each side."""
    n = len(labels)
    ink = _ink(labels, pose)
    for side in (-1, 1):
        # Far enough that the middle digit stays whole, near enough to reach into the picture.
        away = side * pose.height * (0.66 * pose.stretch + _between(draw, 0, 0.2, n))
        beside = pose._replace(x=pose.x + away, y=pose.y + away * np.sin(pose.angle))
        there = draw.random((n, 1, 1, 1)) < 0.9
        ink = np.maximum(ink, there * _ink(draw.integers(10, size=n), beside))
    return ink


def _two_colours(draw: Generator, n: int) -> tuple[Floats, Floats]:
    """Colours [N, 1, 1, 3] of ground and digit that differ clearly in lightness."""
    gap = _between(draw, 0.3, 0.7, n, 1, 1, 1)
    low = _between(draw, 0, 1, n, 1, 1, 1) * (1 - gap)
    flip = _sign(draw, n) > 0
    dark, light = low, low + gap
    tints = _between(draw, -0.25, 0.25, 2, n, 1, 1, 3)
    tints -= tints.mean(axis=-1, keepdims=True)
    return np.where(flip, dark, light) + tints[0], np.where(flip, light, dark) + tints[1]


def _blotches(draw: Generator, strength: float, n: int) -> Floats:
    """Soft coloured spots [N, 32, 32, 3]: a coarse grid of random colours, interpolated."""
    coarse = _between(draw, -strength, strength, n, 6, 6, 3)
    place = np.linspace(0, 4.999, SIDE, dtype=np.float32)
    cell = place.astype(np.int64)
    part = (place % 1)[:, None]
    rows: Floats = coarse[:, :, cell] * (1 - part) + coarse[:, :, cell + 1] * part
    part = part[:, None]
    spots: Floats = rows[:, cell] * (1 - part) + rows[:, cell + 1] * part
    return spots


def _stripes(draw: Generator, strength: float, n: int) -> Floats:
    """Slanted coloured stripes [N, 32, 32, 3] with the profile of a triangle wave."""
    across, down = (_between(draw, -0.16, 0.16, n, 1, 1, 1) for _ in range(2))
    pixel = np.arange(SIDE, dtype=np.float32)
    phase = across * pixel[:, None] + down * pixel[:, None, None] + _between(draw, 0, 1, n, 1, 1, 1)
    wave: Floats = 4 * np.abs(phase % 1 - np.float32(0.5)) - 1
    return wave * _between(draw, -strength, strength, n, 1, 1, 3)


def _lighting(draw: Generator, n: int) -> Floats:
    """Factors [N, 32, 32, 1] around 1 that grow evenly in some direction."""
    across, down = (_between(draw, -0.3, 0.3, n, 1, 1, 1) for _ in range(2))
    pixel = np.linspace(-1, 1, SIDE, dtype=np.float32)
    return 1 + across * pixel[:, None] + down * pixel[:, None, None]


def _blur(pictures: Floats, times: Ints) -> Floats:
    """Smooth each picture [N, 32, 32, channels] by (1 2 1) / 4 both ways, `times` [N] over."""
    pictures = pictures.copy()
    for turn in range(times.max()):
        rows = np.flatnonzero(times > turn)
        wide = np.pad(pictures[rows], ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
        tall = (wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]) / 4
        pictures[rows] = (tall[:, :, :-2] + 2 * tall[:, :, 1:-1] + tall[:, :, 2:]) / 4
    return pictures


def _grain(draw: Generator, strength: float, n: int, channels: int) -> Floats:
    """Normal noise [N, 32, 32, channels]."""
    return draw.standard_normal((n, SIDE, SIDE, channels), np.float32) * np.float32(strength)


def _between(draw: Generator, low: float, high: float, *shape: int) -> Floats:
    """Uniform float32 numbers from `low` to `high`."""
    return np.float32(low) + draw.random(shape, np.float32) * np.float32(high - low)


def _sign(draw: Generator, n: int) -> Floats:
    """-1 or 1 for each picture, [N, 1, 1, 1]."""
    return np.where(draw.random((n, 1, 1, 1)) < 0.5, np.float32(-1), np.float32(1))


VERSION = 4  # raise it whenever the images change: cached files are then made again
DOMAINS = ("optical", "print", "syn", "street")
CLASSES = 10
TRAIN, TEST = 1200, 300  # images of a domain
SYN_TRAIN, SYN_TEST = 10_000, 2_000


def digits_mini_domain(name: str) -> Domain:
    """One domain of digits-mini: 1,200 training and 300 test images, 32 x 32, ten classes.

    ``optical`` holds scikit-learn's handwritten digits; ``print``, ``syn`` and ``street`` are
    rendered. The images are made on first use and then read from the cache.
    """
    require_known_name("domain of digits-mini", name, DOMAINS)
    if name == "optical":
        return _domain(name, cached_arrays(_key("digits-mini", name, "scikit-learn"), _optical))
    key = _key("digits-mini", name, "matplotlib")
    return _domain(name, cached_arrays(key, lambda: _drawn(name, TRAIN, TEST, "digits-mini")))


def synthetic_digits() -> Domain:
    """A replacement for the SYN digits: 10,000 training and 2,000 test images [N, 32, 32, 3].

    They are rendered in the style ``syn`` and are not the images that papers report on.
    """
    key = _key("synthetic-digits", "syn", "matplotlib")
    drawn = cached_arrays(key, lambda: _drawn("syn", SYN_TRAIN, SYN_TEST, "synthetic-digits"))
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
