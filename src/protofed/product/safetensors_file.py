"""safetensors: the weights by name, for Python; the net is built anew from the spec inside."""

from __future__ import annotations

from pathlib import Path

import safetensors
from safetensors.torch import save
from torch import Tensor

from protofed.core.errors import ProtofedError, printable_text
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.site import SERVER, Site
from protofed.data.transforms import ImageTransform
from protofed.experiment.federation import NOTHING, build_nets
from protofed.experiment.parse import spec_from_dict
from protofed.product.facts import ModelMetadata
from protofed.product.portable import InferenceModule, freeze_site
from protofed.product.source import TrainedProduct

PROTOTYPES, DRAWN = "prototypes.", "drawn."  # before names that are no weights
TABLE = ("vectors", "labels", "counts")


def safetensors_bytes(portable: InferenceModule, facts: ModelMetadata) -> bytes:
    """The file's bytes: weights and buffers as the net names them, then prototypes."""
    tensors = dict(portable.net.state_dict())
    if portable.protos is not None:
        tensors |= {f"{PROTOTYPES}{name}": getattr(portable.protos, name) for name in TABLE}
    tensors |= {f"{DRAWN}{meaning}": one for meaning, one in portable.site.drawn.items()}
    return save({name: one.contiguous().clone() for name, one in tensors.items()}, facts.texts())


def read_safetensors(path: Path) -> TrainedProduct:
    """The model in a safetensors file."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            facts = ModelMetadata.read(file.metadata() or {}, path)
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except (safetensors.SafetensorError, OSError) as fault:
        raise ProtofedError(f"{path} cannot be read as safetensors: {fault}") from fault
    try:
        portable = _rebuilt(facts, tensors, path)
    except (RuntimeError, LookupError, TypeError, ValueError) as fault:  # what does not fit the net
        first = printable_text(str(fault).split("\n")[0], 200)
        raise ProtofedError(f"{path}: its weights do not fit its spec: {first}") from fault
    return TrainedProduct(facts, portable.answer, portable)


def _rebuilt(facts: ModelMetadata, tensors: dict[str, Tensor], path: Path) -> InferenceModule:
    experiment = spec_from_dict(facts.spec, f"{path}: the spec inside")
    seen = experiment.data.side, experiment.data.channels
    if seen != (facts.side, facts.channels):
        raise ValueError(f"images of side {facts.side} with {facts.channels} channels")
    nets = build_nets(experiment, len(facts.classes))
    net = nets[(facts.client or 0) % len(nets)]
    site = Site(
        id=SERVER,
        domain=facts.domain,
        classes=len(facts.classes),
        net=net,
        pixels=ImageTransform(mean=facts.mean, std=facts.std, channels=facts.channels),
        train=NOTHING,
        training=experiment.training,
        seed=experiment.seed,
        sizes={},
    )
    others = (PROTOTYPES, DRAWN)
    weights = {name: one for name, one in tensors.items() if not name.startswith(others)}
    drawn = {n.removeprefix(DRAWN): one for n, one in tensors.items() if n.startswith(DRAWN)}
    return freeze_site(experiment.method, site, Model(weights), drawn, _protos(tensors))


def _protos(tensors: dict[str, Tensor]) -> Prototypes | None:
    found = [tensors[PROTOTYPES + name] for name in TABLE if PROTOTYPES + name in tensors]
    return Prototypes(*found) if found else None
