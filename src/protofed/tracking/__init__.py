"""Trackers: runs in TensorBoard, Weights & Biases and MLflow while they make progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from protofed.errors import require_known_name
from protofed.experiment.run_followers import Tracker
from protofed.tracking.mlflow_tracker import MlflowTracker
from protofed.tracking.tensorboard_tracker import TensorBoardTracker
from protofed.tracking.wandb_tracker import WandbTracker

TRACKERS: dict[str, Callable[[Path | None], Tracker]] = {
    "tensorboard": lambda to: TensorBoardTracker(to or "tensorboard"),
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}


class TrackerChoice(NamedTuple):
    """Trackers by name, and the folder that they write to; None for each tracker's own.

    Names can be given to another process, trackers cannot.
    """

    names: tuple[str, ...] = ()
    to: Path | None = None

    def create(self) -> list[Tracker]:
        """The trackers; one whose package is not installed is an error that says what to do."""
        names = [require_known_name("tracker", name, TRACKERS) for name in self.names]
        return [TRACKERS[name](self.to) for name in dict.fromkeys(names)]
