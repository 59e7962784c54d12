"""Figures from run folders."""

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
    "curves": "accuracy over rounds, a line a method; seeds become a band",
    "domains": "accuracy on each domain: bars, or a radar from three domains on",
    "ablation": "a bar for each variant of a method, and the baseline dashed",
    "sensitivity": "accuracy over one hyperparameter that differs between the runs",
    "heatmap": "accuracy over two hyperparameters that differ between the runs",
    "partition": "how many images of each class each client holds",
    "tsne": "the features of test images in a plane, by class or by domain",
    "sphere": "the features of one domain's test images beside the unit sphere",
    "margins": "how far each class lies from the others, by shared vectors",
    "prototypes": "the clients' prototypes in a plane, and ways to sum them up",
    "gradcam": "where in an image a model looks",
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
    "margins": "class_margins",
    "prototypes": "prototype_map",
    "gradcam": "gradcam",
}


def draw_figure(kind: str, runs: Sequence[Path], options: FigureOptions) -> Figure:
    """A figure of some runs; the module of its kind draws it."""
    require_known_name("kind of figure", kind, KINDS)
    if not runs:
        raise ProtofedError(f"{kind}: no runs given\nname one or more run folders")
    module = import_module(f"{__name__}.{_MODULES[kind]}")
    with figure_settings():
        figure: Figure = getattr(module, f"draw_{kind}")(runs, options)
    return figure
