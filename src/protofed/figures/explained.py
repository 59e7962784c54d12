"""One new image beside the place in it that speaks for its predicted class."""

from __future__ import annotations

from torch import Tensor

from protofed.figures.gradcam import show_heat, show_image
from protofed.figures.style import new_figure, png, settings


def explained(image: Tensor, heat: Tensor, title: str) -> bytes:
    """A PNG of an image [side, side, 3] uint8, its heat map [side, side], and a line above."""
    with settings():
        figure = new_figure(3.6, 2.1)
        left, right = figure.subplots(1, 2)
        show_image(left, image)
        show_heat(right, image, heat)
        figure.suptitle(title, fontsize=9, parse_math=False)  # a class may be called $1
        return png(figure)
