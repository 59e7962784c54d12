"""One new image beside the place in it that speaks for its predicted class."""

from __future__ import annotations

from torch import Tensor

from protofed.figures.gradcam import plot_heat, plot_image
from protofed.figures.style import figure_png, figure_settings, new_figure


def explanation_figure(image: Tensor, heat: Tensor, title: str) -> bytes:
    """A PNG of an image [side, side, 3] uint8, its heat map [side, side], and a line above."""
    with figure_settings():
        figure = new_figure(3.6, 2.1)
        left, right = figure.subplots(1, 2)
        plot_image(left, image)
        plot_heat(right, image, heat)
        figure.suptitle(title, fontsize=9, parse_math=False)  # a class may be called $1
        return figure_png(figure)
