"""Every command on a run folder with a wrong file in it: one clear message, exit code 2."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from protofed.experiment.runner import run
from protofed.spec.spec_parser import parse_experiment
from tests.cli.conftest import Cli

RAW = {
    "method": "fpl",
    "net": "moon-mlp",
    "rounds": 2,
    "data": {"name": "digits-mini", "domains": ["optical", "print"], "side": 8},
    "partition": {"kind": "shares", "clients": 2, "samples": 9},
    "training": {"epochs": 1},
}
READ = {
    "run": ["run", "--spec", "spec.json", "--out", "a"],
    "resume": ["resume", "a"],
    "report": ["report", "a", "-o", "a.html", "--no-confusion"],
    "plot": ["plot", "curves", "a"],
    "holdings": ["plot", "partition", "a"],
    "export": ["export", "a", "--to", "safetensors", "-o", "a.safetensors"],
    "card": ["card", "a"],
    "track": ["track", "a"],
}
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a round to keep."""
    folder = tmp_path_factory.mktemp("made") / "a"
    run(parse_experiment(RAW), folder, keep=(1,), workers=0)
    return folder


@pytest.fixture
def copied(made: Path) -> Path:
    """The same in this test's own folder, and the spec that it was made from."""
    shutil.copytree(made, "a")
    Path("spec.json").write_text(json.dumps(RAW))
    return Path("a")


def refused(cli: Cli, name: str, *words: str) -> str:
    """What a command says that must refuse a folder."""
    ended = cli(*READ[name])
    assert ended.code == 2, (name, ended)
    assert any(line.startswith("error: ") for line in ended.err.splitlines()), ended.err
    for word in words:
        assert word in ended.err
    return ended.err


@pytest.mark.parametrize("command", ["run", "resume", "report", "plot", "export", "card", "track"])
def test_nobody_shows_scores_that_were_edited(command: str, cli: Cli, copied: Path) -> None:
    file = copied / "scores.jsonl"
    first, last = file.read_text().splitlines()
    line = json.loads(last)
    line["domains"]["optical"] = line["mean"] = 99.9
    file.write_text(f"{first}\n{json.dumps(line)}\n")
    refused(cli, command, "scores.jsonl is not what this run wrote (swapped or edited?)")


def without(field: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        content = json.loads(text)
        del content[field]
        return json.dumps(content)

    return change


def first_line(**fields: object) -> Callable[[str], str]:
    """Other fields in the first line; none where they are Ellipsis."""

    def change(text: str) -> str:
        first, *rest = text.splitlines()
        line = {**json.loads(first), **fields}
        kept = {name: value for name, value in line.items() if value is not ...}
        return "\n".join([json.dumps(kept), *rest, ""])

    return change


@pytest.mark.parametrize("command", ["run", "resume", "report", "plot", "export", "card"])
@pytest.mark.parametrize(
    "change",
    [
        *(without(field) for field in ("digest", "notices", "scores")),
        *(lambda text, new=new: new for new in ("{}", "[]", "3", "", "\ufeff", DEEP)),
        lambda text: json.dumps({**json.loads(text), "notices": 3}),
        lambda text: json.dumps({**json.loads(text), "more": 3}),
    ],
)
def test_done_that_is_not_whole_is_damaged(
    change: Callable[[str], str], command: str, cli: Cli, copied: Path
) -> None:
    file = copied / "done"
    file.write_text(change(file.read_text()))
    refused(cli, command, "a/done", "--again")


@pytest.mark.parametrize(
    ("name", "text", "commands"),
    [
        ("spec.json", DEEP, ["run", "resume", "report", "plot", "export"]),
        ("spec.json", '{"digest": 5}', ["run", "resume", "report", "plot", "export"]),
        ("env.json", DEEP, ["report", "plot"]),
        ("env.json", '{"torch": [1]}', ["report", "plot"]),
        ("partition.json", DEEP, ["report", "holdings"]),
        ("partition.json", '[{"client": 0}]', ["report", "holdings"]),
        ("rounds.jsonl", DEEP + "\n", ["run", "resume", "report", "plot", "track"]),
        ("rounds.jsonl", '{"round": 1}\n', ["run", "resume", "report", "plot", "track"]),
        ("rounds.jsonl", "", ["run", "resume", "report", "plot"]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_wrong_file_is_named(
    name: str, text: str, commands: list[str], cli: Cli, copied: Path
) -> None:
    (copied / name).write_text(text)
    for command in commands:
        refused(cli, command, f"a/{name}")


@pytest.mark.parametrize(
    "fields",
    [
        {"seconds": "long"},
        {"seconds": float("inf")},
        {"seconds": ...},
        {"bytes_up": -1},
        {"bytes_up": 10**400},
        {"parts": {"up": {"model": None}, "down": {}}},
        {"legs": [{"0": 3}]},
        {"round": 0},
        {"round": True},
    ],
    ids=str,
)
def test_a_wrong_line_is_named(fields: dict[str, object], cli: Cli, copied: Path) -> None:
    file = copied / "rounds.jsonl"
    file.write_text(first_line(**fields)(file.read_text()))
    for command in ("run", "report", "track"):
        refused(cli, command, "a/rounds.jsonl, line 1 is damaged")


@pytest.fixture
def half(copied: Path) -> Path:
    """The run as it was after its first round."""
    (copied / "done").unlink()
    shutil.rmtree(copied / "checkpoints" / "round-00002")
    for name in ("rounds.jsonl", "scores.jsonl"):
        file = copied / name
        file.write_text(file.read_text().splitlines(keepends=True)[0])
    return copied


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("keep.json", '{"rounds": 5}'),
        ("keep.json", "[[1]]"),
        ("keep.json", '{"rounds": [[1]]}'),
        ("keep.json", DEEP),
        ("env.json", DEEP),
        ("spec.json", DEEP),
        ("spec.json", '{"digest": 5}'),
    ],
)
def test_a_run_does_not_go_on_with_a_wrong_file(name: str, text: str, cli: Cli, half: Path) -> None:
    (half / name).write_text(text)
    for command in ("run", "resume"):
        refused(cli, command, f"a/{name}")


@pytest.mark.parametrize("name", ["scores.jsonl", "rounds.jsonl", "events.jsonl"])
@pytest.mark.parametrize("text", [DEEP, '{"round": 1}', '{"round": "1"}'])
def test_a_run_goes_on_from_what_is_sound(
    name: str, text: str, cli: Cli, half: Path, made: Path
) -> None:
    (half / name).write_text(f"{text}\n")
    if name != "events.jsonl":
        refused(cli, "report", f"a/{name}, line 1")
    ended = cli("resume", "a", "--workers", "0")
    assert ended.code == 0
    assert "note: " in ended.err
    assert (half / "scores.jsonl").read_bytes() == (made / "scores.jsonl").read_bytes()
    assert cli("resume", "a").code == 0


@pytest.mark.parametrize("name", ["manifest.json", "server.safetensors"])
def test_a_pipe_in_a_checkpoint_is_passed_over(name: str, cli: Cli, half: Path) -> None:
    file = half / "checkpoints" / "round-00001" / name
    file.unlink()
    os.mkfifo(file)
    ended = cli("resume", "a", "--workers", "0")
    assert ended.code == 0
    assert "the checkpoint of round 1 cannot be used" in ended.err


@pytest.mark.parametrize("name", ["spec.json", "env.json", "done", "scores.jsonl", "rounds.jsonl"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(name: str, cli: Cli, copied: Path) -> None:
    (copied / name).unlink()
    os.mkfifo(copied / name)
    refused(cli, "report", name)
