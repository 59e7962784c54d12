"""Read run folders for a page: finished or not, with distinct labels, checked for comparability."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from protofed.analysis.comparison_table import records_by_metric
from protofed.analysis.finished_runs import (
    RunRecord,
    check_comparable,
    label_experiments,
    read_record,
)
from protofed.errors import ProtofedError
from protofed.experiment import run_records
from protofed.experiment.result import RunResult, read_evaluations
from protofed.experiment.run_folder import RunDir
from protofed.experiment.run_records import Holdings, World, load_spec
from protofed.federation.evaluation import DomainScores, Evaluation
from protofed.federation.score_metrics import MetricName
from protofed.runtime.atomic_io import file_sha256
from protofed.spec.experiment_spec import Experiment, flatten_spec

FILES = ("spec.json", "env.json", "partition.json", "rounds.jsonl", "scores.jsonl", "done")


class ReportRun(NamedTuple):
    """One run with everything that the page shows of it.

    A run that has not finished has no `record`; one that has just begun has no parts, environment
    or rounds either.
    """

    folder: Path
    label: str
    experiment: Experiment
    evaluations: list[Evaluation]
    rounds: list[dict[str, Any]]
    parts: Holdings  # the images of each client; empty before the run has begun
    world: World  # versions, and the data's fingerprints; empty before the run has begun
    record: RunRecord | None  # of a finished run
    metric: MetricName = "accuracy"  # what its scores are

    @property
    def seed(self) -> int:
        """The seed of its random streams."""
        return self.experiment.seed

    @property
    def at(self) -> int:
        """The number of its last finished round; 0 before the first."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    @property
    def name(self) -> str:
        """Label and seed."""
        return f"{self.label}, seed {self.seed}"


def files_stamp(folders: Sequence[Path]) -> tuple[object, ...]:
    """A value that changes whenever a file of these runs changes.

    Compares sizes and times of the files that a page is made from; missing files are fine.
    """
    return tuple(_changed(folder / name) for folder in folders for name in FILES)


def _changed(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def read_runs(folders: Sequence[Path]) -> list[ReportRun]:
    """Read all runs, in the order given; a folder that is named twice is read once.

    Runs that cannot be compared in one table raise, also if they have not finished. A method with
    several settings gets a label for each: ``FPL (tau=0.5)``.
    """
    distinct = list({folder.resolve(): folder for folder in folders}.values())
    experiments = [_experiment(folder) for folder in distinct]
    _check_different(distinct, experiments)
    labels = label_experiments(experiments)
    found = [_read(*one) for one in zip(distinct, experiments, labels, strict=True)]
    begun = [run for run in found if run.world and run.parts]
    if begun:
        check_comparable([run.record or _unfinished(run) for run in begun])
    _same_domains([run for run in found if run.evaluations])
    return found


def runs_by_metric(runs: Sequence[ReportRun], metric: MetricName) -> list[ReportRun]:
    """The runs with another score in place of accuracy, in tables and curves."""
    if metric == "accuracy":
        return [*runs]
    shown = []
    for run in runs:
        scores = [replace(one, scores=one.metric(metric)) for one in run.evaluations]
        (record,) = records_by_metric([run.record], metric) if run.record else (None,)
        shown.append(run._replace(evaluations=scores, record=record, metric=metric))
    return shown


def _check_different(folders: Sequence[Path], experiments: Sequence[Experiment]) -> None:
    """Two folders with one experiment would be one row with a seed twice."""
    seen: dict[str, Path] = {}
    for folder, experiment in zip(folders, experiments, strict=True):
        twin = seen.setdefault(experiment.digest, folder)
        if twin != folder:
            raise ProtofedError(f"{twin} and {folder} hold the same run: give one of them")


def check_readable(folder: Path) -> None:
    """Raise if a run folder cannot be part of a page; `read_runs` checks what they have in common.

    An unfinished run is fine.
    """
    _read(folder, _experiment(folder), "")


def _experiment(folder: Path) -> Experiment:
    if not (folder / "spec.json").exists():
        raise ProtofedError(f"{folder} is not a run folder: give run folders, for example runs/*")
    return load_spec(folder)


def spec_texts(spec: Mapping[str, object]) -> dict[str, str]:
    """The values of a spec by dotted path, as text for tables: ``{"training.lr": "0.01"}``.

    Values other than texts are shown as JSON.
    """
    return {
        path: value if isinstance(value, str) else json.dumps(value)
        for path, value in flatten_spec(spec).items()
    }


def _read(folder: Path, experiment: Experiment, label: str) -> ReportRun:
    place = RunDir(folder)
    parts = folder / "partition.json"
    return ReportRun(
        folder=folder,
        label=label,
        experiment=experiment,
        evaluations=read_evaluations(place),
        rounds=place.lines(place.rounds),
        parts=run_records.read_record_file(run_records.HOLDINGS, parts) if parts.exists() else [],
        world=run_records.read_world(folder),
        record=read_record(folder, label) if place.done.exists() else None,
    )


def _unfinished(run: ReportRun) -> RunRecord:
    """An unfinished run as a record without scores, to check its spec like the others."""
    nothing = DomainScores({})
    result = RunResult(
        run.folder, run.experiment.digest, {}, nothing, nothing, {}, None, None, (), 0.0
    )
    parts = file_sha256(run.folder / "partition.json")
    return RunRecord(run.label, run.seed, run.experiment, result, run.world, parts)


def _same_domains(runs: Sequence[ReportRun]) -> None:
    for run in runs[1:]:
        mine, first = (set(r.evaluations[0].scores.domains) for r in (run, runs[0]))
        if mine != first:
            raise ProtofedError(
                f"{runs[0].folder} and {run.folder} cannot stand in one table: "
                f"they were scored on different domains"
            )
