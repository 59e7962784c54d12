"""Where models look: some test images, and under them a row of Grad-CAM heat maps for each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from protofed.core.errors import ProtofedError
from protofed.core.rng import rng
from protofed.core.site import ArrayDataset
from protofed.core.threads import torch_threads
from protofed.figures.saliency import grad_cam
from protofed.figures.style import COLOURS, PALETTE, FigureOptions, new_figure
from protofed.figures.trained import (
    Chosen,
    model_owner,
    open_runs,
    run_names,
    single_round,
    test_images,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from protofed.experiment.opened import TrainedRun

PANEL = 1.25  # inches
RIGHT, WRONG = PALETTE[0], PALETTE[1]
VEIL = 0.6  # how much the heat covers the image below it


class TestImage(NamedTuple):
    """One test image and where it is from."""

    domain: str
    data: ArrayDataset  # of one row

    @property
    def label(self) -> int:
        """Its class."""
        return int(self.data.labels[0])


class HeatMap(NamedTuple):
    """What a run says about one image, and where its model saw that."""

    chances: Tensor  # [C] softmax of the method's scores
    heat: Tensor  # [side, side] from 0 to 1, for the class with the best score


def draw_gradcam(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """The heat of the class that each run predicts, with that class and its probability."""
    options.only("gradcam", "rounds", "domain", "images", "seed")
    opened = open_runs(runs, single_round("gradcam", options))
    pictures = sample_test_images(
        test_images("gradcam", opened[0], options.domain), options.images, options.seed
    )
    classes = opened[0].federation.benchmark.classes
    figure = new_figure(PANEL * len(pictures) + 1.2, (PANEL + 0.25) * (len(runs) + 1) + 0.2)
    panels = figure.subplots(len(runs) + 1, len(pictures), squeeze=False)
    for axes, picture in zip(panels[0], pictures, strict=True):
        plot_image(axes, picture.data.images[0])
        axes.set_title(f"{picture.domain}\nclass {classes[picture.label]}")
    for row, label, run in zip(panels[1:], run_names(runs, opened), opened, strict=True):
        for axes, picture in zip(row, pictures, strict=True):
            _heat(axes, picture, explain_image(run, picture), classes)
        row[0].set_ylabel("\n".join(filter(None, [label, f"round {run.round}", model_owner(run)])))
    panels[0, 0].set_ylabel("image")
    scale = figure.colorbar(panels[1, 0].images[-1], ax=panels[1:], ticks=[0, 1], aspect=40)
    scale.set_ticklabels(["least", "most"])
    return figure


def sample_test_images(tests: Chosen, count: int, seed: int) -> list[TestImage]:
    """So many random images (or all there are), from each domain in turn."""
    if count < 1:
        raise ProtofedError(f"gradcam: images is {count}, but must be 1 or more")
    queues = {
        name: torch.randperm(len(test), generator=rng("figure", seed, "Grad-CAM", name))
        for name, test in tests.items()
    }
    rounds = range(max(map(len, queues.values())))
    order = [(name, at) for at in rounds for name in tests if at < len(queues[name])]
    return [
        TestImage(name, tests[name].take(queues[name][at : at + 1])) for name, at in order[:count]
    ]


def explain_image(run: TrainedRun, picture: TestImage) -> HeatMap:
    """What a run's model says about one image, and where it looked."""
    site, model = run.model()
    scores = run.scores(picture.data)
    with torch_threads(run.experiment.threads):
        x = site.pixels.normalize(picture.data.images)
        (heat,) = grad_cam(site.net, model, x, scores.argmax(1))
    return HeatMap(scores[0].softmax(0), heat)


def plot_image(axes: Axes, image: Tensor) -> None:
    """A stored image [side, side, 1 or 3] as it is."""
    axes.imshow(image.squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=255)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def plot_heat(axes: Axes, image: Tensor, heat: Tensor) -> None:
    """A heat map [side, side] over its image."""
    plot_image(axes, image)
    axes.images[0].set_data(image.float().mean(-1).numpy())  # colours would mix
    axes.images[0].set_clim(-255, 255)  # and black would darken the heat
    axes.imshow(heat.numpy(), cmap=COLOURS, vmin=0, vmax=1, alpha=VEIL)
    if not heat.any():
        axes.text(0.5, 0.06, "no heat", color="white", ha="center", transform=axes.transAxes)


def _heat(axes: Axes, picture: TestImage, seen: HeatMap, classes: Sequence[str]) -> None:
    """A heat map over its image; below, what was predicted, and whether that is right."""
    plot_heat(axes, picture.data.images[0], seen.heat)
    chance, predicted = (value.item() for value in seen.chances.max(0))
    right = predicted == picture.label
    told = f"{classes[int(predicted)]}: {chance:.0%} {'✓' if right else '✗'}"
    axes.set_xlabel(told, color=RIGHT if right else WRONG)
