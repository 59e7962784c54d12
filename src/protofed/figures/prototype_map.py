"""Clients' prototypes of a class in a plane, and how far apart a method keeps the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from protofed.core.prototypes import Prototypes
from protofed.errors import ProtofedError
from protofed.figures.feature_maps import ProjectionAxes as Plane
from protofed.figures.feature_maps import principal_axes
from protofed.figures.figure_data import client_prototypes, open_runs, run_names, single_round
from protofed.figures.style import (
    BLACK,
    FAINT,
    FigureOptions,
    add_footnotes,
    new_figure,
    series_style,
)
from protofed.ops.finch import finch_clusters

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from protofed.core.site import ClientId
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


CLASSES = 3  # a column each
SHARED = {"protos", "prototypes"}  # the parts of replies in which clients send prototypes
PANEL = 2.2  # inches


class PrototypeMark(NamedTuple):
    """How one of the server's vectors is drawn; later marks lie over earlier ones.

    `shape` is a marker of matplotlib, `size` its area in points squared.
    """

    name: str
    shape: str
    colour: str
    size: int


MARKS = (
    PrototypeMark("cluster", "p", "none", 90),
    PrototypeMark("unbiased mean", "*", "#F0E442", 130),
    PrototypeMark("global mean", "X", BLACK, 40),
)


class PrototypeSummary(NamedTuple):
    """The combinations of the clients' prototypes of one class, in the terms of FPL.

    The unbiased mean counts every cluster once, the global mean every client.
    """

    partition: Tensor  # [N] the number of each row's FINCH cluster
    clusters: Tensor  # [clusters, D] their means
    unbiased: Tensor  # [1, D] mean of the clusters
    mean: Tensor  # [1, D] of all rows


def draw_prototypes(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw clients' prototypes with clusters and means: a row per run, a column per class.

    Each panel is projected to its own plane. Only methods whose clients send prototypes can be
    shown.
    """
    options.only("prototypes", "rounds")
    opened = open_runs(runs, single_round("prototypes", options))
    for folder, run in zip(runs, opened, strict=True):
        _check(folder, run)
    tables = [client_prototypes(run) for run in opened]
    shown, called = classes_to_show(tables), opened[0].federation.benchmark.classes
    figure = new_figure(PANEL * len(shown) + 1.6, (PANEL + 0.2) * len(runs) + 0.3)
    panels = figure.subplots(len(runs), len(shown), squeeze=False)
    for row, run, table, name in zip(panels, opened, tables, run_names(runs, opened), strict=True):
        for axes, label in zip(row, shown, strict=True):
            kept = _panel(axes, run, table, label)
            axes.set_title(f"class {called[label]}: {kept:.0%} of variance")
        row[0].set_ylabel(f"{name}, round {run.round}")
    entries = {text: mark for axes in panels.flat for mark, text in _entries(axes)}
    figure.legend(list(entries.values()), list(entries), loc="outside right center")
    add_footnotes(figure, ["clients: class means of their training images; lines lead to clusters"])
    return figure


def summarize_prototypes(rows: Tensor) -> PrototypeSummary:
    """Cluster the clients' prototypes [N, D] of one class by FINCH, and take the means.

    Uses the coarsest partition that FINCH finds.
    """
    partition, each = finch_clusters(rows)[-1], torch.ones(len(rows), dtype=torch.int64)
    clusters = Prototypes(rows, partition, each).uniform_mean().vectors
    unbiased, mean = (part.mean(0, keepdim=True) for part in (clusters, rows))
    return PrototypeSummary(partition, clusters, unbiased, mean)


def classes_to_show(runs: Sequence[Mapping[ClientId, Prototypes]]) -> list[int]:
    """The labels of up to three classes: those that most clients hold, and that every run has.

    Takes the prototypes by client of each run; raises if no class is in all runs.
    """
    labels = [torch.cat([table.labels for table in run.values()]) for run in runs]
    everywhere = set.intersection(*(set(found.tolist()) for found in labels))
    if not everywhere:
        raise ProtofedError("prototypes: no class is held in all of these runs; draw them apart")
    held = torch.cat(labels).bincount()
    return sorted(sorted(everywhere, key=lambda label: (-held[label], label))[:CLASSES])


def _check(folder: Path, run: TrainedRun) -> None:
    if not SHARED & set(run.method.payload.up):
        raise ProtofedError(
            f"{folder}: clients of {run.method.info.label} send no prototypes\n"
            "give a run of a method that does; `protofed methods` lists what each sends"
        )


def _panel(axes: Axes, run: TrainedRun, tables: Mapping[ClientId, Prototypes], label: int) -> float:
    """Draw one class; the share of variance that the plane keeps."""
    holders = [client for client, table in tables.items() if (table.labels == label).any()]
    rows = torch.cat([tables[c].vectors[tables[c].labels == label] for c in holders])
    plane, made = principal_axes(rows, 2), summarize_prototypes(rows)
    homes = [run.federation.sites[client].domain for client in holders]
    _clients(axes, plane.place(rows), homes, run.experiment.data.domains)
    _server(axes, plane, rows, made)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(True)
    axes.margins(0.15)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_box_aspect(1)
    return plane.kept


def _clients(axes: Axes, points: Tensor, homes: Sequence[str], domains: Sequence[str]) -> None:
    """Clients' points [N, 2] with the look of their domains."""
    for place, domain in enumerate(domains):
        mine = torch.tensor([home == domain for home in homes])
        if mine.any():
            x, y = points[mine].T.numpy()
            style = series_style(place)
            axes.scatter(
                x, y, s=26, marker=style.marker, color=style.colour, label=f"client, {domain}"
            )


def _server(axes: Axes, plane: Plane, rows: Tensor, made: PrototypeSummary) -> None:
    """The server's marks, and a line from each client's row [N, D] to its cluster."""
    ends = torch.stack(
        [plane.place(rows), plane.place(made.clusters)[made.partition]], 2
    )  # [N,2,2]
    for x, y in ends.numpy():
        axes.plot(x, y, color=FAINT, linewidth=1, zorder=0)
    for vectors, mark in zip((made.clusters, made.unbiased, made.mean), MARKS, strict=True):
        x, y = plane.place(vectors).T.numpy()
        axes.scatter(
            x,
            y,
            s=mark.size,
            marker=mark.shape,
            color=mark.colour,
            edgecolors=BLACK,
            linewidths=0.8,
            zorder=3,
            label=mark.name,
        )


def _entries(axes: Axes) -> zip[tuple[Artist, str]]:
    return zip(*axes.get_legend_handles_labels(), strict=True)
