"""What a model's file says of it, so that it can be used without the run it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protofed.core.errors import ProtofedError, printable
from protofed.experiment.spec import Experiment

INPUT = (
    "images: uint8 [N, side, side, 3], red, green, blue from 0 to 255, rows from the top; the whole"
    " image turned upright and resized bilinearly; scaling and normalisation happen inside"
)
OUTPUT = "logits: float32 [N, classes]; probabilities: their softmax, float32 [N, classes]"


class Facts(BaseModel):
    """Texts under these names lie in the file's own place for metadata, each as JSON."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    protofed: int = 1  # of this list; another number is another list
    classes: tuple[str, ...] = Field(min_length=1)
    side: int = Field(ge=1, le=4096)
    channels: int  # that the net sees; the file takes three in any case
    mean: tuple[float, ...]  # of red, green and blue between 0 and 1, subtracted inside the file
    std: tuple[float, ...]  # divided by, inside the file
    input: str = INPUT
    output: str = OUTPUT
    method: str
    net: str
    round: int  # after which the model is taken
    rounds: int
    client: int | None = None  # whose own model it is, in personal methods
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
    def read(cls, texts: Mapping[str, str], file: object) -> Facts:
        """The facts in a file's metadata; a stranger's file is refused."""
        if "protofed" not in texts:
            raise ProtofedError(
                f"{file} was not written by `protofed export`: its metadata does not name classes"
            )
        try:
            return cls.model_validate({name: json.loads(text) for name, text in texts.items()})
        except (ValidationError, ValueError, RecursionError) as fault:
            first = printable(str(fault).replace("\n", " "), 200)
            raise ProtofedError(f"{file}: its metadata is damaged: {first}") from fault


def portable_spec(experiment: Experiment) -> dict[str, Any]:
    """The spec without the path of a folder of images, which is nobody else's business."""
    spec = experiment.plain()
    if spec["data"]["name"] != experiment.data.label:
        spec["data"]["name"] = f"./{experiment.data.label}"
    return spec
