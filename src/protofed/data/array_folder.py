"""A folder of arrays as a data set: a DOMAIN.npz per domain, described by a meta.json."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from protofed.data import npz_store
from protofed.data.array_checks import (
    ArrayBundle,
    ArrayKind,
    LabelledArrays,
    arrays_digest,
    check_arrays,
    is_plain_name,
)
from protofed.data.benchmark_info import BenchmarkInfo, Domain
from protofed.data.folder_images import folder_label, one_client_per_domain
from protofed.data.npz_store import ArchiveInfo, Array, cache_folder, read_array_file, write_arrays
from protofed.data.transforms import RowTransform
from protofed.errors import ProtofedError, display_path
from protofed.runtime.atomic_io import atomic_write_json, file_sha256, rename_over

LAYOUT = "arrays 1"  # marks a meta.json of this module; raise it when the layout changes
META = "meta.json"
ROW_NET = "mlp"  # the default net of rows
SIDES = (8, 512)  # of images, as `data.side` allows
CONSTANT = 1e-7  # of the mean: below, a deviation is rounding in float32


@checked_dataclass(frozen=True, kw_only=True)
class DomainMeta:
    """What meta.json says of one domain: counts, and the statistics of its training rows."""

    train: int
    test: int
    sha256: str = Field(pattern="^[0-9a-f]{64}$")  # of arrays and labels, not of the file
    note: str = ""
    channels: Literal[1, 3] | None = None  # of images
    mean: tuple[float, ...] = ()  # [D] of vectors, [1] of other rows, none of images
    std: tuple[float, ...] = ()


@checked_dataclass(frozen=True, kw_only=True)
class ArrayMeta:
    """The content of meta.json; its checksums of whole files are for `npz_store`."""

    layout: Literal["arrays 1"]
    revision: str = Field(pattern="^[0-9a-f]{12}$")  # of arrays, labels and classes
    kind: ArrayKind
    shape: tuple[int, ...] = Field(min_length=1)
    classes: tuple[str, ...] = Field(min_length=2)
    standardize: bool
    domains: dict[str, DomainMeta] = Field(min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        width = self.shape[0] if len(self.shape) == 1 else 1
        for name, part in self.domains.items():
            if not is_plain_name(name):
                raise ValueError("a domain's name is no plain name")
            if self.kind == "rows" and {len(part.mean), len(part.std)} != {width}:
                raise ValueError(f"mean and std of {name} need {width} numbers")
        about = (self.kind, self.shape, self.classes, self.standardize)
        if self.revision != revision_of(*about, {n: p.sha256 for n, p in self.domains.items()}):
            raise ValueError("its revision is not that of its content")
        return self


def revision_of(
    kind: str,
    shape: tuple[int, ...],
    classes: tuple[str, ...],
    standardize: bool,
    sums: Mapping[str, str],
) -> str:
    """A short SHA-256 of all that meta.json says of the content, wherever it is stored."""
    about = [LAYOUT, kind, shape, classes, standardize, sorted(sums.items())]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]


@checked_dataclass(frozen=True, kw_only=True)
class HandMadeMeta:
    """What a meta.json written by hand may say; all of it may be left out."""

    classes: tuple[str, ...] | None = None
    channels_first: bool = False
    standardize: bool = True


@dataclass(frozen=True)
class ArrayPack:
    """A folder of arrays with a complete meta.json, which has been read."""

    place: Path
    meta: ArrayMeta


def is_array_folder(root: Path) -> bool:
    """Whether a folder holds arrays rather than images.

    It has .npz files at its top, and a meta.json of ours or no sub-folders.
    """
    root = root.expanduser()
    if not root.is_dir() or not _array_files(root):
        return False
    inner = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return not inner or _read_meta(root / META) is not None


def _array_files(root: Path) -> list[Path]:
    found = (path for path in root.glob("*.npz") if not path.name.startswith("."))
    return sorted(path for path in found if path.is_file())


def _read_meta(path: Path) -> ArrayMeta | None:
    """The content of a meta.json of ours; None if it is missing or another's."""
    try:
        return TypeAdapter(ArrayMeta).validate_json(path.read_bytes())
    except OSError:
        return None
    except ValidationError as fault:
        if all(error["loc"] != ("layout",) for error in fault.errors()):
            raise ProtofedError(f"{display_path(path)} is damaged: {_first(fault)}") from fault
        return None


def _first(fault: ValidationError) -> str:
    """The first fault of a meta.json: where it is, and what is wrong."""
    first = fault.errors()[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))


def read_array_folder(root: Path) -> ArrayPack:
    """Open a folder of arrays; one that was made by hand is checked and packed into the cache.

    A folder by hand has one ``DOMAIN.npz`` per domain with ``x`` and ``y``, or with ``x_train``,
    ``y_train`` and, if wanted, ``x_test`` and ``y_test``.
    """
    root = root.expanduser().resolve()
    meta = _read_meta(root / META)
    return ArrayPack(root, meta) if meta else _pack_by_hand(root)


def _pack_by_hand(root: Path) -> ArrayPack:
    """The pack of a folder that was made by hand; made anew when a file has changed."""
    files = [path for path in (*_array_files(root), root / META) if path.exists()]
    stamps = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    note = array_cache() / "by-hand" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}.json"
    try:
        known = json.loads(note.read_bytes())
        if known["files"] == stamps:
            place = array_cache() / known["revision"] / folder_label(root)
            meta = _read_meta(place / META)
            if meta and all((place / f"{name}.npz").is_file() for name in meta.domains):
                return ArrayPack(place, meta)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not packed yet, or a damaged note
    pack = cache_arrays(_check_by_hand(root), folder_label(root))
    with suppress(OSError):  # a read-only or full disk only means packing it again next time
        note.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(note, {"files": stamps, "revision": pack.meta.revision})
    return pack


def _check_by_hand(root: Path) -> ArrayBundle:
    """The arrays of a folder without a meta.json of ours, checked."""
    try:
        written = (root / META).read_bytes() if (root / META).exists() else b"{}"
        wanted = TypeAdapter(HandMadeMeta).validate_json(written)
    except ValidationError as fault:
        raise ProtofedError(f"{display_path(root / META)}: {_first(fault)}") from fault
    train: dict[str, LabelledArrays] = {}
    test: dict[str, LabelledArrays] = {}
    for path in _array_files(root):
        train[path.stem], found = _by_hand(path)
        if found:
            test[path.stem] = found
    try:
        return check_arrays(
            train,
            test,
            wanted.classes,
            channels_first=wanted.channels_first,
            standardize=wanted.standardize,
        )
    except ProtofedError as fault:
        raise ProtofedError(f"{display_path(root)}: {fault.args[0]}", fault.hint) from fault


def _by_hand(path: Path) -> tuple[LabelledArrays, LabelledArrays | None]:
    """The training part and, where there is one, the test part of a file."""
    stored = read_array_file(path)
    arrays: Mapping[str, Array] = stored.arrays
    whole, split = {"x", "y"} & set(arrays), {"x_train", "y_train"} & set(arrays)
    tested = {"x_test", "y_test"} & set(arrays)
    if len(whole) == 2 and not split and not tested:
        return (arrays["x"], arrays["y"]), None
    if len(split) == 2 and not whole and len(tested) != 1:
        test = (arrays["x_test"], arrays["y_test"]) if tested else None
        return (arrays["x_train"], arrays["y_train"]), test
    raise ProtofedError(
        f"{display_path(path)}: it holds {stored.listing}\n"
        "it must hold x and y, or x_train and y_train with or without x_test and y_test"
    )


def array_cache() -> Path:
    """The place of packed arrays in the cache; raises if there is none."""
    try:
        return cache_folder() / "arrays"
    except RuntimeError as fault:  # a user without a home folder
        raise ProtofedError(
            "there is no cache folder for the arrays: set PROTOFED_CACHE", hint="or give <folder>"
        ) from fault


def cache_arrays(bundle: ArrayBundle, name: str) -> ArrayPack:
    """Keep checked arrays in the cache, in a folder that is called `name`."""
    return store_arrays(bundle, array_cache() / content_digest(bundle) / name)


def store_arrays(bundle: ArrayBundle, place: Path) -> ArrayPack:
    """Write checked arrays to a folder, unless it holds the same ones already.

    The folder appears when it is complete. A folder that holds anything else is left alone, and an
    error. Of these arrays with a file that is missing or damaged, the pack's own files are written
    again; nothing else there is touched.
    """
    place = place.expanduser().resolve()
    made = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        if found := _same(bundle, place):
            return found
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        meta = _write(bundle, made)
        try:
            rename_over(made, place)
        except OSError:  # another process was faster
            if found := _same(bundle, place):
                return found
            raise
    except OSError as fault:
        raise ProtofedError(
            f"cannot write arrays to {display_path(place)}: {fault.strerror}",
            hint="choose another <folder>, or set PROTOFED_CACHE",
        ) from fault
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return ArrayPack(place, meta)


def _same(bundle: ArrayBundle, place: Path) -> ArrayPack | None:
    """The pack in a folder if it holds these arrays; None if there is nothing; else an error.

    The files of a damaged pack of these arrays are written again, one by one: the folder is the
    user's, and may hold more.
    """
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return None
    meta = _read_meta(place / META) if place.is_dir() else None
    if meta is None or meta.revision != content_digest(bundle):
        what = "other arrays" if meta else "something else"
        raise ProtofedError(
            f"{display_path(place)} holds {what}, which was not changed",
            hint="choose another <folder>, or remove it",
        )
    return ArrayPack(place, meta if _is_whole(place, meta) else _write(bundle, place))


def _is_whole(place: Path, meta: ArrayMeta) -> bool:
    """Whether every domain's file has the checksum that meta.json names."""
    files = json.loads((place / META).read_bytes()).get("files")
    for name in (f"{domain}.npz" for domain in meta.domains):
        about = files.get(name) if isinstance(files, dict) else None
        if not isinstance(about, dict) or not (place / name).is_file():
            return False
        if file_sha256(place / name) != about.get("sha256"):
            return False
    return True


def content_digest(bundle: ArrayBundle) -> str:
    """The revision of checked arrays: equal arrays, labels and classes have the same."""
    about = (bundle.kind, bundle.shape, bundle.classes, bundle.standardize)
    return revision_of(*about, bundle.digests)


def _write(bundle: ArrayBundle, made: Path) -> ArrayMeta:
    """Write one .npz file per domain and meta.json, each in one step; other files stay."""
    files, about = {}, {}
    for name, domain in bundle.domains.items():
        path = made / f"{name}.npz"
        arrays = {"x_train": domain.train.x, "y_train": domain.train.y}
        write_arrays(path, {**arrays, "x_test": domain.test.x, "y_test": domain.test.y})
        files[path.name] = {"sha256": file_sha256(path)}
        about[name] = _domain_meta(bundle, name)
    meta = {
        "layout": LAYOUT,
        "revision": content_digest(bundle),
        "kind": bundle.kind,
        "shape": list(bundle.shape),
        "classes": list(bundle.classes),
        "standardize": bundle.standardize,
        "domains": about,
        "files": files,
    }
    atomic_write_json(made / META, meta)
    return TypeAdapter(ArrayMeta).validate_python(meta)


def _domain_meta(bundle: ArrayBundle, name: str) -> dict[str, object]:
    domain = bundle.domains[name]
    (x, _), test, note = domain
    counts = {
        "train": len(x),
        "test": len(test.x),
        "note": note,
        "sha256": bundle.digests[name],
    }
    if bundle.kind == "images":
        return {**counts, "channels": 3 if x.ndim == 4 else 1}
    mean, std = row_statistics(x)
    return {**counts, "mean": mean.tolist(), "std": std.tolist()}


def row_statistics(x: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of rows: per feature of vectors, [D]; of other shapes, [1]."""
    rows = x.astype(np.float64)
    axes = (0,) if rows.ndim == 2 else tuple(range(rows.ndim))
    return np.atleast_1d(rows.mean(axes)), np.atleast_1d(rows.std(axes))


def pooled_statistics(parts: Sequence[DomainMeta]) -> tuple[Array, Array]:
    """Mean and standard deviation over the training rows of several domains together.

    What does not vary gets 1 as its deviation, so that dividing by it is harmless.
    """
    counts = np.array([part.train for part in parts], dtype=np.float64)[:, None]
    means, stds = np.array([part.mean for part in parts]), np.array([part.std for part in parts])
    mean = (counts * means).sum(0) / counts.sum()
    variance = (counts * (stds**2 + (means - mean) ** 2)).sum(0) / counts.sum()
    std = np.sqrt(variance)
    return mean, np.where(std <= CONSTANT * np.abs(mean), 1.0, std)


@dataclass(frozen=True, kw_only=True)
class ArrayInfo(BenchmarkInfo):
    """The `BenchmarkInfo` of a folder of arrays: images, or rows of another shape.

    Its `data_version` is the digest of its content.
    """

    pack: ArrayPack

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """The shape of one row; None if the arrays are images."""
        return self.pack.meta.shape if self.pack.meta.kind == "rows" else None

    def data_version(self, side: int) -> int | str:
        """A short SHA-256 of classes, arrays and labels; the same for every `side`."""
        return self.pack.meta.revision

    def domain_reader(self, side: int) -> Callable[[str], Domain]:
        """A function that reads a domain by name; images are resized to `side`, rows stay."""
        return self.read if self.row_shape else super().domain_reader(side)

    def row_transform(self, domains: Sequence[str]) -> RowTransform:
        """How rows become a net's input: by the statistics of the training rows of `domains`."""
        meta = self.pack.meta
        mean, std = np.zeros(1), np.ones(1)
        if meta.standardize:
            mean, std = pooled_statistics([meta.domains[name] for name in domains])
        return RowTransform(torch.tensor(mean).float(), torch.tensor(std).float())


def array_info(root: Path) -> ArrayInfo:
    """Describe a folder of arrays by its meta.json; the arrays themselves are not read.

    The default side of images is the stored one.
    """
    root = root.expanduser().resolve()
    pack = read_array_folder(root)
    meta, domains = pack.meta, tuple(sorted(pack.meta.domains))
    images = meta.kind == "images"
    side = min(max(SIDES[0], *meta.shape), SIDES[1]) if images else BenchmarkInfo.side
    grey = all(part.channels == 1 for part in meta.domains.values())
    size = " x ".join(map(str, meta.shape))
    source = ArchiveInfo(
        folder_label(root), pack.place.name, meta.classes, pack.place.parent, _remedy(root, pack)
    )
    return ArrayInfo(
        name=str(root),
        summary=f"{'images of' if images else 'rows of shape'} {size} in {root}",
        classes=meta.classes,
        domains=domains,
        side=side,
        channels=1 if images and grey else 3,
        pad=min(BenchmarkInfo.pad, side // 8),
        net=BenchmarkInfo.net if images else ROW_NET,
        partition=one_client_per_domain(domains),
        needs_data=False,
        read=lambda domain: _read_domain(source, meta, domain),
        pack=pack,
    )


def _remedy(root: Path, pack: ArrayPack) -> str:
    """What to do about damage; a user's own folder may hold more, so it is not to be removed."""
    if pack.place == root:
        return "write the same arrays there again from Python, or to another folder"
    return f"remove {display_path(pack.place)}; it is made again from {display_path(root)}"


def _read_domain(source: ArchiveInfo, meta: ArrayMeta, domain: str) -> Domain:
    shape = meta.shape if meta.kind == "rows" else None
    train, test = npz_store.read_archive(source, f"{domain}.npz", ("train", "test"), shape)
    arrays = [array.numpy() for part in (train, test) for array in (part.images, part.labels)]
    if shape is None:  # grey images are stored without their one channel
        arrays = [a[..., 0] if a.ndim == 4 and a.shape[3] == 1 else a for a in arrays]
    about = meta.domains[domain]
    fits = arrays_digest(arrays) == about.sha256
    if shape is not None:  # sums may differ in their last bits between machines
        mean, std = row_statistics(arrays[0])
        off = np.maximum(np.abs(mean - about.mean), np.abs(std - about.std))
        fits = fits and bool((off <= 1e-6 * (np.abs(mean) + std)).all())
    if not fits:
        raise ProtofedError(
            f"{domain}.npz does not hold the arrays that its {META} describes\n{source.remedy}"
        )
    return Domain(domain, train, test, about.note)
