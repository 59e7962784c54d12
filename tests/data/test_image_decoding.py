from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protofed.data.image_decoding import MOST_PIXELS, DecodedImage, decode_image
from tests.data.pictures import BAD, bomb, drawing, spoil


def good(path: Path, side: int = 24) -> DecodedImage:
    found = decode_image(str(path), side)
    assert not isinstance(found, str), found
    return found


@pytest.mark.parametrize("name", [name for name in BAD if not name.endswith("txt")])
def test_every_kind_of_bad_file_is_told_by_a_reason(name: str, tmp_path: Path) -> None:
    says = spoil(tmp_path)[name]
    found = decode_image(str(tmp_path / name), 32)
    assert isinstance(found, str)
    assert says in found or name == "link.png"


def test_bombs_are_not_decoded(tmp_path: Path) -> None:
    """All of them together must not move the peak of memory; measured in a process of its own."""
    bomb(tmp_path / "a.png", 20_000, 20_000)
    bomb(tmp_path / "b.png", 9_000, 9_000)
    code = f"""
import resource
from protofed.data.image_decoding import decode_image
from PIL import Image
Image.init()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = [decode_image({str(tmp_path)!r} + name, 32) for name in ("/a.png", "/b.png")]
assert all(isinstance(one, str) for one in found)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 20_000  # kilobytes; one of them decoded has 80,000 or more


def test_an_image_at_the_cap_is_read_and_one_above_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_PIXELS * 4 < 200e6
    monkeypatch.setattr("protofed.data.image_decoding.MOST_PIXELS", 24 * 24)
    Image.fromarray(drawing(0, 0)).save(tmp_path / "at.png")
    Image.fromarray(drawing(0, 0, side=25)).save(tmp_path / "above.png")
    good(tmp_path / "at.png")
    assert "megapixels" in str(decode_image(str(tmp_path / "above.png"), 32))


@pytest.mark.parametrize("ending", ["png", "bmp", "webp", "gif", "tif", "ppm"])
def test_the_format_does_not_change_the_pixels(ending: str, tmp_path: Path) -> None:
    grey = Image.fromarray(drawing(0, 1)).convert("L")  # 256 colours, so that GIF keeps all
    grey.save(tmp_path / "first.png")
    grey.save(tmp_path / f"second.{ending}", lossless=True)  # which WebP alone listens to
    one, other = good(tmp_path / "first.png"), good(tmp_path / f"second.{ending}")
    assert np.array_equal(one.pixels, other.pixels)
    assert (one.sha256, one.look) == (other.sha256, other.look)
    assert np.array_equal(one.pixels[..., 0], np.asarray(grey))


def test_only_the_first_frame_of_a_gif_counts(tmp_path: Path) -> None:
    frames = [Image.new("L", (20, 20), value) for value in (50, 200)]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    assert good(tmp_path / "film.gif").pixels.max() == 50


def test_sixteen_bits_become_eight(tmp_path: Path) -> None:
    values = (np.arange(24 * 24).reshape(24, 24) * 113).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    assert np.array_equal(good(tmp_path / "deep.png").pixels[..., 0], values // 257)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr"])
def test_odd_modes_become_the_same_rgb_as_pil_makes(mode: str, tmp_path: Path) -> None:
    image = Image.fromarray(drawing(1, 2)).convert(mode)
    name = tmp_path / ("odd.tif" if mode in ("CMYK", "YCbCr") else "odd.png")
    image.save(name)
    with Image.open(name) as again:
        expected = np.asarray(again.convert("RGB"))
    assert np.array_equal(good(name).pixels, expected)


@pytest.mark.parametrize("mode", ["LA", "RGBA", "PA"])
def test_what_is_see_through_lies_on_white(mode: str, tmp_path: Path) -> None:
    image = Image.new("RGBA", (24, 24), (10, 20, 30, 255))
    image.paste((0, 0, 0, 0), (0, 0, 12, 24))
    image.convert("P" if mode == "PA" else mode).save(tmp_path / "a.png")
    pixels = good(tmp_path / "a.png").pixels
    assert pixels[:, :11].min() == 255
    assert pixels[:, 13:].max() < 40


@pytest.mark.parametrize("name", ["turned.png", "turned.jpg", "turned.tif", "packed.tif"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_photos_stand_upright(turn: int, name: str, tmp_path: Path) -> None:
    image = Image.fromarray(drawing(0, 3, side=40)).crop((0, 0, 40, 30))
    exif = Image.Exif()
    exif[0x0112] = turn
    packed = {"compression": "tiff_lzw"} if name == "packed.tif" else {}
    image.save(tmp_path / name, exif=exif, **packed)
    from PIL import ImageOps

    with Image.open(tmp_path / name) as again:
        expected = ImageOps.exif_transpose(again)
    found = good(tmp_path / name)
    assert (found.width, found.height) == expected.size
    small = np.asarray(expected.resize((24, 24), Image.Resampling.BILINEAR), dtype=int)
    assert abs(found.pixels - small).max() <= 1  # rows or columns first: a rounding apart
