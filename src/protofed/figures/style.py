"""How figures look: colours that all eyes tell apart, marks that survive grey, equal bytes.

matplotlib is imported inside functions, so that the kinds of figures can be listed without it.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from protofed.errors import ProtofedError
from protofed.runtime.atomic_io import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

    from protofed.experiment.result import ScoreRule

# Okabe and Ito's colours; black is kept for baselines, yellow comes last as it is faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
BLACK, GREY, FAINT, WHITE = "#000000", "#666666", "#DDDDDD", "#FFFFFF"
COLOURS = "cividis"  # for numbers: reads the same to colour-blind eyes, and darker means less
COUNTS = "Blues"  # for numbers of things: none is white
MARKERS = "osD^vPX*<>"
LIGHT = (0.299, 0.587, 0.114)  # how bright red, green and blue look
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "ooo", "+++")
HARD = "\u00a0"  # a space where no line is broken
LETTERS, SMALL_LETTERS = 10, 16  # of a title and of a footnote that an inch holds
DOTS = 200  # per inch, in PNG
FORMATS = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}  # and no metadata
OTHERS = (".pdf", ".eps", ".ps", ".jpg", ".jpeg", ".gif", ".webp", ".tif", ".tiff")
SETTINGS = {
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "protofed",  # else ids in the file are drawn anew at each call
}


@dataclass(frozen=True)
class FigureOptions:
    """What a figure may be asked for; each kind says which of these it knows."""

    rounds: tuple[int, ...] = ()
    domain: str | None = None
    by: Literal["class", "domain"] = "class"
    score: ScoreRule = "last_five"
    images: int = 4
    seed: int = 0

    def only(self, kind: str, *known: str) -> None:
        """Refuse options that this kind of figure would leave unheard."""
        for field in fields(self):
            if field.name not in known and getattr(self, field.name) != field.default:
                used = ", ".join(f"<{name}>" for name in known) or "none"
                raise ProtofedError(
                    f"{kind} does not use the option '{field.name}'",
                    hint=f"options it uses: {used}",
                )


class SeriesStyle(NamedTuple):
    """How one of several series is drawn; no two differ by colour alone."""

    colour: str
    marker: str
    line: str
    hatch: str


def series_style(place: int) -> SeriesStyle:
    """The look of a series by its place among them."""
    return SeriesStyle(
        PALETTE[place % len(PALETTE)],
        MARKERS[place % len(MARKERS)],
        LINES[place // len(PALETTE) % len(LINES)],
        HATCHES[place % len(HATCHES)],
    )


@contextmanager
def figure_settings() -> Iterator[None]:
    """Within it, matplotlib draws by our settings, whatever the user's own file says."""
    from matplotlib import style

    with style.context(["default", SETTINGS]):
        yield


def new_figure(width: float = 5.2, height: float = 3.4) -> Figure:
    """An empty figure, in inches, that no window and no global list of figures knows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def legend_beside(axes: Axes, gap: float = 0.02) -> None:
    """A legend to the right of the axes, where it covers nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(1 + gap, 1.0), borderaxespad=0.0)


def write_cells(image: AxesImage, cells: NDArray[Any], text: Callable[[Any], str]) -> None:
    """A text for each of the cells [rows, columns] behind an image, white where it is dark."""
    shown = image.to_rgba(cells)  # [rows, columns, 4]
    for row, line in enumerate(cells.tolist()):
        for column, value in enumerate(line):
            *colour, opaque = shown[row, column]
            light = sum(part * weight for part, weight in zip(colour, LIGHT, strict=True))
            ink = WHITE if opaque and light < 0.5 else BLACK
            image.axes.annotate(
                text(value), (column, row), ha="center", va="center", color=ink, fontsize=7.5
            )


def set_title(axes: Axes, text: str, gap: float = 6.0) -> None:
    """A title to the left, in as many lines as its figure asks for, broken after commas only."""
    figure = axes.get_figure(root=True)
    width = int(LETTERS * figure.get_figwidth()) if figure else len(text)
    parts = ", ".join(part.replace(" ", HARD) for part in text.split(", "))
    axes.set_title(textwrap.fill(parts, width).replace(HARD, " "), loc="left", pad=gap)


def add_footnotes(figure: Figure, lines: list[str]) -> None:
    """Small grey lines under everything else."""
    width = int(SMALL_LETTERS * figure.get_figwidth())
    if lines:
        text = "\n".join(textwrap.fill(line, width) for line in lines)
        figure.supxlabel(text, fontsize=7, color=GREY)


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write `path`.svg and `path`.png (an ending of these is taken off first); the files written.

    The same figure gives the same bytes: no dates, no versions, no random ids.
    """
    if path.suffix.lower() in OTHERS:
        raise ProtofedError(f"{path}: figures are written as .svg and .png; leave the ending out")
    stem = path.name.removesuffix(".svg").removesuffix(".png")
    files = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for ending, metadata in FORMATS.items():
            files.append(path.with_name(f"{stem}.{ending}"))
            atomic_write(files[-1], _rendered(figure, ending, metadata))
    except OSError as fault:
        raise ProtofedError(f"cannot write {path}: {fault.strerror}") from fault
    return files


def figure_png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG file."""
    return _rendered(figure, "png", FORMATS["png"])


def _rendered(figure: Figure, ending: str, metadata: dict[str, None]) -> bytes:
    stream = io.BytesIO()
    with figure_settings():
        figure.savefig(stream, format=ending, dpi=DOTS, metadata=metadata)
    return stream.getvalue()
