"""Figures from run folders, by kind: curves, bars, heat maps, projections, Grad-CAM."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from protofed.errors import ProtofedError, require_known_name
from protofed.figures.style import FigureOptions, figure_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "curves": "accuracy over rounds, one line per method; bands over seeds",
    "domains": "accuracy on each domain: bars, or a radar for 3 domains or more",
    "ablation": "one bar per variant of a method; the baseline is dashed",
    "sensitivity": "accuracy over one hyperparameter that differs between the runs",
    "heatmap": "accuracy over two hyperparameters that differ between the runs",
    "partition": "number of images per client and class",
    "tsne": "features of test images in a plane (t-SNE), by class or domain",
    "sphere": "features of one domain's test images in 3-D, with the unit sphere",
    "margins": "distance of each class to the nearest other one",
    "prototypes": "the clients' prototypes in a plane, with clusters and means",
    "gradcam": "where in an image a model looks (heat maps)",
    "boundaries": "decision regions before and after another client trained a model",
    "cases": "images on which two methods of cross-training agree or differ",
}
_MODULES = {
    "curves": "score_charts",
    "domains": "score_charts",
    "ablation": "score_charts",
    "sensitivity": "sensitivity",
    "heatmap": "sensitivity",
    "partition": "client_holdings",
    "tsne": "feature_maps",
    "sphere": "feature_maps",
    "margins": "prototype_map",
    "prototypes": "prototype_map",
    "gradcam": "gradcam",
    "boundaries": "cross_training",
    "cases": "cross_training",
}


NEED_MODELS = ("feature_maps", "prototype_map", "gradcam", "cross_training")


def shows_models(kind: str) -> bool:
    """Whether a kind of figure shows models, which kept copies of runs lack, and not scores."""
    return _MODULES[require_known_name("kind of figure", kind, KINDS)] in NEED_MODELS


def check_drawable(kind: str, options: FigureOptions, run: Path) -> None:
    """Raise if a run folder lacks what a kind of figure shows, or is damaged.

    Scores need a finished run, models a checkpoint of each round, and a partition needs neither.
    """
    from protofed.analysis.finished_runs import read_record
    from protofed.experiment.run_folder import check_is_run
    from protofed.experiment.run_records import load_spec
    from protofed.experiment.trained_run import find_checkpoint

    models = shows_models(kind)
    check_is_run(run)
    if not models and kind != "partition":
        read_record(run)
        return
    load_spec(run)
    if models:
        for number in options.rounds or [None]:
            find_checkpoint(run, number)


def draw_figure(kind: str, runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw a figure of one of the `KINDS` from some run folders.

    Returns a matplotlib figure that belongs to no window; `style.save_figure` writes it::

        figure = draw_figure("curves", [Path("runs/a"), Path("runs/b")], FigureOptions())
        save_figure(figure, Path("curves"))  # curves.svg and curves.png
    """
    require_known_name("kind of figure", kind, KINDS)
    if not runs:
        raise ProtofedError(f"{kind}: no runs given\nname one or more run folders")
    module = import_module(f"{__name__}.{_MODULES[kind]}")
    with figure_settings():
        figure: Figure = getattr(module, f"draw_{kind}")(runs, options)
    return figure
