"""Every file of a run folder spoilt in every way: each command answers, refuses, or goes on.

PROTOFED_FUZZ=5000 tries so many cases, other ones each time.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import sys
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from protofed.cli import main
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import default_folder, run
from protofed.spec.spec_parser import parse_experiment
from tests.data.pictures import make
from tests.faults.mutations import reseal, spoil, spoil_header
from tests.fleet.desks import SITES, Known, desks, job, submitted

FORGED = 0.3  # of the cases: with digests that are right again
CASES, FEW = int(os.environ.get("PROTOFED_FUZZ", "300")), 50
SHARED: dict[str, Any] = {
    "net": "moon-mlp",
    "rounds": 2,
    "data": {"name": "digits-mini", "domains": ["optical", "print"], "side": 8},
    "partition": {"kind": "shares", "clients": 2, "samples": 9},
    "training": {"epochs": 1, "batch": 4},
}
DONE = {**SHARED, "method": {"name": "fedproto", "param_avg": False}}  # personal, with prototypes
HALF = {**SHARED, "method": {"name": "scaffold"}}  # with states at clients
EVENT = '{"round": 1, "leg": 1, "client": 0, "reason": "late"}\n'
COMMANDS: dict[str, list[list[str]]] = {
    "done": [
        ["run", "--spec", "done.json", "--out", "RUN", "--json"],
        ["resume", "RUN", "--json"],
        ["resume", "RUN"],
        ["report", "RUN", "-o", "a.html"],
        ["report", "RUN", "-o", "a.html", "--no-confusion"],
        ["plot", "curves", "RUN"],
        ["plot", "partition", "RUN"],
        ["plot", "margins", "RUN", "--rounds", "1"],
        ["export", "RUN", "--client", "0", "--to", "safetensors", "-o", "b.safetensors"],
        ["predict", "RUN", "image.png", "--client", "0"],
        ["card", "RUN"],
        ["track", "RUN"],
        ["runs", "RUN"],
        ["runs", ".", "--format", "csv"],
        ["runs", "prune", "RUN", "--all", "--yes"],
        ["compare", "fedproto", "--spec", "done.json", "--runs", ".", "--workers", "0"],
    ],
    "half": [
        ["run", "--spec", "half.json", "--out", "RUN", "--workers", "0", "--json"],
        ["resume", "RUN", "--workers", "0"],
        ["report", "RUN", "-o", "a.html", "--no-confusion"],
        ["plot", "partition", "RUN"],
        ["predict", "RUN", "image.png"],
        ["card", "RUN"],
        ["runs", "RUN", "--where", "method=scaffold"],
    ],
    "across": [
        ["runs", "."],
        ["resume", "RUN"],
        ["predict", "RUN", "image.png"],
        ["export", "RUN", "--to", "safetensors", "-o", "b.safetensors"],
        ["report", "RUN", "-o", "a.html"],
    ],
    "file": [["predict", "m.safetensors", "image.png"]],
}


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def call(*words: str) -> Ended:
    """The command line's own entry, in this process; nothing but an exit code may come out."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["protofed", *words]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = ended.code
        return Ended(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())
    finally:
        sys.argv = before
    return Ended(0, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one half way, one across machines, and an exported file."""
    place = tmp_path_factory.mktemp("fuzz")
    with chdir(place):
        for name, raw in (("done", DONE), ("half", HALF)):
            Path(f"{name}.json").write_text(json.dumps(raw))
            run(parse_experiment(raw), Path(name), keep=(1,), workers=0)
            Path(name, "events.jsonl").write_text(EVENT)
            Path(name, "public.json").write_text('{"optical": [1, 2]}')
        Path("whole").write_bytes(Path("half/scores.jsonl").read_bytes())
        stop_after_the_first_round(Path("half"))
        images = make(Path("sites"), SITES, each=9)
        submitted(Known(desks(images, Path("desks"))), job(place, out="across"))
        words = ["--client", "0", "--to", "safetensors", "-o", "m.safetensors"]
        assert call("export", "done", *words).code == 0
        Image.new("RGB", (9, 9)).save("image.png")
        shown = json.loads(call("resume", "done", "--json").out)
        Path("shown").write_text(json.dumps([shown["last"], shown["last_five"]]))
    return place


def stop_after_the_first_round(folder: Path) -> None:
    for name in ("done", "card.md"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints" / "round-00002")
    for name in ("rounds.jsonl", "scores.jsonl"):
        first = (folder / name).read_bytes().splitlines(keepends=True)[0]
        (folder / name).write_bytes(first)


def play(home: Path, seed: int) -> str:
    """One case: spoil one file, call one command; what is wrong with how that ended."""
    dice = random.Random(seed)
    kind = dice.choice(["done", "done", "done", "half", "half", "across", "file"])
    words = dice.choice(COMMANDS[kind])
    with tempfile.TemporaryDirectory() as place, chdir(place):
        for name in ("done.json", "half.json", "image.png", "m.safetensors"):
            shutil.copy(home / name, name)
        folder = Path(str(default_folder(parse_experiment(DONE)).name) if kind == "done" else kind)
        forged = kind == "file"
        if kind == "file":
            said = (spoil_header if dice.random() < 0.8 else _bytes)(Path("m.safetensors"), dice)
        else:
            shutil.copytree(home / kind, folder)
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            said = spoil(dice.choice(files), files, dice)
            if forged := dice.random() < FORGED:
                reseal(folder)
        what = f"seed {seed}, {words}, {said}"
        try:
            ended = call(*(word.replace("RUN", str(folder)) for word in words))
        except Exception as fault:
            raise AssertionError(f"{what}: {type(fault).__name__}: {fault}") from fault
        return wrong(what, ended) or ("" if forged else lies(what, ended, home, folder, words))


def _bytes(file: Path, dice: random.Random) -> str:
    return spoil(file, [file], dice)


def wrong(what: str, ended: Ended) -> str:
    """Whether a command ended otherwise than it may."""
    if ended.code not in (0, 2):
        return f"{what}: code {ended.code}: {ended.err[-500:]}"
    if ended.code == 2 and "error: " not in ended.err:
        return f"{what}: no reason: {ended.err[-500:]}"
    return ""


def lies(what: str, ended: Ended, home: Path, folder: Path, words: list[str]) -> str:
    """Whether a command shows what is not so."""
    if ended.code == 0 and words[0] in ("run", "resume") and folder.name == "half":
        whole = (home / "whole").read_bytes()
        return "" if RunDir(folder).scores.read_bytes() == whole else f"{what}: other scores"
    if ended.code == 0 and words[-1] == "--json" and folder.name != "half":
        shown = json.loads(ended.out)
        right = json.loads((home / "shown").read_text())
        return "" if [shown["last"], shown["last_five"]] == right else f"{what}: other scores"
    return ""


FUZZ = settings(
    deadline=None,
    database=None,
    derandomize="PROTOFED_FUZZ" not in os.environ,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@given(seed=st.integers(0, 2**40))
@settings(FUZZ, max_examples=FEW)
def test_no_spoilt_file_ends_in_a_traceback_or_in_wrong_scores(home: Path, seed: int) -> None:
    assert play(home, seed) == ""


@pytest.mark.long
@given(seed=st.integers(0, 2**40))
@settings(FUZZ, max_examples=CASES)
def test_no_file_of_hundreds_does(home: Path, seed: int) -> None:
    assert play(home, seed) == ""


def test_what_is_not_spoilt_is_read(home: Path) -> None:
    """Else the cases above would prove nothing."""
    with tempfile.TemporaryDirectory() as place, chdir(place):
        for kind, commands in COMMANDS.items():
            for words in commands:
                for name in ("done.json", "half.json", "image.png", "m.safetensors"):
                    shutil.copy(home / name, name)
                if kind != "file":
                    shutil.rmtree(kind, ignore_errors=True)
                    shutil.copytree(home / kind, kind)
                ended = call(*(word.replace("RUN", kind) for word in words))
                refuses = (kind, words[0]) == ("half", "card")
                assert ended.code == (2 if refuses else 0), (words, ended)
