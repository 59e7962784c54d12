"""What a model's file says of it, so that it can be used without the run it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protofed.core.errors import ProtofedError, printable_text
from protofed.core.jsonfile import parse_json
from protofed.experiment.spec import Experiment

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
