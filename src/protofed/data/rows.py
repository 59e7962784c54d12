"""Usable images in a row: which of them train, which test, and as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from protofed.core.errors import ProtofedError
from protofed.core.site import holdout_size
from protofed.data.cache import Arrays
from protofed.data.decode import DecodedImage
from protofed.data.layout import ImageFile

TEST_SHARE = 0.2  # of each class of a domain that brings no split


class FolderRow(NamedTuple):
    """A file that holds a usable image."""

    name: str
    file: ImageFile
    image: DecodedImage

    def to_list(self) -> list[Any]:
        """For index.json: file, SHA-256 of its pixels, perceptual hash, width, height."""
        _, digest, look, width, height = self.image
        return [self.name, digest, look.hex(), width, height]


def split_folder_rows(
    domain: str, rows: Sequence[FolderRow], has_test: bool
) -> dict[str, list[FolderRow]]:
    """Rows for training and test: by the folder for tests if it has one, else a fifth of a class.

    Which fifth is decided by the pixels alone (the smallest SHA-256), so that it is the same in
    every run, whatever the files are called, and copies of one image stay on one side.
    """
    test = [row for row in rows if row.file.part == "test"]
    train = [row for row in rows if row.file.part != "test"]
    if not has_test:
        chosen: set[str] = set()
        for label in {row.file.label for row in rows}:
            ranked = sorted((r.image.sha256, r.name) for r in rows if r.file.label == label)
            cut = holdout_size(len(ranked), TEST_SHARE)
            while cut and ranked[cut - 1][0] == ranked[cut][0]:
                cut -= 1
            chosen |= {name for _, name in ranked[:cut]}
        test = [row for row in rows if row.name in chosen]
        train = [row for row in rows if row.name not in chosen]
    for part, found in (("training", train), ("test", test)):
        if not found:
            raise ProtofedError(
                f"domain '{domain}' has no {part} image that can be used, of {len(rows)} in all\n"
                "add images, or move the domain's folder away; `protofed data doctor` says more"
            )
    return {"train": train, "test": test}


def rows_to_arrays(parts: dict[str, list[FolderRow]], classes: Sequence[str]) -> Arrays:
    """The parts in our archives' form: x_train [N, side, side, 3], y_train [N], and for test."""
    numbers = {name: number for number, name in enumerate(classes)}
    arrays: Arrays = {}
    for part, rows in parts.items():
        arrays[f"x_{part}"] = np.stack([row.image.pixels for row in rows])
        arrays[f"y_{part}"] = np.array([numbers[row.file.label] for row in rows], dtype=np.int64)
    return arrays
