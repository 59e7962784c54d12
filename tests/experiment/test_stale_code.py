"""Code is edited between two commands, in every way that people do: no old number ever comes back.

All commands are processes of their own, on a copy of the package that a test may edit. The base
runs are made once; each way copies them, edits one thing, and repeats the command.
"""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import protofed
from tests.cli.conftest import TINY
from tests.conftest import Once

MINE = '''
from typing import ClassVar
import torch.nn.functional as F
from protofed.api import *
import mine_base
from mine_helper import SCALE


@dataclass(frozen=True)
class Mine(mine_base.Base):
    """Cross entropy, scaled."""

    info: ClassVar[MethodInfo] = MethodInfo(label="Mine", title="A test")
    power: float = 1.0

    def loss(self, site, received, state, model, batch):
        return SCALE * self.factor() * F.cross_entropy(
            site.forward_train(model, batch.x).logits, batch.y
        )
'''
BASE = '''
from protofed.api import *


@dataclass(frozen=True)
class Base(Method):
    """What Mine is built on."""

    def factor(self):
        return 1.0
'''
NETS = """
from torch import nn
from protofed.api import net_from_module


def small(classes, image):
    layers = nn.Linear(image.channels * image.side**2, 16), nn.ReLU(), nn.Linear(16, classes)
    return net_from_module(nn.Sequential(nn.Flatten(), *layers), head="3")
"""
SCRIPT = '''
from typing import ClassVar
import torch.nn.functional as F
import protofed
from protofed.api import *
from mine_helper import SCALE


@dataclass(frozen=True)
class Typed(Method):
    """Cross entropy, scaled."""

    info: ClassVar[MethodInfo] = MethodInfo(label="Typed", title="A test")

    def loss(self, site, received, state, model, batch):
        return SCALE * F.cross_entropy(site.forward_train(model, batch.x).logits, batch.y)


if __name__ == "__main__":
    data = protofed.Data(name="digits-mini", domains=("optical", "print"))
    experiment = protofed.Experiment(
        method=Typed(), net="moon-mlp", rounds=1, training=Training(epochs=1), data=data,
        partition={"kind": "shares", "clients": 2, "samples": 9},
    )
    result = protofed.run(experiment, "runs/script", workers=0)
    print(result.last.mean)
'''


@dataclass
class Place:
    """A folder with a package of protofed, a user's files and runs; all of it may be edited."""

    folder: Path

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a Python program in the folder, with the folder's own protofed."""
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self.surroundings,
            capture_output=True,
            text=True,
            timeout=240,
        )

    @property
    def surroundings(self) -> dict[str, str]:
        """Python writes no bytecode, which it would take for that of a file edited at once."""
        own = {"PYTHONPATH": str(self.folder / "package"), "PYTHONDONTWRITEBYTECODE": "1"}
        return {**os.environ, **own}

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.call("-m", "protofed", *words)

    def edit(self, file: str, before: str, after: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert before in text, f"{file} no longer has {before!r}"
        path.write_text(text.replace(before, after, 1))

    def scores(self, run: str) -> bytes:
        return (self.folder / "runs" / run / "scores.jsonl").read_bytes()


def run_words(method: str, run: str, *more: str) -> list[str]:
    flags = ["--spec", "tiny.toml", "--method", method, "--out", f"runs/{run}", "--workers", "0"]
    return ["run", *flags, *more]


RUNS = {
    "mine": run_words("mine.py:Mine", "mine", "--net", "nets.py:small"),
    "fedprox": run_words("fedprox", "fedprox"),
    "pgct": run_words("pgct", "pgct", "--set", "method.base.name=fedprox"),
    "cut": run_words("mine.py:Mine", "cut", "--net", "nets.py:small", "--rounds", "40"),
}


@pytest.fixture(scope="session")
def base(once: Once) -> Place:
    """The base runs, made by unedited code; one of them is killed on its way."""
    return Place(once("base", make_base))


def make_base(folder: Path) -> None:
    place = Place(folder)
    home = Path(protofed.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__")
    package = place.folder / "package" / "protofed"
    shutil.copytree(home, package, ignore=ignored)
    # Bytecode that goes by what a file says, not by when it was written.
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    assert compileall.compile_dir(package, quiet=1, invalidation_mode=mode)
    files = {"mine.py": MINE, "mine_base.py": BASE, "nets.py": NETS, "script.py": SCRIPT}
    files |= {
        "mine_helper.py": "SCALE = 1.0\n",
        "tiny.toml": TINY.replace("rounds = 2", "rounds = 1"),
    }
    for name, text in files.items():
        (place.folder / name).write_text(text)
    for name in ("mine", "fedprox", "pgct"):
        made = place.cli(*RUNS[name])
        assert made.returncode == 0, made.stderr
    assert place.call("script.py").returncode == 0
    _kill_on_its_way(place)


def _kill_on_its_way(place: Place) -> None:
    command = [sys.executable, "-m", "protofed", *RUNS["cut"]]
    process = subprocess.Popen(
        command, cwd=place.folder, env=place.surroundings, stderr=subprocess.DEVNULL
    )
    began = time.monotonic()
    while not (place.folder / "runs/cut/checkpoints/round-00002").exists():
        assert time.monotonic() - began < 240
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (place.folder / "runs/cut/done").exists()


@pytest.fixture
def place(base: Place, tmp_path: Path) -> Place:
    moved = tmp_path / "place"
    shutil.copytree(base.folder, moved)
    for spec in moved.glob("runs/*/spec.json"):
        spec.write_text(spec.read_text().replace(str(base.folder), str(moved)))
    return Place(moved)


@dataclass(frozen=True)
class Way:
    """A way to edit code between two commands, and the file that must be named."""

    run: str
    file: str
    before: str
    after: str
    named: str


PACKAGE = "package/protofed"
WAYS = {
    "the loss of a method in a file": Way("mine", "mine.py", "SCALE *", "2 * SCALE *", "mine.py"),
    "a factor of a sum": Way("mine", "mine.py", "SCALE * self", "0.5 * self", "mine.py"),
    "a constant in a module that it imports": Way(
        "mine", "mine_helper.py", "1.0", "3.0", "mine_helper.py"
    ),
    "the class that it inherits from": Way(
        "mine", "mine_base.py", "return 1.0", "return 4.0", "mine_base.py"
    ),
    "a net in a file": Way("mine", "nets.py", "ReLU", "Tanh", "nets.py"),
    "a method of the package": Way(
        "fedprox",
        f"{PACKAGE}/methods/fedprox.py",
        "return task",
        "return 2 * task",
        "protofed/methods/fedprox.py",
    ),
    "the method that another is built on": Way(
        "pgct",
        f"{PACKAGE}/methods/fedprox.py",
        "return task",
        "return 2 * task",
        "protofed/methods/fedprox.py",
    ),
    "an operation that a method calls": Way(
        "pgct",
        f"{PACKAGE}/ops/prototype_collection.py",
        "\n\n\n",
        "\n\nEXTRA = 1\n\n\n",
        "protofed/ops/prototype_collection.py",
    ),
    "a net of the package": Way(
        "fedprox",
        f"{PACKAGE}/nets/cnn.py",
        "HIDDEN = 512",
        "HIDDEN = 256",
        "protofed/nets/cnn.py",
    ),
    "the arithmetic of training": Way(
        "fedprox",
        f"{PACKAGE}/core/training.py",
        "optimiser.zero_grad()",
        "optimiser.zero_grad(set_to_none=False)",
        "protofed/core/training.py",
    ),
    "the mean of models": Way(
        "fedprox",
        f"{PACKAGE}/core/method.py",
        "[r.size for r in",
        "[1 for r in",
        "protofed/core/method.py",
    ),
    "augmentation": Way(
        "fedprox",
        f"{PACKAGE}/data/transforms.py",
        "lines.div_(255)",
        "lines.div_(256)",
        "protofed/data/transforms.py",
    ),
    "between a kill and the same command": Way(
        "cut", "mine_helper.py", "1.0", "3.0", "mine_helper.py"
    ),
}


SHORT = (  # one for each place that code may lie in; the others lie beside these
    "the loss of a method in a file",
    "a constant in a module that it imports",
    "a net in a file",
    "the method that another is built on",
    "the arithmetic of training",
    "between a kill and the same command",
)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in SHORT else pytest.mark.long) for n in WAYS]
)
def test_an_edit_is_noticed_and_named(place: Place, name: str) -> None:
    way = WAYS[name]
    before = place.scores(way.run)
    place.edit(way.file, way.before, way.after)
    refused = place.cli(*RUNS[way.run])
    assert refused.returncode == 2, refused.stderr
    assert refused.stdout == ""
    assert f"changed since: {way.named}" in refused.stderr
    assert "--again" in refused.stderr
    assert place.scores(way.run) == before, "what was there is not touched"


def test_twelve_ways_are_counted() -> None:
    assert len(WAYS) >= 12, "and the tests below try others"


def test_a_comment_is_no_edit(place: Place) -> None:
    place.edit("mine_helper.py", "1.0", "1.0  # a comment")
    place.edit(f"{PACKAGE}/core/training.py", "optimiser.zero_grad()", "optimiser.zero_grad()  # x")
    read = place.cli(*RUNS["mine"])
    assert read.returncode == 0
    assert "already finished" in read.stderr


def test_an_edited_run_is_repeated_or_accepted_as_told(place: Place) -> None:
    old = place.scores("mine")
    place.edit("mine_helper.py", "1.0", "3.0")
    accepted = place.cli(*RUNS["mine"], "--stale", "accept")
    assert accepted.returncode == 0
    assert "note: read although code has changed since: mine_helper.py" in accepted.stdout
    assert place.scores("mine") == old
    repeated = place.cli(*RUNS["mine"], "--stale", "repeat")
    assert repeated.returncode == 0, repeated.stderr
    assert "repeated: mine_helper.py" in repeated.stderr
    words = [word.replace("runs/mine", "runs/fresh") for word in RUNS["mine"]]
    assert place.cli(*words).returncode == 0
    assert place.scores("mine") == place.scores("fresh") != old
    assert "already finished" in place.cli(*RUNS["mine"]).stderr


def test_resume_after_an_edit_refuses_to_mix(place: Place) -> None:
    place.edit("mine.py", "SCALE *", "2 * SCALE *")
    for words in (["resume", "runs/cut"], [*RUNS["cut"], "--stale", "accept"]):
        refused = place.cli(*words)
        assert refused.returncode == 2
        assert "would mix the numbers of two programs" in refused.stderr
    assert not (place.folder / "runs/cut/done").exists()


@pytest.mark.long
def test_a_grid_after_an_edit_is_refused_then_repeated(place: Place) -> None:
    words = ["compare", "fedavg", "mine.py:Mine", "--spec", "tiny.toml", "--net", "nets.py:small"]
    first = place.cli(*words, "--json", "--workers", "0")
    assert first.returncode == 0, first.stderr
    place.edit("mine.py", "SCALE *", "-1 * SCALE *")
    refused = place.cli(*words, "--json", "--workers", "2")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--stale repeat" in refused.stderr
    again = place.cli(*words, "--json", "--stale", "repeat", "--workers", "2")
    assert again.returncode == 0, again.stderr
    rows = [json.loads(done.stdout)["rows"] for done in (first, again)]
    assert rows[0][0] == rows[1][0], "FedAvg does not depend on that file"
    assert rows[0][1]["cells"] != rows[1][1]["cells"]
    accepted = place.cli(*words, "--json", "--stale", "accept", "--workers", "0")
    assert json.loads(accepted.stdout)["rows"] == rows[1]
    assert not any("has changed" in note for note in json.loads(accepted.stdout)["notes"])
    place.edit("mine.py", "-1 * SCALE *", "3 * SCALE *")
    accepted = place.cli(*words, "--json", "--stale", "accept", "--workers", "0")
    assert json.loads(accepted.stdout)["rows"] == rows[1]
    note = "Mine (seed 0): read although code has changed since: mine.py"
    assert note in json.loads(accepted.stdout)["notes"]


def records(runs: Path) -> dict[str, bytes]:
    """What a grid has on record: scores, rounds, and which runs are finished."""
    files = [*runs.glob("*/*.jsonl"), *runs.glob("*/done")]
    return {str(file.relative_to(runs)): file.read_bytes() for file in files}


@pytest.mark.long
def test_a_grid_killed_half_way_and_edited_is_refused_then_repeated(place: Place) -> None:
    words = ["compare", "mine.py:Mine", "--spec", "tiny.toml", "--net", "nets.py:small"]
    words += ["--rounds", "40", "--seeds", "2", "--json", "--workers", "0"]
    grid, began = place.folder / "killed", time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "protofed", *words, "--runs", "killed"],
        cwd=place.folder,
        env=place.surroundings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # the first run is over, and the second one has begun
    while not (any(grid.glob("*/done")) and any(grid.glob("*/checkpoints/round-00002"))):
        assert time.monotonic() - began < 240
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(list(grid.glob("*/done"))) == 1, "it was really in the middle"
    before = records(grid)
    place.edit("mine.py", "SCALE *", "-1 * SCALE *")
    for stale in ("refuse", "accept"):  # one that is not finished cannot be accepted
        refused = place.cli(*words, "--runs", "killed", "--stale", stale)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "--stale repeat" in refused.stderr
        assert records(grid) == before
    assert place.cli(*words, "--runs", "killed", "--stale", "repeat").returncode == 0
    assert place.cli(*words, "--runs", "fresh").returncode == 0
    scores, fresh = (
        {file: text for file, text in records(place.folder / runs).items() if "scores" in file}
        for runs in ("killed", "fresh")
    )
    assert scores == fresh, "no number of the old code is left"


@pytest.mark.long
def test_an_edit_between_two_searches_is_refused_then_repeated(place: Place) -> None:
    words = ["sweep", "mine.py:Mine", "--search", "method.power=1,2", "--spec", "tiny.toml"]
    words += ["--net", "nets.py:small", "--rounds", "3", "--rungs", "2", "--workers", "0", "--json"]
    first = place.cli(*words, "--runs", "searched")
    assert first.returncode == 0, first.stderr
    states = [trial["state"] for trial in json.loads(first.stdout)["trials"]]
    assert states == ["finished", "pruned"]
    before = records(place.folder / "searched")
    place.edit("mine.py", "SCALE *", "-1 * SCALE *")
    for stale in ("refuse", "accept"):  # the pruned trial is not finished
        refused = place.cli(*words, "--runs", "searched", "--stale", stale)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "--stale repeat" in refused.stderr
        assert records(place.folder / "searched") == before
    again = place.cli(*words, "--runs", "searched", "--stale", "repeat")
    fresh = place.cli(*words, "--runs", "fresh")
    assert (again.returncode, fresh.returncode) == (0, 0)
    old, repeated, new = (json.loads(done.stdout)["trials"] for done in (first, again, fresh))
    assert repeated == new != old


@pytest.mark.long
def test_an_edited_script_is_noticed(place: Place) -> None:
    assert place.call("script.py").returncode == 0, "the same script reads its run"
    place.edit("script.py", "print(result.last.mean)", "print(result.last.worst)")
    assert place.call("script.py").returncode == 0, "the main block does not count"
    place.edit("script.py", "return SCALE *", "return 5 * SCALE *")
    refused = place.call("script.py")
    assert refused.returncode == 1
    assert "runs/script was made by other code; changed since: script.py" in refused.stderr


@pytest.mark.long
def test_an_edited_class_of_a_script_with_two_is_noticed(place: Place) -> None:
    place.edit("script.py", "class Typed(Method):", "class Above(Method):")
    place.edit("script.py", "\n\nif __name__", DERIVED + "\n\nif __name__")
    place.edit("script.py", "runs/script", "runs/two")
    made = place.call("script.py")
    assert made.returncode == 0, made.stderr
    place.edit("script.py", "1.0 * super()", "0.0 * super()")
    refused = place.call("script.py")
    assert refused.returncode == 1
    assert "changed since: script.py" in refused.stderr
    place.edit("script.py", "0.0 * super()", "1.0 * super()")
    assert place.call("script.py").returncode == 0
    place.edit("script.py", "return SCALE *", "return 5 * SCALE *")
    assert "changed since: script.py" in place.call("script.py").stderr


DERIVED = """

@dataclass(frozen=True)
class Typed(Above):
    info: ClassVar[MethodInfo] = MethodInfo(label="Typed", title="A test")

    def loss(self, site, received, state, model, batch):
        return 1.0 * super().loss(site, received, state, model, batch)
"""


CELLS = """
import sys, types
from pathlib import Path
import protofed

def cell(text):
    exec(compile(text, "<cell>", "exec"), vars(sys.modules["__main__"]))

DEFINE = Path("script.py").read_text().split('if __name__')[0]
RUN = Path("script.py").read_text().split('if __name__ == "__main__":')[1]
RUN = "if True:" + RUN
cell(DEFINE)
cell(RUN.replace("runs/script", "runs/cells"))
first = Path("runs/cells/scores.jsonl").read_bytes()
cell(DEFINE.replace("SCALE * F", "7 * F"))
cell(RUN.replace("runs/script", "runs/cells"))
second = Path("runs/cells/scores.jsonl").read_bytes()
cell(RUN.replace("runs/script", "runs/other"))
assert Path("runs/other/scores.jsonl").read_bytes() == second
assert first != second
"""


def test_an_edited_cell_of_a_notebook_is_always_trained_anew(place: Place) -> None:
    done = place.call("-c", CELLS)
    assert done.returncode == 0, done.stderr


IN_MEMORY = """
import importlib, sys
from pathlib import Path
import protofed
from protofed.spec.spec_parser import parse_experiment, read_spec
sys.path.append(".")
sys.dont_write_bytecode = True
import mine

def run(**more):
    raw = read_spec(Path("tiny.toml"))
    experiment = parse_experiment({**raw, "method": mine.Mine(), "net": "nets.py:small"})
    return protofed.run(experiment, "runs/mine", workers=0, **more)

run()
text = Path("mine.py").read_text()
Path("mine.py").write_text(text.replace("SCALE *", "9 * SCALE *"))
try:
    run(again=True)
except protofed.ProtofedError as fault:
    assert "was edited after it was imported" in str(fault), fault
else:
    raise AssertionError("old code in memory passed for the file's")
importlib.reload(mine)
try:
    run()
except protofed.ProtofedError as fault:
    assert "made by other code; changed since: mine.py" in str(fault), fault
else:
    raise AssertionError("an old result came back")
run(stale="repeat")
"""


RUN_TWICE = """
import runpy
from pathlib import Path
text = Path("script.py").read_text().replace("runs/script", "runs/twice")
Path("again.py").write_text(text)
runpy.run_path("again.py", run_name="__main__")
first = Path("runs/twice/scores.jsonl").read_bytes()
Path("again.py").write_text(text.replace("return SCALE *", "return 50 * SCALE *"))
runpy.run_path("again.py", run_name="__main__")
assert Path("runs/twice/scores.jsonl").read_bytes() != first
"""


def test_an_edited_script_that_another_runs_is_trained_anew(place: Place) -> None:
    done = place.call("-c", RUN_TWICE)
    assert done.returncode == 0, done.stderr


HALF_RELOADED = """
import importlib, sys
from pathlib import Path
import protofed
from protofed.spec.spec_parser import parse_experiment, read_spec
sys.path.append(".")
import mine, mine_helper

def run(**more):
    raw = read_spec(Path("tiny.toml"))
    experiment = parse_experiment({**raw, "method": mine.Mine(), "net": "nets.py:small"})
    return protofed.run(experiment, "runs/mine", workers=0, progress=False, **more)

Path("mine_helper.py").write_text("SCALE = 30.0\\n")
importlib.reload(mine_helper)
try:
    run(stale="repeat")
except protofed.ProtofedError as fault:
    assert "mine_helper was reloaded, but mine" in str(fault), fault
else:
    raise AssertionError("old code ran under the new fingerprint")
importlib.reload(mine)
run(stale="repeat")

loss = mine.Mine.loss
mine.Mine.loss = lambda self, *words: 9 * loss(self, *words)
patched = run().history
again = run().history
assert again == patched, "trained again, by the same patch"
mine.Mine.loss = loss
try:
    run()
except protofed.ProtofedError as fault:
    assert "made by other code" in str(fault), fault
else:
    raise AssertionError("what was patched at run time was reused")
"""


def test_an_edited_helper_reloaded_alone_or_a_patched_hook_is_noticed(place: Place) -> None:
    done = place.call("-c", HALF_RELOADED)
    assert done.returncode == 0, done.stderr


def test_an_edited_module_in_a_running_process_is_noticed(place: Place) -> None:
    done = place.call("-c", IN_MEMORY)
    assert done.returncode == 0, done.stderr


def test_a_run_whose_code_is_not_on_record_is_not_reused(place: Place) -> None:
    env = place.folder / "runs" / "fedprox" / "env.json"
    world = json.loads(env.read_text())
    del world["code"]
    env.write_text(json.dumps(world))
    refused = place.cli(*RUNS["fedprox"])
    assert refused.returncode == 2
    assert "its code is not on record" in refused.stderr


LOOP = """
TEMPERATURE = 1.0


def scaled(loss):
    return loss / TEMPERATURE

""" + SCRIPT.replace("return SCALE * F.", "return scaled(SCALE) * F.").replace(
    """    result = protofed.run(experiment, "runs/script", workers=0)
    print(result.last.mean)
""",
    """    for TEMPERATURE in (1.0, 0.01, 1.0):
        result = protofed.run(experiment, "runs/loop", workers=0, stale="repeat")
        print(result.history)
""",
)


def test_a_new_default_of_a_field_is_another_experiment(place: Place) -> None:
    before = place.scores("mine")
    place.edit("mine.py", "power: float = 1.0", "power: float = 2.0")
    refused = place.cli(*RUNS["mine"])
    assert refused.returncode == 2
    assert "runs/mine holds another experiment" in refused.stderr
    assert place.scores("mine") == before


SET_IN_MAIN = (
    SCRIPT.split("if __name__")[0].replace("SCALE * F", "C * args.a * self.b * F")
    + """
if __name__ == "__main__":
    from argparse import Namespace

    data = protofed.Data(name="digits-mini", domains=("optical", "print"))
    for factor, a, b in ((1, 1, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1)):
        C, args, Typed.b = factor, Namespace(a=a), b
        experiment = protofed.Experiment(
            method=Typed(), net="moon-mlp", rounds=1, training=Training(epochs=1), data=data,
            partition={"kind": "shares", "clients": 2, "samples": 9},
        )
        again = protofed.run(experiment, "runs/main", workers=0, stale="repeat", progress=False)
        print(again.history)
    args = Namespace(a=5)
    protofed.run(experiment, "runs/main", workers=0, progress=False)
"""
)


def test_what_only_the_main_block_of_a_script_sets_makes_another_number(place: Place) -> None:
    (place.folder / "main.py").write_text(SET_IN_MAIN)
    done = place.call("main.py")
    first, *others, last = [line for line in done.stdout.splitlines() if line]
    assert first == last
    assert len(others) == 3
    assert first not in others
    assert done.returncode == 1
    assert "changed since: main.py, args (set at run time)" in done.stderr


def test_a_script_that_sets_a_constant_in_a_loop_gets_the_number_of_each_value(
    place: Place,
) -> None:
    (place.folder / "loop.py").write_text(LOOP)
    done = place.call("loop.py")
    assert done.returncode == 0, done.stderr
    one, other, again = done.stdout.splitlines()
    assert one == again
    assert one != other
