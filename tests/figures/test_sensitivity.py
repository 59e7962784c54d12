"""Sensitivity and heat maps: which fields differ, and the numbers over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from protofed.errors import ProtofedError
from protofed.figures import draw_figure
from protofed.figures.style import FigureOptions, save_figure
from tests.figures.conftest import Made, cells, mean_of_last, xs, ys

QUICK = {"epochs": 1, "batch": 10, "lr": 0.05}


def points(figure: Figure) -> dict[str, tuple[list[float], list[float]]]:
    """The points of the lines by their labels."""
    (axes,) = figure.axes
    lines = [one for one in axes.containers if isinstance(one, ErrorbarContainer)]
    return {str(one.get_label()): (xs(one.lines[0]), ys(one.lines[0])) for one in lines}


def test_a_line_over_the_field_that_differs_and_fedavg_dashed(made: Made) -> None:
    runs = {mu: made("fedprox", {"mu": mu}) for mu in (0.5, 0.01, 2.0)}
    second = made("fedprox", {"mu": 0.5}, seed=1)
    figure = draw_figure(
        "sensitivity", [*runs.values(), second, made()], FigureOptions(score="last_five")
    )
    ((label, (values, means)),) = points(figure).items()
    half = (mean_of_last(runs[0.5]) + mean_of_last(second)) / 2
    assert (label, values) == ("FedProx", [0.01, 0.5, 2.0])
    assert means == pytest.approx([mean_of_last(runs[0.01]), half, mean_of_last(runs[2.0])])
    (axes,) = figure.axes
    (level,) = [line for line in axes.lines if line.get_label() == "FedAvg"]
    assert (level.get_linestyle(), level.get_color()) == ("--", "#000000")
    assert ys(level)[0] == pytest.approx(mean_of_last(made()))
    assert (axes.get_xlabel(), axes.get_xscale()) == ("mu", "log")


def test_few_decades_are_linear_and_zero_has_a_place(made: Made) -> None:
    half, two = made("fedprox", {"mu": 0.5}), made("fedprox", {"mu": 2.0})
    (axes,) = draw_figure("sensitivity", [half, two], FigureOptions()).axes
    assert axes.get_xscale() == "linear"
    runs = [half, two, made("fedprox"), made("fedprox", {"mu": 0.0})]
    (axes,) = draw_figure("sensitivity", runs, FigureOptions()).axes
    assert axes.get_xscale() == "symlog"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "0.01", "0.5", "2"]


def test_fields_of_other_sections_and_words(made: Made) -> None:
    runs = [made(training={**QUICK, "last_batch": word}) for word in ("keep", "drop")]
    figure = draw_figure("sensitivity", runs, FigureOptions(score="last", domain="optical"))
    wanted = [mean_of_last(run, 1, "optical") for run in runs]
    assert points(figure)["FedAvg"][0] == [0, 1]
    assert points(figure)["FedAvg"][1] == pytest.approx(wanted)
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["keep", "drop"]
    assert figure.axes[0].get_xlabel() == "training.last_batch"


def test_a_field_that_a_spec_leaves_out_has_its_default(made: Made) -> None:
    runs = [made(training={**QUICK, "optimizer": word}) for word in ("sgd", "adam")]
    (axes,) = draw_figure("sensitivity", runs, FigureOptions()).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["sgd", "adam"]


def test_a_partition_may_be_swept_though_it_moves_images(made: Made) -> None:
    rules: list[dict[str, Any]] = [
        {"kind": "shares", "clients": 3, "samples": count} for count in (20, 30)
    ]
    runs = [made(partition=rule) for rule in rules]
    assert points(draw_figure("sensitivity", runs, FigureOptions()))["FedAvg"][0] == [20, 30]
    # a method with one setting is a point there: its level says nothing of other clients
    figure = draw_figure("sensitivity", [*runs, made("fedprox")], FigureOptions(score="last_five"))
    assert points(figure)["FedProx"][0] == [20]
    assert points(figure)["FedProx"][1] == pytest.approx([mean_of_last(made("fedprox"))])


def test_what_differs_must_be_one_thing(made: Made) -> None:
    with pytest.raises(ProtofedError, match="differ in nothing but"):
        draw_figure("sensitivity", [made(), made(seed=1), made("fedprox")], FigureOptions())
    with pytest.raises(ProtofedError, match=r"here 2: method.mu, method.tau\n.*heatmap"):
        draw_figure("sensitivity", grid(made), FigureOptions())
    runs = [made("fedprox"), made("fedprox", {"mu": 0.5}), made(rounds=2)]
    with pytest.raises(ProtofedError, match="also differ in rounds"):
        draw_figure("sensitivity", runs, FigureOptions())


def grid(made: Made) -> list[Path]:
    """Three of the four corners of a grid."""
    corners = ((0.1, 1.0), (0.5, 1.0), (0.5, 0.0))
    return [made("moon", {"tau": tau, "mu": mu}) for tau, mu in corners]


def test_a_heat_map_holds_the_accuracy_of_each_pair(made: Made) -> None:
    one, two, three = grid(made)
    axes, bar = draw_figure("heatmap", [three, two, one], FigureOptions(score="last_five")).axes
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("mu", "tau")
    wanted = [[np.nan, mean_of_last(three)], [mean_of_last(one), mean_of_last(two)]]
    np.testing.assert_allclose(cells(axes), wanted)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "1"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.1", "0.5"]
    shown = [text.get_text() for text in axes.texts]
    assert shown == ["-", *(f"{mean_of_last(run):.2f}" for run in (three, one, two))]
    assert bar.get_ylabel() == "mean accuracy (%)"


def test_a_heat_map_of_anything_else_is_refused(made: Made) -> None:
    with pytest.raises(ProtofedError, match=r"here 1: method.tau\n.*sensitivity"):
        draw_figure("heatmap", grid(made)[:2], FigureOptions())
    with pytest.raises(ProtofedError, match="differ in nothing but"):
        draw_figure("heatmap", [made(), made(seed=1)], FigureOptions())
    with pytest.raises(ProtofedError, match="one method, here are MOON, FedAvg"):
        draw_figure("heatmap", [*grid(made), made()], FigureOptions())


def test_the_same_runs_give_the_same_bytes(made: Made, tmp_path: Path) -> None:
    sweep = [made("fedprox"), made("fedprox", {"mu": 0.5}), made()]
    for kind, runs in (("sensitivity", sweep), ("heatmap", grid(made))):
        one, two = (
            save_figure(draw_figure(kind, runs, FigureOptions()), tmp_path / f"{kind}{n}")
            for n in "ab"
        )
        assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two]
