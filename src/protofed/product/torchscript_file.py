"""TorchScript: the graph for programs with libtorch.

Torch calls it deprecated since 2.10 and still writes and reads it. Whoever loads such a file runs
what is in it, so that only files from people one trusts should be loaded.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.jit._trace import TracerWarning

from protofed.core.errors import ProtofedError, printable_text
from protofed.core.jsonfile import parse_json
from protofed.product.facts import ModelMetadata
from protofed.product.portable import InferenceModule, ModelOutputs
from protofed.product.source import TrainedProduct

FACTS = "protofed.json"  # a file inside the file


def torchscript_bytes(portable: InferenceModule, facts: ModelMetadata) -> bytes:
    """The file's bytes: a traced graph, and the facts as a file beside it."""
    images = torch.zeros(2, facts.side, facts.side, 3, dtype=torch.uint8)
    made = io.BytesIO()
    with _deprecated_but_asked_for(), torch.no_grad():
        graph = torch.jit.trace(portable, (images,))
        torch.jit.save(graph, made, _extra_files={FACTS: json.dumps(facts.texts())})
    return made.getvalue()


def read_torchscript(path: Path) -> TrainedProduct:
    """The model in a TorchScript file."""
    found: dict[str, str | bytes] = {FACTS: ""}
    try:
        with _deprecated_but_asked_for():
            graph = torch.jit.load(str(path), map_location="cpu", _extra_files=found)
    except (RuntimeError, ValueError) as fault:
        raise ProtofedError(
            f"{path} cannot be read as TorchScript: {printable_text(str(fault), 200)}"
        ) from fault
    texts = parse_json(found[FACTS] or "{}", f"{path}: its {FACTS}")
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ProtofedError(f"{path}: its {FACTS} is damaged: it must hold texts by name")
    facts = ModelMetadata.read(texts, path)

    def answer(images: Tensor) -> ModelOutputs:
        with torch.no_grad():
            return ModelOutputs(*graph(images))

    return TrainedProduct(facts, answer)


@contextmanager
def _deprecated_but_asked_for() -> Iterator[None]:
    """Programs with libtorch read nothing else, and who asks for this file knows it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        # It warns of Python values that become constants. Here these are colours and sides; that
        # no number of images is among them is seen when the file is checked with two others.
        warnings.simplefilter("ignore", TracerWarning)
        yield
