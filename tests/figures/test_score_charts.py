from __future__ import annotations

import hashlib
import json
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest

from protofed.errors import ProtofedError
from protofed.experiment.result import read_result
from protofed.experiment.run_folder import RunDir
from protofed.figures import draw_figure
from protofed.figures.style import FigureOptions, save_figure
from tests.figures.conftest import ROUNDS, Made, told, xs, ys


def test_a_line_is_the_mean_over_seeds_and_the_band_their_standard_deviation(made: Made) -> None:
    seeds = [made(seed=0), made(seed=1)]
    (axes,) = draw_figure("curves", [*seeds, made("fedprox")], FigureOptions()).axes
    fedavg, fedprox = axes.lines
    assert [line.get_label() for line in axes.lines] == ["FedAvg", "FedProx"]
    both = list(zip(*([line["mean"] for line in told(run)] for run in seeds), strict=True))
    means = [sum(pair) / 2 for pair in both]
    assert ys(fedavg) == pytest.approx(means)
    assert xs(fedavg) == list(range(1, ROUNDS + 1))
    assert ys(fedprox) == pytest.approx([line["mean"] for line in told(made("fedprox"))])
    (band,) = axes.collections  # fedprox has a single seed, so none
    corners = np.asarray(band.get_paths()[0].vertices)
    stds = [statistics.stdev(pair) for pair in both]
    assert max(stds) > 0
    for round_, mean, std in zip(range(1, ROUNDS + 1), means, stds, strict=True):
        at = corners[corners[:, 0] == round_, 1]
        assert (at.min(), at.max()) == (pytest.approx(mean - std), pytest.approx(mean + std))


def test_one_domain_alone(made: Made) -> None:
    (axes,) = draw_figure("curves", [made()], FigureOptions(domain="print")).axes
    scores = [line["domains"]["print"] for line in told(made())]
    assert ys(axes.lines[0]) == pytest.approx(scores)
    assert scores != [line["mean"] for line in told(made())]
    assert axes.get_ylabel() == "accuracy on print (%)"
    with pytest.raises(ProtofedError, match="known: optical, print"):
        draw_figure("curves", [made()], FigureOptions(domain="prints"))


def test_a_curve_has_a_gap_where_a_site_was_away(made: Made, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made(), tmp_path / "run"))
    lines = told(folder)
    second = lines[1]
    second["domains"]["print"] = None
    second["mean"] = second["worst"] = second["domains"]["optical"]
    second |= {"spread": 0.0, "missing": ["print"]}
    del second["counts"]["print"]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (folder / "scores.jsonl").write_bytes(text)
    done = json.loads((folder / "done").read_text())
    done["scores"] = hashlib.sha256(text).hexdigest()
    (folder / "done").write_text(json.dumps(done))
    for domain, gaps in ((None, [1]), ("print", [1]), ("optical", [])):
        options = FigureOptions(domain=domain)
        (axes,) = draw_figure("curves", [folder, made(seed=1)], options).axes
        assert [n for n, y in enumerate(ys(axes.lines[0])) if np.isnan(y)] == gaps


def test_another_score_is_drawn(made: Made) -> None:
    (axes,) = draw_figure("curves", [made()], FigureOptions(metric="kappa")).axes
    history = read_result(RunDir(made())).history
    assert ys(axes.lines[0]) == pytest.approx([one.metric("kappa").mean for one in history])
    assert axes.get_ylabel() == "mean Cohen's kappa (%)"


def test_settings_of_one_method_are_told_apart_by_what_differs(made: Made) -> None:
    runs = [made("fedprox", {"mu": 0.5}), made("fedprox"), made()]
    (axes,) = draw_figure("curves", runs, FigureOptions()).axes
    labels = [line.get_label() for line in axes.lines]
    assert labels == ["FedProx (mu=0.5)", "FedProx (mu=0.01)", "FedAvg"]


def test_a_method_that_lacks_a_seed_is_noted(made: Made) -> None:
    figure = draw_figure("curves", [made(seed=0), made(seed=1), made("fedprox")], FigureOptions())
    assert figure.get_supxlabel() == "only seed 0: FedProx"


def test_the_same_runs_give_the_same_bytes(made: Made, tmp_path: Path) -> None:
    runs = [made(seed=0), made(seed=1), made("fedprox")]
    one, two = (
        save_figure(draw_figure("curves", runs, FigureOptions()), tmp_path / name) for name in "ab"
    )
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two]


def test_runs_that_may_not_stand_together_are_refused(made: Made, tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match="differ in rounds"):
        draw_figure("curves", [made(), made(rounds=2)], FigureOptions())
    with pytest.raises(ProtofedError, match="hold the same run"):
        draw_figure("curves", [made(), made()], FigureOptions())
    with pytest.raises(ProtofedError, match="holds no finished run"):
        draw_figure("curves", [made(), tmp_path], FigureOptions())
    with pytest.raises(ProtofedError, match="does not use the option 'score'"):
        draw_figure("curves", [made()], FigureOptions(score="last"))
