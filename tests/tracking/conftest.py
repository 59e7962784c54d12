"""A run that three trackers log, killed and resumed; and what the packages themselves read back."""

from __future__ import annotations

import importlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Once

RAW: dict[str, Any] = {
    "data": {"name": "digits-mini", "domains": ["optical", "print"]},
    "partition": {"kind": "shares", "clients": 3, "samples": 9},
    "training": {"epochs": 1, "batch": 4},
    "net": "moon-mlp",
    "rounds": 5,
    "evaluate_every": 2,
}
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from protofed import run
from protofed.spec.spec_parser import parse_experiment
from protofed.tracking import TrackerChoice

raw, folder, logs, last, pause, *names = sys.argv[1:]

def stop(report):
    if report.round == int(last):
        os.kill(os.getpid(), signal.SIGKILL)

trackers = TrackerChoice(tuple(names), Path(logs)).create()
experiment, until = parse_experiment(json.loads(raw)), int(pause) or None
run(experiment, folder, stop, workers=0, trackers=trackers, stop_after=until)
"""
SETTINGS = {
    "WANDB_MODE": "offline",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "WANDB__SERVICE_WAIT": "240",  # seconds until its own process must have started
}
Points = dict[str, list[tuple[int, float]]]  # of a name: step and value, as they were logged


def played(folder: Path, logs: Path, *names: str, kill_after: int = -1, stop_after: int = 0) -> int:
    """Run the experiment in a process of its own, to its end, a kill or a pause; its exit code."""
    ended = subprocess.run(
        [
            *(sys.executable, "-c", SCRIPT, json.dumps(RAW)),
            *(str(folder), str(logs), str(kill_after), str(stop_after), *names),
        ],
        env={**os.environ, **SETTINGS, "HOME": str(logs.parent)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "switched off" not in ended.stderr, ended.stderr
    return ended.returncode


def expected_points(folder: Path) -> Points:
    """What a log of a run must have, from the lines of its folder."""
    found: Points = {}

    def put(step: int, name: str, value: float | None) -> None:
        if value is not None:
            found.setdefault(name, []).append((step, value))

    def put_table(step: int, group: str, table: dict[str, Any]) -> None:
        for domain, value in table["domains"].items():
            put(step, f"{group}/{domain}", value)
        for summary in ("mean", "worst", "spread"):
            put(step, f"{group}/{summary}", table[summary])

    for line in json_lines(folder / "scores.jsonl"):
        put_table(line["round"], "accuracy", line)
        for name, table in line.get("opinions", {}).items():
            put_table(line["round"], f"accuracy_{'_'.join(name.split())}", table)
        if "own" in line:
            put_table(line["round"], "accuracy_own_domain", line["own"])
        for client, row in line.get("clients", {}).items():
            for domain, value in row.items():
                put(line["round"], f"client_{client}/accuracy/{domain}", value)
    for line in json_lines(folder / "rounds.jsonl"):
        step, losses = line["round"], []
        for name in ("bytes_up", "bytes_down", "seconds"):
            put(step, f"cost/{name}", line[name])
        for way, parts in line["parts"].items():
            for part, count in parts.items():
                put(step, f"cost/bytes_{way}/{part}", count)
        for number, leg in enumerate(line["legs"], 1):
            for client, metrics in leg.items():
                losses += [metrics["loss"]] if "loss" in metrics else []
                for name, value in metrics.items():
                    first = f"client_{client}/{name}"
                    put(step, f"exchange_{number}/{first}" if number > 1 else first, value)
        put(step, "loss/mean", sum(losses) / len(losses) if losses else None)
    return found


def json_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def tensorboard_points(log: Path) -> Points:
    """What TensorBoard reads in a log."""
    module = "tensorboard.backend.event_processing.event_accumulator"
    events = importlib.import_module(module).EventAccumulator(str(log), {"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}


def wandb_points(file: Path) -> Points:
    """The history in a file that W&B wrote offline."""
    found: Points = {}
    for history in wandb_records(file, "history"):
        for item in history.item:
            name = "/".join(item.nested_key) or item.key
            if not name.startswith("_"):
                point = (history.step.num, json.loads(item.value_json))
                found.setdefault(name, []).append(point)
    return found


def wandb_exit_codes(file: Path) -> list[int]:
    """With which codes a run ended that W&B wrote offline; 0 is what W&B calls finished."""
    return [end.exit_code for end in wandb_records(file, "exit")]


def wandb_records(file: Path, kind: str) -> Iterator[Any]:
    """The records of a kind in a file that W&B wrote offline, by W&B's own record type."""
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    for raw in logged_records(file.read_bytes()):
        record = records.Record()
        record.ParseFromString(raw)
        if record.WhichOneof("record_type") == kind:
            yield getattr(record, kind)


def logged_records(content: bytes) -> Iterator[bytes]:
    """The records of a file in the format of LevelDB's log: blocks of 32 KiB, pieces in them."""
    assert content[:4] == b":W&B"
    at, whole = 7, b""
    while at + 7 <= len(content):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last piece
            yield whole
            whole = b""


def mlflow_points(database: Path) -> tuple[list[Any], Points]:
    """The runs of an MLflow database, and the points of the only one."""
    client = importlib.import_module("mlflow").MlflowClient(f"sqlite:///{database}")
    group = client.get_experiment_by_name("protofed").experiment_id
    runs = client.search_runs([group])
    name = runs[0].info.run_id
    histories = {key: client.get_metric_history(name, key) for key in runs[0].data.metrics}
    return runs, {key: [(p.step, p.value) for p in past] for key, past in histories.items()}


@pytest.fixture(scope="session")
def killed(once: Once) -> Path:
    """A folder with a finished run, killed after round 3 and resumed from round 2, and its logs."""
    return once("killed", kill_and_resume)


def kill_and_resume(home: Path) -> None:
    names = ("tensorboard", "wandb", "mlflow")
    assert played(home / "run", home / "logs", *names, kill_after=3) == -9
    assert len(json_lines(home / "run" / "rounds.jsonl")) == 3
    assert not (home / "run" / "done").exists()
    assert played(home / "run", home / "logs", *names) == 0
