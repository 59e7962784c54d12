"""How much hyperparameters matter: lines over one of them, a heat map over two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from protofed.analysis.comparison_table import records_by_metric
from protofed.analysis.finished_runs import RunRecord, format_value, short_field_name
from protofed.errors import ProtofedError
from protofed.figures.figure_data import (
    REDEAL,
    RunSeries,
    accuracy_spread,
    all_numeric,
    axis_label,
    baseline_first,
    check_sweep_records,
    error_bars,
    field_value,
    figure_heading,
    group_by_method,
    group_by_setting,
    group_by_value,
    missing_seed_notes,
    read_run_records,
    require_varied_fields,
    sorted_values,
    with_score_rule,
)
from protofed.figures.style import (
    BLACK,
    COLOURS,
    FAINT,
    LINES,
    FigureOptions,
    add_footnotes,
    legend_beside,
    new_figure,
    series_style,
    set_title,
    write_cells,
)

DECADES = 1.3  # powers of ten between smallest and largest from which on the axis is logarithmic
MOST_TICKS = 12
SENSITIVITY_HINT = (
    "give runs of one sweep, as method.mu at 0.01, 0.1 and 1; for two fields see heatmap"
)


def draw_sensitivity(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw accuracy over the one field that differs between runs of the same method.

    A method with one setting is drawn as a horizontal line, unless the field changes the data.
    """
    options.only("sensitivity", "domain", "score", "metric")
    records = records_by_metric(read_run_records(runs), options.metric)
    options = with_score_rule(options, records)
    (path,) = require_varied_fields("sensitivity", 1, records, SENSITIVITY_HINT)
    notes = [*missing_seed_notes(group_by_setting(records)), *check_sweep_records(records, [path])]
    groups = [RunSeries(label, tuple(group)) for label, group in group_by_method(records).items()]
    still = baseline_first([one for one in groups if _stands_still(one.records, path)])
    moving = [one for one in groups if one not in still]
    figure = new_figure(5.8, 3.4)
    axes = figure.add_subplot()
    values = sorted_values([field_value(record, path) for one in moving for record in one.records])
    for place, one in enumerate(moving):
        _line(axes, one, path, values, place, options)
    for place, one in enumerate(still):
        _level(axes, one, path, place, options)
    _axis(axes, values)
    axes.grid(axis="y")
    axes.set(xlabel=short_field_name(path), ylabel=axis_label(options))
    set_title(axes, figure_heading(records, options.score, " (± standard deviation)"))
    legend_beside(axes)
    add_footnotes(figure, notes)
    return figure


def _stands_still(records: Sequence[RunRecord], path: str) -> bool:
    """Whether a method has one setting only, and its level holds over the whole axis."""
    return len(group_by_value(records, [path])) == 1 and path.partition(".")[0] not in REDEAL


def _line(
    axes: Axes,
    series: RunSeries,
    path: str,
    values: list[object],
    place: int,
    options: FigureOptions,
) -> None:
    groups = group_by_value(series.records, [path]).values()
    at = {
        format_value(field_value(group[0], path)): accuracy_spread(group, options)
        for group in groups
    }
    known = [value for value in values if format_value(value) in at]
    spreads = [at[format_value(value)] for value in known]
    seen = series_style(place)
    axes.errorbar(
        [_position(value, values) for value in known],
        [spread.mean for spread in spreads],
        yerr=error_bars(spreads),
        color=seen.colour,
        linestyle=seen.line,
        marker=seen.marker,
        markersize=5,
        linewidth=1.4,
        capsize=3,
        label=series.label,
    )


def _level(axes: Axes, series: RunSeries, path: str, place: int, options: FigureOptions) -> None:
    """A method that the field does not move: a black line across, dashed for the first."""
    fields = series.records[0].experiment.flat_fields()
    words = f" ({short_field_name(path)}={format_value(fields[path])})" if path in fields else ""
    mean = accuracy_spread(series.records, options).mean
    line = LINES[1:][place % len(LINES[1:])]
    axes.axhline(mean, color=BLACK, linestyle=line, linewidth=1.2, label=series.label + words)


def _position(value: object, values: list[object]) -> float:
    """Where a value lies on the axis: a number at itself, anything else at its place."""
    return float(value) if all_numeric(values) else values.index(value)  # type: ignore[arg-type]


def _axis(axes: Axes, values: list[object]) -> None:
    """A tick at each value; a logarithmic axis for numbers over decades, with room for a 0."""
    places = [_position(value, values) for value in values]
    positive = [place for place in places if place > 0]
    if all_numeric(values) and min(places) >= 0 and _decades(positive) > DECADES:
        if len(positive) == len(places):
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
            axes.set_xlim(-min(positive) / 2, 1.4 * max(positive))  # its own margins are lopsided
    if len(values) <= MOST_TICKS:
        axes.set_xticks(places, [format_value(value) for value in values])
        axes.set_xticks([], minor=True)


def _decades(positive: Sequence[float]) -> float:
    """The powers of ten that some positive numbers span."""
    return math.log10(max(positive) / min(positive)) if positive else 0.0


HEATMAP_HINT = (
    "give runs of one grid, as method.tau x method.lam; for a single field see sensitivity"
)


def draw_heatmap(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw the mean accuracy over two fields that differ between runs of one method.

    Pairs of values without a run stay empty.
    """
    options.only("heatmap", "domain", "score", "metric")
    records = records_by_metric(read_run_records(runs), options.metric)
    options = with_score_rule(options, records)
    methods = list(group_by_method(records))
    if len(methods) > 1:
        raise ProtofedError(f"heatmap: shows one method, here are {', '.join(methods)}")
    down, across = require_varied_fields("heatmap", 2, records, HEATMAP_HINT)
    notes = [
        *missing_seed_notes(group_by_setting(records)),
        *check_sweep_records(records, [down, across]),
    ]
    rows = sorted_values([field_value(record, down) for record in records])
    columns = sorted_values([field_value(record, across) for record in records])
    cells = np.full((len(rows), len(columns)), np.nan)
    for group in group_by_value(records, [down, across]).values():
        one, other = field_value(group[0], down), field_value(group[0], across)
        cells[rows.index(one), columns.index(other)] = accuracy_spread(group, options).mean
    figure = new_figure(3.0 + 0.62 * len(columns), 1.7 + 0.45 * len(rows))
    axes = figure.add_subplot()
    axes.set_facecolor(FAINT)  # pairs without a run
    image = axes.imshow(cells, cmap=COLOURS, aspect="auto", origin="lower")
    figure.colorbar(image, ax=axes, label=axis_label(options))
    axes.set_xticks(range(len(columns)), [format_value(value) for value in columns])
    axes.set_yticks(range(len(rows)), [format_value(value) for value in rows])
    axes.set(xlabel=short_field_name(across), ylabel=short_field_name(down))
    set_title(axes, f"{methods[0]}, {figure_heading(records, options.score)}")
    write_cells(image, cells, lambda cell: "-" if math.isnan(cell) else f"{cell:.2f}")
    add_footnotes(figure, notes)
    return figure
