"""Models as files, safetensors or ONNX: how each is written, read back and checked."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.site import SERVER, Site
from protofed.errors import ProtofedError, printable_text
from protofed.export.inference_module import (
    InferenceModule,
    LoadedModel,
    ModelMetadata,
    ModelOutputs,
    TrainedProduct,
    check_finite,
    load_weights,
)
from protofed.federation.build import NOTHING, build_nets
from protofed.runtime.atomic_io import atomic_write, rename_over
from protofed.runtime.code_reference import ANY_CODE, OUR_CODE, CodeAccess
from protofed.runtime.resources import is_out_of_memory
from protofed.spec.method_lookup import code_names
from protofed.spec.spec_parser import parse_experiment

if TYPE_CHECKING:
    from onnx import ModelProto

PROTOTYPES, INPUTS = "prototypes.", "inputs."  # prefixes of tensors that are not weights
TABLE = ("vectors", "labels", "counts")


def safetensors_bytes(portable: InferenceModule, facts: ModelMetadata) -> bytes:
    """The content of a safetensors file: weights and buffers by name, prototypes, and metadata.

    Random numbers that the method needs to predict are stored as well.
    """
    tensors = dict(portable.net.state_dict())
    if portable.protos is not None:
        tensors |= {f"{PROTOTYPES}{name}": getattr(portable.protos, name) for name in TABLE}
    tensors |= {f"{INPUTS}{number}": part for number, part in enumerate(portable.inputs)}
    return save({name: one.contiguous().clone() for name, one in tensors.items()}, facts.texts())


def read_safetensors(path: Path, access: CodeAccess = OUR_CODE) -> TrainedProduct:
    """Rebuild the model in a safetensors file from the spec in its metadata.

    Raises `ProtofedError` if metadata, spec and weights do not fit together. A file may come from
    anybody: code that its spec names is loaded only if `access` says so.
    """
    try:
        with safetensors.safe_open(path, "pt") as file:
            facts = ModelMetadata.read(file.metadata() or {}, path)
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except (safetensors.SafetensorError, OSError) as fault:
        raise ProtofedError(f"{path} cannot be read as safetensors: {fault}") from fault
    try:
        portable = _rebuilt(facts, tensors, path, access)
    except (
        RuntimeError,
        LookupError,
        TypeError,
        ValueError,
    ) as fault:  # tensors that do not fit the net
        first = printable_text(str(fault).split("\n")[0], 200)
        raise ProtofedError(f"{path}: its weights do not fit its spec: {first}") from fault
    return TrainedProduct(facts, portable.answer, portable)


def _rebuilt(
    facts: ModelMetadata, tensors: dict[str, Tensor], path: Path, access: CodeAccess
) -> InferenceModule:
    try:
        experiment = parse_experiment(facts.spec, f"{path}: the spec inside", access)
    except ProtofedError as fault:
        own = "<allow_code> loads it, if you trust the file; a model exported to ONNX needs no code"
        foreign = access.allowed is not None and code_names(facts.spec)
        raise ProtofedError(fault.args[0], hint=own if foreign else fault.hint) from fault
    if experiment.data.input_shape != facts.input_shape:
        raise ValueError(f"{facts.input_name} of shape {list(facts.input_shape.sizes)}")
    # The file holds all weights: none is taken from elsewhere, and none is frozen.
    whole = {"pretrained": None, "pretrained_sha256": None, "train": "all"}
    nets = build_nets(experiment.model_copy(update=whole), len(facts.classes))
    net = nets[(facts.client or 0) % len(nets)]
    site = Site(
        id=SERVER,
        domain=facts.domain,
        classes=len(facts.classes),
        net=net,
        pixels=facts.transform(),
        train=NOTHING,
        training=experiment.training,
        seed=experiment.seed,
        sizes={},
    )
    others = (PROTOTYPES, INPUTS)
    weights = {name: one for name, one in tensors.items() if not name.startswith(others)}
    inputs = [tensors[name] for name in sorted(tensors) if name.startswith(INPUTS)]
    return load_weights(experiment.method, site, Model(weights), inputs, _protos(tensors))


def _protos(tensors: dict[str, Tensor]) -> Prototypes | None:
    found = [tensors[PROTOTYPES + name] for name in TABLE if PROTOTYPES + name in tensors]
    return Prototypes(*found) if found else None


WRITES, READS = ("onnx", "onnxscript"), ("onnxruntime",)
COMMAND = "pip install 'protofed[export]'"


def onnx_bytes(portable: InferenceModule, facts: ModelMetadata) -> bytes:
    """The content of an ONNX file: a graph for any number of images, with metadata.

    Needs the packages of the extra ``export``. Stack traces with local paths are removed.
    """
    _need("writing ONNX", *WRITES, *READS)
    import onnx

    try:
        with _exporters_own_warnings():
            program = torch.onnx.export(
                portable,
                (facts.blank(2),),
                dynamo=True,
                dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}},
                input_names=[facts.input_name],
                output_names=["logits", "probabilities"],
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as fault:
        raise ProtofedError(
            f"torch cannot write {facts.method} with {facts.net} as ONNX",
            hint="export it with <to=safetensors>",
        ) from fault
    assert program is not None  # it is only with dynamo=False
    made: ModelProto = program.model_proto
    _forget_whence(made)
    onnx.helper.set_model_props(made, facts.texts())
    made.producer_name, made.producer_version = "protofed", facts.made_with["protofed"]
    return bytes(made.SerializeToString())


def read_onnx(path: Path, access: CodeAccess = OUR_CODE) -> TrainedProduct:
    """Load an ONNX file with onnxruntime on the CPU; the result has no layers to look into."""
    _need("reading ONNX", *READS)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as fault:  # it has a class per kind of damage, without a common base
        first = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
        raise ProtofedError(f"{path} cannot be read as ONNX: {first}") from fault
    facts = ModelMetadata.read(session.get_modelmeta().custom_metadata_map, path)
    _check_weights(path)

    def answer(images: Tensor) -> ModelOutputs:
        outputs = session.run(["logits", "probabilities"], {facts.input_name: images.numpy()})
        return ModelOutputs(*map(torch.from_numpy, outputs))

    return TrainedProduct(facts, answer)


def _check_weights(path: Path) -> None:
    """Raise if weights of an ONNX file are NaN, which a ReLU of its runtime may turn to zero.

    Without the package onnx, only what the model predicts is looked at.
    """
    if find_spec("onnx") is None:
        return
    import onnx

    for one in onnx.load(path).graph.initializer:
        numbers = onnx.numpy_helper.to_array(one)
        if numbers.dtype.kind == "f":
            check_finite({one.name: torch.from_numpy(numbers.copy())})


def _need(what: str, *names: str) -> None:
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise ProtofedError(
            f"{what} needs {' and '.join(missing)}, which is not installed\nto install: {COMMAND}"
        )


@contextmanager
def _exporters_own_warnings() -> Iterator[None]:
    """Suppress warnings of torch's exporter that users cannot act on.

    It uses a deprecated class of its own, and logs that torchvision, which is not used, is not
    installed.
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
    """Delete the exporter's notes: stack traces with local paths."""
    graph: Any = made.graph
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer, *graph.value_info):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for part in (graph, made):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


TOLERANCE = 1e-3  # of the largest score: other kernels sum in another order


class ExportFormat(NamedTuple):
    """A file format: its ending, and the functions that write and read it.

    `content` returns the bytes of the file; `read` loads a model from a path.
    """

    ending: str
    content: Callable[[InferenceModule, ModelMetadata], bytes]
    read: Callable[[Path, CodeAccess], TrainedProduct]


FORMATS = {
    "onnx": ExportFormat(".onnx", onnx_bytes, read_onnx),
    "safetensors": ExportFormat(".safetensors", safetensors_bytes, read_safetensors),
}


class OutputDifference(NamedTuple):
    """The largest differences between a file's predictions and the run's.

    `images` is the number of images compared.
    """

    scores: float
    probabilities: float
    images: int


def write_export(taken: LoadedModel, kind: ExportFormat, out: Path) -> OutputDifference:
    """Write a model to `out`, after checking that the file predicts as the run does.

    The file is written under a temporary name, read back and compared (see `compare_outputs`). It
    is moved to `out` only if it passes; otherwise it is deleted and an error raised.
    """
    beside = out.with_name(f".{os.getpid()}-{out.name}")  # the ending stays: it decides the format
    try:
        atomic_write(beside, kind.content(taken.portable, taken.product.facts))
        found = compare_outputs(kind.read(beside, ANY_CODE), taken)
        rename_over(beside, out)
    finally:
        beside.unlink(missing_ok=True)
    return found


def compare_outputs(product: TrainedProduct, taken: LoadedModel) -> OutputDifference:
    """Compare a model's predictions with the run's own, and return the largest differences.

    Raises if they exceed rounding (`TOLERANCE`) or are NaN. One image is predicted alone and the
    others together, as some formats fix the number of images by mistake.
    """
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
            f"the run's by up to {scores:.2g}; rounding explains at most {most:.2g}\n"
            "the file was removed",
            hint="another format may do: see <to>",
        )
    return OutputDifference(scores, probabilities, len(taken.images))


def _try_out(product: TrainedProduct, path: Path) -> None:
    """Predict a black image or a row of zeros, and raise if a file does not fit its metadata."""
    classes = len(product.facts.classes)
    try:
        found = product.answer(product.facts.blank(1))
        fits = {tuple(one.shape) for one in found if one is not None} == {(1, classes)}
    except Exception as fault:  # each runtime has its own classes
        if is_out_of_memory(fault):
            raise
        first = printable_text(str(fault).split("\n")[0], 200)
        raise ProtofedError(f"{path}: it cannot predict as its metadata says: {first}") from fault
    if not fits:
        raise ProtofedError(
            f"{path}: its output does not have {classes} classes, as its metadata says"
        )


def read_export(path: Path, access: CodeAccess = OUR_CODE) -> TrainedProduct:
    """Load an exported file, by its ending, and try it on a black image.

    Raises `ProtofedError` for unknown endings, missing or damaged files, and files whose output
    does not fit their metadata.
    """
    for kind in FORMATS.values():
        if path.name.lower().endswith(kind.ending):
            if not path.is_file():
                raise ProtofedError(f"{path} does not exist")
            product = kind.read(path, access)
            _try_out(product, path)
            return product
    endings = ", ".join(kind.ending for kind in FORMATS.values())
    raise ProtofedError(
        f"{path} is not a model: give a run folder, or a file written by `protofed export`"
        f" ({endings})"
    )
