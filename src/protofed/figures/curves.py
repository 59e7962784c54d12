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
from protofed.figures.series import Series, accuracy, axis_label, compared, heading
from protofed.figures.style import Options, footnote, legend_beside, look, new_figure, title
from protofed.study.collect import Record
from protofed.study.stats import Spread

MARKS = 10  # on a line, at most


def draw(runs: Sequence[Path], options: Options) -> Figure:
    """The accuracy after every evaluation, from scores.jsonl."""
    options.only("curves", "domain")
    series, notes = compared(runs)
    figure = new_figure(6.4, 3.4)
    axes = figure.add_subplot()
    for place, one in enumerate(series):
        _line(axes, one, place, options.domain)
    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="round", ylabel=axis_label(options))
    records = [record for one in series for record in one.records]
    title(axes, heading(records, spread=" (band: ± standard deviation)"))
    legend_beside(axes)
    footnote(figure, notes)
    return figure


def _line(axes: Axes, series: Series, place: int, domain: str | None) -> None:
    paths = [_path(record, domain) for record in series.records]
    rounds = list(paths[0])
    spreads = [Spread.of([path[number] for path in paths]) for number in rounds]
    means = np.array([spread.mean for spread in spreads])
    stds = np.array([spread.std or 0.0 for spread in spreads])
    seen = look(place)
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


def _path(record: Record, domain: str | None) -> dict[int, float]:
    """A run's accuracy by round."""
    scored = read_evaluations(RunDir(record.result.folder))
    return {one.round: accuracy(record, one.scores, domain) for one in scored}
