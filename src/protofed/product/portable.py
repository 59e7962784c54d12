"""A model as one module from stored pixels to scores: what is exported, and what is asked."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from protofed.core.errors import ProtofedError, printable_text
from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.model import Model, NetOutput
from protofed.core.prototypes import Prototypes
from protofed.core.site import PixelTransform, Site


class ModelOutputs(NamedTuple):
    """What a model says of images."""

    logits: Tensor  # [N, C]
    chances: Tensor  # [N, C] their softmax
    nearest: Tensor | None = None  # [N, C] minus squared distance to each class's next prototype


Drawn = dict[str, Tensor]  # what a method drew to predict, by the meaning of the stream


@dataclass(frozen=True)
class ListeningSite(Site):
    """A site that remembers which model a method predicts with, and what it draws for that."""

    heard: list[Model] = field(default_factory=list)
    drawn: Drawn = field(default_factory=dict)

    def look(self, model: Model, x: Tensor, *more: object) -> NetOutput:
        self.heard.append(model)
        return super().forward_eval(model, x, *more)

    def normal(self, shape: tuple[int, ...], *key: int | str) -> Tensor:
        return self.drawn.setdefault(_meaning(key), super().randn(shape, *key))


@dataclass(frozen=True)
class FrozenSite(Site):
    """A site whose net holds its weights already, and whose draws are drawn.

    It looks with that net, whatever model it is told, so that a graph has no other weights.
    """

    drawn: Drawn = field(default_factory=dict)

    def look(self, model: Model, x: Tensor, *more: object) -> NetOutput:
        out: NetOutput = self.net(x, *more)
        return out

    def normal(self, shape: tuple[int, ...], *key: int | str) -> Tensor:
        return self.drawn[_meaning(key)]


def _meaning(key: tuple[int | str, ...]) -> str:
    return " ".join(map(str, key))


class InferenceModule(nn.Module):
    """Images [N, side, side, 3] uint8 to logits [N, C] and probabilities [N, C]."""

    def __init__(self, method: AnyMethod, site: FrozenSite, protos: Prototypes | None):
        super().__init__()
        self.net = site.net
        self.method, self.site, self.protos = method, site, protos
        self.eval()

    @property
    def pixels(self) -> PixelTransform:
        """How stored images become the net's input."""
        return self.site.pixels

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The whole way, as a graph that knows no protofed."""
        x = self.pixels.normalize(images)
        logits = self.method.predict(self.site, Message(), Model(), x)
        return logits, logits.softmax(1)

    @torch.no_grad()
    def answer(self, images: Tensor) -> ModelOutputs:
        """Scores, and the distances to prototypes where the method has some."""
        logits, chances = self(images)
        if self.protos is None:
            return ModelOutputs(logits, chances)
        z = self.net(self.pixels.normalize(images)).z
        return ModelOutputs(logits, chances, self.protos.nearest_scores(z, self.net.classes))


def record_inputs(
    method: AnyMethod, site: Site, inbox: Message, state: object, images: Tensor
) -> InferenceModule:
    """The model that a method predicts with at a site, caught while it does so."""
    listening = ListeningSite(**_fields(site))
    method.predict(listening, inbox, state, site.pixels.normalize(images))
    if len(listening.heard) != 1:
        raise ProtofedError(
            f"{method.info.label} asks {len(listening.heard)} models to predict; only the "
            "model of a method that asks one can be taken along"
        )
    return freeze_site(method, site, listening.heard[0], listening.drawn, inbox.protos)


def freeze_site(
    method: AnyMethod,
    site: Site,
    model: Model,
    drawn: Drawn,
    protos: Prototypes | None,
) -> InferenceModule:
    """A copy of a site's net with the weights put in, as a module."""
    net = copy.deepcopy(site.net)
    net.load_state_dict({**model.weights, **model.buffers}, strict=True)
    net.requires_grad_(False)
    _check_finite(
        {**net.state_dict(), **drawn, **({"prototypes": protos.vectors} if protos else {})}
    )
    return InferenceModule(method, FrozenSite(**{**_fields(site), "net": net}, drawn=drawn), protos)


def _check_finite(numbers: Mapping[str, Tensor]) -> None:
    """Refuse a model that could say nothing of any image."""
    for name, one in numbers.items():
        if not one.isfinite().all():
            raise ProtofedError(
                f"the model is of no use: {printable_text(name, 60)} holds NaN or infinity\n"
                f"its file was damaged, or its training diverged: export or train it anew"
            )


def _fields(site: Site) -> dict[str, Any]:
    return {f.name: getattr(site, f.name) for f in fields(Site)}
