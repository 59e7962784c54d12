"""The tutorial's commands run as they stand there, in order, on images that its script draws."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.conftest import Cli, Ended

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "tutorial.md").read_text()
WITHOUT_PROTOFED = re.compile(r"```py\n(.*?)```", re.DOTALL)
SCRIPT = re.compile(r"save this as `(\S+)`.*?```py\n(.*?)```", re.DOTALL)
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands() -> list[tuple[list[str], int]]:
    """The words of each command, and the exit code that the page names."""
    lines = [line for block in BLOCK.findall(PAGE) for line in block.splitlines()]
    found = []
    for line in lines:
        assert line.startswith("$ "), "a console block holds commands only"
        told = re.search(r"# exit code (\d)", line)
        found.append((shlex.split(line[2:], comments=True), int(told[1]) if told else 0))
    return found


def test_every_command_of_the_page_does_what_it_says(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))
    ((name, script),) = SCRIPT.findall(PAGE)
    Path(name).write_text(script)
    ends: dict[str, Ended] = {}
    for words, code in commands():
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True)
        else:
            assert words[0] == "protofed"
            ended = ends[words[1]] = cli(*words[1:])
            assert ended.code == code, f"{words}: {ended}"
    assert list(ends) == ["data", "run", "report", "export", "predict"]
    assert Path("runs/first/card.md").exists()
    assert Path("cameras.onnx").exists()
    _same_label_without_protofed(cli)
    pictures = sorted(Path("why").iterdir())
    assert len(pictures) == 2
    with Image.open(pictures[0]) as drawn:
        assert drawn.format == "PNG"


def _same_label_without_protofed(cli: Cli) -> None:
    """What docs/export.md shows gives the label that `protofed predict` gives."""
    (code,) = WITHOUT_PROTOFED.findall((DOCS / "export.md").read_text())
    assert "protofed" not in code
    ended = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
    )
    label, chance = ended.stdout.split()
    told = json.loads(cli("predict", "cameras.onnx", "new/day-disc.png", "--json").out)
    (answer,) = told["answers"]
    assert label == answer["label"]
    assert float(chance) == pytest.approx(answer["confidence"], abs=1e-4)


def test_the_page_has_a_command_for_every_step() -> None:
    assert [words[1] for words, _ in commands()][1:] == [
        *("data", "run", "report", "export", "predict", "predict")
    ]
