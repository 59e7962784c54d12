"""How far apart each method holds the classes: the distance to the nearest other class's vector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from protofed.core.prototypes import Prototypes
from protofed.figures.load_models import client_prototypes, open_runs, run_names, single_round
from protofed.figures.style import FigureOptions, add_footnotes, new_figure, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from protofed.experiment.trained_run import TrainedRun

SHARE = 0.8  # of a class's place that its bars fill
ANCHORS = "anchors"  # the extra in which learnt class vectors travel


class MarginSeries(NamedTuple):
    """The bars of one run."""

    label: str
    tables: tuple[Prototypes, ...]  # one; or one a client, of which the largest margin counts

    def margins(self, classes: int, unit: bool) -> Tensor:
        """A margin for each class [C], with vectors of length 1 if `unit`; NaN where unknown."""
        found = [margins_by_class(unit_rows(t) if unit else t, classes) for t in self.tables]
        known = torch.stack(found).nan_to_num(nan=-torch.inf).amax(0)
        return torch.where(known.isfinite(), known, torch.nan)


def draw_margins(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Two panels: vectors as they are, and scaled to length 1, which makes methods comparable."""
    options.only("margins", "rounds")
    opened = open_runs(runs, single_round("margins", options))
    series = [
        margin_series(run, name) for run, name in zip(opened, run_names(runs, opened), strict=True)
    ]
    classes = opened[0].federation.benchmark.classes
    figure = new_figure(max(5.2, 0.5 * len(classes) + 1), 5.0)
    upper, lower = figure.subplots(2, 1, sharex=True)
    _bars(upper, series, classes, unit=False)
    _bars(lower, series, classes, unit=True)
    upper.set(title="vectors as they are", ylabel="margin")
    lower.set(title="vectors scaled to length 1", ylabel="margin", xlabel="class")
    marks, texts = upper.get_legend_handles_labels()
    figure.legend(marks, texts, loc="outside upper center", ncols=min(3, len(texts)))
    rounds = sorted({run.round for run in opened})
    told = f"after round {', '.join(map(str, rounds))}; "
    add_footnotes(figure, [f"{told}margin: distance to the nearest vector of another class"])
    return figure


def margin_series(run: TrainedRun, name: str) -> MarginSeries:
    """The class vectors that a method shares: prototypes or anchors; else each client's means."""
    product = run.method.publish(run.server)
    anchors = product.extras.get(ANCHORS)
    if product.protos is not None:
        return MarginSeries(f"{name}, shared prototypes", (product.protos,))
    if isinstance(anchors, Tensor):
        each = torch.arange(len(anchors))
        return MarginSeries(f"{name}, anchors", (Prototypes(anchors, each, torch.ones_like(each)),))
    tables = tuple(client_prototypes(run).values())
    return MarginSeries(f"{name}, largest of clients", tables)


def margins_by_class(table: Prototypes, classes: int) -> Tensor:
    """The margin of each class [C], the least of its rows; NaN without it or without others."""
    least = table.vectors.new_full((classes,), torch.inf)
    least = least.scatter_reduce(0, table.labels, table.class_margins(), "amin")
    return torch.where(least.isfinite(), least, torch.nan)


def unit_rows(table: Prototypes) -> Prototypes:
    """The same rows as vectors of length 1."""
    unit = torch.nn.functional.normalize(table.vectors)
    return Prototypes(unit, table.labels, table.counts)


def _bars(axes: Axes, series: Sequence[MarginSeries], classes: Sequence[str], unit: bool) -> None:
    places, width = torch.arange(len(classes)).double(), SHARE / len(series)
    for number, one in enumerate(series):
        style = series_style(number)
        axes.bar(
            (places + (number - (len(series) - 1) / 2) * width).tolist(),
            one.margins(len(classes), unit).tolist(),
            width,
            color=style.colour,
            hatch=style.hatch,
            edgecolor="white",
            linewidth=0.5,
            label=one.label,
        )
    axes.set_xticks(places.tolist(), list(classes))
    axes.grid(axis="y")
