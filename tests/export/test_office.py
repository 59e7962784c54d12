"""Real photographs with ten bad files among them, the whole way: doctor, run, export, predict."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import Cli
from tests.data.pictures import spoil

OFFICE = Path(os.environ.get("PROTOFED_DATA", "none")) / "office_caltech10"
QUICK = ["--net", "moon-cnn", "--rounds", "3", "--set", "training.lr=0.03"]


def write_office(source: Path, root: Path) -> int:
    """Two domains of Office-Caltech as PNG and JPEG files; how many."""
    classes = json.loads((source / "meta.json").read_text())["classes"]
    count = 0
    for domain in ("dslr", "webcam"):
        with np.load(source / f"{domain}.npz") as stored:
            images, labels = stored["x"], stored["y"]
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            folder = root / domain / classes[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{number}.{'png' if number % 2 else 'jpg'}")
            count += 1
    return count


@pytest.mark.skipif(not OFFICE.is_dir(), reason="needs real images: set PROTOFED_DATA")
def test_onnx_labels_real_photographs_as_the_run_does(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))
    count = write_office(OFFICE, Path("office"))
    bad = {f"office/dslr/mug/{name}" for name in spoil(Path("office/dslr/mug"))}
    examined = cli("data", "doctor", "office", "-o", "office.toml")
    assert examined.code == 0
    assert all(name.removeprefix("office/") in examined.out for name in bad)
    ran = cli("run", "--spec", "office.toml", *QUICK, "--out", "run")
    assert ran.code == 0, ran.err
    wrote = cli("export", "run", "--to", "onnx", "-o", "office.onnx")
    assert (wrote.code, wrote.err) == (0, "")
    said = {}
    for model in ("run", "office.onnx"):
        ended = cli("predict", model, "office", "--json")
        assert ended.code == 1  # of the bad files
        said[model] = {one["file"]: one for one in json.loads(ended.out)["answers"]}
    labels = {
        model: {file: one["label"] for file, one in answers.items() if "label" in one}
        for model, answers in said.items()
    }
    assert labels["run"] == labels["office.onnx"]
    assert len(labels["run"]) == count
    assert len(set(labels["run"].values())) > 1  # else equal labels would say little
    for answers in said.values():
        assert {file for file, one in answers.items() if "fault" in one} == bad
