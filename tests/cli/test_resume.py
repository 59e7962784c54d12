"""``protofed resume``: a run goes on from its folder alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from protofed.analysis.finished_runs import read_record
from protofed.experiment.run_followers import RunWatcher
from protofed.experiment.run_records import load_spec
from protofed.spec.spec_parser import parse_experiment, read_spec
from tests.cli.conftest import Cli


@pytest.fixture
def begun(cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was interrupted after its first round, as `a`; the same one unbroken, as `b`."""
    flags = ("run", "--spec", tiny, "--method", "scaffold", "--workers", "0", "--keep", "1")
    assert cli(*flags, "--out", "b").code == 0
    follow = RunWatcher.__call__

    def stop(watcher: RunWatcher, now: object) -> None:
        if Path("a/checkpoints/round-00001").exists():
            raise KeyboardInterrupt
        follow(watcher, now)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(RunWatcher, "__call__", stop)
        assert cli(*flags, "--out", "a").code == 130
    return Path("a")


def test_it_goes_on_and_ends_as_the_unbroken_run(cli: Cli, begun: Path) -> None:
    ended = cli("resume", begun, "--workers", "0")
    assert ended.code == 0
    first = ended.err.splitlines()[0]
    assert first == "SCAFFOLD on digits-mini with moon-mlp -> a, resuming after round 1"
    assert "round 1/2" not in ended.err
    assert "mean" in ended.out
    files = ["scores.jsonl", "spec.json", "partition.json", "keep.json"]
    files += [f"checkpoints/round-0000{n}/{f}.safetensors" for n in (1, 2) for f in KINDS]
    for file in files:
        assert (begun / file).read_bytes() == (Path("b") / file).read_bytes()


KINDS = ("server", "clients-0")


def test_a_finished_run_is_printed(cli: Cli, begun: Path) -> None:
    env = json.loads(Path("b/env.json").read_text())
    Path("b/env.json").write_text(json.dumps({**env, "torch": "another"}))
    before = sorted((path, path.stat().st_mtime_ns) for path in Path("b").rglob("*"))
    table = cli("resume", "b")
    assert (table.code, table.err) == (0, "")
    assert "run folder: b" in table.out
    assert json.loads(cli("resume", "b", "--json").out)["folder"] == "b"
    assert sorted((path, path.stat().st_mtime_ns) for path in Path("b").rglob("*")) == before


@pytest.mark.parametrize("what", ["torch", "data"])
def test_another_world_is_refused(what: str, cli: Cli, begun: Path) -> None:
    env = json.loads((begun / "env.json").read_text())
    (begun / "env.json").write_text(json.dumps({**env, what: "another"}))
    ended = cli("resume", begun)
    assert ended.code == 2
    assert f"error: a was begun with other {what}: another, now " in ended.err
    assert "--again" in ended.err.splitlines()[-1]


def test_a_folder_that_is_no_run_is_told(cli: Cli, begun: Path) -> None:
    assert cli("resume", "nowhere").err == (
        "error: nowhere: no such folder; `protofed run` begins a run\n"
    )
    ended = cli("resume", ".")
    assert ended.code == 2
    told = "error: . is not the folder of a run: no spec.json\nit contains the runs a, b\n"
    assert ended.err == told


def test_a_changed_spec_is_told(cli: Cli, begun: Path) -> None:
    spec = json.loads((begun / "spec.json").read_text())
    (begun / "spec.json").write_text(json.dumps({**spec, "seed": 5}))
    ended = cli("resume", begun)
    assert ended.code == 2
    assert "a/spec.json is not the spec that the run was begun with" in ended.err
    (begun / "spec.json").write_text("{")
    assert cli("resume", begun).code == 2


def test_a_run_of_the_processor_stays_on_it(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new run takes the fastest device; one that was begun keeps the device of its spec."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    spec = json.loads((begun / "spec.json").read_text())
    assert spec["device"] == "cpu"
    assert load_spec(begun).device == "cpu"
    assert load_spec(begun).digest == spec["digest"]
    assert parse_experiment(read_spec(begun / "spec.json")).digest == spec["digest"]
    assert read_record(Path("b")).experiment.device == "cpu"
