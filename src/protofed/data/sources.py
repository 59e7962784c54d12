"""The public sets that `protofed data get` fetches: their table, and who reads which format."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import partial
from importlib.resources import files
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from protofed.core.errors import require_known_name
from protofed.core.training import STRICT
from protofed.data import domains
from protofed.data.archive import ArchiveInfo, missing_archive_parts
from protofed.data.cache import Arrays
from protofed.data.fetch import RemoteFile
from protofed.data.readers import cifar, idx, images, libsvm, matlab, medmnist

MIRROR = "PROTOFED_MIRROR"
Reader = Callable[[Path, int], Iterator[tuple[str, Arrays]]]
READERS: dict[str, Reader] = {
    "cifar10": cifar.read_cifar10,
    "cifar100": cifar.read_cifar100,
    "idx": idx.read_idx_files,
    "libsvm": libsvm.read_libsvm,
    "matlab": matlab.read_matlab,
    "medmnist": medmnist.read_medmnist,
    "mnistm": images.read_image_lists,
}
ARCHIVES = {
    archive.benchmark: archive
    for archive in (
        *(domains.CIFAR10, domains.CIFAR100, domains.DIGITS, domains.OFFICE),
        *(domains.OFFICE_HOME, domains.PACS, domains.PATHMNIST, domains.VLCS),
    )
}
ALSO = {"mnist-m": "mnistm", "office-caltech10": "office-caltech", "officehome": "office-home"}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataSource:
    """A set as others offer it: files to fetch, and the .npz files that they become."""

    archive: str  # the benchmark that it belongs to
    reader: str
    files: tuple[RemoteFile, ...]
    makes: Mapping[str, tuple[int, ...]]  # .npz -> images to train and to test, or in all
    licence: str
    citation: str
    side: int | None = None  # to which photographs are resized; None: they stay as they are
    folders: Mapping[str, str] = field(default_factory=dict)  # .npz -> the domain's folder
    also: Mapping[str, str] = field(default_factory=dict)  # class -> another name of its folder

    @property
    def home(self) -> ArchiveInfo:
        """Where its files belong below PROTOFED_DATA."""
        return ARCHIVES[self.archive]

    @property
    def size(self) -> int:
        """Bytes to fetch, about; 0 where a part of it is not known."""
        known = [file.size for file in self.files]
        return sum(known) if all(known) else 0

    @property
    def missing(self) -> bool:
        """Whether a file that it makes is not there."""
        return any(missing_archive_parts(self.home, file) for file in self.makes)

    def read(self, folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
        """The .npz files from the fetched ones in a folder; archives are unpacked in content/."""
        if self.reader != "tree":
            return READERS[self.reader](folder, side)
        tree = partial(images.read_image_tree, domains=self.folders, classes=self.home.classes)
        return tree(folder, side, also=self.also)


def source_home(name: str, source: DataSource) -> tuple[RemoteFile, ...]:
    """The files at their addresses, or below the one that PROTOFED_MIRROR names."""
    mirror = os.environ.get(MIRROR, "").rstrip("/")
    if not mirror:
        return source.files
    return tuple(file._replace(urls=(f"{mirror}/{name}/{file.name}",)) for file in source.files)


def sources_for(name: str) -> tuple[str, ...]:
    """The sources that a name stands for: itself, or all of a benchmark's."""
    name = ALSO.get(name, name)
    parts = tuple(part for part, source in SOURCES.items() if source.archive == name)
    return parts or (require_known_name("public set", name, [*SOURCES, "digits"]),)


def missing_sources(benchmark: str) -> tuple[str, ...]:
    """The sources of a benchmark that are not there."""
    return tuple(n for n, s in SOURCES.items() if s.archive == benchmark and s.missing)


def _table() -> dict[str, DataSource]:
    text = files("protofed.data").joinpath("sources.toml").read_text("utf-8")
    return TypeAdapter(dict[str, DataSource]).validate_python(tomllib.loads(text), strict=False)


SOURCES = _table()
