"""Features of one domain in three dimensions, with the sphere of unit vectors: a panel a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from protofed.figures.embedding import principal_axes
from protofed.figures.points import group_points
from protofed.figures.style import GREY, FigureOptions, add_footnotes, new_figure
from protofed.figures.trained import (
    image_features,
    image_groups,
    model_owner,
    open_runs,
    run_names,
    sample_images,
    single_round,
    test_images,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from mpl_toolkits.mplot3d import Axes3D  # type: ignore[import-untyped]
    from torch import Tensor

    from protofed.experiment.opened import TrainedRun

MOST_SPHERE_IMAGES = 500  # images; more would hide each other
SPHERE_PANEL = 3.0  # inches
MARGIN = 1.05  # of the room around the farthest point, or around the sphere


def draw_sphere(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Each panel has its own axes and scale; the sphere in it has radius 1."""
    options.only("sphere", "rounds", "domain", "seed")
    opened = open_runs(runs, single_round("sphere", options))
    domain = options.domain or opened[0].experiment.data.domains[0]
    tests = test_images("sphere", opened[0], domain)
    chosen = sample_images(tests, MOST_SPHERE_IMAGES, options.seed, "sphere")
    numbers, called = image_groups(opened[0], chosen, "class")
    figure = new_figure(SPHERE_PANEL * len(runs) + 0.7, SPHERE_PANEL + 0.5)
    labels = run_names(runs, opened)
    for place, run in enumerate(opened):
        z = image_features(run, chosen)
        found = principal_axes(z, 3, centred=False)  # the sphere's centre must stay the origin
        axes = figure.add_subplot(1, len(runs), place + 1, projection="3d")
        _scatter_sphere(axes, found.place(z), numbers, called)
        axes.set_title(_sphere_title(labels[place], run, z, found.kept))
    marks, texts = figure.axes[0].get_legend_handles_labels()
    figure.legend(marks, texts, loc="outside right center", title="class", markerscale=1.5)
    add_footnotes(
        figure, [f"{len(numbers)} test images: {domain}; grey: the sphere of unit vectors"]
    )
    return figure


def _scatter_sphere(axes: Axes3D, points: Tensor, numbers: Tensor, called: Sequence[str]) -> None:
    """Points [N, 3] and the unit sphere, on equal scales."""
    _sphere(axes)
    for cloud in group_points(points, numbers, called):
        x, y, z = cloud.points.T.numpy()
        axes.scatter(
            x,
            y,
            z,
            s=9,
            color=cloud.colour,
            marker=cloud.marker,
            linewidths=0,
            depthshade=False,
            label=cloud.name,
        )
    reach = MARGIN * max(1.0, float(points.abs().max()))
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), zlim=(-reach, reach))
    axes.set_box_aspect((1, 1, 1))
    axes.tick_params(labelsize=6, pad=-2)
    axes.locator_params(nbins=5)


def _sphere(axes: Axes3D) -> None:
    """A net of meridians and parallels."""
    import numpy as np

    around, down = np.linspace(0, 2 * np.pi, 25)[:, None], np.linspace(0, np.pi, 13)
    x, y = np.cos(around) * np.sin(down), np.sin(around) * np.sin(down)
    z = np.ones_like(around) * np.cos(down)
    axes.plot_wireframe(x, y, z, color=GREY, linewidth=0.4, alpha=0.4)


def _sphere_title(label: str, run: TrainedRun, z: Tensor, kept: float) -> str:
    lengths = z.norm(dim=1)
    who = "".join(f", {name}" for name in [model_owner(run)] if name)
    return (
        f"{label}, round {run.round}{who}\n"
        f"lengths of {z.shape[1]}-D features {lengths.min():.3g} to {lengths.max():.3g}\n"
        f"{kept:.0%} of squared length shown"
    )
