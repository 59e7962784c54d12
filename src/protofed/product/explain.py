"""Why a label: a picture for each new image, with the place in it that speaks for its class."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from protofed.core.disk import atomic_write
from protofed.core.errors import ProtofedError, printable_text
from protofed.core.model import model_from_net
from protofed.data.folder import folder_label
from protofed.figures.explained import explanation_figure
from protofed.figures.saliency import grad_cam
from protofed.product.ask import ImagePrediction
from protofed.product.portable import InferenceModule
from protofed.product.source import TrainedProduct

LONGEST = 60  # letters of a file's name that are kept


class HeatMapWriter:
    """Writes `0001-name.png` and so on into a folder, in the order of the files."""

    def __init__(self, product: TrainedProduct, folder: Path):
        if product.portable is None:
            raise ProtofedError(
                "--explain needs to look into the model, which this kind of file does not allow\n"
                "give the run folder, or export it with --to safetensors"
            )
        self.portable: InferenceModule = product.portable
        self.classes = product.facts.classes
        self.folder, self.written = folder, 0
        self.model = model_from_net(self.portable.net)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            why = "it is a file" if folder.is_file() else fault.strerror
            raise ProtofedError(f"--explain {folder}: {why}; name a folder to write to") from fault

    def __call__(self, answer: ImagePrediction, image: Tensor) -> None:
        """Write the picture of one image [side, side, 3]."""
        self.written += 1
        x = self.portable.pixels.normalize(image[None])
        said = torch.tensor([self.classes.index(answer.label)])
        (heat,) = grad_cam(self.portable.net, self.model, x, said)
        title = printable_text(f"{answer.label}: {answer.confidence:.0%}", LONGEST)
        name = f"{self.written:04d}-{folder_label(Path(answer.file).stem)[:LONGEST]}.png"
        atomic_write(self.folder / name, explanation_figure(image, heat, title))
