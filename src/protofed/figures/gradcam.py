"""Where models look: Grad-CAM heat maps (Selvaraju et al., ICCV 2017) of test images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from protofed.core.freezing import whole_net
from protofed.core.model import Model, Net, NetOutput, model_from_net
from protofed.core.rng import rng
from protofed.core.site import ArrayDataset
from protofed.core.training import torch_threads
from protofed.errors import ProtofedError
from protofed.figures.figure_data import (
    Chosen,
    choose_test_images,
    model_owner,
    open_local_models,
    open_runs,
    run_names,
    single_round,
)
from protofed.figures.style import (
    COLOURS,
    PALETTE,
    FigureOptions,
    figure_png,
    figure_settings,
    new_figure,
)
from protofed.spec.experiment_spec import ArrayData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from protofed.experiment.trained_run import TrainedRun


ROUNDING = 1e-5  # of a sum of float32 numbers, relative to the sum of their sizes


def grad_cam(net: Net, model: Model, x: Tensor, labels: Tensor) -> Tensor:
    """Heat maps [B, side, side] from 0 to 1 that show where a net sees given classes.

    `x` [B, channels, side, side] is the net's input and `labels` [B] the class to explain in each
    image. It is an argument because a method may predict another class than the net's best score.
    """
    maps: list[Tensor] = []

    def cut(layer: nn.Module, given: object, out: Tensor) -> Tensor:
        maps.append(out.detach().requires_grad_())  # gradients are needed from here on only
        return maps[-1]

    handle = last_convolution(net).register_forward_hook(cut)
    net.eval()
    try:
        state = {**model.weights, **model.buffers}
        out: NetOutput = functional_call(net, state, (x,), strict=True)
    finally:
        handle.remove()
    spoken = out.logits.gather(1, labels[:, None])
    (slopes,) = torch.autograd.grad(spoken.sum(), maps[-1])
    return heat_from_gradients(maps[-1].detach(), slopes, x.shape[-1])


def heat_from_gradients(maps: Tensor, slopes: Tensor, side: int) -> Tensor:
    """Grad-CAM from feature maps [B, K, h, w] and their gradients, resized to [B, side, side].

    Maps are summed with their mean gradients as weights. Positive values are scaled to 0..1. Where
    nothing spoke for the class the result is zero: a flat map, or one that is no larger than the
    rounding of the sum.
    """
    weights = slopes.mean((2, 3), keepdim=True)
    small = F.relu((weights * maps).sum(1, keepdim=True))
    noise = ROUNDING * (weights * maps).abs().sum(1, keepdim=True).amax((2, 3), keepdim=True)
    small = torch.where(small.amax((2, 3), keepdim=True) > noise, small, 0.0)
    heat = F.interpolate(small, (side, side), mode="bilinear", align_corners=False)[:, 0]
    least, most = heat.amin((1, 2), keepdim=True), heat.amax((1, 2), keepdim=True)
    # What varies no more than rounding does carries no information and becomes zero.
    signal = most - least > ROUNDING * most
    return torch.where(signal, (heat - least) / torch.where(signal, most - least, 1), 0.0)


def last_convolution(net: Net) -> nn.Conv2d:
    """The convolution closest to the features; 1x1 convolutions of shortcuts are passed over.

    Raises for a net without convolutions.
    """
    found = [layer for layer in net.encoder.modules() if isinstance(layer, nn.Conv2d)]
    if not found:
        raise ProtofedError(
            "Grad-CAM needs a net with convolutions; this one has none",
            hint="train with another net, for example <net=moon-cnn>",
        )
    return next((layer for layer in reversed(found) if layer.kernel_size != (1, 1)), found[-1])


PANEL = 1.25  # inches
RIGHT, WRONG = PALETTE[0], PALETTE[1]
VEIL = 0.6  # opacity of the heat over the image


class ExampleImage(NamedTuple):
    """One test image and the domain that it comes from.

    `data` is a data set of a single row, as models take data sets.
    """

    domain: str
    data: ArrayDataset  # of one row

    @property
    def label(self) -> int:
        """Its class."""
        return int(self.data.labels[0])


class HeatMap(NamedTuple):
    """A run's prediction for one image, and the heat map of the predicted class.

    The heat map is relative: it says where the model looks, not how sure it is.
    """

    chances: Tensor  # [C] softmax of the method's scores
    heat: Tensor  # [side, side] from 0 to 1, for the class with the best score


def draw_gradcam(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw example images with the heat maps of each run's predicted class below them.

    Under each heat map stand the class, its probability, and whether it is right. `options.images`
    sets the number of images. With `options.clients`, a run has a row for each client's model.
    """
    options.only("gradcam", "rounds", "domain", "images", "seed", "clients")
    opened = open_runs(runs, single_round("gradcam", options))
    labels = run_names(runs, opened)
    if options.clients:
        local = open_local_models(runs, opened, options.clients)
        labels = [label for label, models in zip(labels, local, strict=True) for _ in models]
        opened = [run for models in local for run in models]
    if isinstance(opened[0].experiment.data, ArrayData):
        raise ProtofedError("gradcam: it shows images, and the data of these runs are rows")
    pictures = sample_test_images(
        choose_test_images("gradcam", opened[0], options.domain), options.images, options.seed
    )
    classes = opened[0].federation.benchmark.classes
    figure = new_figure(PANEL * len(pictures) + 1.2, (PANEL + 0.25) * (len(opened) + 1) + 0.2)
    panels = figure.subplots(len(opened) + 1, len(pictures), squeeze=False)
    for axes, picture in zip(panels[0], pictures, strict=True):
        plot_image(axes, picture.data.images[0])
        axes.set_title(f"{picture.domain}\nclass {classes[picture.label]}")
    for row, label, run in zip(panels[1:], labels, opened, strict=True):
        for axes, picture in zip(row, pictures, strict=True):
            plot_prediction(axes, picture, explain_image(run, picture), classes)
        row[0].set_ylabel("\n".join(filter(None, [label, f"round {run.round}", model_owner(run)])))
    panels[0, 0].set_ylabel("image")
    scale = figure.colorbar(panels[1, 0].images[-1], ax=panels[1:], ticks=[0, 1], aspect=40)
    scale.set_ticklabels(["least", "most"])
    return figure


def sample_test_images(tests: Chosen, count: int, seed: int) -> list[ExampleImage]:
    """Choose `count` random test images (all if there are fewer), taking the domains in turn.

    The choice depends on the seed and on the names of the domains, not on the runs.
    """
    if count < 1:
        raise ProtofedError(f"gradcam: images is {count}, but must be 1 or more")
    queues = {
        name: torch.randperm(len(test), generator=rng("figure", seed, "Grad-CAM", name))
        for name, test in tests.items()
    }
    rounds = range(max(map(len, queues.values())))
    order = [(name, at) for at in rounds for name in tests if at < len(queues[name])]
    return [
        ExampleImage(name, tests[name].take(queues[name][at : at + 1]))
        for name, at in order[:count]
    ]


def explain_image(run: TrainedRun, picture: ExampleImage) -> HeatMap:
    """Predict one image with a run's model, and compute the heat map of the predicted class.

    The prediction is the method's own, which need not be the net's best score.
    """
    site, model = run.model()
    scores = run.scores(picture.data)
    with torch_threads(run.experiment.threads):
        x = site.pixels.normalize(picture.data.images)
        net = whole_net(site.net)
        (heat,) = grad_cam(net, model_from_net(net) | model, x, scores.argmax(1))
    return HeatMap(scores[0].softmax(0), heat)


def plot_image(axes: Axes, image: Tensor) -> None:
    """Show a stored image [side, side, 1 or 3] without ticks and frame.

    Pixels are uint8; grey images are drawn in grey.
    """
    axes.imshow(image.squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=255)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def plot_heat(axes: Axes, image: Tensor, heat: Tensor) -> None:
    """Show a heat map [side, side] over its image, which is drawn in light grey.

    A heat map of zeros is not drawn: it says that nothing spoke for the class.
    """
    plot_image(axes, image)
    axes.images[0].set_data(image.float().mean(-1).numpy())  # colours would mix
    axes.images[0].set_clim(-255, 255)  # and black would darken the heat
    if not heat.any():
        text = "nothing spoke\nfor it"
        axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=7, transform=axes.transAxes)
    # drawn in any case, for the scale beside it; invisible if there is nothing to see
    opacity = VEIL if heat.any() else 0.0
    axes.imshow(heat.numpy(), cmap=COLOURS, vmin=0, vmax=1, alpha=opacity)


def plot_prediction(
    axes: Axes, picture: ExampleImage, seen: HeatMap, classes: Sequence[str]
) -> None:
    """Show a heat map over its image; below, what was predicted, and whether that is right.

    `classes` are the names of the classes.
    """
    plot_heat(axes, picture.data.images[0], seen.heat)
    chance, predicted = (value.item() for value in seen.chances.max(0))
    right = predicted == picture.label
    text = f"{classes[int(predicted)]}: {chance:.0%} {'✓' if right else '✗'}"
    axes.set_xlabel(text, color=RIGHT if right else WRONG)


def explanation_figure(image: Tensor, heat: Tensor, title: str) -> bytes:
    """A PNG of an image [side, side, 3] uint8 next to its heat map [side, side], under a title.

    Used by ``predict``; the title is plain text, never mathematics.
    """
    with figure_settings():
        figure = new_figure(3.6, 2.1)
        left, right = figure.subplots(1, 2)
        plot_image(left, image)
        plot_heat(right, image, heat)
        figure.suptitle(title, fontsize=9, parse_math=False)  # a class may be called $1
        return figure_png(figure)
