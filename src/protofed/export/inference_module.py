"""A trained model as one module from stored pixels to scores, with what there is to know of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from protofed.core.message import Message
from protofed.core.method import AnyMethod, Method
from protofed.core.model import Model, Net
from protofed.core.prototypes import Prototypes
from protofed.core.rng import rng
from protofed.core.site import ClientId, PixelTransform, Site
from protofed.data.transforms import ImageTransform
from protofed.errors import ProtofedError, printable_text
from protofed.experiment.remote_experiment import is_remote
from protofed.experiment.result import read_evaluations, read_result
from protofed.experiment.run_folder import RunDir
from protofed.experiment.trained_run import TrainedRun, open_trained_model
from protofed.federation.environment import describe_environment
from protofed.runtime.json_files import parse_json
from protofed.spec.experiment_spec import Experiment

INPUT = (
    "images: uint8 [N, side, side, 3], red, green, blue from 0 to 255, rows from the top; the whole"
    " image turned upright and resized bilinearly; scaling and normalisation happen inside"
)
OUTPUT = "logits: float32 [N, classes]; probabilities: their softmax, float32 [N, classes]"

Shift = Annotated[float, Field(allow_inf_nan=False)]
Scale = Annotated[float, Field(ge=1e-6, allow_inf_nan=False)]


class ModelMetadata(BaseModel):
    """Texts under these names lie in the file's own place for metadata, each as JSON."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    protofed: Literal[1] = 1  # of this list; another number is another list
    classes: tuple[str, ...] = Field(min_length=1)
    side: int = Field(ge=1, le=4096)
    channels: int = Field(ge=1, le=3)  # that the net sees; the file takes three in any case
    # Of red, green and blue between 0 and 1: subtracted, and divided by, inside the file.
    mean: tuple[Shift, ...] = Field(min_length=3, max_length=3)
    std: tuple[Scale, ...] = Field(min_length=3, max_length=3)
    input: str = INPUT
    output: str = OUTPUT
    method: str
    net: str
    round: int  # after which the model is taken
    rounds: int
    client: int | None = Field(default=None, ge=0)  # whose own model it is, in personal methods
    domain: str = ""  # of that client
    digest: str  # of the spec: the name of the run
    scores: dict[str, Any]  # accuracy in % on the test images, with the rule it was taken by
    notices: tuple[str, ...] = ()
    made_with: dict[str, str]
    spec: dict[str, Any]

    @property
    def name(self) -> str:
        """The model in one line."""
        whose = "" if self.client is None else f", client {self.client} ({self.domain})"
        return f"{self.method} with {self.net}, round {self.round} of {self.rounds}{whose}"

    def texts(self) -> dict[str, str]:
        """For metadata that holds nothing but texts."""
        return {name: json.dumps(value) for name, value in self.model_dump(mode="json").items()}

    @classmethod
    def read(cls, texts: Mapping[str, str], file: object) -> ModelMetadata:
        """The facts in a file's metadata; a stranger's file is refused."""
        if "protofed" not in texts:
            raise ProtofedError(
                f"{file} was not written by `protofed export`: its metadata does not name classes"
            )
        given = {n: parse_json(t, f"{file}: its {printable_text(n, 60)}") for n, t in texts.items()}
        try:
            return cls.model_validate(given)
        except ValidationError as fault:
            first = fault.errors(include_url=False, include_input=False, include_context=False)[0]
            told = printable_text(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", 200)
            raise ProtofedError(f"{file}: its metadata is damaged: {told}") from fault


def portable_spec(experiment: Experiment) -> dict[str, Any]:
    """The spec without the path of a folder of images, which is nobody else's business."""
    spec = experiment.to_dict()
    if spec["data"]["name"] != experiment.data.label:
        spec["data"]["name"] = f"./{experiment.data.label}"
    return spec


class ModelOutputs(NamedTuple):
    """What a model says of images."""

    logits: Tensor  # [N, C]
    chances: Tensor  # [N, C] their softmax
    nearest: Tensor | None = None  # [N, C] minus squared distance to each class's next prototype


class InferenceModule(nn.Module):
    """Images [N, side, side, 3] uint8 to class scores [N, C] and probabilities [N, C].

    The net holds the weights that the method predicts with (`Method.inference_model`), and
    `inputs` what it gets beside the images (`Method.inference_inputs`).
    """

    def __init__(
        self,
        method: AnyMethod,
        net: Net,
        pixels: PixelTransform,
        inputs: Sequence[Tensor] = (),
        protos: Prototypes | None = None,
    ):
        super().__init__()
        self.method, self.net, self.pixels = method, net, pixels
        self.inputs, self.protos = tuple(inputs), protos
        self.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The whole way, as a graph that knows no protofed."""
        out = self.net(self.pixels.normalize(images), *self.inputs)
        logits = self.method.class_scores(out)
        return logits, logits.softmax(1)

    @torch.no_grad()
    def answer(self, images: Tensor) -> ModelOutputs:
        """Scores, and the distances to prototypes where the method has some."""
        logits, chances = self(images)
        if self.protos is None:
            return ModelOutputs(logits, chances)
        z = self.net(self.pixels.normalize(images)).z
        return ModelOutputs(logits, chances, self.protos.nearest_scores(z, self.net.classes))


def make_inference_module(
    method: AnyMethod, site: Site, received: Message, state: object
) -> InferenceModule:
    """The model that a method predicts with at a site, as a module of its own."""
    if type(method).predict is not Method.predict:
        raise ProtofedError(
            f"{method.info.label} has a predict() of its own, so its model cannot be exported",
            hint="override inference_model(), inference_inputs() and class_scores() instead",
        )
    model = method.inference_model(site, received, state)
    return load_weights(method, site, model, method.inference_inputs(site), received.protos)


def load_weights(
    method: AnyMethod,
    site: Site,
    model: Model,
    inputs: Sequence[Tensor],
    protos: Prototypes | None,
) -> InferenceModule:
    """A copy of a site's net with a model's weights, as a module."""
    net = copy.deepcopy(site.net)
    net.load_state_dict({**model.weights, **model.buffers}, strict=True)
    net.requires_grad_(False)
    table = {"prototypes": protos.vectors} if protos else {}
    more = {f"input {number}": part for number, part in enumerate(inputs)}
    _check_finite({**net.state_dict(), **more, **table})
    return InferenceModule(method, net, site.pixels, inputs, protos)


def _check_finite(numbers: Mapping[str, Tensor]) -> None:
    """Refuse a model that could say nothing of any image."""
    for name, one in numbers.items():
        if not one.isfinite().all():
            raise ProtofedError(
                f"the model is of no use: {printable_text(name, 60)} holds NaN or infinity\n"
                f"its file was damaged, or its training diverged: export or train it anew"
            )


CHECKED = 64  # images that a written file is checked on, from all domains alike
DRAWN = "images of noise (the real ones are at the sites)"


class TrainedProduct(NamedTuple):
    """A model that can be asked, wherever it lies."""

    facts: ModelMetadata
    answer: Callable[[Tensor], ModelOutputs]  # images [N, side, side, 3] uint8
    portable: InferenceModule | None = None  # where it can be looked into, for heat maps


class LoadedModel(NamedTuple):
    """A model of a run, and images with what the run itself says of them."""

    product: TrainedProduct
    portable: InferenceModule
    images: Tensor  # [N, side, side, 3] uint8
    logits: Tensor  # [N, C]
    kind: str = "test images"  # what these images are


def load_trained_model(folder: Path, client: ClientId | None = None) -> LoadedModel:
    """The newest model of a run; of personal methods, a client's own."""
    opened = open_trained_model(folder)
    away = is_remote(opened.experiment)
    _check_client(opened, client, away)
    images = _drawn(opened.experiment.data.side) if away else _real_images(opened)
    site, state = opened.speaker(client)
    received = opened.method.publish(opened.server)
    portable = make_inference_module(opened.method, site, received, state)
    with torch.no_grad():
        logits = opened.method.predict(site, received, state, site.pixels.normalize(images))
    facts = _facts(opened, RunDir(folder), client)
    product = TrainedProduct(facts, portable.answer, portable)
    return LoadedModel(product, portable, images, logits, *([DRAWN] if away else []))


def _check_client(opened: TrainedRun, client: ClientId | None, away: bool) -> None:
    """A client must be named where each has a model, and only there; its model must be here."""
    sites, label = opened.federation.sites, opened.method.info.label
    if not opened.method.personal:
        if client is not None:
            raise ProtofedError(f"{label} has one model for all clients", hint="leave <client> out")
        return
    if away:
        raise ProtofedError(
            f"{label} leaves each site with a model of its own, and these models never left the "
            f"sites: there is none here to take along"
        )
    if client not in sites:
        there = ", ".join(f"{number} ({site.domain})" for number, site in sorted(sites.items()))
        asked = "" if client is None else f", and there is no client {client}"
        raise ProtofedError(
            f"{label} leaves each client with a model of its own{asked}\nclients: {there}",
            hint="choose one with <client>",
        )


def _real_images(opened: TrainedRun) -> Tensor:
    """Test images of every domain, in colour."""
    tests = [test.images for test in opened.federation.tests.values() if len(test)]
    if not tests:
        raise ProtofedError("this run has no test images, on which its model could be checked")
    each = -(-CHECKED // len(tests))
    return torch.cat([images[:each].expand(-1, -1, -1, 3) for images in tests])


def _drawn(side: int) -> Tensor:
    """Noise, where there are no images: a file must answer as the run on any pixels."""
    chance = rng("product", "drawn")
    return torch.randint(256, (CHECKED, side, side, 3), dtype=torch.uint8, generator=chance)


def _facts(opened: TrainedRun, folder: RunDir, client: ClientId | None) -> ModelMetadata:
    experiment, site = opened.experiment, opened.federation.server
    pixels = cast(ImageTransform, site.pixels)  # what every federation is assembled with
    home = "" if client is None else opened.federation.sites[client].domain
    net = experiment.nets[0 if client is None else client % len(experiment.nets)]
    versions = describe_environment()
    return ModelMetadata(
        classes=opened.federation.benchmark.classes,
        side=experiment.data.side,
        channels=pixels.channels,
        mean=pixels.mean,
        std=pixels.std,
        method=opened.method.info.label,
        net=net,
        round=opened.round,
        rounds=experiment.rounds,
        client=client,
        domain=home,
        digest=experiment.digest,
        scores=_scores(folder, opened.round, client),
        notices=tuple(opened.federation.notices),
        made_with={name: versions[name] for name in ("protofed", "torch", "pillow")},
        spec=portable_spec(experiment),
    )


def _scores(folder: RunDir, number: int, client: ClientId | None) -> dict[str, Any]:
    """Accuracy on the test images: a client's own, the finished run's, or the newest round's."""
    newest = next(one for one in read_evaluations(folder) if one.round == number)
    if client is not None and newest.clients:
        return {"last": {"rule": f"round {number}", "domains": newest.clients[str(client)]}}
    if not folder.done.exists():
        return {"last": {"rule": f"round {number}", **newest.scores.to_dict()}}
    told = read_result(folder).to_dict()
    return {name: told[name] for name in ("last", "last_five")}
