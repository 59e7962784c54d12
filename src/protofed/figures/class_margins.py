"""How far apart a method keeps the classes: the distance to the nearest vector of another class."""

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

SHARE = 0.8  # of the space of a class that its bars fill
ANCHORS = "anchors"  # the extra that carries learned class vectors


class MarginSeries(NamedTuple):
    """The bars of one run: a label, and the tables of class vectors that margins are taken from.

    There is one table for vectors that the server shares, or one per client.
    """

    label: str
    tables: tuple[Prototypes, ...]  # one; or one per client, and the largest margin counts

    def margins(self, classes: int, unit: bool) -> Tensor:
        """The margin of each class [C], NaN where unknown; of vectors scaled to length 1 if `unit`.

        With several tables, one per client, the largest margin of each class counts.
        """
        found = [margins_by_class(unit_rows(t) if unit else t, classes) for t in self.tables]
        known = torch.stack(found).nan_to_num(nan=-torch.inf).amax(0)
        return torch.where(known.isfinite(), known, torch.nan)


def draw_margins(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw the margins of all classes as bars, one series per run.

    The upper panel takes the vectors as they are. The lower one scales them to length 1, which
    makes methods with features of different lengths comparable.
    """
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
    after = f"after round {', '.join(map(str, rounds))}; "
    add_footnotes(figure, [f"{after}margin: distance to the nearest vector of another class"])
    return figure


def margin_series(run: TrainedRun, name: str) -> MarginSeries:
    """The class vectors that a run's method shares, as a series.

    These are the prototypes or learned anchors that the server publishes; for methods with neither,
    the class means of each client.
    """
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
    """The margin of each class [C]: the smallest over its rows.

    NaN for a class without rows, or if the table has no other class.
    """
    least = table.vectors.new_full((classes,), torch.inf)
    least = least.scatter_reduce(0, table.labels, table.class_margins(), "amin")
    return torch.where(least.isfinite(), least, torch.nan)


def unit_rows(table: Prototypes) -> Prototypes:
    """The same table with every vector scaled to length 1.

    Labels and counts stay as they are.
    """
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
