"""A user's arrays through every command: vectors and images alike."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from protofed.datasets import from_arrays
from tests.cli.conftest import Cli
from tests.data.tables import images, vectors

QUICK = ("--rounds", "2", "--set", "training.epochs=1", "--workers", "0")


class Case(NamedTuple):
    """A folder of arrays, and what its commands say."""

    kind: str
    folder: str
    x: np.ndarray[tuple[int, ...], np.dtype[np.generic]]  # of the first domain
    domains: tuple[str, str]


@pytest.fixture(params=["vectors", pytest.param("images", marks=pytest.mark.long)])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """Each kind of arrays, in a folder ``mine`` beside the runs."""
    given = vectors() if request.param == "vectors" else images()
    from_arrays(given, folder=tmp_path / "mine", classes=["low", "mid", "high"])
    one, two = given
    return Case(request.param, "mine", given[one][0], (one, two))


def test_from_comparison_to_report_and_figures(cli: Cli, case: Case) -> None:
    flags = ("--data", case.folder, "--rounds", "2", "--set", "training.epochs=1")
    ended = cli("compare", "fedproto", *flags, "--workers", "1", "--json")
    assert ended.code == 0, ended.err
    ended = cli("compare", "fedavg", *flags, "--workers", "0", "--seeds", "2", "--json")
    assert ended.code == 0, ended.err
    runs = sorted(Path("runs").iterdir())
    assert len(runs) == 3
    assert {run.name.split("-")[1] for run in runs} == {"mine"}
    report = cli("report", *runs, "-o", "page.html")
    assert report.code == 0, report.err
    page = Path("page.html").read_text()
    assert all(name in page for name in ("FedProto", *case.domains, "low", "mid", "high"))
    one = [run for run in runs if run.name.startswith("fedproto")][:1]
    for kind in ("curves", "domains", "tsne", "sphere", "margins", "prototypes", "partition"):
        drawn = cli("plot", kind, *one, "-o", kind)
        assert drawn.code == 0, (kind, drawn.err)
        assert Path(f"{kind}.svg").stat().st_size > 1000
    heat = cli("plot", "gradcam", *one, "-o", "heat")
    assert heat.code == (2 if case.kind == "vectors" else 0)
    assert ("the data of these runs are rows" in heat.err) == (case.kind == "vectors")


def test_variants_and_unseen_domains(cli: Cli, case: Case) -> None:
    flags = ("--data", case.folder, *QUICK, "--rounds", "1", "--json")
    rows = json.loads(cli("ablate", "fpl", *flags).out)["rows"]
    assert len(rows) == 6
    grid = cli("sweep", "fedprox", "--grid", "method.mu=0.1,1", *flags)
    assert [row["label"] for row in json.loads(grid.out)["rows"]] == ["mu=0.1", "mu=1"]
    each = cli("run", "--leave-out", "each", *flags)
    assert each.code == 0, each.err
    assert all(domain in each.out for domain in case.domains)


@pytest.mark.parametrize("form", ["onnx", "safetensors"])
def test_export_and_predict_agree(form: str, cli: Cli, case: Case) -> None:
    assert cli("run", "--data", case.folder, *QUICK, "--out", "a").code == 0
    wrote = cli("export", "a", "--to", form)
    assert wrote.code == 0, wrote.err
    wanted = "rows: float32 [N, 6]" if case.kind == "vectors" else "images: uint8 [N, 16, 16, 3]"
    assert f"takes {wanted}" in wrote.out
    np.save("new.npy", case.x[:70])
    np.savez("new.npz", x=case.x[:2], y=[0, 1])
    answers = [
        json.loads(cli("predict", model, "new.npy", "new.npz", "--json").out)["answers"]
        for model in ("a", f"a.{form}")
    ]
    assert [answer["file"] for answer in answers[0]] == [
        *(f"new.npy {row}" for row in range(70)),
        "new.npz 0",
        "new.npz 1",
    ]
    for one, two in zip(*answers, strict=True):
        assert one["label"] == two["label"]
        assert one["confidence"] == pytest.approx(two["confidence"], abs=1e-4)
    assert answers[0][70]["confidence"] == pytest.approx(answers[0][0]["confidence"], abs=1e-6)
    assert {answer["label"] for answer in answers[0]} <= {"low", "mid", "high"}


def test_predict_tells_what_does_not_fit(cli: Cli, case: Case) -> None:
    assert cli("run", "--data", case.folder, *QUICK, "--out", "a").code == 0
    np.save("good.npy", case.x[:1])
    np.save("wide.npy", np.zeros((2, 7)))
    np.save("code.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez("two.npz", a=case.x, b=case.x)
    Path("text.png").write_text("no image")
    bad = ("wide.npy", "code.npy", "two.npz", "text.png", "nowhere.npy")
    ended = cli("predict", "a", "good.npy", *bad, "--json")
    assert ended.code == 1
    answers = json.loads(ended.out)["answers"]
    assert answers[0]["label"] in ("low", "mid", "high")
    faults = {answer["file"]: answer["fault"] for answer in answers[1:]}
    assert list(faults) == list(bad)
    assert "float64 [2, 7]" in faults["wide.npy"]
    assert "Object arrays cannot be loaded" in faults["code.npy"]
    assert "it holds a, b; name the examples x" in faults["two.npz"]
    if case.kind == "vectors":
        assert faults["text.png"].startswith("this model takes rows of shape [6]")
        heat = cli("predict", "a", "good.npy", "--explain", "heat")
        assert (
            heat.err
            == "error: heat maps are for images, and this model takes rows\nleave --explain out\n"
        )


def test_cards_and_looks_at_the_data(cli: Cli, case: Case) -> None:
    assert cli("run", "--data", case.folder, *QUICK, "--out", "a").code == 0
    card = cli("card", "a").out
    vectors_here = case.kind == "vectors"
    assert ("A classifier of rows of numbers" in card) == vectors_here
    assert ("of shape 6" if vectors_here else "at 16 x 16 pixels") in card
    shown = cli("data", "show", case.folder)
    assert "classes: low, mid, high" in shown.out
    assert ("rows of shape 6" if vectors_here else "images of 16 x 16") in shown.out
    sheet = cli("data", "show", case.folder, "--picture", "sheet.png")
    assert sheet.code == (2 if vectors_here else 0)
    ended = cli("data", "doctor", case.folder, "-o", "spec.toml")
    assert f": {'rows' if vectors_here else 'images'} to train + to test" in ended.out
    assert ("look-alikes were not searched for" in ended.out) == vectors_here
    again = cli("run", "--spec", "spec.toml", *QUICK, "--out", "b")
    assert again.code == 0, again.err


def gone(folder: Path) -> str:
    """Remove the data of a run; what those who need the data then say."""
    shutil.rmtree(folder)
    return "mine does not exist\nput it back; or, "


def damaged(folder: Path) -> str:
    """Cut the description of the data short."""
    (folder / "meta.json").write_text('{"layout": "arrays 1", "kin')
    return "meta.json is damaged: Invalid JSON"


def replaced(folder: Path) -> str:
    """Put data of the other kind, with other classes, in their place."""
    rows = "north.npz" in {path.name for path in folder.iterdir()}
    shutil.rmtree(folder)
    from_arrays(images() if rows else vectors(), folder=folder, classes=["x", "y", "z"])
    return f"holds other {'arrays' if rows else 'images'} than this run is about"


@pytest.mark.parametrize("spoil", [gone, damaged, replaced])
def test_a_run_stands_whatever_became_of_its_arrays(
    spoil: Callable[[Path], str], cli: Cli, case: Case
) -> None:
    assert cli("run", "--data", case.folder, *QUICK, "--out", "a").code == 0
    shutil.copytree("a", "half")
    (Path("half") / "done").unlink()
    shutil.rmtree(Path("half") / "checkpoints" / "round-00002")
    np.save("new.npy", case.x[:2])
    said = spoil(Path(case.folder).resolve())
    page = ("report", "a", "-o", "page.html")
    figures = [("plot", kind, "a", "-o", kind) for kind in ("curves", "domains", "partition")]
    for words in (page, *figures, ("runs", "."), ("card", "a"), ("resume", "a")):
        ended = cli(*words)
        assert ended.code == 0, (words, ended.err)
    assert all(name in Path("page.html").read_text() for name in case.domains)
    classes = Path("partition.svg").read_text()
    assert all(f"<!-- {name} -->" in classes for name in ("low", "mid", "high"))
    for words in (("export", "a", "--to", "safetensors"), ("predict", "a", "new.npy")):
        ended = cli(*words)
        assert (ended.code, said in ended.err) == (2, True), (words, ended.err)
    ended = cli("resume", "half", "--workers", "0")
    assert (ended.code, said in ended.err) == (2, True), ended.err
    assert not (Path("half") / "done").exists()


def test_the_doctor_finds_copies_among_rows(cli: Cli, tmp_path: Path) -> None:
    given = vectors()
    x, y = given["north"]
    from_arrays(given, {"north": (x[:20], y[:20])}, folder=tmp_path / "leaky")
    found = json.loads(cli("data", "doctor", "leaky", "--json").out)["findings"]
    copies = [f for f in found if "in training and in test" in f["title"]]
    assert copies[0]["title"] == (
        "20 rows found more than once (the same numbers) in training and in test"
    )
    assert copies[0]["grade"] == "bad"
    assert copies[0]["details"][0] == "north train 0 = north test 0"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--net", "lsa-cnn"), "net 'lsa-cnn' takes images, and these data are rows of shape [6]"),
        (("--set", "data.flip=false"), "data.flip: is for images, and these data are rows"),
        (("--set", 'data.domains=["east"]'), "unknown name 'east'"),
    ],
)
def test_what_is_for_images_is_refused(
    words: tuple[str, ...], said: str, cli: Cli, tmp_path: Path
) -> None:
    from_arrays(vectors(), folder=tmp_path / "mine")
    ended = cli("run", "--data", "mine", *QUICK, *words)
    assert ended.code == 2
    assert said in ended.err


def test_a_folder_by_hand_runs(cli: Cli) -> None:
    Path("hand").mkdir()
    for name, (x, y) in vectors().items():
        np.savez(Path("hand") / f"{name}.npz", x=x, y=y)
    ended = cli("run", "--data", "hand", *QUICK, "--out", "a")
    assert ended.code == 0, ended.err
    from_arrays(vectors(), folder="elsewhere/hand")
    again = cli("run", "--data", "elsewhere/hand", *QUICK, "--out", "a")
    assert "already finished" in again.err
