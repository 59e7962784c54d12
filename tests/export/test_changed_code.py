"""A model is refused if the code of today makes another one of a run's weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NETS = """
from torch import nn
from protofed.api import net_from_module


class Small(nn.Module):
    def __init__(self, classes, image):
        super().__init__()
        self.flat, self.body = nn.Flatten(), nn.Linear(image.channels * image.side**2, 16)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.body(self.flat(x)).relu())


def small(classes, image):
    return net_from_module(Small(classes, image), head="head")
"""
METHOD = '''
from typing import ClassVar
import torch.nn.functional as F
from protofed.api import *


@dataclass(frozen=True)
class Mine(Method):
    """Cross entropy."""

    info: ClassVar[MethodInfo] = MethodInfo(label="Mine", title="A test")

    def loss(self, site, received, state, model, batch):
        return F.cross_entropy(site.forward_train(model, batch.x).logits, batch.y)

    def class_scores(self, out):
        return out.logits
'''
SPEC = {
    "rounds": 3,
    "data": {"name": "digits-mini", "domains": ["optical", "print"], "side": 16},
    "partition": {"kind": "shares", "clients": 2, "samples": 200},
    "training": {"epochs": 5, "batch": 16, "lr": 0.01},
}


def protofed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", "-m", "protofed", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a method and a net from files."""
    home = tmp_path_factory.mktemp("own")
    (home / "nets.py").write_text(NETS)
    (home / "mine.py").write_text(METHOD)
    spec = {**SPEC, "method": {"name": "mine.py:Mine"}, "net": "nets.py:small"}
    (home / "spec.json").write_text(json.dumps(spec))
    done = protofed(home, "run", "--spec", "spec.json", "--out", "run", "--workers", "0")
    assert done.returncode == 0, done.stderr
    return home


@pytest.fixture
def own(trained: Path) -> Path:
    """The files as they were when it was trained; the spec names the folder, so it cannot move."""
    (trained / "nets.py").write_text(NETS)
    (trained / "mine.py").write_text(METHOD)
    shutil.rmtree(trained / "out", ignore_errors=True)
    (trained / "out").mkdir()
    return trained


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


EDITS = {
    "the net": ("nets.py", ".relu()", ".neg().sigmoid()"),
    "the prediction": ("mine.py", "return out.logits", "return -out.logits"),
}
COMMANDS = {
    "export": ["export", "run", "--to", "onnx", "-o", "out/a.onnx"],
    "a figure": ["plot", "tsne", "run", "-o", "out/tsne"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", EDITS)
def test_an_edit_that_changes_the_model_is_refused(case: str, command: str, own: Path) -> None:
    name, old, new = EDITS[case]
    edit(own / name, old, new)
    refused = protofed(own, *COMMANDS[command])
    assert refused.returncode == 2
    assert "today's makes another model of its weights: optical" in refused.stderr
    assert f"changed since: {name}" in refused.stderr
    assert not list((own / "out").iterdir())


def test_it_can_be_taken_as_it_is(own: Path) -> None:
    edit(own / "nets.py", *EDITS["the net"][1:])
    taken = protofed(own, "export", "run", "--to", "onnx", "-o", "out/a.onnx", "--stale", "accept")
    assert taken.returncode == 0, taken.stderr
    assert (own / "out" / "a.onnx").exists()


def test_an_edit_that_leaves_the_model_alone_does_not_matter(own: Path) -> None:
    edit(own / "mine.py", "return F.cross_entropy(", "return 2 * F.cross_entropy(")
    done = protofed(own, *COMMANDS["export"])
    assert done.returncode == 0, done.stderr


def test_a_report_says_why_it_has_no_matrix(own: Path) -> None:
    edit(own / "nets.py", *EDITS["the net"][1:])
    done = protofed(own, "report", "run", "--allow-code", "-o", "out/a.html")
    assert done.returncode == 0, done.stderr
    assert "makes another model of its weights" in (own / "out" / "a.html").read_text()
