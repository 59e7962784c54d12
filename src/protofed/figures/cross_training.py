"""What cross-training does to a model: its decision regions, and example images, before and after.

A round of such a method has two exchanges: a client trains a model, then another client trains that
model further. All models come from the last round that is shown, trained again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core.model import NetOutput
from protofed.core.rng import rng
from protofed.errors import ProtofedError
from protofed.experiment.local_models import replay_round
from protofed.figures.feature_maps import (
    ProjectionAxes,
    group_colour,
    principal_axes,
    scatter_plane,
)
from protofed.figures.figure_data import (
    Chosen,
    choose_test_images,
    find_clients,
    image_features,
    image_groups,
    open_runs,
    run_names,
    sample_images,
    single_round,
)
from protofed.figures.gradcam import ExampleImage, explain_image, plot_image, plot_prediction
from protofed.figures.style import FigureOptions, add_footnotes, new_figure
from protofed.spec.experiment_spec import ArrayData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from protofed.core.site import ClientId
    from protofed.experiment.trained_run import TrainedRun


class CrossTrained(NamedTuple):
    """A model before and after another client trained it further, as two views of one run."""

    name: str
    before: TrainedRun
    after: TrainedRun
    partner: ClientId

    @property
    def titles(self) -> tuple[str, str]:
        """What to write above its panels."""
        client = self.before.local.client if self.before.local else 0
        return f"{self.name}: client {client}", f"then client {self.partner}"


def open_cross_trained(
    kind: str, runs: Sequence[Path], options: FigureOptions
) -> list[CrossTrained]:
    """The model that one client sent first in the round that is shown, in each run.

    `options.clients` names the client; without it, it is the first one.
    """
    opened = open_runs(runs, single_round(kind, options))
    if len(options.clients) > 1:
        raise ProtofedError(f"{kind} shows one client, got {', '.join(options.clients)}")
    found = []
    for folder, run, name in zip(runs, opened, run_names(runs, opened), strict=True):
        if run.method.exchanges < 2:
            raise ProtofedError(
                f"{folder}: in {run.method.info.label}, no client trains the model of another one\n"
                f"{kind} needs runs of methods whose rounds have two exchanges"
            )
        replayed = replay_round(folder, run)
        client = (find_clients(run, options.clients) or [min(replayed.exchanges[-2].replies)])[0]
        partner = replayed.trained_further_by(client)
        before, after = replayed.local(client, -2), replayed.local(partner)
        found.append(CrossTrained(name, before, after, partner))
    return found


PANEL = 2.6  # inches
MOST_IMAGES = 500  # points; more would hide the regions
CELLS = 200  # of the plane, along each side
MARGIN = 0.08  # of the plane around the outermost points
PALE = 0.3  # opacity of the regions


def draw_boundaries(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw decision regions in a plane of features: a row per run, before and after cross-training.

    The plane holds the two axes along which the features before vary most; the features after are
    projected to it, too. A region has the colour of the class that the model's head predicts there.
    """
    options.only("boundaries", "rounds", "domain", "clients", "seed")
    models = open_cross_trained("boundaries", runs, options)
    first = models[0].before
    tests = choose_test_images("boundaries", first, options.domain)
    chosen = sample_images(tests, MOST_IMAGES, options.seed, "boundaries")
    figure = new_figure(PANEL * 2 + 1.0, (PANEL + 0.2) * len(models) + 0.4)
    panels = figure.subplots(len(models), 2, squeeze=False, sharex="row", sharey="row")
    kept = [_row(line, model, chosen) for line, model in zip(panels, models, strict=True)]
    marks, texts = panels[0, 0].get_legend_handles_labels()
    figure.legend(marks, texts, loc="outside right center", title="class", markerscale=2)
    shares = ", ".join(f"{share:.0%}" for share in kept)
    notes = [
        f"round {first.round}; {sum(map(len, chosen.values()))} test images: {', '.join(chosen)}",
        f"share of the variance before that the plane of each row keeps: {shares}",
    ]
    add_footnotes(figure, notes)
    return figure


def _row(panels: Sequence[Axes], model: CrossTrained, chosen: Chosen) -> float:
    """Both panels of a run; the share of variance that their plane keeps."""
    features = [image_features(run, chosen) for run in (model.before, model.after)]
    plane = principal_axes(features[0], 2)
    points = [plane.place(z) for z in features]
    reach = plane_extent(torch.cat(points))
    numbers, called = image_groups(model.before, chosen, "class")
    told = [_predictions(run, chosen) for run in (model.before, model.after)]
    changed = float((told[0] != told[1]).double().mean())
    sides = zip(panels, (model.before, model.after), points, model.titles, told, strict=True)
    for axes, run, dots, title, predicted in sides:
        regions = decision_regions(run, plane, reach)
        colours = torch.tensor([group_colour(number) for number in range(len(called))])
        axes.imshow(
            colours[regions].numpy(), extent=reach, origin="lower", aspect="auto", alpha=PALE
        )
        scatter_plane(axes, dots, numbers, called)
        right = float((predicted == numbers).double().mean())
        axes.set_title(f"{title}\n{right:.0%} right")
        axes.set(xlim=reach[:2], ylim=reach[2:])
    panels[1].set_title(f"{panels[1].get_title()}, {changed:.0%} of predictions changed")
    return plane.kept


def plane_extent(points: Tensor) -> tuple[float, float, float, float]:
    """The rectangle around points [N, 2] with a margin: left, right, bottom, top."""
    least, most = points.amin(0), points.amax(0)
    room = MARGIN * (most - least).clamp(min=torch.finfo(points.dtype).eps)
    (left, bottom), (right, top) = (least - room).tolist(), (most + room).tolist()
    return left, right, bottom, top


def decision_regions(
    run: TrainedRun, plane: ProjectionAxes, reach: tuple[float, float, float, float]
) -> Tensor:
    """The class that a model's head predicts at each cell of a plane of features [CELLS, CELLS].

    Rows go from bottom to top. `reach` is the rectangle of the plane: left, right, bottom, top.
    """
    left, right, bottom, top = reach
    steps = (torch.arange(CELLS, dtype=torch.float64) + 0.5) / CELLS
    up, across = torch.meshgrid(
        bottom + steps * (top - bottom), left + steps * (right - left), indexing="ij"
    )
    at = torch.stack([across, up], -1).reshape(-1, 2)
    z = (plane.origin + at @ plane.axes).float()  # [CELLS * CELLS, D]
    weights = run.model()[1].weights
    logits = F.linear(z, weights["head.weight"], weights.get("head.bias"))
    return run.method.class_scores(NetOutput(z, logits)).argmax(1).reshape(CELLS, CELLS)


def _predictions(run: TrainedRun, chosen: Chosen) -> Tensor:
    return torch.cat([run.predictions(data) for data in chosen.values()])


class Opinions(NamedTuple):
    """What a model says of images before and after: class probabilities [N, C] each."""

    before: Tensor
    after: Tensor

    def right(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each image [N] is predicted right, before and after."""
        return self.before.argmax(1) == labels, self.after.argmax(1) == labels

    def gap(self, labels: Tensor) -> Tensor:
        """How far the true class lies behind the predicted one, after; 0 if it is predicted."""
        return self.after.amax(1) - self.after.gather(1, labels[:, None])[:, 0]


def find_cases(one: Opinions, other: Opinions, labels: Tensor) -> list[Tensor]:
    """Which images [N] are of each of the four cases of PGCT's Figure 3, as masks.

    Both repair an error; only `other` keeps what was right; only `one` repairs an error; both are
    wrong, but `other` less so.
    """
    was, now = one.right(labels)
    other_was, other_now = other.right(labels)
    return [
        ~was & ~other_was & now & other_now,
        was & other_was & ~now & other_now,
        ~was & ~other_was & now & ~other_now,
        ~now & ~other_now & (other.gap(labels) < one.gap(labels)),
    ]


IMAGE = 1.3  # inches


def draw_cases(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw an image of each case in which two methods of cross-training agree or differ.

    A row per case: the image, then heat maps and predictions of each run before and after. The
    image is drawn at random among those of the case, whose number stands beside it.
    """
    options.only("cases", "rounds", "domain", "clients", "seed")
    if len(runs) != 2:
        raise ProtofedError(f"cases: compares two runs, {len(runs)} were given")
    one, other = models = open_cross_trained("cases", runs, options)
    if isinstance(one.before.experiment.data, ArrayData):
        raise ProtofedError("cases: it shows images, and the data of these runs are rows")
    tests = choose_test_images("cases", one.before, options.domain)
    labels = torch.cat([data.labels for data in tests.values()])
    masks = find_cases(_opinions(one, tests), _opinions(other, tests), labels)
    names = _case_names(one.name, other.name)
    figure = new_figure(IMAGE * 5 + 1.2, (IMAGE + 0.35) * len(masks) + 0.4)
    panels = figure.subplots(len(masks), 5, squeeze=False)
    for line, mask, name in zip(panels, masks, names, strict=True):
        line[0].set_ylabel(f"{name}\n{int(mask.sum())} of {len(mask)} images")
        picture = _example(tests, mask, options.seed)
        if picture is None:
            for axes in line:
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
            continue
        _case(line, models, picture)
    titles = ["image", *one.titles, *other.titles]
    for axes, title in zip(panels[0], titles, strict=True):
        axes.set_title(f"{title}\n{axes.get_title()}".rstrip().replace(": ", "\n"))
    add_footnotes(figure, [f"round {one.before.round}; test images: {', '.join(tests)}"])
    return figure


def _case_names(one: str, other: str) -> list[str]:
    return [
        "both repair\nan error",
        f"only {other}\nkeeps what\nwas right",
        f"only {one}\nrepairs\nan error",
        f"both wrong,\n{other}\nless so",
    ]


def _opinions(model: CrossTrained, tests: Chosen) -> Opinions:
    said = [
        torch.cat([run.scores(data).softmax(1) for data in tests.values()])
        for run in (model.before, model.after)
    ]
    return Opinions(*said)


def _example(tests: Chosen, mask: Tensor, seed: int) -> ExampleImage | None:
    """One image of a mask [N] over all test images, drawn at random; None if it is empty."""
    rows = mask.nonzero()[:, 0]
    if not len(rows):
        return None
    row = int(rows[torch.randint(len(rows), (1,), generator=rng("figure", seed, "cases"))])
    for name, data in tests.items():
        if row < len(data):
            return ExampleImage(name, data.take(torch.tensor([row])))
        row -= len(data)
    return None


def _case(panels: Sequence[Axes], models: Sequence[CrossTrained], picture: ExampleImage) -> None:
    """The image and what each model says of it; below a wrong one, the chance of the true class."""
    classes = models[0].before.federation.benchmark.classes
    plot_image(panels[0], picture.data.images[0])
    panels[0].set_xlabel(f"{picture.domain}, class {classes[picture.label]}")
    views = [run for model in models for run in (model.before, model.after)]
    for axes, run in zip(panels[1:], views, strict=True):
        seen = explain_image(run, picture)
        plot_prediction(axes, picture, seen, classes)
        if seen.chances.argmax() != picture.label:
            true = f"{classes[picture.label]}: {seen.chances[picture.label]:.0%}"
            axes.set_xlabel(f"{axes.get_xlabel()}\n{true}")
