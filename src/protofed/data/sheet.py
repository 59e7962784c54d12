"""A contact sheet: one image of every class in every domain, to see what a benchmark looks like."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from protofed.core.errors import ProtofedError
from protofed.data.benchmark import Benchmark, Domain

GAP = 4  # white pixels between images
SCALE = 2  # enlargement, as the images are small


def contact_sheet(benchmark: Benchmark, path: Path) -> None:
    """Write a PNG with a row for each domain and a column for each class."""
    rows = [_row(domain, len(benchmark.classes)) for domain in benchmark.domains]
    sheet = torch.cat(rows)  # [domains * cell, classes * cell, 3]
    picture = Image.fromarray(sheet.numpy())
    size = (picture.width * SCALE, picture.height * SCALE)
    try:
        picture.resize(size, Image.Resampling.NEAREST).save(path, format="PNG")
    except OSError as fault:
        raise ProtofedError(f"cannot write {path}: {fault.strerror}") from fault


def _row(domain: Domain, classes: int) -> torch.Tensor:
    """The first training image of each class side by side, white where a class is absent."""
    side = domain.train.images.shape[1]
    row = torch.full((side + GAP, classes * (side + GAP), 3), 255, dtype=torch.uint8)
    for label in range(classes):
        found = (domain.train.labels == label).nonzero()
        if len(found):
            left = label * (side + GAP) + GAP // 2
            row[GAP // 2 : GAP // 2 + side, left : left + side] = domain.train.images[found[0, 0]]
    return row
