"""Tiny finished runs for the figures that need trained models; each is made once a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core.model import NetOutput
from protofed.experiment.runner import run
from protofed.methods.fedavg import FedAvg
from protofed.spec.spec_parser import parse_experiment

DOMAINS = ["optical", "print"]


@dataclass(frozen=True)
class Contrary(FedAvg):
    """Predicts what its net likes least."""

    def class_scores(self, out: NetOutput) -> Tensor:
        return -super().class_scores(out)


def played(factory: pytest.TempPathFactory, method: str, **sections: Any) -> Path:
    """The folder of a run of three rounds on a few images, with all its checkpoints."""
    raw: dict[str, Any] = {
        "data": {"name": "digits-mini", "domains": DOMAINS, "side": 16},  # the least for a CNN
        "partition": {"kind": "shares", "clients": 4, "samples": 20},
        "training": {"epochs": 1, "batch": 4},
        "net": "moon-mlp",
        "method": {"name": method, **({"server_epochs": 5} if method == "fedlsa" else {})},
        "rounds": 3,
    }
    experiment = parse_experiment({**raw, **sections})
    folder = factory.getbasetemp() / f"{method}-{experiment.digest[:8]}"
    run(experiment, folder, keep=(1, 2, 3))  # a finished run is only read
    return folder
