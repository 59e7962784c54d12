"""Small files in the layout of the public sets, as their hosts have them."""

from __future__ import annotations

import bz2
import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from protofed.data.download import SOURCES
from protofed.data.npz_store import Array

Truth = dict[str, dict[str, Array]]  # .npz -> what its arrays must be


def drawn(*shape: int, top: int = 256) -> Array:
    seed = sum(shape) + top
    return np.random.default_rng(seed).integers(0, top, shape).astype(np.uint8)


def png(image: Array) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def tar(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def zipped(path: Path, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def mnist(folder: Path) -> Truth:
    truth: dict[str, Array] = {}
    for part, stem, count in (("train", "train", 20), ("test", "t10k", 10)):
        x, y = drawn(count, 28, 28), np.arange(count, dtype=np.uint8) % 10
        head = struct.pack(">4I", 0x803, count, 28, 28)
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + x.tobytes()))
        head = struct.pack(">2I", 0x801, count)
        (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(head + y.tobytes()))
        truth |= {f"x_{part}": x, f"y_{part}": y}
    return {"mnist.npz": truth}


def usps(folder: Path) -> Truth:
    truth: dict[str, Array] = {}
    for part, name, count in (("train", "usps.bz2", 20), ("test", "usps.t.bz2", 10)):
        grey, y = drawn(count, 16, 16), np.arange(count, dtype=np.uint8) % 10
        lines = []
        for image, label in zip(grey, y, strict=True):
            # a little above the exact value, so that rounding down gives it back
            values = (image.ravel().astype(np.float64) + 0.25) / 255 * 2 - 1
            pixels = [f"{i}:{min(v, 1.0):.6f}" for i, v in enumerate(values, 1)]
            lines.append(f"{label + 1} {' '.join(pixels)} \n")
        (folder / name).write_bytes(bz2.compress("".join(lines).encode()))
        truth |= {f"x_{part}": grey, f"y_{part}": y}
    return {"usps.npz": truth}


def svhn(folder: Path) -> Truth:
    from scipy.io import savemat

    truth: dict[str, Array] = {}
    for part, count in (("train", 20), ("test", 10)):
        x, y = drawn(count, 32, 32, 3), np.arange(count, dtype=np.uint8) % 10
        stored = np.where(y == 0, 10, y).astype(np.uint8)[:, None]
        savemat(folder / f"{part}_32x32.mat", {"X": x.transpose(1, 2, 3, 0), "y": stored})
        truth |= {f"x_{part}": x, f"y_{part}": y}
    return {"svhn.npz": truth}


def mnistm(folder: Path) -> Truth:
    truth: dict[str, Array] = {}
    members: dict[str, bytes] = {}
    for part, count in (("train", 20), ("test", 10)):
        x, y = drawn(count, 32, 32, 3), np.arange(count, dtype=np.uint8)[::-1] % 10
        names = [f"{number:08}.png" for number in range(count)]
        for name, image in zip(names, x, strict=True):
            members[f"mnist_m/mnist_m_{part}/{name}"] = png(image)
        text = "".join(f"{name} {label}\n" for name, label in zip(names, y, strict=True))
        members[f"mnist_m/mnist_m_{part}_labels.txt"] = text.encode()
        truth |= {f"x_{part}": x, f"y_{part}": y}
    tar(folder / "mnist_m.tar.gz", members)
    return {"mnistm.npz": truth}


def cifar(folder: Path, kinds: int) -> Truth:
    truth: dict[str, Array] = {}
    members: dict[str, bytes] = {}
    home = "cifar-10-batches-bin" if kinds == 10 else "cifar-100-binary"
    for part, count in (("train", 5 * kinds), ("test", kinds)):
        planes, y = drawn(count, 3, 32, 32), np.arange(count, dtype=np.uint8) % kinds
        coarse = [] if kinds == 10 else [np.full((count, 1), 7, np.uint8)]
        records = np.concatenate([*coarse, y[:, None], planes.reshape(count, -1)], axis=1)
        batches = np.split(records, 5) if part == "train" and kinds == 10 else [records]
        for number, batch in enumerate(batches, 1):
            long = f"data_batch_{number}.bin" if part == "train" else "test_batch.bin"
            members[f"{home}/{long if kinds == 10 else f'{part}.bin'}"] = batch.tobytes()
        truth |= {f"x_{part}": planes.transpose(0, 2, 3, 1), f"y_{part}": y}
    if kinds == 100:
        names = "\n".join(SOURCES["cifar100"].home.classes) + "\n\n"
        members[f"{home}/fine_label_names.txt"] = names.encode()
    tar(folder / f"cifar-{kinds}-binary.tar.gz", members)
    return {f"cifar{kinds}.npz": truth}


def pathmnist(folder: Path) -> Truth:
    parts = {"train": 18, "val": 9, "test": 9}
    x = {part: drawn(n, 28, 28, 3) for part, n in parts.items()}
    y = {part: np.arange(n, dtype=np.uint8) % 9 for part, n in parts.items()}
    stored = {f"{part}_images": x[part] for part in parts}
    stored |= {f"{part}_labels": y[part][:, None] for part in parts}
    np.savez_compressed(folder / "pathmnist.npz", allow_pickle=False, **stored)
    used = [part for part in parts if part != "val"]
    return {
        "pathmnist.npz": {f"x_{p}": x[p] for p in used} | {f"y_{p}": y[p] for p in used},
    }


def tree(folder: Path, name: str, above: str, side: int, each: int = 4) -> Truth:
    """Photographs of a side that needs no resizing, so that every pixel is known."""
    source = SOURCES[name]
    classes = source.home.classes
    truth: Truth = {}
    members: dict[str, dict[str, bytes]] = {}
    for number, (file, place) in enumerate(source.folders.items()):
        count = each * len(classes)
        x = np.roll(drawn(count, side, side, 3), number, axis=0)
        y = np.repeat(np.arange(len(classes), dtype=np.uint8), each)
        for row, (image, label) in enumerate(zip(x, y, strict=True)):
            home = source.also.get(classes[label], classes[label])
            path = f"{above}{place}/{home}/pic_{row:04}.png"
            members.setdefault(f"{place}.tgz", {})[path] = png(image)
        members[f"{place}.tgz"][f"{above}{place}/{classes[0]}.txt"] = b"not an image"
        truth[file] = {"x": x, "y": y}
    for remote in source.files:
        within = members.get(remote.name) or {k: v for m in members.values() for k, v in m.items()}
        (zipped if remote.name.endswith(".zip") else tar)(folder / remote.name, within)
    return truth


PUBLISHERS: dict[str, Callable[[Path], Truth]] = {
    "cifar10": lambda folder: cifar(folder, 10),
    "cifar100": lambda folder: cifar(folder, 100),
    "mnist": mnist,
    "mnistm": mnistm,
    "office-caltech": lambda f: tree(f, "office-caltech", "office_caltech_10/", 64),
    "office-home": lambda f: tree(f, "office-home", "OfficeHomeDataset_10072016/", 64),
    "pacs": lambda folder: tree(folder, "pacs", "", 64),
    "pathmnist": pathmnist,
    "svhn": svhn,
    "usps": usps,
    "vlcs": lambda folder: tree(folder, "vlcs", "VLCS/", 64),
}
