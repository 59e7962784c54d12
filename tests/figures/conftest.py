"""Tiny finished runs whose scores differ; each is made once a session."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from protofed.experiment.runner import run
from protofed.spec.spec_parser import parse_experiment
from tests.figures.played import played

Made = Callable[..., Path]
ROUNDS = 6  # one more than the rule of the last five looks at


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Run a method with some fields, on so many domains; keyword arguments replace sections."""
    home = tmp_path_factory.mktemp("figures")

    def make(method: str = "fedavg", fields: dict[str, Any] | None = None, **sections: Any) -> Path:
        raw: dict[str, Any] = {
            "data": {"name": "digits-mini", "domains": ["optical", "print"], "side": 8},
            "partition": {"kind": "shares", "clients": 3, "samples": 20},
            "training": {"epochs": 1, "batch": 10, "lr": 0.05},
            "net": "moon-mlp",
            "method": {"name": method, **(fields or {})},
            "rounds": ROUNDS,
        }
        experiment = parse_experiment({**raw, **sections})
        folder = home / f"{method}-{experiment.digest[:8]}"
        run(experiment, folder)  # a finished run is only read
        return folder

    return make


def told(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's scores."""
    return [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]


def mean_of_last(folder: Path, count: int = 5, domain: str | None = None) -> float:
    """The mean accuracy over the last evaluations, computed from the file alone."""
    lines = told(folder)[-count:]
    found: list[float] = []
    for line in lines:
        scores = line["domains"]
        found.append(scores[domain] if domain else sum(scores.values()) / len(scores))
    return sum(found) / len(found)


def cells(axes: Axes) -> NDArray[np.float64]:
    """The numbers behind the image in some axes; NaN where there is none."""
    (image,) = axes.images
    found = image.get_array()
    assert found is not None
    return np.ma.masked_array(found, dtype=np.float64).filled(np.nan)


def xs(line: Line2D) -> list[float]:
    """Where the points of a line lie."""
    return [float(x) for x in np.asarray(line.get_xdata())]


def ys(line: Line2D) -> list[float]:
    """The values of a line."""
    return [float(y) for y in np.asarray(line.get_ydata())]


@pytest.fixture
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory, "fedavg")
