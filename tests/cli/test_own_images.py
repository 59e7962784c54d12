"""A folder of one's own images from the command line: doctor, run, resume, tables, reports."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protofed.spec.spec_parser import parse_experiment
from tests.cli.conftest import Cli
from tests.data.pictures import drawing, make, spoil

OFFICE = Path(os.environ.get("PROTOFED_DATA", "none")) / "office_caltech10"
QUICK = ["--net", "moon-mlp", "--rounds", "1", "--set", "training.epochs=1"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path / "our photos")


def test_run_show_report_and_figures_work_with_a_folder(cli: Cli, root: Path) -> None:
    ended = cli("run", "--data", "./our photos", *QUICK)
    assert ended.code == 0, ended.err
    assert "packing images: 40 of 40" in ended.err
    assert "FedAvg on our-photos with moon-mlp" in ended.err
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("fedavg-our-photos-")
    again = cli("run", "--data", "our photos", *QUICK)
    assert "already finished" in again.err
    assert "packing" not in again.err
    shown = cli("data", "show", "our photos", "--picture", "sheet.png")
    assert ["photo", "16", "4"] in [line.split() for line in shown.out.splitlines()]
    assert "split by protofed, 20% of each class to test" in shown.out
    assert cli("plot", "partition", folder).code == 0
    shutil.rmtree(root)  # what is on record stands without the images
    assert cli("report", folder, "-o", "report.html").code == 0
    assert "FedAvg on our-photos" in Path("report.html").read_text()


def test_the_digest_names_the_images_wherever_they_lie(root: Path, tmp_path: Path) -> None:
    raw = {"data": {"name": str(root)}}
    first = parse_experiment(raw)
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copytree(root, tmp_path / "elsewhere" / "our photos")
    assert parse_experiment({"data": {"name": str(moved)}}).digest == first.digest
    Image.fromarray(drawing(0, 77)).save(root / "photo" / "cat" / "001.png")
    second = parse_experiment(raw)
    assert second.data.revision != first.data.revision
    assert second.digest != first.digest


def test_a_run_does_not_go_on_with_other_images(cli: Cli, root: Path) -> None:
    assert cli("run", "--data", root, *QUICK, "--out", "one").code == 0
    spec, done = Path("one/spec.json"), Path("one/done")
    done.unlink()
    Image.fromarray(drawing(0, 77)).save(root / "photo" / "cat" / "001.png")
    ended = cli("run", "--spec", spec, "--out", "one")
    assert ended.code == 2
    assert "holds other images than this run is about" in ended.err
    ended = cli("run", "--data", root, *QUICK, "--out", "one")
    assert (ended.code, "holds another experiment" in ended.err) == (2, True)


def test_strict_refuses_what_is_skipped_otherwise(cli: Cli, root: Path) -> None:
    bad = spoil(root / "neg" / "cat")
    refused = cli("run", "--data", root, *QUICK, "--set", "data.strict=true")
    assert refused.code == 2
    assert all(name in refused.err for name in bad)
    ended = cli("run", "--data", root, *QUICK)
    assert ended.code == 0
    assert all(name in ended.out for name in bad)


@pytest.mark.parametrize(
    ("name", "says"),
    [("./nowhere", "does not exist"), ("digit-mini", "did you mean 'digits-mini'")],
)
def test_a_wrong_name_is_told(name: str, says: str, cli: Cli) -> None:
    ended = cli("run", "--data", name)
    assert (ended.code, says in ended.err) == (2, True)


def test_doctor_writes_a_spec_that_runs(cli: Cli, root: Path) -> None:
    spoil(root / "neg" / "cat")
    ended = cli("data", "doctor", root, "-o", "spec.toml")
    assert ended.code == 0
    assert "1. bad: 10 files cannot be used" in ended.out
    found = json.loads(cli("data", "doctor", root, "--json").out)
    assert found["findings"][0]["title"] == "10 files cannot be used"
    assert found["spec"] == Path("spec.toml").read_text()
    assert cli("run", "--spec", "spec.toml", *QUICK).code == 0


def test_doctor_does_not_write_over_a_spec_that_was_edited(cli: Cli, root: Path) -> None:
    assert cli("data", "doctor", root, "-o", "spec.toml").code == 0
    assert cli("data", "doctor", root, "-o", "spec.toml").code == 0  # the same again
    Path("spec.toml").write_text("rounds = 7\n")
    ended = cli("data", "doctor", root, "-o", "spec.toml")
    assert (ended.code, "was not changed" in ended.err) == (2, True)
    assert "protofed run" not in ended.out
    assert Path("spec.toml").read_text() == "rounds = 7\n"
    ended = cli("data", "doctor", root, "-o", "no/spec.toml")
    assert (ended.code, ended.out) == (2, "")
    assert "create it first" in ended.err


@pytest.mark.skipif(not OFFICE.is_dir(), reason="needs real images: set PROTOFED_DATA")
def test_real_images_with_ten_bad_files_among_them(cli: Cli, tmp_path: Path) -> None:
    root, source = tmp_path / "office", OFFICE
    classes = json.loads((source / "meta.json").read_text())["classes"]
    for domain in ("dslr", "webcam"):
        with np.load(source / f"{domain}.npz") as stored:
            images, labels = stored["x"], stored["y"]
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            folder = root / domain / classes[label]
            folder.mkdir(parents=True, exist_ok=True)
            ending = "png" if number % 2 else "jpg"
            Image.fromarray(image).save(folder / f"{number}.{ending}")
    bad = spoil(root / "dslr" / "mug")
    examined = cli("data", "doctor", root)
    assert examined.code == 0
    assert "shift between domains: " in examined.out
    ran = cli("run", "--data", root, *QUICK)
    assert ran.code == 0, ran.err
    for name in bad:
        assert f"dslr/mug/{name}" in examined.out
        assert f"dslr/mug/{name}" in ran.out
