"""Folders of images for tests: good ones drawn here, and every kind of bad one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASSES = ("bird", "cat")


def drawing(label: int, number: int, domain: str = "", side: int = 24) -> NDArray[np.uint8]:
    """A disc or a bar on noise; each domain has colours of its own."""
    draw = np.random.default_rng([label, number, *domain.encode()])
    image = draw.integers(0, 60, (side, side, 3)).astype(np.uint8)
    y, x = np.mgrid[:side, :side]
    centre = draw.integers(side // 3, 2 * side // 3, 2)
    bar = abs(x - centre[0]) < 3
    disc = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < (side // 4) ** 2
    image[disc if label == 0 else bar] = (220, 180, 90)
    return np.asarray(255 - image if domain.startswith("neg") else image)


def make(root: Path, domains: tuple[str, ...] = ("photo", "neg"), each: int = 10) -> Path:
    """A folder domain/class/image of PNG and JPEG files."""
    for domain in domains:
        for label, name in enumerate(CLASSES):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for number in range(each):
                ending = "png" if number % 2 else "jpg"
                picture = Image.fromarray(drawing(label, number, domain))
                picture.save(folder / f"{number:03d}.{ending}")
    return root


def bomb(path: Path, width: int, height: int) -> None:
    """A valid grey PNG of any size, which takes few bytes and little memory to write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    packer = zlib.compressobj(9)
    line = bytes(1 + width)
    pixels = b"".join(packer.compress(line) for _ in range(height)) + packer.flush()
    header = struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def _truncated(path: Path) -> None:
    draw = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(draw).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _floats(path: Path) -> None:
    Image.fromarray(np.zeros((20, 20), dtype=np.float32)).save(path)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "half.jpg": (_truncated, "cannot be read"),
    "half.png": (_truncated, "truncated"),
    "empty.png": (lambda path: path.touch(), "0 bytes"),
    "text.jpg": (lambda path: path.write_text("not an image at all"), "not an image"),
    "dot.png": (lambda path: Image.new("RGB", (1, 1)).save(path), "1 x 1 pixels"),
    "large.png": (lambda path: bomb(path, 7000, 7000), "49.0 megapixels"),
    "bomb.png": (lambda path: bomb(path, 20_000, 10_000), "decompression bomb"),
    "floats.tif": (_floats, "floating-point"),
    "link.png": (lambda path: path.symlink_to("nowhere.png"), "broken link"),
    "notes.txt": (lambda path: path.write_text("by me"), "not named as an image"),
}


def spoil(folder: Path) -> dict[str, str]:
    """Put the ten bad files into a class folder; what is said of each by name."""
    for name, (write, _) in BAD.items():
        write(folder / name)
    return {name: says for name, (_, says) in BAD.items()}
