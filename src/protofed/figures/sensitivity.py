"""How much one hyperparameter matters: a line a method; methods that stand still are dashed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from protofed.figures.fields import fields_of, short, show
from protofed.figures.series import (
    Series,
    axis_label,
    bars_of,
    baseline_first,
    by_method,
    grouped,
    heading,
    reached,
    read,
    uneven,
)
from protofed.figures.style import (
    BLACK,
    LINES,
    Options,
    footnote,
    legend_beside,
    look,
    new_figure,
    title,
)
from protofed.figures.sweep import REDEAL, by_value, check, exactly, numeric, ordered, value_of
from protofed.study.collect import Record

DECADES = 1.3  # powers of ten between smallest and largest from which on the axis is logarithmic
MOST_TICKS = 12
HINT = "give runs of one sweep, as method.mu at 0.01, 0.1 and 1; for two fields see heatmap"


def draw(runs: Sequence[Path], options: Options) -> Figure:
    """The accuracy over the one field that differs between runs of the same method."""
    options.only("sensitivity", "domain", "rule")
    records = read(runs)
    (path,) = exactly("sensitivity", 1, records, HINT)
    notes = [*uneven(grouped(records)), *check(records, [path])]
    groups = [Series(label, tuple(group)) for label, group in by_method(records).items()]
    still = baseline_first([one for one in groups if _stands_still(one.records, path)])
    moving = [one for one in groups if one not in still]
    figure = new_figure(5.8, 3.4)
    axes = figure.add_subplot()
    values = ordered([value_of(record, path) for one in moving for record in one.records])
    for place, one in enumerate(moving):
        _line(axes, one, path, values, place, options)
    for place, one in enumerate(still):
        _level(axes, one, path, place, options)
    _axis(axes, values)
    axes.grid(axis="y")
    axes.set(xlabel=short(path), ylabel=axis_label(options))
    title(axes, heading(records, options.rule, " (± standard deviation)"))
    legend_beside(axes)
    footnote(figure, notes)
    return figure


def _stands_still(records: Sequence[Record], path: str) -> bool:
    """Whether a method has one setting only, and its level holds over the whole axis."""
    return len(by_value(records, [path])) == 1 and path.partition(".")[0] not in REDEAL


def _line(
    axes: Axes, series: Series, path: str, values: list[object], place: int, options: Options
) -> None:
    groups = by_value(series.records, [path]).values()
    at = {show(value_of(group[0], path)): reached(group, options) for group in groups}
    known = [value for value in values if show(value) in at]
    spreads = [at[show(value)] for value in known]
    seen = look(place)
    axes.errorbar(
        [_position(value, values) for value in known],
        [spread.mean for spread in spreads],
        yerr=bars_of(spreads),
        color=seen.colour,
        linestyle=seen.line,
        marker=seen.marker,
        markersize=5,
        linewidth=1.4,
        capsize=3,
        label=series.label,
    )


def _level(axes: Axes, series: Series, path: str, place: int, options: Options) -> None:
    """A method that the field does not move: a black line across, dashed for the first."""
    fields = fields_of(series.records[0].experiment)
    words = f" ({short(path)}={show(fields[path])})" if path in fields else ""
    mean = reached(series.records, options).mean
    line = LINES[1:][place % len(LINES[1:])]
    axes.axhline(mean, color=BLACK, linestyle=line, linewidth=1.2, label=series.label + words)


def _position(value: object, values: list[object]) -> float:
    """Where a value lies on the axis: a number at itself, anything else at its place."""
    return float(value) if numeric(values) else values.index(value)  # type: ignore[arg-type]


def _axis(axes: Axes, values: list[object]) -> None:
    """A tick at each value; a logarithmic axis for numbers over decades, with room for a 0."""
    places = [_position(value, values) for value in values]
    positive = [place for place in places if place > 0]
    if numeric(values) and min(places) >= 0 and _decades(positive) > DECADES:
        if len(positive) == len(places):
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
            axes.set_xlim(-min(positive) / 2, 1.4 * max(positive))  # its own margins are lopsided
    if len(values) <= MOST_TICKS:
        axes.set_xticks(places, [show(value) for value in values])
        axes.set_xticks([], minor=True)


def _decades(positive: Sequence[float]) -> float:
    """The powers of ten that some positive numbers span."""
    return math.log10(max(positive) / min(positive)) if positive else 0.0
