"""Accuracy on each domain, a series a method: a radar from three domains on, bars below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import MaxNLocator

from protofed.core.errors import ProtofedError
from protofed.figures.series import (
    RunSeries,
    accuracy_spread,
    compared_series,
    error_bars,
    figure_heading,
    record_scores,
)
from protofed.figures.style import (
    BLACK,
    GREY,
    FigureOptions,
    add_footnotes,
    legend_beside,
    new_figure,
    series_style,
    set_title,
)
from protofed.study.stats import SeedSpread

CORNERS = 3  # the fewest domains that span a radar
RINGS = 5  # at most
WIDTH = 0.8  # of a group of bars


def draw_domains(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """The accuracy on every domain that has test images."""
    options.only("domains", "rule")
    series, notes = compared_series(runs)
    first = record_scores(series[0].records[0], options)
    domains = [name for name, score in first.domains.items() if score is not None]
    if not domains:
        raise ProtofedError("domains: no domain of these runs has test images")
    cells = {one.label: _cells(one, domains, options) for one in series}
    radar = len(domains) >= CORNERS
    figure = new_figure(6.0, 4.2) if radar else new_figure(2.6 + 0.4 * len(domains) * len(series))
    axes = figure.add_subplot(projection="polar" if radar else None)
    if radar:
        _radar(cast(PolarAxes, axes), domains, cells)
    else:
        _bars(axes, domains, cells)
    records = [record for one in series for record in one.records]
    spread = "" if radar else " (bars: ± standard deviation)"
    set_title(
        axes,
        f"accuracy (%), {figure_heading(records, options.rule, spread)}",
        gap=14 if radar else 6,
    )
    legend_beside(axes)
    add_footnotes(figure, notes)
    return figure


def _cells(series: RunSeries, domains: Sequence[str], options: FigureOptions) -> list[SeedSpread]:
    """The accuracy on each domain over a series' seeds."""
    at = [FigureOptions(domain=name, rule=options.rule) for name in domains]
    return [accuracy_spread(series.records, one) for one in at]


def _bars(axes: Axes, domains: Sequence[str], cells: dict[str, list[SeedSpread]]) -> None:
    width = WIDTH / len(cells)
    for place, (label, row) in enumerate(cells.items()):
        left = np.arange(len(domains)) - WIDTH / 2 + width * (place + 0.5)
        axes.bar(
            left,
            [spread.mean for spread in row],
            width,
            yerr=error_bars(row),
            error_kw={"elinewidth": 0.8, "capsize": 2},
            color=series_style(place).colour,
            edgecolor=BLACK,
            linewidth=0.5,
            hatch=series_style(place).hatch,
            label=label,
        )
    axes.set_xticks(range(len(domains)), domains)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("accuracy (%)")
    axes.grid(axis="y")


def _radar(axes: PolarAxes, domains: Sequence[str], cells: dict[str, list[SeedSpread]]) -> None:
    """A polygon a series; the rings begin just below the lowest score, to tell them apart."""
    angles = np.linspace(0, 2 * np.pi, len(domains), endpoint=False)
    for place, (label, row) in enumerate(cells.items()):
        seen, means = series_style(place), [spread.mean for spread in row]
        axes.plot(
            [*angles, angles[0]],
            [*means, means[0]],
            color=seen.colour,
            linestyle=seen.line,
            marker=seen.marker,
            markersize=4,
            linewidth=1.4,
            label=label,
        )
    rings = _rings([spread.mean for row in cells.values() for spread in row])
    axes.set_theta_offset(np.pi / 2)
    axes.set_theta_direction(-1)
    axes.set_thetagrids(np.degrees(angles).tolist(), domains)
    axes.tick_params(axis="x", pad=6)
    axes.set_rlim(rings[0], rings[-1])
    axes.set_rgrids(rings[1:], angle=180 / len(domains), color=GREY)


def _rings(scores: Sequence[float]) -> list[float]:
    """Round numbers from below the lowest score to the highest one or above."""
    low, high = min(scores), max(scores)
    room = max(1.0, (high - low) / 2)  # else the lowest score would lie in the centre
    rings = MaxNLocator(nbins=RINGS, steps=[1, 2, 5, 10]).tick_values(max(0.0, low - room), high)
    return [float(ring) for ring in rings if ring >= 0]
