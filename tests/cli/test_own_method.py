"""The files printed in the docs, through every command: as a user with an own method would."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protofed.datasets import from_arrays
from tests.cli.conftest import TINY, Cli
from tests.data.tables import images, vectors

DOCS = Path(__file__).parents[2] / "docs"
NETS = """
from torch import nn
from protofed.api import ImageShape, Net, net_from_module


class Small(nn.Module):
    def __init__(self, classes: int, image: ImageShape):
        super().__init__()
        self.conv = nn.Conv2d(image.channels, 4, 3, stride=4)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, classes)

    def forward(self, x):
        return self.fc(self.norm(self.conv(x)).relu().mean((2, 3)))


def small(classes: int, image: ImageShape) -> Net:
    return net_from_module(Small(classes, image), head="fc")
"""


ARRAYS = """
rounds = 2
[data]
name = "{}"
[training]
epochs = 1
"""


def printed(name: str, page: str = "add-a-method.md") -> str:
    """The block of Python in a page that defines a class."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (block,) = [block for block in blocks if f"class {name}(" in block]
    return str(block)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The user's folder: the two methods and the net of the pages, another net, and arrays."""
    (tmp_path / "balanced.py").write_text(printed("Balanced"))
    (tmp_path / "steady.py").write_text(printed("Steady"))
    (tmp_path / "ownnet.py").write_text(NETS)
    (tmp_path / "printednet.py").write_text(printed("SmallNet", "add-a-net.md"))
    (tmp_path / "tiny.toml").write_text(TINY)
    for kind, given in (("vectors", vectors()), ("images", images())):
        from_arrays(given, folder=tmp_path / kind)
        (tmp_path / f"{kind}.toml").write_text(ARRAYS.format(kind))
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in ("balanced", "steady", "ownnet", "printednet"):
        sys.modules.pop(name, None)


def only(pattern: str) -> Path:
    (found,) = Path("runs").glob(pattern)
    return found


def image(path: Path) -> Path:
    """A picture, or rows that fit the vectors."""
    if path.suffix == ".npy":
        np.save(path, np.random.default_rng(0).normal(size=(3, 6)))
        return path
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


OWN_NET = ("--net", "ownnet.py:small")
PRINTED_NET = ("--net", "printednet.py:small")
METHODS = {
    "its state, extra and schema": ("steady.py:Steady", "Steady", "strength", "tiny", ()),
    "its loss and merge": ("balanced.py:Balanced", "Balanced", "power", "tiny", ()),
    "a net from a file": ("steady.py:Steady", "Steady", "strength", "tiny", OWN_NET),
    "arrays of vectors": ("steady.py:Steady", "Steady", "strength", "vectors", ()),
    "arrays of images and the printed net": (
        "steady.py:Steady",
        "Steady",
        "strength",
        "images",
        PRINTED_NET,
    ),
}


@pytest.mark.parametrize(
    "case",
    [
        "its state, extra and schema",
        *(pytest.param(case, marks=pytest.mark.long) for case in list(METHODS)[1:]),
    ],
)
def test_the_printed_file_goes_through_every_command(cli: Cli, folder: Path, case: str) -> None:
    name, label, field, data, net = METHODS[case]
    shared = ("--spec", f"{data}.toml", *net, "--workers", "0")
    first = cli("compare", name, *shared[:-1], "1", "--json")
    assert first.code == 0, first.err  # in a process that has to find the code too
    table = cli("compare", "fedavg", "fedprox", name, f"{name}:{field}=0.25", *shared, "--json")
    assert table.code == 0, table.err
    rows = json.loads(table.out)["rows"]
    assert [row["label"] for row in rows[-2:]] == [label, f"{label} ({field}=0.25)"]

    run = cli("run", "--method", name, *shared, "--json")
    assert "already finished" in run.err, "compare and run mean the same experiment"
    (place,) = {json.loads(run.out)["folder"]}
    again = cli("run", "--method", name, *shared[:-1], "2", "--out", "twice", "--json")
    assert again.code == 0, again.err
    scores = [Path(where, "scores.jsonl").read_bytes() for where in (place, "twice")]
    assert scores[0] == scores[1], "the same bits for 0 and 2 workers"

    swept = cli("sweep", name, "--grid", f"method.{field}=0.1,0.25", *shared[:-1], "2")
    assert swept.code == 0, swept.err
    if label == "Steady":
        ablated = cli("ablate", name, *shared, "--json")
        assert [row["label"] for row in json.loads(ablated.out)["rows"]] == [
            "sizes alone",
            "Steady (full)",
        ]
    for words in (
        ("report", *Path("runs").iterdir(), "-o", "page.html"),
        ("plot", "curves", place, only("fedavg-*"), "-o", "curves.svg"),
        ("card", place),
        ("resume", place),
        ("track", place),
        ("methods", "show", name),
    ):
        assert cli(*words).code == 0, words
    assert label in Path("page.html").read_text()
    picture = image(folder / ("new.npy" if data == "vectors" else "new.png"))
    for kind in ("onnx", "safetensors"):
        assert cli("export", place, "--to", kind, "-o", f"model.{kind}").code == 0
    answers = [
        json.loads(cli("predict", model, picture, "--json").out) for model in (place, "model.onnx")
    ]
    assert answers[0]["answers"][0]["label"] == answers[1]["answers"][0]["label"]
    refused = cli("predict", "model.safetensors", picture)
    assert refused.code == 2
    assert "--allow-code" in refused.err
    assert cli("predict", "model.safetensors", picture, "--allow-code").code == 0


def test_it_survives_a_kill_and_ends_with_the_same_bits(cli: Cli, folder: Path) -> None:
    words = ["run", "--method", "steady.py:Steady", "--spec", "tiny.toml", "--rounds", "60"]
    words += ["--net", "ownnet.py:small", "--workers", "0"]
    assert cli(*words, "--out", "whole").code == 0
    command = [sys.executable, "-m", "protofed", *words, "--out", "cut"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, env=os.environ)
    began = time.monotonic()
    while not Path("cut/checkpoints/round-00003").exists():
        assert time.monotonic() - began < 100
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not Path("cut/done").exists()
    resumed = cli("resume", "cut", "--workers", "2")
    assert resumed.code == 0, resumed.err
    assert Path("cut/scores.jsonl").read_bytes() == Path("whole/scores.jsonl").read_bytes()


def test_a_run_whose_method_is_gone_is_still_read(cli: Cli, folder: Path) -> None:
    made = cli("compare", "fedavg", "steady.py:Steady", "--spec", "tiny.toml", "--workers", "0")
    assert made.code == 0
    for name in ("steady", "balanced", "ownnet"):
        (folder / f"{name}.py").unlink()
        sys.modules.pop(name, None)
    mine = only("Steady-*")
    for words in (
        ("report", *Path("runs").iterdir(), "-o", "page.html"),
        ("plot", "curves", *Path("runs").iterdir(), "-o", "curves.svg"),
        ("resume", mine, "--json"),
        ("card", mine),
        ("track", mine),
    ):
        ended = cli(*words)
        assert ended.code == 0, ended.err
    assert "Steady" in Path("page.html").read_text()
    refused = cli("export", mine)
    assert refused.code == 2
    assert "there is no file" in refused.err


def test_code_inside_a_run_folder_is_not_executed(cli: Cli, folder: Path) -> None:
    assert cli("run", "--method", "steady.py:Steady", "--spec", "tiny.toml").code == 0
    mine = only("Steady-*")
    (mine / "steady.py").write_text("raise SystemExit('executed')\n")
    spec = mine / "spec.json"
    spec.write_text(spec.read_text().replace(str(folder), str(mine.resolve())))
    for words in (("export", mine), ("predict", mine, image(folder / "a.png"))):
        refused = cli(*words)
        assert refused.code == 2
        assert "names code that lies in the run folder itself" in refused.err


def test_faults_of_a_users_file_are_told_with_their_place(cli: Cli, folder: Path) -> None:
    (folder / "broken.py").write_text("x = 1\ny = x.nothing\n")
    ended = cli("run", "--method", "broken.py:Mine")
    assert ended.code == 2
    assert f"{folder / 'broken.py'}, line 2: cannot be imported: AttributeError" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("reference", ["evilcode:Steady", "~/RUN/evilcode.py:Steady"])
def test_code_inside_a_run_folder_is_not_reached_by_another_name(
    cli: Cli, folder: Path, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("run", "--method", "steady.py:Steady", "--spec", "tiny.toml").code == 0
    mine = only("Steady-*").resolve()
    (mine / "evilcode.py").write_text("raise SystemExit('executed')\n")
    monkeypatch.setenv("HOME", str(mine.parent))
    spec = json.loads((mine / "spec.json").read_text())
    spec["method"]["name"] = reference.replace("RUN", mine.name)
    (mine / "spec.json").write_text(json.dumps(spec))
    monkeypatch.chdir(mine)
    for words in (("export", mine), ("report", mine, "-o", folder / "page.html")):
        assert "executed" not in cli(*words).err, words
    assert "evilcode" not in sys.modules
    assert "lies in the run folder itself" in cli("export", mine).err


def test_a_project_that_has_moved_uses_its_finished_runs(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = ("--net", "ownnet.py:small")
    words = ("--method", "steady.py:Steady", "--spec", "tiny.toml", *net, "--workers", "0")
    assert cli("run", *words).code == 0
    picture = image(folder / "new.png")
    before = json.loads(cli("predict", only("Steady-*"), picture, "--json").out)
    monkeypatch.chdir(folder.parent)
    moved = folder.rename(folder.parent / f"{folder.name}-moved")
    for name in ("steady", "ownnet"):
        sys.modules.pop(name, None)
    elsewhere = cli("predict", moved / "runs" / only_name(moved), moved / picture.name)
    assert elsewhere.code == 2
    assert "nor steady.py in the current folder" in elsewhere.err
    monkeypatch.chdir(moved)
    after = json.loads(cli("predict", only("Steady-*"), picture.name, "--json").out)
    assert after["answers"][0]["label"] == before["answers"][0]["label"]
    assert cli("export", only("Steady-*"), "-o", "a.onnx").code == 0
    (only("Steady-*") / "done").unlink()
    assert cli("resume", only("Steady-*"), "--workers", "0").code == 0
    moved.rename(folder)


def only_name(home: Path) -> str:
    (found,) = (home / "runs").glob("Steady-*")
    return found.name


def test_a_crash_in_ones_own_code_is_told_with_its_line(cli: Cli, folder: Path) -> None:
    text = (folder / "steady.py").read_text()
    (folder / "steady.py").write_text(text.replace("def train(", "def train_(", 1) + CRASH)
    words = ("compare", "fedavg", "steady.py:Steady", "--spec", "tiny.toml", "--workers", "0")
    table = cli(*words)
    assert table.code == 1
    lines = (folder / "steady.py").read_text().splitlines()
    line = lines.index("    return None.x") + 1
    wanted = (
        f"AttributeError: 'NoneType' object has no attribute 'x' (steady.py, line {line}, in train)"
    )
    assert wanted in table.err
    alone = subprocess.run(
        [sys.executable, "-m", "protofed", "run", "--method", *words[2:]],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert alone.returncode == 1
    assert "Traceback" in alone.stderr
    assert alone.stderr.rstrip().splitlines()[-1] == f"error: your code failed: {wanted}"


CRASH = """

def train(self, site, received, state, context):
    return None.x


Steady.train = train
"""
