"""New images in, an answer or a fault for each out; decoded as the training images were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from protofed.core.errors import ProtofedError
from protofed.data.decode import Decoded, shown
from protofed.data.layout import LooseFile, walk
from protofed.data.pool import decoded
from protofed.product.source import Product

BATCH = 64


class Nearest(NamedTuple):
    """What the prototypes say: the class of the nearest one, and how far it lies."""

    label: str
    distance: float


class Answer(NamedTuple):
    """What is said of one file."""

    file: str
    fault: str = ""  # why it could not be read; then there is nothing else
    label: str = ""
    confidence: float = 0.0
    runner_up: str = ""
    runner_up_confidence: float = 0.0
    nearest: Nearest | None = None

    def plain(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        if self.fault:
            return {"file": self.file, "fault": self.fault}
        told = self._asdict()
        told.pop("fault")
        nearest = told.pop("nearest")
        return told | ({"nearest_prototype": nearest._asdict()} if nearest else {})


Look = Callable[[Answer, Tensor], None]  # called with each image [side, side, 3] that was read


def found(paths: Sequence[Path]) -> list[LooseFile]:
    """The files that are meant: those named, and all below the folders named."""
    files: list[LooseFile] = []
    for path in paths:
        files += walk(path) if path.is_dir() else [LooseFile(str(path))]
    if not files:
        raise ProtofedError(f"no files in {', '.join(shown(path) for path in paths)}")
    return files


def ask(product: Product, files: Sequence[LooseFile], look: Look | None = None) -> Iterator[Answer]:
    """An answer for each file, in order."""
    results = zip(files, decoded(files, product.facts.side, "reading images"), strict=True)
    while batch := list(islice(results, BATCH)):
        good = [image for _, image in batch if isinstance(image, Decoded)]
        answers = iter(_answers(product, good))
        for file, image in batch:
            name = shown(file.path)
            if isinstance(image, str):
                yield Answer(name, image)
                continue
            answer = next(answers)._replace(file=name)
            if look:
                look(answer, torch.from_numpy(image.pixels))
            yield answer


def _answers(product: Product, images: Sequence[Decoded]) -> list[Answer]:
    """What the model says of readable images, without their names."""
    if not images:
        return []
    said = product.answer(torch.from_numpy(np.stack([image.pixels for image in images])))
    classes = product.facts.classes
    if not said.chances.isfinite().all():
        raise ProtofedError(
            f"{product.facts.name}: it answers with NaN or infinity instead of probabilities\n"
            f"its file was damaged, or its training diverged: export or train it anew"
        )
    chances, order = said.chances.sort(dim=1, descending=True, stable=True)
    made = []
    for row in range(len(images)):
        first, *more = order[row, :2].tolist()
        second = classes[more[0]] if more else ""
        values = chances[row, :2].tolist()
        made.append(
            Answer(
                "",
                label=classes[first],
                confidence=values[0],
                runner_up=second,
                runner_up_confidence=values[1] if more else 0.0,
                nearest=_nearest(said.nearest[row], classes) if said.nearest is not None else None,
            )
        )
    return made


def _nearest(scores: Tensor, classes: Sequence[str]) -> Nearest:
    best, place = scores.max(0)
    return Nearest(classes[int(place)], (-best).clamp(min=0).sqrt().item())
