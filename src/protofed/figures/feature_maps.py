"""Features of test images in a plane by t-SNE, or in space beside the unit sphere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core.rng import stream_seed
from protofed.errors import ProtofedError
from protofed.figures.figure_data import (
    choose_test_images,
    image_features,
    image_groups,
    model_owner,
    open_local_models,
    open_runs,
    run_names,
    sample_images,
    single_round,
)
from protofed.figures.style import GREY, MARKERS, PALETTE, FigureOptions, add_footnotes, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from mpl_toolkits.mplot3d import Axes3D  # type: ignore[import-untyped]

    from protofed.experiment.trained_run import TrainedRun

DARKER = 0.5  # brightness that each repetition of the palette keeps


class PointGroup(NamedTuple):
    """The points of one group (a class or a domain) and how to draw them.

    Groups differ in marker as well as in colour.
    """

    name: str
    points: Tensor  # [n, dims]
    colour: tuple[float, float, float]
    marker: str


def group_points(points: Tensor, numbers: Tensor, called: Sequence[str]) -> Iterator[PointGroup]:
    """Split points [N, dims] by the number of their group [N], each with a colour and a marker.

    `called` names the groups by number. Groups without points are left out. Beyond the palette,
    colours are repeated darker.
    """
    for group in numbers.unique().tolist():
        marker = MARKERS[group % len(MARKERS)]
        yield PointGroup(called[group], points[numbers == group], group_colour(group), marker)


def group_colour(group: int) -> tuple[float, float, float]:
    """The colour of a group by its number: red, green and blue from 0 to 1."""
    from matplotlib.colors import to_rgb

    again, place = divmod(group, len(PALETTE))
    red, green, blue = (part * DARKER**again for part in to_rgb(PALETTE[place]))
    return red, green, blue


PERPLEXITY = 30.0  # of t-SNE, as its paper suggests
FEWEST = 4  # points that t-SNE needs


class ProjectionAxes(NamedTuple):
    """A linear projection: its origin, its axes, and how much of the points it keeps."""

    origin: Tensor  # [D]
    axes: Tensor  # [dims, D], orthonormal; zero rows where the points have fewer dimensions
    kept: float  # share of the squared distances to the origin, 0 to 1

    def place(self, points: Tensor) -> Tensor:
        """Project points [N, D] to [N, dims]."""
        return (points.double() - self.origin) @ self.axes.T


def principal_axes(points: Tensor, dims: int, centred: bool = True) -> ProjectionAxes:
    """The axes along which points [N, D] vary most, by singular value decomposition.

    With ``centred=False`` the origin stays where it is, and the axes are those along which the
    points are longest. The sign of each axis is fixed by its largest entry, so that all libraries
    give the same picture.
    """
    wide = points.double()
    origin = wide.mean(0) if centred else wide.new_zeros(wide.shape[1])
    _, lengths, axes = torch.linalg.svd(wide - origin, full_matrices=False)
    found = axes[:dims]
    largest = found.gather(1, found.abs().argmax(1, keepdim=True))
    found = F.pad(found * largest.sign(), (0, 0, 0, dims - len(found)))
    squares = lengths.square()
    kept = float(squares[:dims].sum() / squares.sum().clamp(min=torch.finfo(squares.dtype).tiny))
    return ProjectionAxes(origin, found, kept)


def tsne_map(points: Tensor, seed: int) -> Tensor:
    """Lay out points [N, D] in a plane [N, 2] by t-SNE; needs at least four.

    Neighbours stay close; distances between far points mean little. Equal seeds give equal layouts.
    """
    if len(points) < FEWEST:
        raise ProtofedError(
            f"t-SNE needs at least {FEWEST} images, there are {len(points)}\n"
            f"choose a domain with more test images, or all of them"
        )
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    layout = TSNE(
        perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
        init="pca",
        random_state=stream_seed(seed, "figure", "t-SNE") % 2**32,
    )
    with threadpool_limits(1):  # more threads would sum in another order
        return torch.from_numpy(layout.fit_transform(points.double().numpy()))


MOST_TSNE_IMAGES = 1000  # seconds of t-SNE; ten times as many would take minutes
TSNE_PANEL = 2.3  # inches


def draw_tsne(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw the features of test images by t-SNE: a row per run, a column per round.

    With `options.clients`, each model is that of a client at the end of the round: a row per run
    and client, or a column per client if there is one round. All panels show the same images, at
    most 1,000 drawn at random. Panels of a row share one scale.
    """
    options.only("tsne", "rounds", "domain", "by", "seed", "clients")
    rows = _panel_rows(runs, options)
    first = rows[0][1][0]
    chosen = sample_images(
        choose_test_images("tsne", first, options.domain), MOST_TSNE_IMAGES, options.seed, "t-SNE"
    )
    numbers, called = image_groups(first, chosen, options.by)
    figure = new_figure(TSNE_PANEL * len(rows[0][1]) + 1.0, TSNE_PANEL * len(rows) + 0.3)
    panels = figure.subplots(len(rows), len(rows[0][1]), squeeze=False, sharex="row", sharey="row")
    for line, (label, models) in zip(panels, rows, strict=True):
        for axes, run in zip(line, models, strict=True):
            points = tsne_map(image_features(run, chosen), options.seed)
            scatter_plane(axes, points, numbers, called)
            axes.set_title(_tsne_title(run))
        line[0].set_ylabel(label)
    marks, texts = panels[0, 0].get_legend_handles_labels()
    figure.legend(marks, texts, loc="outside right center", title=options.by, markerscale=2)
    add_footnotes(figure, [f"{len(numbers)} test images: {', '.join(chosen)}"])
    return figure


def _panel_rows(runs: Sequence[Path], options: FigureOptions) -> list[tuple[str, list[TrainedRun]]]:
    """The models of each row of panels, with its label."""
    columns = [open_runs(runs, finished) for finished in options.rounds or (None,)]
    labels = run_names(runs, columns[0])
    if not options.clients:
        return [(label, [c[row] for c in columns]) for row, label in enumerate(labels)]
    local = [open_local_models(runs, column, options.clients) for column in columns]
    if len(columns) == 1:
        return list(zip(labels, local[0], strict=True))
    return [
        (label, [models[row][client] for models in local])
        for row, label in enumerate(labels)
        for client in range(len(options.clients))
    ]


def scatter_plane(axes: Axes, points: Tensor, numbers: Tensor, called: Sequence[str]) -> None:
    """Draw points [N, 2] with the look of their group in a square panel without ticks.

    `numbers` [N] are the groups' numbers, `called` their names.
    """
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
    owner = model_owner(run)
    return f"round {run.round}, {owner}" if owner else f"round {run.round}"


MOST_SPHERE_IMAGES = 500  # images; more would hide each other
SPHERE_PANEL = 3.0  # inches
MARGIN = 1.05  # space around the farthest point or the sphere


def draw_sphere(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw the features of one domain in three dimensions, a panel per run, with the unit sphere.

    Shows whether a method spreads its features on a hypersphere. Each panel is projected by itself.
    """
    options.only("sphere", "rounds", "domain", "seed")
    opened = open_runs(runs, single_round("sphere", options))
    domain = options.domain or opened[0].experiment.data.domains[0]
    tests = choose_test_images("sphere", opened[0], domain)
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
    owner = "".join(f", {name}" for name in [model_owner(run)] if name)
    return (
        f"{label}, round {run.round}{owner}\n"
        f"lengths of {z.shape[1]}-D features {lengths.min():.3g} to {lengths.max():.3g}\n"
        f"{kept:.0%} of squared length shown"
    )
