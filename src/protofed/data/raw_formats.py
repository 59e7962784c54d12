"""Readers of the file formats of public data sets; none of them unpickles anything.

Every ``read_...`` function takes a folder of downloaded files and the wanted side of photographs,
and yields the name and arrays of each .npz file. Sets with a fixed size ignore the side.
"""

from __future__ import annotations

import bz2
import gzip
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofed.data.benchmarks import CIFAR100
from protofed.data.npz_store import Array, Arrays
from protofed.errors import ProtofedError

MOST_IDX_BYTES = 10**9  # that a header may announce


def read_idx_files(folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
    """mnist.npz from MNIST's four idx files: images [N, 28, 28] and labels [N]."""
    arrays: Arrays = {}
    for part, stem in (("train", "train"), ("test", "t10k")):
        arrays[f"x_{part}"] = parse_idx(folder / f"{stem}-images-idx3-ubyte.gz", axes=3)
        arrays[f"y_{part}"] = parse_idx(folder / f"{stem}-labels-idx1-ubyte.gz", axes=1)
    yield "mnist.npz", arrays


def parse_idx(path: Path, axes: int) -> Array:
    """One gzipped idx file as a uint8 array with `axes` axes.

    Raises if the file holds fewer or more bytes than its header announces.
    """
    try:
        with gzip.open(path) as stream:
            magic, *shape = struct.unpack(f">{axes + 1}I", stream.read(4 * (axes + 1)))
            count = math.prod(shape)
            content = stream.read(count + 1) if count <= MOST_IDX_BYTES else b""
    except (OSError, EOFError, zlib.error, struct.error) as fault:
        raise ProtofedError(f"{path} is not a complete gzipped idx file: {fault}") from fault
    if magic != 0x0800 + axes or len(content) != count:
        raise ProtofedError(f"{path} is not an idx file of bytes with {axes} axes, or is truncated")
    return np.frombuffer(content, np.uint8).reshape(shape)


PIXELS = 3 * 32 * 32


def read_cifar10(folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
    """cifar10.npz from the five training files and one test file of the binary version."""
    place = folder / "content" / "cifar-10-batches-bin"
    train = [place / f"data_batch_{number}.bin" for number in range(1, 6)]
    yield "cifar10.npz", _parts(train, [place / "test_batch.bin"], labels=1)


def read_cifar100(folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
    """cifar100.npz from the binary version, with the 100 fine labels."""
    place = folder / "content" / "cifar-100-binary"
    names = place / "fine_label_names.txt"
    if names.is_file() and tuple(names.read_text("ascii").split()) != CIFAR100.classes:
        raise ProtofedError(f"{names} does not list the classes of cifar100")
    yield "cifar100.npz", _parts([place / "train.bin"], [place / "test.bin"], labels=2)


def _parts(train: Sequence[Path], test: Sequence[Path], labels: int) -> Arrays:
    arrays: Arrays = {}
    for part, paths in (("train", train), ("test", test)):
        records = np.concatenate([_records(path, labels) for path in paths])
        arrays[f"y_{part}"] = records[:, labels - 1].copy()  # the last label is the fine one
        planes = records[:, labels:].reshape(-1, 3, 32, 32)
        arrays[f"x_{part}"] = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return arrays


def _records(path: Path, labels: int) -> Array:
    """A file's records [N, labels + 3072]."""
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as fault:
        raise ProtofedError(f"{path} cannot be read: {fault.strerror}") from fault
    if not len(content) or len(content) % (labels + PIXELS):
        raise ProtofedError(
            f"{path} does not consist of complete records of {labels + PIXELS} bytes"
        )
    return content.reshape(-1, labels + PIXELS)


SIDE = 16
MOST_LIBSVM_BYTES = 2**28  # bytes of text


def read_libsvm(folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
    """usps.npz from the LIBSVM files of USPS: images [N, 16, 16] and labels [N]."""
    arrays: Arrays = {}
    for part, name in (("train", "usps.bz2"), ("test", "usps.t.bz2")):
        arrays[f"x_{part}"], arrays[f"y_{part}"] = parse_libsvm(folder / name)
    yield "usps.npz", arrays


def parse_libsvm(path: Path) -> tuple[Array, Array]:
    """Images and labels of one bzipped LIBSVM file.

    Pixel values from -1 to 1 become 0 to 255, labels from 1 to 10 become 0 to 9.
    """
    try:
        with bz2.open(path) as stream:
            text = stream.read(MOST_LIBSVM_BYTES).decode("ascii")
        lines = [line.split() for line in text.splitlines() if line.strip()]
        values = np.zeros((len(lines), SIDE * SIDE), np.float32)  # what a line leaves out is 0
        for row, (_, *pixels) in enumerate(lines):
            for place, value in (pixel.split(":") for pixel in pixels):
                if not 1 <= int(place) <= SIDE * SIDE:
                    raise ValueError(f"line {row + 1} has a pixel {place}")
                values[row, int(place) - 1] = float(value)
        labels = np.array([float(words[0]) for words in lines]).astype(np.int64) - 1
    except (OSError, EOFError, ValueError) as fault:
        raise ProtofedError(
            f"{path} is not a complete bzipped file in LIBSVM's format: {fault}"
        ) from fault
    if (
        not len(lines)
        or not (np.abs(values) <= 1).all()
        or not ((labels >= 0) & (labels < 10)).all()
    ):
        raise ProtofedError(f"{path}: values must lie in -1 to 1 and labels in 1 to 10")
    images = ((values + 1) / 2 * 255).astype(np.uint8)
    return images.reshape(-1, SIDE, SIDE), labels.astype(np.uint8)


def read_matlab(folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
    """svhn.npz from the MATLAB files of SVHN: images [N, 32, 32, 3] and labels [N]."""
    arrays: Arrays = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"], arrays[f"y_{part}"] = parse_matlab(folder / f"{part}_32x32.mat")
    yield "svhn.npz", arrays


def parse_matlab(path: Path) -> tuple[Array, Array]:
    """Images [N, 32, 32, 3] and labels [N] of one MATLAB file.

    The file's X is [32, 32, 3, N], and its y has 10 for the digit 0.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        stored = loadmat(path, variable_names=["X", "y"])
        x, y = stored["X"], stored["y"].ravel()
    except (OSError, EOFError, ValueError, KeyError, TypeError, MatReadError) as fault:
        raise ProtofedError(f"{path} is not a MATLAB file with X and y: {fault}") from fault
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2:] != (3, len(y)):
        raise ProtofedError(f"{path}: X must be uint8 [H, W, 3, {len(y)}], is {x.dtype} {x.shape}")
    if y.dtype.kind not in "iu" or not ((y >= 1) & (y <= 10)).all():
        raise ProtofedError(f"{path}: y must be integers from 1 to 10")
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), (y % 10).astype(np.uint8)


def read_medmnist(folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
    """pathmnist.npz from MedMNIST's file: images [N, 28, 28, 3] and labels [N].

    The validation part is left out.
    """
    path = folder / "pathmnist.npz"
    arrays: Arrays = {}
    try:
        with np.load(path, allow_pickle=False) as stored:
            for part in ("train", "test"):
                arrays[f"x_{part}"] = stored[f"{part}_images"]
                arrays[f"y_{part}"] = stored[f"{part}_labels"].reshape(-1).astype(np.uint8)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as fault:
        raise ProtofedError(f"{path} is not a MedMNIST file: {fault}") from fault
    yield path.name, arrays


ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


def read_image_tree(
    folder: Path,
    side: int,
    domains: Mapping[str, str],
    classes: Sequence[str],
    also: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, Arrays]]:
    """One .npz file per domain from an archive of images in class folders.

    `domains` maps .npz names to the folders of the domains, `also` gives alternative names of class
    folders. Images are resized to squares; rows are sorted by class and file name.
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
    """mnistm.npz from folders of images with text files that list their labels."""
    root = folder / "content" / "mnist_m"
    arrays: Arrays = {}
    for part in ("train", "test"):
        listed = root / f"mnist_m_{part}_labels.txt"
        try:
            rows = [line.split() for line in listed.read_text("ascii").splitlines() if line.strip()]
            labels = np.array([int(label) for _, label in rows], np.uint8)
        except (OSError, ValueError, OverflowError) as fault:
            raise ProtofedError(f"{listed} is not a list of images and labels: {fault}") from fault
        paths = [root / f"mnist_m_{part}" / Path(name).name for name, _ in rows]
        arrays[f"x_{part}"], arrays[f"y_{part}"] = load_images(root, paths, side=32), labels
    yield "mnistm.npz", arrays


def load_images(root: Path, paths: Sequence[Path], side: int) -> NDArray[np.uint8]:
    """Read image files as RGB and resize them where needed: [N, side, side, 3] uint8.

    `root` is only used to shorten paths in error messages.
    """
    from PIL import Image

    images = np.empty((len(paths), side, side, 3), np.uint8)
    for row, path in enumerate(paths):
        try:
            with Image.open(path) as picture:
                coloured = picture.convert("RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as fault:
            raise ProtofedError(
                f"{path.relative_to(root)} is not a readable image: {fault}"
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
