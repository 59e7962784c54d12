"""Image files: a folder a domain with a folder a class, or a folder with a list of labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofed.core.errors import ProtofedError
from protofed.data.cache import Arrays

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


def read_image_tree(
    folder: Path,
    side: int,
    domains: Mapping[str, str],
    classes: Sequence[str],
    also: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, Arrays]]:
    """An .npz for each domain, by the folder that holds it; rows in order of class and file.

    `also` gives other names that a class's folder may have. Images are resized to squares.
    """
    root = folder / "content"
    for file, place in domains.items():
        found = _home(root, place, classes, also or {})
        rows = [
            (label, path)
            for label, home in enumerate(found)
            for path in sorted(home.iterdir(), key=lambda path: path.name)
            if path.suffix.lower() in ENDINGS and not path.name.startswith(".")
        ]
        yield (
            file,
            {
                "x": load_images(root, [path for _, path in rows], side),
                "y": np.array([label for label, _ in rows], np.uint8),
                "names": np.array([f"{classes[label]}/{path.name}" for label, path in rows]),
            },
        )


def read_image_lists(folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
    """mnistm.npz from mnist_m/mnist_m_train/*.png and mnist_m_train_labels.txt, and so to test."""
    root = folder / "content" / "mnist_m"
    arrays: Arrays = {}
    for part in ("train", "test"):
        listed = root / f"mnist_m_{part}_labels.txt"
        try:
            rows = [line.split() for line in listed.read_text("ascii").splitlines() if line.strip()]
            labels = np.array([int(label) for _, label in rows], np.uint8)
        except (OSError, ValueError, OverflowError) as fault:
            raise ProtofedError(f"{listed} is no list of images and labels: {fault}") from fault
        paths = [root / f"mnist_m_{part}" / Path(name).name for name, _ in rows]
        arrays[f"x_{part}"], arrays[f"y_{part}"] = load_images(root, paths, side=32), labels
    yield "mnistm.npz", arrays


def load_images(root: Path, paths: Sequence[Path], side: int) -> NDArray[np.uint8]:
    """Images in colour, resized where they have another size: [N, side, side, 3]."""
    from PIL import Image

    images = np.empty((len(paths), side, side, 3), np.uint8)
    for row, path in enumerate(paths):
        try:
            with Image.open(path) as picture:
                coloured = picture.convert("RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as fault:
            raise ProtofedError(
                f"{path.relative_to(root)} is no readable image: {fault}"
            ) from fault
        if coloured.size != (side, side):
            coloured = coloured.resize((side, side), Image.Resampling.BICUBIC)
        images[row] = np.asarray(coloured)
    return images


def _home(root: Path, name: str, classes: Sequence[str], also: Mapping[str, str]) -> list[Path]:
    """The folder of each class of one domain, wherever below `root` the domain lies."""
    homes = [path for path in sorted(root.rglob(name)) if path.is_dir()]
    for home in (*homes, *(home / "images" for home in homes)):
        found = _class_folders(home, classes, also)
        if len(found) == len(classes):
            return found
    raise ProtofedError(
        f"the archive has no folder {name} with a folder for each of {', '.join(classes[:3])}, ..."
    )


def _class_folders(home: Path, classes: Sequence[str], also: Mapping[str, str]) -> list[Path]:
    tried = [(home / name, home / also.get(name, name)) for name in classes]
    return [place for pair in tried if (place := next(filter(Path.is_dir, pair), None))]
