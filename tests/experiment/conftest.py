"""A benchmark so small that whole runs take a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protofed.spec.experiment_spec import Experiment
from protofed.spec.spec_parser import parse_experiment

Make = Callable[..., Experiment]
# Training at the server, or on public images, of many steps a round; a few show as much.
QUICK = {
    "fedgh": {"server_epochs": 5},
    "fedlsa": {"server_epochs": 5},
    "fedmd": {"public_batch": 8},
    "fedtgp": {"server_epochs": 5},
}


def quick(name: str) -> dict[str, Any]:
    """A method's table for a test: its defaults, but for long server training."""
    return {"name": name, **QUICK.get(name, {})}


@pytest.fixture
def tiny() -> Make:
    """Experiments on a few images of digits-mini; keyword arguments replace sections."""

    def make(**sections: Any) -> Experiment:
        raw: dict[str, Any] = {
            "data": {"name": "digits-mini", "domains": ["optical", "print"], "side": 16},
            "partition": {"kind": "shares", "clients": 3, "samples": 9},
            "training": {"epochs": 1, "batch": 4},
            "net": "moon-mlp",
            "rounds": 3,
        }
        return parse_experiment({**raw, **sections})

    return make
