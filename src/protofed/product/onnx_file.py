"""ONNX: the graph for other runtimes, phones and browsers; needs the extra [export]."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from protofed.core.errors import ProtofedError
from protofed.product.facts import ModelMetadata
from protofed.product.portable import InferenceModule, ModelOutputs
from protofed.product.source import TrainedProduct

if TYPE_CHECKING:
    from onnx import ModelProto

WRITES, READS = ("onnx", "onnxscript"), ("onnxruntime",)
COMMAND = "pip install 'protofed[export]'"


def onnx_bytes(portable: InferenceModule, facts: ModelMetadata) -> bytes:
    """The file's bytes: a graph with any number of images, and the facts as metadata."""
    _need("writing ONNX", *WRITES, *READS)
    import onnx

    images = torch.zeros(2, facts.side, facts.side, 3, dtype=torch.uint8)
    try:
        with _exporters_own_warnings():
            program = torch.onnx.export(
                portable,
                (images,),
                dynamo=True,
                dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}},
                input_names=["images"],
                output_names=["logits", "probabilities"],
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as fault:
        raise ProtofedError(
            f"torch cannot write {facts.method} with {facts.net} as ONNX\n"
            "export it with --to safetensors or torchscript"
        ) from fault
    assert program is not None  # it is only with dynamo=False
    made: ModelProto = program.model_proto
    _forget_whence(made)
    onnx.helper.set_model_props(made, facts.texts())
    made.producer_name, made.producer_version = "protofed", facts.made_with["protofed"]
    return bytes(made.SerializeToString())


def read_onnx(path: Path) -> TrainedProduct:
    """The model in an ONNX file, run by onnxruntime on the processor."""
    _need("reading ONNX", *READS)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as fault:  # its own classes for each kind of damage, with no common base
        first = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
        raise ProtofedError(f"{path} cannot be read as ONNX: {first}") from fault
    facts = ModelMetadata.read(session.get_modelmeta().custom_metadata_map, path)

    def answer(images: Tensor) -> ModelOutputs:
        outputs = session.run(["logits", "probabilities"], {"images": images.numpy()})
        return ModelOutputs(*map(torch.from_numpy, outputs))

    return TrainedProduct(facts, answer)


def _need(what: str, *names: str) -> None:
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise ProtofedError(
            f"{what} needs {' and '.join(missing)}, which is not installed\nto install: {COMMAND}"
        )


@contextmanager
def _exporters_own_warnings() -> Iterator[None]:
    """Leave out what torch's exporter says of itself and nobody can mend.

    It copies a class of its own that torch calls deprecated, and logs that torchvision, which
    nothing here uses, is not installed.
    """
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
            yield
    finally:
        log.setLevel(before)


def _forget_whence(made: ModelProto) -> None:
    """Drop the exporter's notes, which hold stack traces with paths of this machine."""
    graph: Any = made.graph
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer, *graph.value_info):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for part in (graph, made):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
