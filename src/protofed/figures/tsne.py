"""Features of test images in a plane by t-SNE: a row a run, a column a round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from protofed.figures.embedding import neighbour_map
from protofed.figures.points import clouds
from protofed.figures.style import Options, footnote, new_figure
from protofed.figures.trained import (
    at_most,
    features,
    groups,
    names,
    only_domain,
    open_all,
    speaker,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from protofed.experiment.opened import Opened

MOST = 1000  # images: t-SNE takes seconds for so many, and minutes for ten times as many
PANEL = 2.3  # inches


def draw(runs: Sequence[Path], options: Options) -> Figure:
    """The same images in every panel; panels of a row share one scale."""
    options.only("tsne", "rounds", "domain", "by", "seed")
    columns = [open_all(runs, finished) for finished in options.rounds or (None,)]
    first = columns[0][0]
    chosen = at_most(only_domain("tsne", first, options.domain), MOST, options.seed, "t-SNE")
    numbers, called = groups(first, chosen, options.by)
    figure = new_figure(PANEL * len(columns) + 1.0, PANEL * len(runs) + 0.3)
    panels = figure.subplots(len(runs), len(columns), squeeze=False, sharex="row", sharey="row")
    labels = names(runs, columns[0])
    for column, opened in enumerate(columns):
        for row, run in enumerate(opened):
            axes = panels[row, column]
            _scatter(axes, neighbour_map(features(run, chosen), options.seed), numbers, called)
            axes.set_title(_title(run))
            if column == 0:
                axes.set_ylabel(labels[row])
    marks, texts = panels[0, 0].get_legend_handles_labels()
    figure.legend(marks, texts, loc="outside right center", title=options.by, markerscale=2)
    footnote(figure, [f"{len(numbers)} test images: {', '.join(chosen)}"])
    return figure


def _scatter(axes: Axes, points: Tensor, numbers: Tensor, called: Sequence[str]) -> None:
    """Points [N, 2] with the look of their group."""
    for cloud in clouds(points, numbers, called):
        x, y = cloud.points.T.numpy()
        axes.scatter(
            x,
            y,
            s=8,
            color=cloud.colour,
            marker=cloud.marker,
            linewidths=0,
            alpha=0.8,
            label=cloud.name,
        )
    axes.spines[:].set_visible(True)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_box_aspect(1)


def _title(run: Opened) -> str:
    who = speaker(run)
    return f"round {run.round}, {who}" if who else f"round {run.round}"
