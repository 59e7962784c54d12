"""A trained model as one module from stored pixels to scores, with its metadata."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn

from protofed.core.freezing import whole_net
from protofed.core.message import Message
from protofed.core.method import AnyMethod, Method
from protofed.core.model import ArrayShape, ImageShape, InputShape, Model, Net
from protofed.core.prototypes import Prototypes
from protofed.core.rng import rng
from protofed.core.site import ClientId, PixelTransform, Site
from protofed.data.transforms import ImageTransform, RowTransform
from protofed.errors import ProtofedError, printable_text
from protofed.experiment.result import read_evaluations, read_result
from protofed.experiment.run_folder import RunDir
from protofed.experiment.trained_run import TrainedRun, open_trained_model
from protofed.federation.build import describe_environment
from protofed.federation.collapse import collapse_notices
from protofed.federation.notices import Notice
from protofed.runtime.json_files import parse_json
from protofed.spec.experiment_spec import Experiment, SiteData

INPUT = (
    "images: uint8 [N, side, side, 3], red, green, blue from 0 to 255, rows from the top; the whole"
    " image turned upright and resized bilinearly; scaling and normalisation happen inside"
)
ROW_INPUT = (
    "rows: float32 [N, *shape], the numbers as they were given to protofed; they are standardised"
    " by mean and std inside"
)
OUTPUT = "logits: float32 [N, classes]; probabilities: their softmax, float32 [N, classes]"

Shift = Annotated[float, Field(allow_inf_nan=False)]
Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LEAST_SCALE = 1e-6  # of a colour
MOST_VALUES = 2**24  # of one row: more numbers than any camera has pixels


class ModelMetadata(BaseModel):
    """What an exported file says about its model: classes, input, normalisation, scores, spec.

    Each field is stored as JSON under its name, in the place that the file format has for metadata.
    Unknown names are ignored when reading; values out of range are refused.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    protofed: Literal[1] = 1  # version of this list
    classes: tuple[str, ...] = Field(min_length=1)
    side: int | None = Field(default=None, ge=1, le=4096)  # of images
    channels: int | None = Field(
        default=None, ge=1, le=3
    )  # of the net's input; the file takes three in any case
    shape: tuple[int, ...] | None = None  # of one row, where the inputs are no images
    # Of red, green and blue between 0 and 1, or of a row: subtracted, and divided by, inside.
    mean: tuple[Shift, ...]
    std: tuple[Scale, ...]
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

    @model_validator(mode="after")
    def _images_or_rows(self) -> Self:
        if self.shape is None:
            if self.side is None or self.channels is None:
                raise ValueError("side and channels of images, or the shape of rows, are needed")
            widths = {3}
            if self.std and min(self.std) < LEAST_SCALE:
                raise ValueError(f"std must be {LEAST_SCALE} at least")
        else:
            if not self.shape or min(self.shape) < 1 or math.prod(self.shape) > MOST_VALUES:
                raise ValueError("shape is no shape of a row")
            widths = {1, self.shape[-1]}
        if len(self.mean) not in widths or len(self.std) != len(self.mean):
            raise ValueError(f"mean and std need {' or '.join(map(str, sorted(widths)))} numbers")
        return self

    @property
    def input_name(self) -> str:
        """What the input is called: "images" or "rows"."""
        return "images" if self.shape is None else "rows"

    @property
    def input_shape(self) -> InputShape:
        """The shape of one input of the net."""
        if self.shape is not None:
            return ArrayShape(self.shape)
        return ImageShape(self.channels or 0, self.side or 0)

    def transform(self) -> PixelTransform:
        """What happens to inputs inside the file, before the net."""
        if self.shape is not None:
            return RowTransform(torch.tensor(self.mean), torch.tensor(self.std))
        return ImageTransform(mean=self.mean, std=self.std, channels=self.channels or 0)

    def blank(self, count: int) -> Tensor:
        """Inputs of zeros: black images [count, side, side, 3], or rows [count, *shape]."""
        if self.shape is not None:
            return torch.zeros(count, *self.shape)
        return torch.zeros(count, self.side or 0, self.side or 0, 3, dtype=torch.uint8)

    @property
    def name(self) -> str:
        """Method, net and round in one line."""
        owner = "" if self.client is None else f", client {self.client} ({self.domain})"
        return f"{self.method} with {self.net}, round {self.round} of {self.rounds}{owner}"

    def texts(self) -> dict[str, str]:
        """The fields as JSON texts by name, for metadata that holds only text."""
        plain = self.model_dump(mode="json")
        unused = [name for name in ("side", "channels", "shape") if plain[name] is None]
        return {name: json.dumps(value) for name, value in plain.items() if name not in unused}

    @classmethod
    def read(cls, texts: Mapping[str, str], file: object) -> ModelMetadata:
        """Parse the metadata of a file; raises if it is damaged or not from protofed."""
        if "protofed" not in texts:
            raise ProtofedError(
                f"{file} was not written by `protofed export`: its metadata names no classes"
            )
        given = {n: parse_json(t, f"{file}: its {printable_text(n, 60)}") for n, t in texts.items()}
        try:
            return cls.model_validate(given)
        except ValidationError as fault:
            first = fault.errors(include_url=False, include_input=False, include_context=False)[0]
            first_fault = printable_text(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", 200)
            raise ProtofedError(f"{file}: its metadata is damaged: {first_fault}") from fault


def portable_spec(experiment: Experiment) -> dict[str, Any]:
    """The spec of an experiment without the paths of images, arrays, and a file of weights.

    Only the last part of a path stays, so an exported file does not reveal the user's folders.
    """
    spec = experiment.to_dict()
    data = experiment.data
    if not isinstance(data, SiteData) and data.name != data.label:
        spec["data"]["name"] = f"./{data.label}"
    if experiment.pretrained:
        spec["pretrained"] = experiment.pretrained_label
    return spec


class ModelOutputs(NamedTuple):
    """The predictions of a model for N images and C classes.

    `nearest` is None for models without prototypes, and for formats that do not store them.
    """

    logits: Tensor  # [N, C]
    chances: Tensor  # [N, C] their softmax
    nearest: Tensor | None = None  # [N, C] minus squared distance to each class's next prototype


class InferenceModule(nn.Module):
    """A net with its method's prediction, as one module from pixels to probabilities.

    Takes images [N, side, side, 3] uint8, or rows [N, *shape] float32, and returns class scores and
    probabilities, both [N, C].
    Normalisation is included, so that an exported file takes plain pixels. The net holds the
    weights that the method predicts with (`Method.inference_model`), and `inputs` what it gets
    beside the images (`Method.inference_inputs`).
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
        """Images to class scores and probabilities, as one graph that can be exported."""
        out = self.net(self.pixels.normalize(images), *self.inputs)
        logits = self.method.class_scores(out)
        return logits, logits.softmax(1)

    @torch.no_grad()
    def answer(self, images: Tensor) -> ModelOutputs:
        """Predict images without gradients; includes distances to prototypes if there are any."""
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
    """A copy of a site's net with a model's weights, and with its frozen parts, as a module."""
    trained = copy.deepcopy(site.net)
    trained.load_state_dict({**model.weights, **model.buffers}, strict=True)
    net = whole_net(trained)
    net.requires_grad_(False)
    net.precision = "float32"  # for every machine, whatever it was trained in
    table = {"prototypes": protos.vectors} if protos else {}
    more = {f"input {number}": part for number, part in enumerate(inputs)}
    check_finite({**net.state_dict(), **more, **table})
    return InferenceModule(method, net, site.pixels, inputs, protos)


def check_finite(numbers: Mapping[str, Tensor]) -> None:
    """Raise for a model with NaN or infinity."""
    for name, one in numbers.items():
        if not one.isfinite().all():
            raise ProtofedError(
                f"the model is unusable: {printable_text(name, 60)} holds NaN or infinity\n"
                f"its file is damaged or its training diverged: export or train it again"
            )


CHECKED = 64  # images that an export is checked on, equally many per domain
DRAWN = "images of noise (the real ones are at the sites)"


class TrainedProduct(NamedTuple):
    """A model that can predict, from a run folder or from an exported file.

    `answer` maps images [N, side, side, 3] uint8, or rows, to `ModelOutputs`. `portable` is None
    for formats whose layers are not accessible; heat maps need it.
    """

    facts: ModelMetadata
    answer: Callable[[Tensor], ModelOutputs]  # images [N, side, side, 3] uint8; or rows
    portable: InferenceModule | None = None  # None where layers are not accessible


class LoadedModel(NamedTuple):
    """The model of a run, and what an export of it is checked against.

    `images` are inputs and `logits` the run's own predictions for them; `kind` describes the
    images.
    """

    product: TrainedProduct
    portable: InferenceModule
    images: Tensor  # [N, side, side, 3] uint8, or rows
    logits: Tensor  # [N, C]
    kind: str = "test images"  # what these images are
    collapsed: tuple[Notice, ...] = ()  # what is wrong with the model


def load_trained_model(
    folder: Path, client: ClientId | None = None, accept_stale: bool = False
) -> LoadedModel:
    """Load the newest model of a run; of personal methods, that of `client`.

    The images of the result are test images of all domains. For a run across machines, whose images
    are at its sites, they are random noise. Raises if a client is missing or superfluous, and,
    unless `accept_stale`, if the code of today makes another model of the run's weights.
    """
    opened = open_trained_model(folder, accept_stale=accept_stale)
    data = opened.experiment.data
    away = isinstance(data, SiteData)
    _check_client(opened, client, away)
    images = _drawn(data.side) if isinstance(data, SiteData) else _real_images(opened)
    site, state = opened.speaker(client)
    received = opened.method.publish(opened.server)
    portable = make_inference_module(opened.method, site, received, state)
    site.net.precision = "float32"  # as in the exported file
    with torch.no_grad():
        logits = opened.method.predict(site, received, state, site.pixels.normalize(images))
    facts = _facts(opened, RunDir(folder), client)
    product = TrainedProduct(facts, portable.answer, portable)
    kind = DRAWN if away else f"test {facts.input_name}"
    collapsed = tuple(_collapsed(opened, RunDir(folder)))
    return LoadedModel(product, portable, images, logits, kind, collapsed)


def _collapsed(opened: TrainedRun, folder: RunDir) -> list[Notice]:
    """What the scores on record say of the model that is opened."""
    history = [one for one in read_evaluations(folder) if one.round <= opened.round]
    return collapse_notices(history)


def _check_client(opened: TrainedRun, client: ClientId | None, away: bool) -> None:
    """Raise unless a client is named exactly where each has its own model, and that is here."""
    sites, label = opened.federation.sites, opened.method.info.label
    if not opened.method.personal:
        if client is not None:
            raise ProtofedError(f"{label} has one model for all clients", hint="leave <client> out")
        return
    if away:
        raise ProtofedError(
            f"{label} leaves each site with a model of its own; these models never left the "
            f"sites, so there is none here to export"
        )
    if client not in sites:
        there = ", ".join(f"{number} ({site.domain})" for number, site in sorted(sites.items()))
        asked = "" if client is None else f", and there is no client {client}"
        raise ProtofedError(
            f"{label} leaves each client with a model of its own{asked}\nclients: {there}",
            hint="choose one with <client>",
        )


def _real_images(opened: TrainedRun) -> Tensor:
    """Test images of every domain, in colour; or test rows."""
    tests = [test.images for test in opened.federation.tests.values() if len(test)]
    if not tests:
        raise ProtofedError("this run has no test images to check its model on")
    each = -(-CHECKED // len(tests))
    some = [images[:each] for images in tests]
    rows = some[0].is_floating_point()
    return torch.cat(some if rows else [images.expand(-1, -1, -1, 3) for images in some])


def _drawn(side: int) -> Tensor:
    """Random noise, where there are no images: file and run must agree on any pixels."""
    chance = rng("product", "drawn")
    return torch.randint(256, (CHECKED, side, side, 3), dtype=torch.uint8, generator=chance)


def _facts(opened: TrainedRun, folder: RunDir, client: ClientId | None) -> ModelMetadata:
    experiment = opened.experiment
    home = "" if client is None else opened.federation.sites[client].domain
    net = experiment.net_labels[0 if client is None else client % len(experiment.nets)]
    versions = describe_environment()
    return ModelMetadata(
        classes=opened.federation.benchmark.classes,
        **_input_facts(experiment.data.input_shape, opened.federation.server.pixels),
        method=opened.method.info.label,
        net=net,
        round=opened.round,
        rounds=experiment.rounds,
        client=client,
        domain=home,
        digest=experiment.digest,
        scores=_scores(folder, opened.round, client),
        notices=tuple(map(str, [*opened.federation.notices, *_collapsed(opened, folder)])),
        made_with={name: versions[name] for name in ("protofed", "torch", "pillow")},
        spec=portable_spec(experiment),
    )


def _input_facts(shape: InputShape, pixels: PixelTransform) -> dict[str, Any]:
    """The fields that say what the model takes, and how it is normalised."""
    if isinstance(pixels, RowTransform):
        numbers = {"mean": pixels.mean.tolist(), "std": pixels.std.tolist()}
        return {"shape": shape.sizes, "input": ROW_INPUT, **numbers}
    assert isinstance(pixels, ImageTransform)  # what every federation of images is built with
    side = shape.sizes[-1]
    return {"side": side, "channels": pixels.channels, "mean": pixels.mean, "std": pixels.std}


def _scores(folder: RunDir, number: int, client: ClientId | None) -> dict[str, Any]:
    """Accuracy on the test images: a client's own, the finished run's, or the newest round's."""
    newest = next(one for one in read_evaluations(folder) if one.round == number)
    if client is not None and newest.clients:
        return {"last": {"rule": f"round {number}", "domains": newest.clients[str(client)]}}
    if not folder.done.exists():
        return {"last": {"rule": f"round {number}", **newest.scores.to_dict()}}
    result = read_result(folder).to_dict()
    return {name: result[name] for name in ("last", "last_five")}
