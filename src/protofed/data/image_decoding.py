"""Decode image files into small arrays with hashes, in parallel.

Files may be damaged or hostile: each gives an image or the reason why it cannot be used. Nothing
here imports torch, so that worker processes start quickly.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import stat
import struct
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from protofed.data.folder_layout import ImageFile, StrayFile
from protofed.errors import ProtofedError
from protofed.runtime.child_process import exit_with_parent, ignore_sigint_in_children
from protofed.runtime.console import telling
from protofed.runtime.resources import usable_cores

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM")
MOST_PIXELS = 40_000_000  # 160 MB once decoded, as PIL takes 4 bytes a pixel
ONE_COPY = ("1", "L", "RGB")  # modes that need no conversion before resizing
LEAST_SIDE = 4  # pixels
FULL_SIDE = 512  # pixels; larger JPEGs are decoded at 1/2, 1/4 or 1/8, no smaller than this
STRIP = 256  # lines hashed at a time
HASH_SIDE = 16  # the perceptual hash has HASH_SIDE² bits
ORIENTATION = 0x0112  # the EXIF tag


class DecodedImage(NamedTuple):
    """A decoded image: upright, in RGB, resized to a square.

    `width` and `height` are those of the original; `sha256` and `look` identify copies of it.
    """

    pixels: NDArray[np.uint8]  # [side, side, 3]
    sha256: str  # of the decoded pixels, whatever file format they came in
    look: bytes  # perceptual hash, HASH_SIDE² bits
    width: int
    height: int


def decode_image(path: str, side: int) -> DecodedImage | str:
    """Decode a file and resize it to `side` x `side`; or return a text that says why that failed.

    EXIF orientation is applied, transparency is put on white, and nothing is cropped. Never raises
    for a bad file.
    """
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return "not a regular file"
        if found.st_size == 0:
            return "empty file, 0 bytes"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about tags and profiles that are not used
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                return _too_large_or_small(image) or _read(image, side)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        return f"decompression bomb: more than {MOST_PIXELS / 1e6:.0f} megapixels"
    except UnidentifiedImageError:
        return f"not an image ({', '.join(FORMATS)} are read)"
    except MemoryError:
        return "needs more memory than available"
    except OSError as fault:
        return f"cannot be read: {fault.strerror or fault}"
    except (ValueError, SyntaxError, EOFError, KeyError, IndexError, TypeError) as fault:
        return f"damaged: {fault or type(fault).__name__}"
    except (struct.error, ArithmeticError, AttributeError, RuntimeError) as fault:
        return f"damaged: {fault or type(fault).__name__}"


def _too_large_or_small(image: Image.Image) -> str:
    """What is wrong with the size that the header announces; empty if nothing."""
    width, height = image.size
    most = MOST_PIXELS if image.mode in ONE_COPY else MOST_PIXELS // 2
    if width * height > most:
        kind = "" if image.mode in ONE_COPY else f" for images of mode {image.mode}"
        megapixels = f"{width * height / 1e6:.1f} megapixels"
        return f"{width} x {height} = {megapixels}, above {most / 1e6:.0f}{kind}"
    if min(width, height) < LEAST_SIDE:
        return f"{width} x {height} pixels, smaller than {LEAST_SIDE} x {LEAST_SIDE}"
    return ""


def _read(image: Image.Image, side: int) -> DecodedImage | str:
    """Decode, hash, shrink, turn upright, in this order: only small copies are made."""
    width, height = image.size
    floor = max(side, FULL_SIDE)
    image.draft("RGB", (floor, floor))  # does something to JPEGs only
    image.load()
    upright = image.getexif().get(ORIENTATION, 1)  # only now: PIL turns a TIFF while it loads
    if image.mode == "F":
        return "floating-point pixels, whose range is not known"
    plain = _in_eight_bits(image)
    if plain is None:
        return "32-bit pixels above 65535, whose range is not known"
    digest = _digest(plain, upright)
    small = _turned(_opaque(plain.resize((side, side), Image.Resampling.BILINEAR)), upright)
    look = perceptual_hash(_turned(_opaque(_thumbnail(plain)), upright))
    if upright >= 5:  # a quarter turn
        width, height = height, width
    return DecodedImage(np.array(small), digest, look, width, height)


def _in_eight_bits(image: Image.Image) -> Image.Image | None:
    """The image in a mode that can be resized: L, LA, RGB or RGBA; None if its range is unknown."""
    if image.mode.startswith("I"):  # 16 bits, or 32 that hold 16
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            return None
        return Image.fromarray((values // 257).astype(np.uint8))
    if image.mode in ("P", "PA"):
        see_through = image.mode == "PA" or "transparency" in image.info
        return image.convert("RGBA" if see_through else "RGB")
    if image.mode in ("L", "LA", "RGB", "RGBA") and "transparency" in image.info:
        return image.convert("LA" if image.mode == "L" else "RGBA")  # one colour is see-through
    if image.mode in ("L", "LA", "RGB", "RGBA"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")  # CMYK, YCbCr, LAB, HSV, La, RGBa


def _opaque(image: Image.Image) -> Image.Image:
    """Small pixels as RGB; what is see-through lies on white."""
    if image.mode in ("LA", "RGBA"):
        ground = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _turned(image: Image.Image, upright: int) -> Image.Image:
    """A square image as the camera saw it, by EXIF's orientation."""
    if upright not in range(2, 9):
        return image
    marked = image.copy()
    marked.getexif()[ORIENTATION] = upright
    return ImageOps.exif_transpose(marked)


def _digest(image: Image.Image, upright: int) -> str:
    """SHA-256 of all pixels as RGB on white, strip by strip."""
    digest = hashlib.sha256(struct.pack("<3I", *image.size, upright))
    for top in range(0, image.height, STRIP):
        strip = image.crop((0, top, image.width, min(top + STRIP, image.height)))
        digest.update(_opaque(strip).tobytes())
    return digest.hexdigest()


def _thumbnail(image: Image.Image) -> Image.Image:
    return image.resize((HASH_SIDE + 1, HASH_SIDE + 1), Image.Resampling.BOX)


def perceptual_hash(image: Image.Image) -> bytes:
    """A hash of 256 bits that hardly changes with size, file format or exposure.

    Each bit says whether one of 16 x 16 places is darker than its right neighbour. Differences
    below 2 of 255 count as none, so that noise on a flat background does not matter.
    """
    grey = np.asarray(_thumbnail(image).convert("L"), dtype=np.int16)[:HASH_SIDE]
    return np.packbits(grey[:, 1:] - grey[:, :-1] >= 2).tobytes()


def decode_images(work: tuple[int, list[str]]) -> list[DecodedImage | str]:
    """Decode several files; `work` is the side and the paths. Called in worker processes."""
    side, paths = work
    return [decode_image(path, side) for path in paths]


CHUNK = 16  # files per task of a worker
ALONE = 128  # files up to which workers cost more than they gain


def decode_in_parallel(
    files: Sequence[ImageFile | StrayFile], side: int, doing: str
) -> Iterator[DecodedImage | str]:
    """Yield the decoded image, or the reason why there is none, for every file in order.

    Uses one process per core for more than a few files. `doing` names the activity in progress
    reports.
    """
    good = [file.path for file in files if not file.fault]
    work = [(side, good[start : start + CHUNK]) for start in range(0, len(good), CHUNK)]
    results = (one for many in _in_parallel(work, len(good)) for one in many)
    tell = telling.get()
    for number, file in enumerate(files, start=1):
        yield file.fault or next(results)
        tell(doing, number, len(files))


def _in_parallel(
    work: Sequence[tuple[int, list[str]]], count: int
) -> Iterator[list[DecodedImage | str]]:
    """`decode_images` in one process per core; in this process if faster or not allowed."""
    if count <= ALONE or usable_cores() == 1 or multiprocessing.current_process().daemon:
        yield from map(decode_images, work)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(usable_cores(), context, initializer=exit_with_parent)
    try:
        with ignore_sigint_in_children():
            results = pool.map(decode_images, work)
        yield from results
    except BrokenProcessPool:
        raise ProtofedError(
            "a process that decoded images died: out of memory, or this is a script without\n"
            "if __name__ == '__main__': around what it does, which worker processes need"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
