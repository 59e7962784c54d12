"""Accuracy over rounds: a line a method, a band of one standard deviation over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from protofed.experiment.result import read_evaluations
from protofed.experiment.rundir import RunDir
from protofed.figures.series import (
    RunSeries,
    axis_label,
    compared_series,
    figure_heading,
    record_accuracy,
)
from protofed.figures.style import (
    FigureOptions,
    add_footnotes,
    legend_beside,
    new_figure,
    series_style,
    set_title,
)
from protofed.study.collect import RunRecord
from protofed.study.stats import SeedSpread

MARKS = 10  # on a line, at most


def draw_curves(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """The accuracy after every evaluation, from scores.jsonl."""
    options.only("curves", "domain")
    series, notes = compared_series(runs)
    figure = new_figure(6.4, 3.4)
    axes = figure.add_subplot()
    for place, one in enumerate(series):
        _line(axes, one, place, options.domain)
    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="round", ylabel=axis_label(options))
    records = [record for one in series for record in one.records]
    set_title(axes, figure_heading(records, spread=" (band: ± standard deviation)"))
    legend_beside(axes)
    add_footnotes(figure, notes)
    return figure


def _line(axes: Axes, series: RunSeries, place: int, domain: str | None) -> None:
    paths = [_path(record, domain) for record in series.records]
    rounds = list(paths[0])
    spreads = [SeedSpread.of([path[number] for path in paths]) for number in rounds]
    means = np.array([spread.mean for spread in spreads])
    stds = np.array([spread.std or 0.0 for spread in spreads])
    seen = series_style(place)
    every = max(1, len(rounds) // MARKS)
    axes.plot(
        rounds,
        means,
        color=seen.colour,
        linestyle=seen.line,
        marker=seen.marker,
        markevery=(place % every, every),
        markersize=4,
        linewidth=1.4,
        label=series.label,
    )
    if len(paths) > 1:
        axes.fill_between(
            rounds, means - stds, means + stds, color=seen.colour, alpha=0.18, linewidth=0
        )


def _path(record: RunRecord, domain: str | None) -> dict[int, float]:
    """A run's accuracy by round."""
    scored = read_evaluations(RunDir(record.result.folder))
    return {one.round: record_accuracy(record, one.scores, domain) for one in scored}
