"""The engine of a run on this machine: one process, or several where the work is worth it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from protofed.engines.local import CPU, LocalEngine
from protofed.engines.workers import WorkerEngine, worker_count
from protofed.experiment.federation import Federation
from protofed.experiment.spec import Experiment

Workers: TypeAlias = int | Literal["auto"]
PATIENCE = 3.0  # seconds in one process before "auto" starts others: about what that costs


def create_local_engine(
    experiment: Experiment,
    federation: Federation,
    scratch: Path,
    workers: Workers,
    asked: int,
    tell: Callable[[str], None],
) -> LocalEngine[Any, Any]:
    """One process, or several if the machine can feed them; `asked` clients train in a round."""
    method, everyone, tests = experiment.method, federation.everyone, federation.tests
    device = torch.device(experiment.device)
    if device != CPU:
        return LocalEngine(method, everyone, tests, scratch=scratch, device=device)
    if workers == "auto":
        count, patience = worker_count(asked, experiment.threads), PATIENCE
    else:
        count, patience = workers, 0.0
    if not count:
        return LocalEngine(method, everyone, tests, scratch=scratch)
    return WorkerEngine(
        method,
        everyone,
        tests,
        workers=count,
        threads=experiment.threads,
        patience=patience,
        scratch=scratch,
        tell=tell,
    )
