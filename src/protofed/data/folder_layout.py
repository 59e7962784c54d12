"""Read the layout of a folder of images: domain/class/image, or domain/split/class/image."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from protofed.errors import ProtofedError, display_path

ENDINGS = (
    *(".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".webp", ".gif"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"),
)
LITTER = ("thumbs.db", "desktop.ini", "__macosx", "@eadir")  # created by operating systems
SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation"), "val"
)


class ImageFile(NamedTuple):
    """A file in a class folder, with the domain, split and class that its path gives it.

    It has not been opened; `fault` is set if its name or kind already rules it out.
    """

    domain: str
    part: str  # "train", "test" or "val" where the folders say so, else ""
    label: str  # the class
    name: str  # below the root
    path: str
    stamp: tuple[int, int, int]  # size and times, to notice changes without reading the file
    fault: str = ""  # why it cannot be an image, known without opening it


class StrayFile(NamedTuple):
    """A file that belongs to no domain and no class, such as a new image to predict."""

    path: str
    fault: str = ""  # see ImageFile


class FolderLayout(NamedTuple):
    """The domains, splits and classes of a folder, read from the names of its sub-folders.

    `shelves` maps domain and split to class folders; the split is "" for a domain without splits.
    """

    root: Path
    shelves: dict[str, dict[str, list[Path]]]  # by domain and part: the class folders

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains in alphabetical order."""
        return tuple(self.shelves)

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of all domains, in alphabetical order."""
        return tuple(sorted({name for domain in self.domains for name in self.classes_of(domain)}))

    def classes_of(self, domain: str) -> set[str]:
        """The classes of one domain."""
        return {folder.name for folders in self.shelves[domain].values() for folder in folders}

    def lacking(self) -> list[str]:
        """One line per domain that lacks classes, and per class that only one domain has."""
        lines = []
        for domain in self.domains:
            lacks = sorted(set(self.classes) - self.classes_of(domain))
            if lacks:
                lines.append(
                    f"{domain}: has no folder for class {', '.join(map(display_path, lacks))}"
                )
        for name in self.classes if len(self.domains) > 1 else ():
            holders = [domain for domain in self.domains if name in self.classes_of(domain)]
            if len(holders) == 1:
                lines.append(f"class {display_path(name)} is only in {holders[0]}")
        return lines

    def files(self) -> Iterator[ImageFile]:
        """All files below the class folders, in order of domain, part, class and name."""
        for domain, parts in self.shelves.items():
            for part, folders in parts.items():
                for folder in folders:
                    where = folder.relative_to(self.root).as_posix()
                    for found in _children(folder):
                        name = f"{where}/{found.name}"
                        yield ImageFile(domain, part, folder.name, name, found.path, *_look(found))


def read_layout(root: Path) -> FolderLayout:
    """Read the sub-folders of `root`; no image is opened.

    Accepts ``domain/class/image`` and ``domain/split/class/image`` with the splits train, test and
    val. Raises a `ProtofedError` that names the offending folder for anything else, and for class
    names that differ only by case or spaces.
    """
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "does not exist"
        raise ProtofedError(
            f"the folder of images {display_path(root)} {what}\n"
            "give a folder that holds domain/class/image or domain/split/class/image"
        )
    domains = _folders(root)
    if not domains:
        raise ProtofedError(f"{display_path(root)} holds no folders; {_HOW}")
    if all(path.name.lower() in SPLITS for path in domains):
        raise ProtofedError(
            f"{display_path(root)} holds splits ({', '.join(path.name for path in domains)}) where "
            f"its domains should be; test images would be trained on\n{_HOW}"
        )
    shelves = {path.name: _parts(path, _HOW) for path in domains}
    found = FolderLayout(root, shelves)
    _check_names(found)
    return found


def single_domain_layout(root: Path, name: str) -> FolderLayout:
    """Read a folder that is one domain: ``class/image``, or ``split/class/image``.

    `name` becomes the name of the domain. Errors are those of `read_layout`.
    """
    if not root.is_dir():
        raise ProtofedError(
            f"the folder of images {display_path(root)} does not exist or is not a folder"
        )
    found = FolderLayout(root, {name: _parts(root, _HOW_ALONE)})
    _check_names(found)
    return found


_HOW = (
    "write domain/class/image, e.g. photo/dog/1.jpg, or domain/split/class/image with the splits "
    "train and test (and val)"
)
_HOW_ALONE = (
    "write class/image, e.g. dog/1.jpg, or split/class/image with the splits train and test "
    "(and val)"
)


def _parts(domain: Path, how: str) -> dict[str, list[Path]]:
    """The class folders of a domain by part, where it has splits; else all under ""."""
    folders = _folders(domain)
    inner = {folder: _folders(folder) for folder in folders}
    splits = [f for f in folders if f.name.lower() in SPLITS and inner[f]]
    if not splits:
        deep = [f"{f.name}/{below[0].name}" for f, below in inner.items() if below]
        if deep and not any(_holds_files(folder) for folder in folders):
            raise ProtofedError(
                f"{display_path(domain)} holds nested folders ({display_path(deep[0])}, ...) "
                f"but no known split\n{how}"
            )
        if not folders:
            raise ProtofedError(f"{display_path(domain)} holds no class folders\n{how}")
        return {"": folders}
    others = [display_path(folder.name) for folder in folders if folder not in splits]
    if others:
        raise ProtofedError(
            f"{display_path(domain)} holds splits ({', '.join(f.name for f in splits)}) next to "
            f"other folders ({', '.join(others)})\nmove these elsewhere or into a split"
        )
    parts: dict[str, list[Path]] = {}
    for split in splits:
        parts.setdefault(SPLITS[split.name.lower()], []).extend(inner[split])
    if "val" in parts and "test" not in parts:
        parts["test"] = parts.pop("val")
    if "train" not in parts:
        raise ProtofedError(f"{display_path(domain)} has no train folder beside {', '.join(parts)}")
    return parts


def _check_names(found: FolderLayout) -> None:
    """Raise for classes that differ only by case or spaces, and for unprintable names."""
    alike: dict[str, list[str]] = {}
    for name in found.classes:
        alike.setdefault(name.strip().casefold(), []).append(name)
    twins = [names for names in alike.values() if len(names) > 1]
    if twins:
        lines = [f"  {_whereabouts(found, name)}" for names in twins for name in names]
        raise ProtofedError(
            f"{display_path(found.root)}: classes that differ only by case or spaces:\n"
            + "\n".join(lines)
            + "\nrename their folders so that each class has one name"
        )
    for name in (*found.domains, *found.classes):
        if not name.isprintable() or display_path(name) != name:
            raise ProtofedError(
                f"{display_path(found.root)}: the folder name '{display_path(name)}' is no text"
            )


def _whereabouts(found: FolderLayout, name: str) -> str:
    homes = [display_path(domain) for domain in found.domains if name in found.classes_of(domain)]
    return f"{display_path(name)} in {', '.join(homes)}"


def _children(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, by name, without hidden files and litter."""
    try:
        with os.scandir(folder) as entries:
            kept = [e for e in entries if not e.name.startswith(".")]
    except OSError as fault:
        raise ProtofedError(f"{display_path(folder)} cannot be read: {fault.strerror}") from fault
    return sorted((e for e in kept if e.name.lower() not in LITTER), key=lambda e: e.name)


def _folders(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in _children(folder) if entry.is_dir()]


def _holds_files(folder: Path) -> bool:
    return any(not entry.is_dir() for entry in _children(folder))


def walk_files(folder: Path) -> Iterator[StrayFile]:
    """Yield all files below a folder at any depth, sorted by name.

    Hidden files and files that operating systems create are left out. Symbolic links are followed,
    but no folder is visited twice.
    """
    yield from _below(folder, set())


def _below(folder: Path, seen: set[Path]) -> Iterator[StrayFile]:
    if folder.resolve() in seen:
        return  # a link back to a folder above
    seen.add(folder.resolve())
    for entry in _children(folder):
        if entry.is_dir():
            yield from _below(Path(entry.path), seen)
        else:
            _, fault = _look(entry)
            yield StrayFile(entry.path, fault)


def _look(entry: os.DirEntry[str]) -> tuple[tuple[int, int, int], str]:
    """A file's stamp, and its fault if it has one."""
    try:
        state = entry.stat()
    except OSError as fault:
        why = "a broken link" if entry.is_symlink() else f"cannot be read: {fault.strerror}"
        return (-1, 0, 0), why
    return (state.st_size, state.st_mtime_ns, state.st_ctime_ns), _fault(entry)


def _fault(entry: os.DirEntry[str]) -> str:
    if entry.is_dir():
        return "a folder inside a class folder"
    if not entry.is_file():
        return "not a regular file"
    known = entry.name.lower().endswith(ENDINGS)
    return "" if known else "not named as an image (.png, .jpg, .bmp, .webp, .gif, .tif, .ppm)"
