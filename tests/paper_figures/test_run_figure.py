"""A figure is trained, drawn, drawn again without training, and drawn from what was kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from protofed.analysis.archive_runs import archive_runs
from protofed.errors import ProtofedError
from protofed.experiment.run_folder import RunDir
from protofed.figures import draw_figure
from protofed.figures.style import FigureOptions, save_figure
from protofed.paper_figures import figure_recipe
from protofed.paper_figures.figure_recipe import FigureRecipe, parse_figure
from protofed.paper_figures.run_figure import (
    FigureReport,
    draw_kept_runs,
    figure_document,
    plan_figure,
    prepare_figure,
    run_figure,
)
from protofed.paper_tables.recipe import ROWS_RUN
from protofed.runtime.text_tables import render_document
from tests.conftest import Once


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_recipe, "SMOKE", ROWS_RUN._replace(rounds=4))


def figure(*pictures: str) -> FigureRecipe:
    """A figure with curves of two methods, and their features after two rounds."""
    every = {"table": "fpl-table1", "part": "office", "rows": ["FedAvg", "FPL"]}
    known: list[dict[str, Any]] = [
        {"name": "scores", "kind": "curves"},
        {"name": "features", "kind": "tsne", "at": [0.25, 1.0], "domain": "dslr"},
    ]
    texts = {"figure": "Figure 9", "caption": "two methods", "claim": "one is better"}
    return parse_figure("fpl-fig9", {**texts, "every": every, "pictures": known}).with_pictures(
        pictures
    )


def trained(runs: Path, out: Path, *pictures: str) -> FigureReport:
    ready = prepare_figure(figure(*pictures), "smoke", None, runs)
    return run_figure(ready, 0, out, print)


def fill(place: Path) -> None:
    report = trained(place / "runs", place / "out")
    assert not report.faulty
    (place / "report.json").write_text(json.dumps(report.to_dict()))


@pytest.fixture
def drawn(once: Once) -> Path:
    """A folder with the runs of the figure in `runs` and its pictures in `out`."""
    return once("figure-drawn", fill)


def folders(runs: Path) -> list[Path]:
    return sorted(path.parent for path in runs.glob("*/done"))


def test_a_figure_is_what_plot_draws_from_the_same_runs(drawn: Path, tmp_path: Path) -> None:
    told = json.loads((drawn / "report.json").read_text())
    scores, features = told["pictures"]
    assert [Path(file).name for file in scores["files"]] == [
        "fpl-fig9-scores.svg",
        "fpl-fig9-scores.png",
    ]
    runs = [next((drawn / "runs").glob(f"{name}-*")) for name in ("fedavg", "fpl")]
    by_hand = {
        "scores": draw_figure("curves", runs, FigureOptions()),
        "features": draw_figure("tsne", runs, FigureOptions(rounds=(1, 4), domain="street")),
    }
    for name, made in by_hand.items():
        for file in save_figure(made, tmp_path / name):
            ours = drawn / "out" / f"fpl-fig9-{file.name}"
            assert ours.read_bytes() == file.read_bytes()
    assert (features["rounds"], features["seeds"], features["missing"]) == (4, 1, [])


def test_finished_runs_are_not_trained_again(drawn: Path, tmp_path: Path) -> None:
    ready = prepare_figure(figure(), "smoke", None, drawn / "runs")
    assert (len(ready.cells), ready.to_do()) == (2, [])
    before = {file: file.stat().st_mtime_ns for file in (drawn / "runs").rglob("*")}
    report = run_figure(ready, 0, tmp_path, print)
    assert before == {file: file.stat().st_mtime_ns for file in (drawn / "runs").rglob("*")}
    files = [file for one in report.pictures for file in one.files]
    assert all(file.read_bytes() == (drawn / "out" / file.name).read_bytes() for file in files)


def test_a_run_without_a_model_that_is_shown_is_repeated_with_the_same_scores(
    drawn: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(drawn / "runs", runs)
    first, other = folders(runs)
    shutil.rmtree(first / "checkpoints" / "round-00001")
    scores = (first / "scores.jsonl").read_bytes()
    kept = (other / "done").stat().st_mtime_ns
    only_scores = prepare_figure(figure("scores"), "smoke", None, runs)
    assert only_scores.to_do() == []
    ready = prepare_figure(figure(), "smoke", None, runs)
    assert [cell.folder for cell in ready.to_do()] == [first]
    assert [len(part.to_do) for part in plan_figure(figure(), "smoke", None, runs, 1).parts] == [
        0,
        1,
    ]
    report = run_figure(ready, 0, tmp_path / "out", print)
    assert not report.faulty
    assert (first / "scores.jsonl").read_bytes() == scores
    assert RunDir(first).kept(1) is not None
    assert (other / "done").stat().st_mtime_ns == kept


def test_kept_copies_give_pictures_of_scores_alone(drawn: Path, tmp_path: Path) -> None:
    archive_runs([drawn / "runs"], tmp_path / "kept")
    report = draw_kept_runs(figure(), "smoke", None, tmp_path / "kept", tmp_path / "out")
    (scores,) = report.pictures
    assert scores.name == "scores"
    assert (tmp_path / "out" / "fpl-fig9-scores.png").read_bytes() == (
        drawn / "out" / "fpl-fig9-scores.png"
    ).read_bytes()
    assert "pruned" in report.failed["features"]
    text = render_document(figure_document(report))
    assert "the paper's figure claims: one is better" in text
    assert "NOT COMPARABLE" in text
    with pytest.raises(ProtofedError, match="holds no run of fpl-fig9 at scale smoke"):
        draw_kept_runs(figure("features"), "smoke", None, tmp_path / "kept", tmp_path / "out")


def test_a_run_that_fails_is_left_out_and_told(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cells: Sequence[Any], *rest: object) -> dict[Path, str]:
        return {cell.folder: "out of luck" for cell in cells[:broken]}

    monkeypatch.setattr("protofed.paper_figures.run_figure.run_all", fail)
    broken = 1
    ready = prepare_figure(figure("scores"), "smoke", None, drawn / "runs")
    report = run_figure(ready, 0, tmp_path, print)
    assert report.faulty
    assert report.pictures[0].missing == ("FedAvg, seed 0: failed: out of luck",)
    assert [run.split()[0] for run in report.pictures[0].runs] == ["FPL"]
    broken = 2
    report = run_figure(ready, 0, tmp_path, print)
    assert report.pictures == ()
    assert "out of luck" in report.failed["scores"]


def test_pictures_without_images_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROTOFED_DATA", raising=False)
    with pytest.raises(ProtofedError, match="no picture of fpl-fig9 can be drawn at scale paper"):
        prepare_figure(figure(), "paper", None, tmp_path)
    plan = plan_figure(figure(), "paper", None, tmp_path, 1)
    assert [one.benchmark for one in plan.missing] == ["office-caltech"]
    assert plan.parts[1].seconds == 0  # its runs are those of the first picture
