"""Predict new images and arrays: a label or a fault for each, and heat maps on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from protofed.core.model import model_from_net
from protofed.data.array_checks import to_pictures, to_rows
from protofed.data.folder_images import folder_label
from protofed.data.folder_layout import StrayFile, walk_files
from protofed.data.image_decoding import DecodedImage, decode_in_parallel
from protofed.data.npz_store import read_array_file
from protofed.data.transforms import resize_images
from protofed.errors import ProtofedError, display_path, printable_text
from protofed.export.inference_module import InferenceModule, ModelMetadata, TrainedProduct
from protofed.figures.gradcam import explanation_figure, grad_cam
from protofed.runtime.atomic_io import atomic_write

BATCH = 64


class NearestPrototype(NamedTuple):
    """The class of the prototype nearest to an image's features, and its Euclidean distance.

    A second opinion: an image far from all prototypes, or near one of another class than the
    predicted one, deserves a look.
    """

    label: str
    distance: float


class ImagePrediction(NamedTuple):
    """The prediction for one file, or the reason why the file could not be read.

    Of a file of arrays, each example has its own: ``new.npy 0``, ``new.npy 1``. `nearest` is None
    for models without prototypes.
    """

    file: str
    fault: str = ""  # why it could not be read; the other fields are then empty
    label: str = ""
    confidence: float = 0.0
    runner_up: str = ""
    runner_up_confidence: float = 0.0
    nearest: NearestPrototype | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        if self.fault:
            return {"file": self.file, "fault": self.fault}
        plain = self._asdict()
        plain.pop("fault")
        nearest = plain.pop("nearest")
        return plain | ({"nearest_prototype": nearest._asdict()} if nearest else {})


Look = Callable[
    [ImagePrediction, Tensor], None
]  # called with each image [side, side, 3] that was read


def find_images(paths: Sequence[Path]) -> list[StrayFile]:
    """All files named, and all files below the folders named.

    Files are not opened; those that cannot be images carry a fault. Raises if there are none.
    """
    files: list[StrayFile] = []
    for path in paths:
        files += walk_files(path) if path.is_dir() else [StrayFile(str(path))]
    if not files:
        raise ProtofedError(f"no files in {', '.join(display_path(path) for path in paths)}")
    return files


def predict_images(
    product: TrainedProduct, files: Sequence[StrayFile], look: Look | None = None
) -> Iterator[ImagePrediction]:
    """Yield a prediction or a fault for each file, in order.

    Images are decoded in parallel and predicted in batches; the examples of .npy and .npz files
    follow in the order of their rows. `look` is called with each prediction and its image
    [side, side, 3], for example a `HeatMapWriter`.
    """
    for arrays, group in groupby(files, key=_is_array_file):
        if arrays:
            for file in group:
                yield from _predict_arrays(product, Path(file.path), look)
        else:
            yield from _predict_pictures(product, list(group), look)


def _is_array_file(file: StrayFile) -> bool:
    return file.path.lower().endswith((".npy", ".npz"))


def _predict_pictures(
    product: TrainedProduct, files: Sequence[StrayFile], look: Look | None
) -> Iterator[ImagePrediction]:
    """The predictions of image files."""
    facts = product.facts
    if facts.side is None:
        for file in files:
            fault = (
                f"this model takes rows of shape {list(facts.shape or ())}, in .npy or .npz files"
            )
            yield ImagePrediction(display_path(file.path), fault)
        return
    results = zip(files, decode_in_parallel(files, facts.side, "reading images"), strict=True)
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


def _predict_arrays(
    product: TrainedProduct, path: Path, look: Look | None
) -> Iterator[ImagePrediction]:
    """The predictions of all examples of a .npy or .npz file, or one fault."""
    name = display_path(path)
    try:
        inputs = _read_inputs(product.facts, path)
    except ProtofedError as fault:
        first = str(fault.args[0]).splitlines()[0]
        yield ImagePrediction(name, printable_text(first.removeprefix(f"{path}: ")))
        return
    for start in range(0, len(inputs), BATCH):
        batch = inputs[start : start + BATCH]
        for row, answer in enumerate(_label_inputs(product, batch)):
            labelled = answer._replace(file=f"{name} {start + row}")
            if look:
                look(labelled, batch[row])
            yield labelled


def _read_inputs(facts: ModelMetadata, path: Path) -> Tensor:
    """The examples of a file as the model takes them; raises if they do not fit.

    A .npz file must hold one array, or one that is called x.
    """
    if not path.is_file():
        raise ProtofedError(f"{path}: no such file")
    stored = read_array_file(path)
    if len(stored.arrays) != 1 and "x" not in stored.arrays:
        raise ProtofedError(f"{path}: it holds {stored.listing}; name the examples x")
    x = stored.arrays["x"] if "x" in stored.arrays else next(iter(stored.arrays.values()))
    if facts.shape is None:
        pictures = torch.from_numpy(to_pictures(str(path), x))
        grey = pictures[..., None] if pictures.ndim == 3 else pictures
        return resize_images(grey, facts.side or 0).expand(-1, -1, -1, 3)
    if x.dtype.kind not in "biuf" or x.shape[1:] != facts.shape or not x.ndim:
        wanted = ", ".join(["N", *map(str, facts.shape)])
        raise ProtofedError(
            f"{path}: numbers [{wanted}] are needed, x is {x.dtype} {list(x.shape)}"
        )
    return torch.from_numpy(to_rows(str(path), x))


def _answers(product: TrainedProduct, images: Sequence[DecodedImage]) -> list[ImagePrediction]:
    """The predictions for decoded images, without file names."""
    if not images:
        return []
    return _label_inputs(product, torch.from_numpy(np.stack([image.pixels for image in images])))


def _label_inputs(product: TrainedProduct, inputs: Tensor) -> list[ImagePrediction]:
    """The predictions for images [N, side, side, 3] or rows, without names."""
    found = product.answer(inputs)
    classes = product.facts.classes
    if not found.chances.isfinite().all():
        raise ProtofedError(
            f"{product.facts.name}: it predicts NaN or infinity instead of probabilities\n"
            f"its file is damaged or its training diverged: export or train it again"
        )
    chances, order = found.chances.sort(dim=1, descending=True, stable=True)
    made = []
    for row in range(len(inputs)):
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
                nearest=_nearest(found.nearest[row], classes)
                if found.nearest is not None
                else None,
            )
        )
    return made


def _nearest(scores: Tensor, classes: Sequence[str]) -> NearestPrototype:
    best, place = scores.max(0)
    return NearestPrototype(classes[int(place)], (-best).clamp(min=0).sqrt().item())


LONGEST = 60  # characters of a file's name that are kept


class HeatMapWriter:
    """Writes a Grad-CAM heat map for each predicted image into a folder.

    Files are numbered in the order of images: ``0001-name.png``. Raises for models without
    accessible layers.
    """

    def __init__(self, product: TrainedProduct, folder: Path):
        if product.facts.shape is not None:
            raise ProtofedError(
                "heat maps are for images, and this model takes rows", hint="leave <explain> out"
            )
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
        """Write the heat map of one image [side, side, 3]."""
        self.written += 1
        x = self.portable.pixels.normalize(image[None])
        label = torch.tensor([self.classes.index(answer.label)])
        (heat,) = grad_cam(self.portable.net, self.model, x, label)
        title = printable_text(f"{answer.label}: {answer.confidence:.0%}", LONGEST)
        name = f"{self.written:04d}-{folder_label(Path(answer.file).stem)[:LONGEST]}.png"
        atomic_write(self.folder / name, explanation_figure(image, heat, title))
