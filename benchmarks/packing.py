"""How long a folder of images takes to pack, on one core and on all, and to open again.

python -m benchmarks.packing            # makes 10,000 files first
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

DOMAINS, CLASSES = ("clinic", "street"), tuple("abcdefghij")
WIDTH, HEIGHT = 320, 240
DISTINCT = 400  # pictures that are drawn; the other files are copies of these, as drawing is slow
OPEN = """
import time
from protofed.data.benchmarks import benchmark_info
began = time.perf_counter()
benchmark_info({0!r}).load()
print(time.perf_counter() - began)
"""


def drawn(number: int) -> bytes:
    """A smooth picture with some noise as the content of a file, by turns PNG and JPEG."""
    draw = np.random.default_rng(number)
    rough = Image.fromarray(draw.integers(0, 255, (6, 8, 3)).astype(np.uint8))
    smooth = np.asarray(rough.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), dtype=np.int16)
    pixels = (smooth + draw.integers(-4, 5, smooth.shape)).clip(0, 255).astype(np.uint8)
    made = io.BytesIO()
    Image.fromarray(pixels).save(made, "png" if number % 2 else "jpeg")
    return made.getvalue()


def make(root: Path, count: int) -> None:
    """So many files, below domain/class."""
    for domain in DOMAINS:
        for label in CLASSES:
            (root / domain / label).mkdir(parents=True)
    pictures = [drawn(number) for number in range(min(DISTINCT, count))]
    for number in range(count):
        place = root / DOMAINS[number // len(CLASSES) % 2] / CLASSES[number % len(CLASSES)]
        ending = "png" if number % DISTINCT % 2 else "jpg"
        (place / f"{number:05d}.{ending}").write_bytes(pictures[number % DISTINCT])


def seconds(root: Path, cache: Path, cores: set[int]) -> float:
    """How long a process that may use some cores takes from the folder to images in memory."""
    ended = subprocess.run(
        [sys.executable, "-c", OPEN.format(str(root))],
        check=True,
        env={**os.environ, "PROTOFED_CACHE": str(cache), "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(ended.stdout)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=2)
    asked = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="packing-"))
    try:
        make(place / "images", asked.images)
        everyone = os.sched_getaffinity(0)
        found: dict[str, list[float]] = {}
        for number in range(asked.repeat):
            for name, cores in (("one core", {min(everyone)}), ("all cores", everyone)):
                cache = place / f"cache-{number}-{len(cores)}"
                found.setdefault(f"pack, {name}", []).append(
                    seconds(place / "images", cache, cores)
                )
                found.setdefault("open again", []).append(seconds(place / "images", cache, cores))
        best = {name: min(times) for name, times in found.items()}
        print(f"{asked.images} images of {WIDTH} x {HEIGHT} pixels, {len(everyone)} cores")
        for name, value in best.items():
            print(f"{name}: {value:.2f} s")
        print(f"gain: {best['pack, one core'] / best['pack, all cores']:.2f}")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
