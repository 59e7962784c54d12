"""A folder of drawn images, and tiny runs on it that are made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from protofed.experiment.runner import run
from protofed.spec.spec_parser import parse_experiment
from tests.cli.conftest import _plain_surroundings as _plain_surroundings
from tests.cli.conftest import cli as cli
from tests.data.pictures import make

Played = Callable[..., Path]


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Domains photo and neg, classes bird and cat, 24 images."""
    return make(tmp_path_factory.mktemp("takeaway") / "our photos", each=6)


@pytest.fixture(scope="session")
def played(photos: Path) -> Played:
    """The run folder of a method on these photos, one quick round."""

    def play(method: str = "fedavg", **more: object) -> Path:
        folder = photos.parent / "runs" / "-".join([method, *map(str, more.values())])
        raw = {
            "method": {"name": method, **more},
            "net": "moon-cnn",
            "data": {"name": str(photos), "side": 16},
            "rounds": 1,
            "training": {"epochs": 1},
        }
        if method == "fedmd":
            raw |= {"partition": {"kind": "shares", "share": 0.5}, "public": {"samples": 4}}
        run(parse_experiment(raw), folder, workers=0)
        return folder

    return play
