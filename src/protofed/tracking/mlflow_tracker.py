"""Runs in MLflow (extra ``mlflow``)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protofed.experiment.result import RunResult
from protofed.experiment.round_report import RoundReport, read_reports
from protofed.runtime.atomic_io import file_lock
from protofed.spec.experiment_spec import Experiment
from protofed.tracking.log_identity import (
    keep_log_id,
    known_log_id,
    log_name,
    require_package,
)
from protofed.tracking.round_scalars import round_scalars

MOST_AT_ONCE = 1000  # metrics in one request; MLflow takes no more
MOST_PARAMETERS = 100
FORBIDDEN = re.compile(r"[^/\w.\- :]")  # in MLflow's names


class MlflowTracker:
    """Logs a run to MLflow, in the MLflow experiment that you name; the round is the step.

    The store is the database file ``to/mlflow.db``; without `to` it is what
    ``MLFLOW_TRACKING_URI`` names, or ``mlflow.db`` here, where ``mlflow ui`` looks. A resumed run
    continues its MLflow run. Needs the extra ``mlflow``.
    """

    def __init__(self, to: Path | str | None = None, project: str = "protofed"):
        self.to, self.project = None if to is None else Path(to), project
        self._client: Any = None
        self._run = ""
        self._logged: set[tuple[str, int]] = set()  # before this start: name and step
        require_package("mlflow", "MLflow", "mlflow")

    @property
    def address(self) -> str:
        """The tracking URI of the store."""
        named = os.environ.get("MLFLOW_TRACKING_URI", "")
        if self.to is None and named:
            return named
        return f"sqlite:///{((self.to or Path()) / 'mlflow.db').resolve()}"

    def start(self, experiment: Experiment, folder: Path) -> None:
        from mlflow import MlflowClient

        with self._alone():  # making the tables of a new database at the same time would fail
            self._client = MlflowClient(tracking_uri=self.address)
            found = self._client.get_experiment_by_name(self.project)
            group = found.experiment_id if found else self._client.create_experiment(self.project)
        self._logged = set()
        known = known_log_id(folder, "mlflow")
        if known:
            self._continue(known)
        else:
            self._run = self._client.create_run(group, run_name=log_name(folder)).info.run_id
            keep_log_id(folder, "mlflow", self._run)
            self._describe(experiment)
        for report in read_reports(folder):
            self.round(report)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes of a grid from the same step, where the store is a file."""
        if not self.address.startswith("sqlite:///"):
            yield
            return
        place = Path(self.address.removeprefix("sqlite:///")).parent
        place.mkdir(parents=True, exist_ok=True)
        with file_lock(place / "mlflow.lock"):
            yield

    def _continue(self, run: str) -> None:
        """Go on with a run; what it has is not logged again."""
        self._run = run
        self._client.update_run(run, status="RUNNING")
        for name in self._client.get_run(run).data.metrics:
            steps = self._client.get_metric_history(run, name)
            self._logged |= {(name, point.step) for point in steps}

    def _describe(self, experiment: Experiment) -> None:
        from mlflow.entities import Param

        fields = _flat(experiment.to_dict())
        fields["digest"] = experiment.digest
        params = [Param(_name(field), value) for field, value in fields.items()]
        for first in range(0, len(params), MOST_PARAMETERS):
            chosen = params[first : first + MOST_PARAMETERS]
            self._client.log_batch(self._run, params=chosen)

    def round(self, report: RoundReport) -> None:
        from mlflow.entities import Metric

        now, step = int(time.time() * 1000), report.round
        values = {_name(name): value for name, value in round_scalars(report).items()}
        points = [
            Metric(name, value, now, step)
            for name, value in values.items()
            if (name, step) not in self._logged
        ]
        for first in range(0, len(points), MOST_AT_ONCE):
            self._client.log_batch(self._run, metrics=points[first : first + MOST_AT_ONCE])

    def end(self, result: RunResult | None) -> None:
        self._client.set_terminated(self._run, "KILLED" if result is None else "FINISHED")


def _name(name: str) -> str:
    """A name as MLflow takes it; domains may have any."""
    return FORBIDDEN.sub("_", name)


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Nested fields as ``training.lr``, with their values as text."""
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = str(value)
    return found
