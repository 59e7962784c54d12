"""A folder of one's own images as a source of data, beside the benchmarks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from protofed.core.errors import ProtofedError, count_noun
from protofed.data import archive
from protofed.data.archive import ArchiveInfo
from protofed.data.benchmark import Domain
from protofed.data.entry import BenchmarkInfo
from protofed.data.layout import read_layout, single_domain_layout
from protofed.data.packing import PackedFolder, pack_folder, pack_layout, split_note
from protofed.data.partition import EqualPartition


@dataclass(frozen=True, kw_only=True)
class FolderInfo(BenchmarkInfo):
    """A folder: its version is a digest of its images, which are packed when it is asked for."""

    root: Path
    strict: bool = False  # refuse it if a file cannot be used

    def pack(self, side: int, fresh: bool = False) -> PackedFolder:
        """The packed images; a strict entry wants every file to be among them."""
        pack = pack_folder(self.root, side, fresh)
        if self.strict and pack.skipped:
            lines = "\n".join(f"  {name}: {why}" for name, why in pack.skipped.items())
            raise ProtofedError(
                f"{self.root}: {count_noun(len(pack.skipped), 'file')} cannot be used:\n{lines}\n"
                "mend or remove them, or leave data.strict out to skip them"
            )
        return pack

    def version(self, side: int) -> int | str:
        """A short SHA-256 of classes, images and labels at this size."""
        return self.pack(side).revision

    def reader(self, side: int) -> Callable[[str], Domain]:
        """What reads a domain from the pack; a pack that was damaged is made again."""
        pack = self.pack(side)

        def read(domain: str) -> Domain:
            try:
                found = _read(pack, domain)
            except ProtofedError:
                found = _read(self.pack(side, fresh=True), domain)
            return found._replace(
                note="; ".join(filter(None, [self.domain_note(domain), found.note]))
            )

        return read


def folder_info(root: Path, strict: bool = False) -> FolderInfo:
    """What a folder's sub-folders tell: domains, classes, and defaults for the rest."""
    found = read_layout(root.expanduser().resolve())
    return FolderInfo(
        name=str(found.root),
        summary=f"images in {found.root}",
        classes=found.classes,
        domains=found.domains,
        partition=one_client_per_domain(found.domains),
        notes=tuple(found.lacking()),
        needs_data=False,
        read=lambda domain: folder_info(root, strict).reader(BenchmarkInfo.side)(domain),
        root=found.root,
        strict=strict,
    )


class OwnDomain(NamedTuple):
    """A folder that is one domain by itself; of the three, only `skipped` names files."""

    domain: Domain
    classes: tuple[str, ...]
    skipped: dict[str, str]  # by file: why it cannot be used


def read_site_domain(root: Path, name: str, side: int) -> OwnDomain:
    """A folder class/image.

    The images, their order and their split are those of that domain in a folder of several.
    """
    place = root.expanduser().resolve()
    found = single_domain_layout(place, name)

    def read(fresh: bool) -> OwnDomain:
        pack = pack_layout(found, place / f"domain={name}", side, fresh)
        domain = _read(pack, name)._replace(note=split_note(found, name))
        return OwnDomain(domain, found.classes, pack.skipped)

    try:
        return read(fresh=False)
    except ProtofedError:  # a damaged pack is made again; what is wrong with the images stays
        return read(fresh=True)


def one_client_per_domain(domains: Sequence[str]) -> EqualPartition:
    """The default partition: all images of a domain at one client."""
    return EqualPartition(clients=dict.fromkeys(domains, 1))


def folder_label(root: Path | str) -> str:
    """A path's last part as a name: letters, digits, and - _ . between them."""
    return re.sub(r"[^\w.-]+", "-", Path(root).name).strip("-.") or "images"


def _read(pack: PackedFolder, domain: str) -> Domain:
    source = ArchiveInfo(folder_label(pack.place), pack.place.name, pack.classes, pack.place.parent)
    train, test = archive.read_archive(source, f"{domain}.npz", ("train", "test"))
    return Domain(domain, train, test, pack.notes[domain])
