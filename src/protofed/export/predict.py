"""New images in, an answer or a fault for each out, and on request the place that speaks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from protofed.core.model import model_from_net
from protofed.data.folder_images import folder_label
from protofed.data.folder_layout import StrayFile, walk_files
from protofed.data.image_decoding import DecodedImage, decode_in_parallel
from protofed.errors import ProtofedError, display_path, printable_text
from protofed.export.inference_module import InferenceModule, TrainedProduct
from protofed.figures.gradcam import explanation_figure, grad_cam
from protofed.runtime.atomic_io import atomic_write

BATCH = 64


class NearestPrototype(NamedTuple):
    """What the prototypes say: the class of the nearest one, and how far it lies."""

    label: str
    distance: float


class ImagePrediction(NamedTuple):
    """What is said of one file."""

    file: str
    fault: str = ""  # why it could not be read; then there is nothing else
    label: str = ""
    confidence: float = 0.0
    runner_up: str = ""
    runner_up_confidence: float = 0.0
    nearest: NearestPrototype | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        if self.fault:
            return {"file": self.file, "fault": self.fault}
        told = self._asdict()
        told.pop("fault")
        nearest = told.pop("nearest")
        return told | ({"nearest_prototype": nearest._asdict()} if nearest else {})


Look = Callable[
    [ImagePrediction, Tensor], None
]  # called with each image [side, side, 3] that was read


def find_images(paths: Sequence[Path]) -> list[StrayFile]:
    """The files that are meant: those named, and all below the folders named."""
    files: list[StrayFile] = []
    for path in paths:
        files += walk_files(path) if path.is_dir() else [StrayFile(str(path))]
    if not files:
        raise ProtofedError(f"no files in {', '.join(display_path(path) for path in paths)}")
    return files


def predict_images(
    product: TrainedProduct, files: Sequence[StrayFile], look: Look | None = None
) -> Iterator[ImagePrediction]:
    """An answer for each file, in order."""
    results = zip(
        files, decode_in_parallel(files, product.facts.side, "reading images"), strict=True
    )
    while batch := list(islice(results, BATCH)):
        good = [image for _, image in batch if isinstance(image, DecodedImage)]
        answers = iter(_answers(product, good))
        for file, image in batch:
            name = display_path(file.path)
            if isinstance(image, str):
                yield ImagePrediction(name, image)
                continue
            answer = next(answers)._replace(file=name)
            if look:
                look(answer, torch.from_numpy(image.pixels))
            yield answer


def _answers(product: TrainedProduct, images: Sequence[DecodedImage]) -> list[ImagePrediction]:
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
            ImagePrediction(
                "",
                label=classes[first],
                confidence=values[0],
                runner_up=second,
                runner_up_confidence=values[1] if more else 0.0,
                nearest=_nearest(said.nearest[row], classes) if said.nearest is not None else None,
            )
        )
    return made


def _nearest(scores: Tensor, classes: Sequence[str]) -> NearestPrototype:
    best, place = scores.max(0)
    return NearestPrototype(classes[int(place)], (-best).clamp(min=0).sqrt().item())


LONGEST = 60  # letters of a file's name that are kept


class HeatMapWriter:
    """Writes `0001-name.png` and so on into a folder, in the order of the files."""

    def __init__(self, product: TrainedProduct, folder: Path):
        if product.portable is None:
            raise ProtofedError(
                "heat maps need the layers of the model, which this kind of file does not expose",
                hint="pass the run folder, or export the run with <to=safetensors>",
            )
        self.portable: InferenceModule = product.portable
        self.classes = product.facts.classes
        self.folder, self.written = folder, 0
        self.model = model_from_net(self.portable.net)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            why = "it is a file" if folder.is_file() else fault.strerror
            raise ProtofedError(
                f"cannot write heat maps to {folder}: {why}",
                hint="choose another folder: <explain>",
            ) from fault

    def __call__(self, answer: ImagePrediction, image: Tensor) -> None:
        """Write the picture of one image [side, side, 3]."""
        self.written += 1
        x = self.portable.pixels.normalize(image[None])
        said = torch.tensor([self.classes.index(answer.label)])
        (heat,) = grad_cam(self.portable.net, self.model, x, said)
        title = printable_text(f"{answer.label}: {answer.confidence:.0%}", LONGEST)
        name = f"{self.written:04d}-{folder_label(Path(answer.file).stem)[:LONGEST]}.png"
        atomic_write(self.folder / name, explanation_figure(image, heat, title))
