"""Federated learning under domain shift, with prototypes and semantic anchors.

The public names are imported on first use, so ``import protofed`` does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from protofed.runtime import import_times as import_times  # notes every import from here on

if TYPE_CHECKING:
    from protofed.analysis.compare_methods import compare as compare
    from protofed.analysis.comparison_table import ComparisonTable as ComparisonTable
    from protofed.core.method import Method as Method
    from protofed.core.training import Training as Training
    from protofed.errors import ProtofedError as ProtofedError
    from protofed.experiment.result import RunResult as RunResult
    from protofed.experiment.round_report import RoundReport as RoundReport
    from protofed.experiment.run_followers import Tracker as Tracker
    from protofed.experiment.runner import run as run
    from protofed.methods import METHODS as METHODS
    from protofed.spec.experiment_spec import Data as Data
    from protofed.spec.experiment_spec import Experiment as Experiment

__version__ = "0.1.0"

_HOMES = {
    "ComparisonTable": "protofed.analysis.comparison_table",
    "Data": "protofed.spec.experiment_spec",
    "Experiment": "protofed.spec.experiment_spec",
    "METHODS": "protofed.methods",
    "Method": "protofed.core.method",
    "ProtofedError": "protofed.errors",
    "RoundReport": "protofed.experiment.round_report",
    "RunResult": "protofed.experiment.result",
    "Tracker": "protofed.experiment.run_followers",
    "Training": "protofed.core.training",
    "compare": "protofed.analysis.compare_methods",
    "run": "protofed.experiment.runner",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'protofed' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
