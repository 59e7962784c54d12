"""A benchmark so small that whole runs take a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protofed.experiment.parse import experiment_from
from protofed.experiment.spec import Experiment

Make = Callable[..., Experiment]


@pytest.fixture
def tiny() -> Make:
    """Experiments on a few images of digits-mini; keyword arguments replace sections."""

    def make(**sections: Any) -> Experiment:
        raw: dict[str, Any] = {
            "data": {"name": "digits-mini", "domains": ["optical", "print"]},
            "partition": {"kind": "shares", "clients": 3, "samples": 9},
            "training": {"epochs": 1, "batch": 4},
            "net": "moon-mlp",
            "rounds": 3,
        }
        return experiment_from({**raw, **sections})

    return make
