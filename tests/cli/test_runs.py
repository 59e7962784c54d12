"""``protofed runs``, and how report, plot and track choose among many folders."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
import typer

from protofed.cli.runs import fit_columns, format_age
from protofed.experiment.result import read_result
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import run
from protofed.runtime.atomic_io import file_lock
from protofed.spec.spec_parser import parse_experiment
from tests.cli.conftest import Cli
from tests.report.conftest import unfinish

RAW = {
    "net": "moon-mlp",
    "rounds": 3,
    "data": {"name": "digits-mini", "domains": ["optical", "print"], "side": 8},
    "partition": {"kind": "shares", "clients": 2, "samples": 9},
    "training": {"epochs": 1, "batch": 4},
}
METHODS = {
    "plain": {"name": "fedavg"},
    "cool": {"name": "fpl", "tau": 0.05},
    "warm": {"name": "fpl", "tau": 0.5},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three finished runs, oldest first: plain, cool, warm."""
    home = tmp_path_factory.mktemp("made")
    for name, method in METHODS.items():
        run(parse_experiment({**RAW, "method": method}), home / name, workers=0)
    return home


@pytest.fixture
def home(made: Path) -> Path:
    """The same in ``runs`` of this test's own folder, an hour apart."""
    shutil.copytree(made, "runs")
    now = time.time()
    for hours, name in enumerate(reversed(METHODS)):
        for file in Path("runs", name).rglob("*"):
            os.utime(file, (now, now - 3600 * hours - 60))
    return Path("runs")


def names(out: str) -> list[str]:
    """The runs of a JSON list, in its order."""
    return [Path(entry["folder"]).name for entry in json.loads(out)]


def test_the_table_says_what_there_is(cli: Cli, home: Path) -> None:
    unfinish(home / "warm", 2)
    (home / "broken").mkdir()
    (home / "broken" / "spec.json").write_text("[")
    ended = cli("runs")
    assert ended.code == 0
    rows = {line.split()[-1]: line for line in ended.out.splitlines() if "runs/" in line}
    assert list(rows) == ["runs/broken", "runs/warm", "runs/cool", "runs/plain"]
    mean = f"{read_result(RunDir(home / 'cool')).last_five.mean:.2f}"
    code = json.loads((home / "cool" / "env.json").read_text())["fingerprint"][:8]
    for word in ("fpl", "digits-mini", "tau=0.05", "3/3", "finished", mean, "1 h", code):
        assert word in rows["runs/cool"]
    assert "tau" not in rows["runs/plain"]
    assert "2/3" in rows["runs/warm"]
    assert "interrupted at round 2" in rows["runs/warm"]
    assert "damaged: spec.json: not JSON" in rows["runs/broken"]
    assert "4 runs, " in ended.out


def test_the_order_can_be_chosen(cli: Cli, home: Path) -> None:
    assert names(cli("runs", "--json").out) == ["warm", "cool", "plain"]
    assert names(cli("runs", "--json", "--sort", "method").out) == ["plain", "warm", "cool"]
    found = json.loads(cli("runs", "--json", "--sort", "score").out)
    assert [e["score"] for e in found] == sorted((e["score"] for e in found), reverse=True)
    (home / "plain" / "more.bin").write_bytes(bytes(10**6))
    assert names(cli("runs", "--json", "--sort", "size").out)[0] == "plain"
    unfinish(home / "warm", 0)
    assert names(cli("runs", "--json", "--sort", "score").out)[-1] == "warm"


def test_programs_get_all_of_it(cli: Cli, home: Path) -> None:
    env = home / "cool" / "env.json"
    env.write_text(json.dumps({**json.loads(env.read_text()), "fingerprint": "0123456789abcdef"}))
    cool = next(e for e in json.loads(cli("runs", "--json").out) if e["folder"] == "runs/cool")
    result = read_result(RunDir(home / "cool"))
    assert cool["score"] == result.last_five.mean
    assert cool["last"] == result.last.mean
    assert cool["rule"] == "mean of the last 3 evaluations"
    assert cool["settings"] == {"method.tau": 0.05}
    assert cool["fingerprint"] == "0123456789abcdef"
    assert cool["size"] == sum(f.stat().st_size for f in (home / "cool").rglob("*") if f.is_file())
    lines = list(csv.DictReader(cli("runs", "--format", "csv").out.splitlines()))
    same = next(line for line in lines if line["folder"] == "runs/cool")
    assert same.keys() == cool.keys()
    assert float(same["score"]) == cool["score"]
    assert same["settings"] == "tau=0.05"
    assert "01234567 " in cli("runs").out
    assert cli("runs", "--format", "markdown").out.startswith("| method | data |")


def test_runs_are_filtered(cli: Cli, home: Path) -> None:
    unfinish(home / "warm", 1)
    for words, expected in (
        (["method=FPL"], ["warm", "cool"]),
        (["method=fpl", "state=finished"], ["cool"]),
        (["method.tau>0.05"], ["warm"]),
        (["method.tau!=0.5"], ["cool", "plain"]),
        (["rounds<3"], []),
    ):
        flags = [word for text in words for word in ("--where", text)]
        assert names(cli("runs", "--json", *flags).out) == expected
    ended = cli("runs", "--where", "methd.tau=0.5")
    assert ended.code == 2
    assert "unknown field 'methd.tau'; did you mean 'method.tau'?" in ended.err
    assert "write --where field=value" in cli("runs", "--where", "fpl").err
    assert "none of 3 runs fulfils" in cli("runs", "--where", "seed=1").err


def test_run_folders_and_folders_of_runs(cli: Cli, home: Path) -> None:
    (home / "notes.txt").write_text("x")
    ended = cli("runs", *sorted(home.iterdir()), "--json")
    assert sorted(names(ended.out)) == ["cool", "plain", "warm"]
    assert ended.err == "note: runs/notes.txt holds no run\n"
    assert names(cli("runs", home / "cool", "--json").out) == ["cool"]
    home.rename("deeper")
    Path("runs").mkdir()
    Path("deeper").rename("runs/sweep")
    assert names(cli("runs", "list", "--json").out) == ["warm", "cool", "plain"]


def test_without_runs_it_says_how_to_make_one(cli: Cli) -> None:
    for exists in (False, True):
        if exists:
            Path("runs").mkdir()
        ended = cli("runs")
        assert (ended.code, ended.out) == (0, "")
        assert "no runs in runs; `protofed run --rounds 5` makes the first one" in ended.err
        assert json.loads(cli("runs", "--json").out) == []
    ended = cli("runs", "nowhere")
    assert (ended.code, ended.err) == (2, "error: nowhere: no such folder\n")


def test_help_names_both_commands(cli: Cli) -> None:
    assert {"list", "prune"} <= set(cli("runs", "--help").out.split())
    assert "--sort" in cli("runs", "list", "-h").out
    assert "--dry-run" in cli("runs", "prune", "-h").out
    ended = cli("runs", "--sort", "colour")
    assert ended.code == 2


def test_a_running_run_is_seen(cli: Cli, home: Path) -> None:
    with file_lock(home / "cool", "busy"):
        entry = json.loads(cli("runs", home / "cool", "--json").out)[0]
    assert entry["state"] == "running"


def test_a_narrow_terminal_loses_what_matters_least() -> None:
    head = ["method", "data", "last", "age", "size", "code", "folder"]
    row = ["fpl", "digits", "10.0", "3 h", "1 MB", "01234567", "runs/a"]
    whole = 6 + 6 + 4 + 3 + 4 + 8 + 6 + 6 * 3
    assert fit_columns(head, [row], whole).head == head
    assert fit_columns(head, [row], whole).notes == []
    less = fit_columns(head, [row], whole - 1)
    assert "code" not in less.head
    assert "01234567" not in less.rows[0]
    assert "too narrow for code" in less.notes[0]
    assert fit_columns(head, [row], 10).head == ["method", "folder"]


def test_ages_are_short() -> None:
    ages = [-1, 0, 59.4, 60, 3599, 3 * 3600 + 5, 86399, 86400 * 12]
    found = [format_age(seconds) for seconds in ages]
    assert found == ["0 s", "0 s", "59 s", "1 min", "59 min", "3 h", "23 h", "12 d"]


def rounds_of(home: Path) -> dict[str, list[int]]:
    return {name: RunDir(home / name).rounds_on_disk() for name in METHODS}


def test_prune_lists_then_asks(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rounds_of(home)
    ended = cli("runs", "prune", "--dry-run")
    assert ended.code == 0
    assert "3 runs, " in ended.out
    ended = cli("runs", "prune")
    assert ended.code == 2
    assert "nothing was removed: there is no terminal to ask\ngive --yes" in ended.err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for answer, code in ((False, 1), (True, 0)):
        monkeypatch.setattr(typer, "confirm", lambda *words, err, now=answer: now)
        assert rounds_of(home) == before
        ended = cli("runs", "prune", "--where", "method=fpl")
        assert ended.code == code
    assert rounds_of(home) == {"plain": [2, 3], "cool": [3], "warm": [3]}
    assert "removed " in ended.out
    assert cli("runs", "prune", home / "cool", "--yes").out == "nothing to remove\n"
    assert "--dry-run removes nothing" in cli("runs", "prune", "--yes", "--dry-run").err


def test_pruned_runs_are_shown_and_their_models_missed(cli: Cli, home: Path) -> None:
    unfinish(home / "plain", 2)
    before = {n: cli("resume", home / n, "--json").out for n in ("cool", "warm")}
    ended = cli("runs", "prune", "--all", "--yes")
    assert ended.code == 0
    assert "left alone: runs/plain: interrupted at round 2" in ended.err
    assert rounds_of(home) == {"plain": [2, 3], "cool": [], "warm": []}
    assert {n: cli("resume", home / n, "--json").out for n in before} == before
    assert cli("report", home / "cool", home / "warm", "-o", "a.html").code == 0
    assert "the checkpoint of round 3 was pruned" in Path("a.html").read_text()
    assert cli("plot", "curves", home / "cool", home / "warm").code == 0
    words = [home / "cool", "--to", "safetensors", "-o", "a.safetensors"]
    ended = cli("export", *words)
    assert ended.code == 2
    assert "runs/cool: the checkpoint of round 3 was pruned" in ended.err
    assert "--spec runs/cool/spec.json --out runs/cool --again" in ended.err
    again = ["--spec", home / "cool" / "spec.json", "--out", home / "cool", "--again"]
    assert cli("run", *again, "--workers", "0").code == 0
    assert cli("export", *words).code == 0


def test_a_run_that_cannot_be_pruned_is_told(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)

    def answer(*words: str, err: bool) -> bool:
        (home / "cool" / "done").unlink()  # another process, meanwhile
        return True

    monkeypatch.setattr(typer, "confirm", answer)
    ended = cli("runs", "prune")
    assert ended.code == 1
    assert "left alone: runs/cool: is no longer finished" in ended.err
    assert rounds_of(home) == {"plain": [3], "cool": [2, 3], "warm": [3]}


@pytest.fixture
def mixed(home: Path) -> Path:
    """Two good runs, one that is interrupted, one that is damaged, and a file."""
    unfinish(home / "warm", 2)
    shutil.copytree(home / "cool", home / "bad")
    with (home / "bad" / "scores.jsonl").open("a") as stream:
        stream.write("{}\n")
    (home / "notes.txt").write_text("x")
    return home


EDITED = "note: left out: runs/bad: scores.jsonl is not what this run wrote (swapped or edited?)"


@pytest.mark.parametrize("folders", ["all", "home"])
def test_a_report_leaves_out_what_it_cannot_read(folders: str, cli: Cli, mixed: Path) -> None:
    given = sorted(mixed.iterdir()) if folders == "all" else [mixed]
    ended = cli("report", *given, "-o", "a.html", "--no-confusion")
    assert ended.code == 0, ended.err
    assert EDITED in ended.err
    assert ("notes.txt" in ended.err) == (folders == "all")
    page = Path("a.html").read_text()
    assert "left out: runs/bad: scores.jsonl is not what this run wrote" in page
    assert "FPL (tau=0.5)" in page  # interrupted, so shown as far as it is


def test_a_figure_leaves_out_what_is_not_finished(cli: Cli, mixed: Path) -> None:
    ended = cli("plot", "curves", *sorted(mixed.iterdir()))
    assert ended.code == 0, ended.err
    assert EDITED in ended.err
    assert "note: left out: runs/warm: holds no finished run" in ended.err
    assert Path("curves.svg").exists()
    ended = cli("plot", "margins", mixed, "--rounds", "2", "-o", "margins")
    assert ended.code == 0, ended.err
    assert EDITED in ended.err
    ended = cli("plot", "curves", mixed, "--where", "state!=finished")
    assert ended.code == 2
    assert "none of these runs can be shown:\nruns/bad: " in ended.err
    assert "unknown kind of figure 'pie'" in cli("plot", "pie", mixed).err
    assert "partition: shows one run" in cli("plot", "partition", mixed).err
    assert cli("plot", "partition", mixed, "--where", "state=interrupted").code == 0


def test_other_commands_filter_alike(cli: Cli, mixed: Path) -> None:
    ended = cli("report", mixed, "--where", "method=fedavg", "-o", "a.html", "--no-confusion")
    assert (ended.code, ended.err) == (0, "")
    page = Path("a.html").read_text()
    assert "FedAvg" in page
    assert "FPL" not in page
    ended = cli("report", mixed, "--where", "seed=7")
    assert (ended.code, ended.err.splitlines()[0]) == (2, "error: none of 4 runs fulfils seed=7")
    ended = cli("track", mixed, "--where", "method.tau>=0", "--to", "logs")
    assert ended.code == 0
    assert EDITED in ended.err
    assert sorted(path.name[:5] for path in Path("logs").iterdir()) == ["cool-", "warm-"]


def test_names_of_strangers_do_not_steer_the_terminal(cli: Cli, home: Path) -> None:
    steering = "\x1b[2J\x07"
    folder = (home / "cool").rename(home / f"a{steering}\udcff")
    spec = json.loads((folder / "spec.json").read_text())
    spec["method"]["name"] = f"/x/mine.py:{steering}Mine"
    (folder / "spec.json").write_text(json.dumps({**spec, steering: steering}))
    for words in (["runs"], ["runs", "--format", "csv"], ["runs", "prune", "--dry-run"]):
        ended = cli(*words)
        assert ended.code == 0
        assert "mine.py" in ended.out or r"a\x1b[2J" in ended.out
        text = ended.out + ended.err
        assert all(line.isprintable() for line in text.split("\n")), words
