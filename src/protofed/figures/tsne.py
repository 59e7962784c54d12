"""Features of test images in a plane by t-SNE: a row a run, a column a round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from protofed.figures.embedding import tsne_map
from protofed.figures.points import group_points
from protofed.figures.style import FigureOptions, add_footnotes, new_figure
from protofed.figures.trained import (
    image_features,
    image_groups,
    model_owner,
    open_runs,
    run_names,
    sample_images,
    test_images,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from protofed.experiment.opened import TrainedRun

MOST_TSNE_IMAGES = 1000  # images: t-SNE takes seconds for so many, and minutes for ten times as many
TSNE_PANEL = 2.3  # inches


def draw_tsne(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """The same images in every panel; panels of a row share one scale."""
    options.only("tsne", "rounds", "domain", "by", "seed")
    columns = [open_runs(runs, finished) for finished in options.rounds or (None,)]
    first = columns[0][0]
    chosen = sample_images(test_images("tsne", first, options.domain), MOST_TSNE_IMAGES, options.seed, "t-SNE")
    numbers, called = image_groups(first, chosen, options.by)
    figure = new_figure(TSNE_PANEL * len(columns) + 1.0, TSNE_PANEL * len(runs) + 0.3)
    panels = figure.subplots(len(runs), len(columns), squeeze=False, sharex="row", sharey="row")
    labels = run_names(runs, columns[0])
    for column, opened in enumerate(columns):
        for row, run in enumerate(opened):
            axes = panels[row, column]
            _scatter_plane(axes, tsne_map(image_features(run, chosen), options.seed), numbers, called)
            axes.set_title(_tsne_title(run))
            if column == 0:
                axes.set_ylabel(labels[row])
    marks, texts = panels[0, 0].get_legend_handles_labels()
    figure.legend(marks, texts, loc="outside right center", title=options.by, markerscale=2)
    add_footnotes(figure, [f"{len(numbers)} test images: {', '.join(chosen)}"])
    return figure


def _scatter_plane(axes: Axes, points: Tensor, numbers: Tensor, called: Sequence[str]) -> None:
    """Points [N, 2] with the look of their group."""
    for cloud in group_points(points, numbers, called):
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


def _tsne_title(run: TrainedRun) -> str:
    who = model_owner(run)
    return f"round {run.round}, {who}" if who else f"round {run.round}"
