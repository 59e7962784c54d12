"""Logs read back by the packages they are for, also of a run that was killed and resumed."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from protofed.errors import ProtofedError
from protofed.experiment.result import RunResult
from protofed.experiment.round_report import RoundReport, read_reports
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import run
from protofed.spec.experiment_spec import Experiment
from protofed.spec.spec_parser import parse_experiment
from protofed.tracking import TrackerChoice
from protofed.tracking.log_identity import known_log_id, log_name
from protofed.tracking.mlflow_tracker import MlflowTracker
from protofed.tracking.round_scalars import round_scalars
from protofed.tracking.tensorboard_tracker import TensorBoardTracker
from protofed.tracking.wandb_tracker import WandbTracker
from tests.tracking.conftest import (
    RAW,
    SETTINGS,
    Points,
    expected_points,
    mlflow_points,
    played,
    tensorboard_points,
    wandb_exit_codes,
    wandb_points,
)

OWN_QUERIES = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # MLflow's


def close(found: Points, expected: Points) -> None:
    """Every name has its steps once and in order, and the values, which may be of 32 bits."""
    assert found.keys() == expected.keys()
    for name, points in expected.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        values = [value for _, value in points]
        assert [value for _, value in found[name]] == pytest.approx(values, rel=1e-6), name


@pytest.mark.long
def test_tensorboard_has_every_round_of_a_killed_run_once(killed: Path) -> None:
    close(tensorboard_points(killed / "logs" / log_name(killed / "run")), expected(killed))


@pytest.mark.long
def test_wandb_has_every_round_of_a_killed_run_once(killed: Path) -> None:
    (file,) = (killed / "logs" / "wandb").glob("offline-run-*/*.wandb")
    assert known_log_id(killed / "run", "wandb") in file.name
    close(wandb_points(file), expected(killed))


@pytest.mark.long
@OWN_QUERIES
def test_mlflow_has_every_round_of_a_killed_run_once(killed: Path) -> None:
    runs, found = mlflow_points(killed / "logs" / "mlflow.db")
    (only,) = runs
    assert only.info.run_id == known_log_id(killed / "run", "mlflow")
    assert only.info.status == "FINISHED"
    assert only.data.params["training.batch"] == "4"
    wanted = expected(killed)
    # Round 3 was played twice: MLflow, which deletes no point, keeps the time of the first.
    seconds, again = found.pop("cost/seconds"), wanted.pop("cost/seconds")
    assert [step for step, _ in seconds] == [1, 2, 3, 4, 5]
    assert [p for p in seconds if p[0] != 3] == [p for p in again if p[0] != 3]
    close(found, wanted)


def expected(home: Path) -> Points:
    points = expected_points(home / "run")
    assert [step for step, _ in points["cost/seconds"]] == [1, 2, 3, 4, 5]
    assert [step for step, _ in points["accuracy/mean"]] == [2, 4, 5]
    return points


@pytest.mark.long
def test_a_finished_folder_gives_the_same_log_as_a_live_run(killed: Path, tmp_path: Path) -> None:
    live = tensorboard_points(killed / "logs" / log_name(killed / "run"))
    for _ in range(2):  # a second time replaces the first
        tracker = TensorBoardTracker(tmp_path)
        count = tracker.open(killed / "run")
        tracker.end(None)
        later = tensorboard_points(tracker.place(killed / "run"))
        assert later == live
        assert count == sum(map(len, live.values()))


def test_a_tracker_that_comes_late_has_the_rounds_before(tmp_path: Path) -> None:
    run(parse_experiment(RAW), tmp_path / "run", stop_after=3)
    run(parse_experiment(RAW), tmp_path / "run", trackers=[TensorBoardTracker(tmp_path / "logs")])
    close(
        tensorboard_points(tmp_path / "logs" / log_name(tmp_path / "run")),
        expected_points(tmp_path / "run"),
    )


def as_on_record(live: list[RoundReport]) -> list[RoundReport]:
    """Live reports with the counts of answers that the record keeps of an evaluation."""
    scored = [report.round for report in live if report.evaluation]
    return [
        report._replace(evaluation=report.evaluation.trimmed(sum(n > report.round for n in scored)))
        if report.evaluation
        else report
        for report in live
    ]


@pytest.mark.parametrize("method", ["local", "fedproto", "fedme"])
def test_a_report_has_all_numbers_of_a_round(method: str, tmp_path: Path) -> None:
    live: list[RoundReport] = []
    run(parse_experiment({**RAW, "method": {"name": method}}), tmp_path / "a", live.append)
    found: Points = {}
    for report in live[1:]:
        for name, value in round_scalars(report).items():
            found.setdefault(name, []).append((report.round, value))
    close(found, expected_points(tmp_path / "a"))
    assert not [name for name in found if " " in name]
    kept = [r._replace(rounds=5, seconds_left=0.0) for r in read_reports(tmp_path / "a")]
    assert kept == [r._replace(seconds_left=0.0, notices=()) for r in as_on_record(live[1:])]


def test_a_report_prints_as_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(parse_experiment({**RAW, "rounds": 1}), tmp_path / "a", print)
    *_, before, after = capsys.readouterr().out.splitlines()
    assert before == "round 0/1"
    (line,) = (json.loads(t) for t in (tmp_path / "a" / "scores.jsonl").read_text().splitlines())
    assert after.startswith(f"round 1/1  mean accuracy {line['mean']:.2f} %  loss ")
    assert after.endswith("0:00 left")


class Faulty:
    """A tracker that raises in one of its methods, and remembers what it was asked."""

    def __init__(self, where: str):
        self.where, self.asked = where, list[str]()

    def _do(self, what: str) -> None:
        self.asked.append(what)
        if what == self.where:
            raise OSError(28, "No space left on device")

    def start(self, experiment: Experiment, folder: Path) -> None:
        self._do("start")

    def round(self, report: RoundReport) -> None:
        self._do("round")

    def end(self, result: RunResult | None) -> None:
        self._do("end" if result else "interrupted")


TOLD = "Faulty failed and is switched off, the run goes on: OSError: [Errno 28] No space left"


@pytest.mark.parametrize(
    ("where", "asked"), [("start", ["start"]), ("round", ["start", "round", "end"])]
)
def test_a_tracker_that_fails_is_told_once_and_switched_off(
    where: str, asked: list[str], tmp_path: Path
) -> None:
    faulty, well, told = Faulty(where), Faulty("nowhere"), list[str]()
    experiment = parse_experiment(RAW)
    result = run(
        experiment,
        tmp_path / "a",
        lambda report: told.extend(report.notices),
        trackers=[faulty, well],
    )
    assert [text.startswith(TOLD) for text in told].count(True) == 1
    assert faulty.asked == asked
    assert well.asked == ["start", *["round"] * 5, "end"]
    assert result == run(experiment, tmp_path / "a")
    assert not any("Faulty" in str(notice) for notice in result.notices)


@pytest.mark.parametrize("given", [["tensorboard"], "wandb", [Faulty]])
def test_what_is_no_tracker_is_refused_before_and_after_the_run(
    given: object, tmp_path: Path
) -> None:
    folder, experiment = tmp_path / "a", parse_experiment(RAW)
    for _ in range(2):
        with pytest.raises(ProtofedError, match="is no tracker\ngive a list of objects"):
            run(experiment, folder, trackers=given)  # type: ignore[arg-type]
        run(experiment, folder, progress=False)


def test_a_tracker_that_fails_to_close_is_told_after_the_last_round(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="Faulty failed and is switched off"):
        run(parse_experiment(RAW), tmp_path / "a", trackers=[Faulty("end")], progress=False)
    assert RunDir(tmp_path / "a").done.exists()


def test_the_trackers_of_an_interrupted_run_are_ended(tmp_path: Path) -> None:
    def stop(report: RoundReport) -> None:
        if report.round == 2:
            raise KeyboardInterrupt

    tracker = Faulty("nowhere")
    with pytest.raises(KeyboardInterrupt):
        run(parse_experiment(RAW), tmp_path / "a", stop, trackers=[tracker])
    assert tracker.asked == ["start", "round", "round", "interrupted"]


def test_a_tracker_that_fails_in_a_round_and_at_the_end_is_told_once(tmp_path: Path) -> None:
    class Broken(Faulty):
        def end(self, result: RunResult | None) -> None:
            super().end(result)
            raise OSError(28, "No space left on device")

    broken, told = Broken("round"), list[str]()
    run(
        parse_experiment(RAW),
        tmp_path / "a",
        lambda report: told.extend(report.notices),
        trackers=[broken],
        progress=False,  # a warning is an error here
    )
    assert broken.asked == ["start", "round", "end"]
    assert sum("switched off" in text for text in told) == 1


def test_a_tracker_is_ended_if_the_start_of_the_next_is_interrupted(tmp_path: Path) -> None:
    class Interrupted(Faulty):
        def start(self, experiment: Experiment, folder: Path) -> None:
            raise KeyboardInterrupt

    first, second = Faulty("nowhere"), Interrupted("nowhere")
    with pytest.raises(KeyboardInterrupt):
        run(parse_experiment(RAW), tmp_path / "a", trackers=[first, second])
    assert (first.asked, second.asked) == (["start", "interrupted"], [])


def test_a_paused_run_is_not_told_as_finished(tmp_path: Path) -> None:
    tracker = Faulty("nowhere")
    for stop in (2, None):
        run(parse_experiment(RAW), tmp_path / "a", trackers=[tracker], stop_after=stop)
    before = ["start", "round", "round", "interrupted"]
    assert tracker.asked == [*before, "start", "round", "round", "round", "end"]


@pytest.mark.long
@OWN_QUERIES
def test_a_paused_run_continues_the_same_logs(tmp_path: Path) -> None:
    folder, logs, names = tmp_path / "run", tmp_path / "logs", ("wandb", "mlflow")
    ended = []
    for stop in (2, 0):
        assert played(folder, logs, *names, stop_after=stop) == 0
        (file,) = (logs / "wandb").glob("offline-run-*/*.wandb")
        ((only,), points) = mlflow_points(logs / "mlflow.db")
        ended.append((only.info.status, *wandb_exit_codes(file)))
    assert ended == [("KILLED", 1), ("FINISHED", 0)]
    close(wandb_points(file), expected(tmp_path))
    close(points, expected(tmp_path))


@pytest.mark.long
@OWN_QUERIES
def test_one_mlflow_tracker_logs_all_rounds_of_one_run_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    tracker, experiment = MlflowTracker(tmp_path / "logs"), parse_experiment(RAW)
    for folder, stop in (("a", 2), ("a", 4), ("b", None)):  # a is resumed, b is new
        run(experiment, tmp_path / folder, trackers=[tracker], stop_after=stop)
    client = importlib.import_module("mlflow").MlflowClient(tracker.address)
    logged = known_log_id(tmp_path / "b", "mlflow")
    steps = [point.step for point in client.get_metric_history(logged, "cost/seconds")]
    assert steps == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["*", "old", "0123456789abcdef*", "0123456789abcdef\n", "../.."])
@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_an_id_that_no_service_hands_out_is_refused(
    tracker: Literal["wandb", "mlflow"], name: str, tmp_path: Path
) -> None:
    RunDir(tmp_path).write("tracking.json", {tracker: name})
    with pytest.raises(ProtofedError, match=rf"tracking\.json is damaged: {tracker}: "):
        known_log_id(tmp_path, tracker)


def test_a_pattern_for_an_id_deletes_no_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    other = tmp_path / "logs" / "wandb" / "offline-run-20250101_000000-0123456789abcdef"
    other.mkdir(parents=True)
    told: list[str] = []
    run(parse_experiment(RAW), tmp_path / "a", stop_after=2)
    RunDir(tmp_path / "a").write("tracking.json", {"wandb": "*"})
    run(
        parse_experiment(RAW),
        tmp_path / "a",
        lambda report: told.extend(report.notices),
        trackers=[WandbTracker(tmp_path / "logs")],
    )
    assert other.exists()
    assert any(f"{tmp_path / 'a' / 'tracking.json'} is damaged" in text for text in told)


def test_a_name_stays_the_same_in_a_round_that_fails_halfway() -> None:
    metrics = ({"3": {"loss": 1.0}}, {"3": {"loss": 2.0}})
    whole = RoundReport(1, 2, None, math.nan, metrics=metrics)
    failed = RoundReport(2, 2, None, math.nan, metrics=metrics[:1])
    assert round_scalars(whole)["exchange_2/client_3/loss"] == 2.0
    assert round_scalars(whole)["client_3/loss"] == round_scalars(failed)["client_3/loss"] == 1.0


def test_nothing_is_imported_that_is_not_used(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom protofed.tracking import TrackerChoice\n"
        "from protofed.experiment.runner import run\nTrackerChoice(('wandb', 'mlflow')).create()\n"
        "found = {'wandb', 'mlflow', 'tensorboard', 'sqlalchemy'} & set(sys.modules)\n"
        "assert not found, found"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("tensorboard", "tensorboard", "track"), ("wandb",) * 3, ("mlflow",) * 3],
)
def test_a_package_that_is_missing_is_told_before_anything_runs(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, package, missing)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", missing)
    monkeypatch.setattr("protofed.tracking.log_identity.find_spec", lambda module: None)
    with pytest.raises(ProtofedError, match=rf"pip install 'protofed\[{extra}\]'"):
        TrackerChoice((name,)).create()


def test_an_unknown_tracker_is_named_with_those_there_are() -> None:
    with pytest.raises(ProtofedError, match="did you mean 'tensorboard'"):
        TrackerChoice(("tensorbord",)).create()


@pytest.mark.long
def test_a_repeated_run_forgets_its_logs(killed: Path, tmp_path: Path) -> None:
    experiment = parse_experiment({**RAW, "rounds": 1})
    run(experiment, tmp_path / "a")
    RunDir(tmp_path / "a").write("tracking.json", {"wandb": "0123456789abcdef"})
    assert known_log_id(tmp_path / "a", "wandb") == "0123456789abcdef"
    run(experiment, tmp_path / "a", again=True)
    assert known_log_id(tmp_path / "a", "wandb") == ""
