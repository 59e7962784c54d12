"""The kinds of files that a model is taken along in, and how each is written, read and checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from protofed.core.disk import atomic_write
from protofed.core.errors import ProtofedError, printable_text
from protofed.core.memory import is_out_of_memory
from protofed.product import onnx_file, safetensors_file, torchscript_file
from protofed.product.facts import ModelMetadata
from protofed.product.portable import InferenceModule
from protofed.product.source import LoadedModel, TrainedProduct

TOLERANCE = 1e-3  # of the largest score: other kernels sum in another order, and no more


class ExportFormat(NamedTuple):
    """A kind of file."""

    ending: str
    content: Callable[[InferenceModule, ModelMetadata], bytes]
    read: Callable[[Path], TrainedProduct]


FORMATS = {
    "onnx": ExportFormat(".onnx", onnx_file.onnx_bytes, onnx_file.read_onnx),
    "safetensors": ExportFormat(
        ".safetensors", safetensors_file.safetensors_bytes, safetensors_file.read_safetensors
    ),
    "torchscript": ExportFormat(
        ".pt", torchscript_file.torchscript_bytes, torchscript_file.read_torchscript
    ),
}


class OutputDifference(NamedTuple):
    """How far a file's answers lie from the run's, at most, on so many images."""

    scores: float
    probabilities: float
    images: int


def write_export(taken: LoadedModel, kind: ExportFormat, out: Path) -> OutputDifference:
    """Write a file, read it anew and compare; it comes to its place only if it answers alike."""
    beside = out.with_name(f".{os.getpid()}-{out.name}")  # the ending stays: it tells the kind
    try:
        atomic_write(beside, kind.content(taken.portable, taken.product.facts))
        found = compare_outputs(kind.read(beside), taken)
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
    return found


def compare_outputs(product: TrainedProduct, taken: LoadedModel) -> OutputDifference:
    """The largest differences to the run's own answers; too large ones are refused."""
    cut = (taken.images[:1], taken.images[1:])  # two sizes of batches: both must do
    answers = [product.answer(images) for images in cut if len(images)]
    logits = torch.cat([answer.logits for answer in answers])
    chances = torch.cat([answer.chances for answer in answers])
    scores = (logits - taken.logits).abs().max().item()
    probabilities = (chances - taken.logits.softmax(1)).abs().max().item()
    most = TOLERANCE * max(1.0, taken.logits.abs().max().item())
    if not (scores <= most and probabilities <= TOLERANCE):  # NaN is not
        raise ProtofedError(
            f"the check failed: on {len(taken.images)} {taken.kind} the file's scores differ from "
            f"the run's by up to {scores:.2g}, and by up to {most:.2g} would be rounding\n"
            "the file was removed; another --to may do"
        )
    return OutputDifference(scores, probabilities, len(taken.images))


def _try_out(product: TrainedProduct, path: Path) -> None:
    """Ask about one black image, so that a file which does not fit its own metadata is told."""
    side, classes = product.facts.side, len(product.facts.classes)
    try:
        said = product.answer(torch.zeros(1, side, side, 3, dtype=torch.uint8))
        fits = {tuple(one.shape) for one in said if one is not None} == {(1, classes)}
    except Exception as fault:  # each runtime has its own classes
        if is_out_of_memory(fault):
            raise
        told = printable_text(str(fault).split("\n")[0], 200)
        raise ProtofedError(f"{path}: it cannot answer as its metadata says: {told}") from fault
    if not fits:
        raise ProtofedError(f"{path}: it does not tell {classes} classes apart, as it says")


def read_export(path: Path) -> TrainedProduct:
    """The model in a file, by its ending."""
    for kind in FORMATS.values():
        if path.name.lower().endswith(kind.ending):
            if not path.is_file():
                raise ProtofedError(f"{path} is not there")
            product = kind.read(path)
            _try_out(product, path)
            return product
    endings = ", ".join(kind.ending for kind in FORMATS.values())
    raise ProtofedError(
        f"{path} is no model: give a run folder, or a file that `protofed export` wrote ({endings})"
    )
