"""How figures look: colour-blind safe, readable in grey, and identical bytes for identical data.

matplotlib is imported inside functions, so the kinds of figures can be listed without it.
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
    from protofed.federation.score_metrics import MetricName

# Okabe and Ito's colours; black is kept for baselines, yellow comes last as it is faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
BLACK, GREY, FAINT, WHITE = "#000000", "#666666", "#DDDDDD", "#FFFFFF"
COLOURS = "cividis"  # for values: colour-blind safe, darker means less
COUNTS = "Blues"  # for counts: zero is white
MARKERS = "osD^vPX*<>"
LIGHT = (0.299, 0.587, 0.114)  # perceived brightness of red, green and blue
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "ooo", "+++")
HARD = "\u00a0"  # a space that does not break a line
LETTERS, SMALL_LETTERS = 10, 16  # of a title and of a footnote, per inch
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
    "svg.hashsalt": "protofed",  # else ids in the file are random
}


@dataclass(frozen=True)
class FigureOptions:
    """The options of all kinds of figures; each kind uses some of them.

    `rounds` chooses models by round, `domain` one domain, `by` the meaning of colours, `score` the
    scoring rule, `images` the number of examples, `seed` all random choices, and `metric` the score
    that is drawn. `clients` shows the models of clients before the merge; each is an id, or a
    domain, which means its first one.
    """

    rounds: tuple[int, ...] = ()
    domain: str | None = None
    by: Literal["class", "domain"] = "class"
    score: ScoreRule | None = None  # chosen by the number of evaluations
    images: int = 4
    seed: int = 0
    metric: MetricName = "accuracy"
    clients: tuple[str, ...] = ()

    def only(self, kind: str, *known: str) -> None:
        """Raise if an option was set that this kind of figure ignores; `known` are the others."""
        for field in fields(self):
            if field.name not in known and getattr(self, field.name) != field.default:
                used = ", ".join(f"<{name}>" for name in known) or "none"
                raise ProtofedError(
                    f"{kind} does not use the option '{field.name}'",
                    hint=f"options it uses: {used}",
                )


class SeriesStyle(NamedTuple):
    """How one of several series is drawn; no two of them differ by colour alone.

    Colours are those of Okabe and Ito, which colour-blind readers can distinguish.
    """

    colour: str
    marker: str
    line: str
    hatch: str


def series_style(place: int) -> SeriesStyle:
    """The style of a series by its position.

    Markers and hatches repeat later than colours, and lines change when colours repeat.
    """
    return SeriesStyle(
        PALETTE[place % len(PALETTE)],
        MARKERS[place % len(MARKERS)],
        LINES[place // len(PALETTE) % len(LINES)],
        HATCHES[place % len(HATCHES)],
    )


@contextmanager
def figure_settings() -> Iterator[None]:
    """A context in which matplotlib uses our settings and ignores the user's configuration.

    Draw and save inside it; settings outside are not changed.
    """
    from matplotlib import style

    with style.context(["default", SETTINGS]):
        yield


def new_figure(width: float = 5.2, height: float = 3.4) -> Figure:
    """An empty figure of this size in inches.

    It is drawn without a display, and pyplot does not keep it alive.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def legend_beside(axes: Axes, gap: float = 0.02) -> None:
    """Put a legend to the right of the axes, where it covers nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(1 + gap, 1.0), borderaxespad=0.0)


def write_cells(image: AxesImage, cells: NDArray[Any], text: Callable[[Any], str]) -> None:
    """Write a text into each cell of a heat map, in white where the cell is dark.

    `cells` [rows, columns] are the values behind `image`; `text` formats one.
    """
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
    """Set a left-aligned title, wrapped to the width of the figure after commas only."""
    figure = axes.get_figure(root=True)
    width = int(LETTERS * figure.get_figwidth()) if figure else len(text)
    parts = ", ".join(part.replace(" ", HARD) for part in text.split(", "))
    axes.set_title(textwrap.fill(parts, width).replace(HARD, " "), loc="left", pad=gap)


def add_footnotes(figure: Figure, lines: list[str]) -> None:
    """Write small grey lines below everything else.

    Long lines are wrapped to the width of the figure; no lines leave the figure as it is.
    """
    width = int(SMALL_LETTERS * figure.get_figwidth())
    if lines:
        text = "\n".join(textwrap.fill(line, width) for line in lines)
        figure.supxlabel(text, fontsize=7, color=GREY)


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write ``path.svg`` and ``path.png`` and return their paths.

    An ending .svg or .png of `path` is dropped first. Equal figures give equal bytes: no dates, no
    versions, no random identifiers.
    """
    if path.suffix.lower() in OTHERS:
        raise ProtofedError(
            f"{path}: figures are written as .svg and .png; leave the extension out"
        )
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
    """The figure as the bytes of a PNG file."""
    return _rendered(figure, "png", FORMATS["png"])


def _rendered(figure: Figure, ending: str, metadata: dict[str, None]) -> bytes:
    stream = io.BytesIO()
    with figure_settings():
        figure.savefig(stream, format=ending, dpi=DOTS, metadata=metadata)
    return stream.getvalue()
