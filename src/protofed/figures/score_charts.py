"""Accuracy as curves over rounds, by domain, and by the variants of an ablation."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import MaxNLocator

from protofed.analysis.comparison_table import format_spread
from protofed.analysis.finished_runs import RunRecord, add_settings
from protofed.analysis.statistics import SeedSpread
from protofed.analysis.sweep import FULL
from protofed.core.method import AnyMethod
from protofed.errors import ProtofedError
from protofed.federation.evaluation import scores_by_round
from protofed.federation.score_metrics import METRIC_LABELS
from protofed.figures.figure_data import (
    RunSeries,
    accuracy_spread,
    axis_label,
    baseline_first,
    compared_series,
    error_bars,
    figure_heading,
    record_accuracy,
    record_scores,
    with_score_rule,
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
from protofed.spec.method_lookup import describe_method, parse_method

MARKS = 10  # on a line, at most


def draw_curves(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw accuracy over rounds, a line per method and setting.

    Lines are means over seeds, bands the standard deviation; both have a gap where a site was away.
    `options.domain` shows one domain instead of the mean, `options.metric` another score.
    """
    options.only("curves", "domain", "metric")
    series, notes = compared_series(runs, options.metric)
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
    scored = [[path[number] for path in paths] for number in rounds]
    gap = SeedSpread(math.nan, math.nan)
    spreads = [gap if any(map(math.isnan, row)) else SeedSpread.of(row) for row in scored]
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
    """A run's score by round; NaN, a gap in its line, where a site was away."""
    record_accuracy(record, record.result.last_five, domain)  # raises where there is none at all
    path = scores_by_round(record.result.history, domain)
    return {number: math.nan if score is None else score for number, score in path.items()}


CORNERS = 3  # the fewest domains that span a radar
RINGS = 5  # at most
WIDTH = 0.8  # of a group of bars


def draw_domains(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw the accuracy on each domain: bars, or a radar chart for three domains or more.

    Domains without test images are left out.
    """
    options.only("domains", "score", "metric")
    series, notes = compared_series(runs, options.metric)
    records = [record for one in series for record in one.records]
    options = with_score_rule(options, records)
    first = record_scores(records[0], options)
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
        axes.set_ylabel(f"{METRIC_LABELS[options.metric]} (%)")
    spread = "" if radar else " (bars: ± standard deviation)"
    set_title(
        axes,
        f"{METRIC_LABELS[options.metric]} (%), {figure_heading(records, options.score, spread)}",
        gap=14 if radar else 6,
    )
    legend_beside(axes)
    add_footnotes(figure, notes)
    return figure


def _cells(series: RunSeries, domains: Sequence[str], options: FigureOptions) -> list[SeedSpread]:
    """The accuracy on each domain over a series' seeds."""
    at = [FigureOptions(domain=name, score=options.score) for name in domains]
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
    axes.grid(axis="y")


def _radar(axes: PolarAxes, domains: Sequence[str], cells: dict[str, list[SeedSpread]]) -> None:
    """A polygon per series; the rings begin just below the lowest score, for contrast."""
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


def draw_ablation(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw a horizontal bar per variant of a method, with the baseline as a dashed line.

    Bars start at 0, so that their lengths can be compared.
    """
    options.only("ablation", "domain", "score", "metric")
    series, notes = compared_series(runs, options.metric)
    rows = baseline_first(match_ablations(series))
    records = [record for row in rows for record in row.records]
    options = with_score_rule(options, records)
    spreads = [accuracy_spread(row.records, options) for row in rows]
    figure = new_figure(6.0, 1.3 + 0.36 * len(rows))
    axes = figure.add_subplot()
    bars = axes.barh(
        range(len(rows)),
        [spread.mean for spread in spreads],
        xerr=error_bars(spreads),
        error_kw={"elinewidth": 0.8, "capsize": 2},
        height=0.62,
        color=series_style(0).colour,
        edgecolor=BLACK,
        linewidth=0.5,
    )
    axes.bar_label(bars, [format_spread(spread) for spread in spreads], padding=4, fontsize=8)
    axes.axvline(spreads[0].mean, color=BLACK, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel(f"{axis_label(options)}; dashed: {rows[0].label}")
    set_title(axes, figure_heading(records, options.score, " (± standard deviation)"))
    add_footnotes(figure, notes)
    return figure


def match_ablations(series: Sequence[RunSeries]) -> list[RunSeries]:
    """Order and label series by the ablations that their method declares.

    This needs exactly one setting of the method without an ablation: the full method. Other series
    keep their labels and come first.
    """
    names: dict[str, str] = {}
    for kind in dict.fromkeys(type(one.method) for one in series):
        names |= _names([one.method for one in series if type(one.method) is kind])
    order = list(names)
    known = [one for one in series if _key(one.method) in names]
    known.sort(key=lambda one: order.index(_key(one.method)))
    others = [one for one in series if _key(one.method) not in names]
    return others + [one._replace(label=names[_key(one.method)]) for one in known]


def _names(settings: Sequence[AnyMethod]) -> dict[str, str]:
    """The names of one method's ablations and of the full method, by setting."""
    whole = [method for method in settings if not _ablated(method)]
    if len(settings) < 2 or len(whole) != 1:
        return {}
    (full,) = whole
    made = {
        _key(parse_method({**describe_method(full), **fields})): name
        for name, fields in full.ablations.items()
    }
    return {**made, _key(full): add_settings(full.info.label, FULL)} if made else {}


def _ablated(method: AnyMethod) -> bool:
    """Whether a method lacks one of the parts that its paper takes away."""
    plain = describe_method(method)
    return any(
        all(plain[name] == value for name, value in fields.items())
        for fields in method.ablations.values()
    )


def _key(method: AnyMethod) -> str:
    return json.dumps(describe_method(method), sort_keys=True)
