"""What each part of a method brings: a bar for each variant, the first one's height dashed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from protofed.core.method import AnyMethod
from protofed.experiment.describe import describe_method
from protofed.experiment.parse import parse_method
from protofed.figures.series import (
    RunSeries,
    accuracy_spread,
    axis_label,
    baseline_first,
    compared_series,
    error_bars,
    figure_heading,
)
from protofed.figures.style import (
    BLACK,
    FigureOptions,
    add_footnotes,
    new_figure,
    series_style,
    set_title,
)
from protofed.study.formats import format_spread
from protofed.study.variants import FULL


def draw_ablation(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Bars from 0, so that their lengths compare; the numbers stand beside them."""
    options.only("ablation", "domain", "rule")
    series, notes = compared_series(runs)
    rows = baseline_first(match_ablations(series))
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
    records = [record for row in rows for record in row.records]
    set_title(axes, figure_heading(records, options.rule, " (± standard deviation)"))
    add_footnotes(figure, notes)
    return figure


def match_ablations(series: Sequence[RunSeries]) -> list[RunSeries]:
    """Series in the order and with the names of the ablations that their method declares.

    They are known where exactly one setting has no part taken away: it is the full method.
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
    return {**made, _key(full): f"{full.info.label} ({FULL})"} if made else {}


def _ablated(method: AnyMethod) -> bool:
    """Whether a method lacks one of the parts that its paper takes away."""
    plain = describe_method(method)
    return any(
        all(plain[name] == value for name, value in fields.items())
        for fields in method.ablations.values()
    )


def _key(method: AnyMethod) -> str:
    return json.dumps(describe_method(method), sort_keys=True)
