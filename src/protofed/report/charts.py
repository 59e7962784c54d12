"""Charts as SVG text that stretch with the page while their labels keep their size."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

COLOURS = 8  # in the style sheet; dashes differ where they repeat
DASHES = ("", "7 4", "2 4", "10 3 2 3")
MOST_POINTS = 120  # of a curve; a screen shows no more


class CurvePoint(NamedTuple):
    """The score after a round, in per cent.

    The mean over seeds, and the scores of the lowest and the highest seed.
    """

    round: int
    mean: float
    low: float
    high: float


class ChartLine(NamedTuple):
    """One curve of a chart.

    `slot` chooses its colour and dashes. A `thin` curve belongs to a run that has not finished.
    Between two points with one of the rounds `gaps` between them no line is drawn.
    """

    label: str
    slot: int
    points: list[CurvePoint]
    thin: bool = False
    gaps: tuple[int, ...] = ()  # rounds without a score

    def pieces(self) -> list[list[CurvePoint]]:
        """The points from gap to gap."""
        found = [self.points[:1]]
        for before, point in pairwise(self.points):
            if any(before.round < gap < point.round for gap in self.gaps):
                found.append([])
            found[-1].append(point)
        return found


class ChartFrame(NamedTuple):
    """The rounds and scores at the edges of a chart.

    `x` and `y` convert them to positions in per cent of the drawing.
    """

    first: int  # round at the left
    last: int  # round at the right
    low: float  # per cent at the bottom
    high: float  # per cent at the top

    def x(self, number: int) -> str:
        """The horizontal position of a round, in per cent of the width."""
        reach = self.last - self.first
        return number_text(100 * (number - self.first) / reach if reach else 50.0)

    def y(self, value: float) -> str:
        """The vertical position of a score, in per cent of the height from the top."""
        return number_text(100 * (self.high - value) / (self.high - self.low))


def number_text(value: float) -> str:
    """A number with at most two decimals and no trailing zeros, to keep the page small.

    ``number_text(12.50)`` is ``"12.5"``.
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def svg_tag(name: str, *inner: str, **attributes: object) -> Markup:
    """An SVG or HTML element with escaped text and attributes.

    Attribute names are written as Python names: ``class_`` and ``stroke_width`` become ``class``
    and ``stroke-width``. `inner` that is Markup already is not escaped again.
    """
    words = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
    )
    opened = Markup("<") + name + words + Markup(">")
    return opened + Markup("").join(inner) + Markup("</") + name + Markup(">")


def color_class(slot: int) -> str:
    """The CSS class that gives a line, a bar or a swatch its colour.

    Colours repeat after eight; curves that share one differ by their dashes.
    """
    return f"c{slot % COLOURS}"


def _dash(slot: int) -> str:
    return DASHES[slot // COLOURS % len(DASHES) if slot >= COLOURS else slot % len(DASHES)]


def chart_frame(lines: Iterable[ChartLine], last: int) -> ChartFrame:
    """A frame that holds all curves, from round to round and between multiples of ten per cent.

    `last` is the last round of the experiment, which may lie beyond the curves.
    """
    points = [point for line in lines for point in line.points]
    low = 10 * math.floor(min((p.low for p in points), default=0) / 10)
    high = 10 * math.ceil(max((p.high for p in points), default=100) / 10)
    low, high = (max(0, low - 10), high) if high - low < 20 else (low, high)
    first = min((p.round for p in points), default=1)
    return ChartFrame(first, max(last, first), low, high if high > low else low + 10)


def curve_chart(lines: Sequence[ChartLine], edges: ChartFrame, alt: str) -> Markup:
    """Scores over rounds, with bands from the lowest to the highest seed.

    `alt` describes the chart in words for screen readers. The data for the page's script, which
    shows values under the cursor, is stored in an attribute.
    """
    thinned = [line._replace(points=_thinned(line.points)) for line in lines]
    body = [*(_band(line, edges) for line in thinned), *(_curve(line, edges) for line in thinned)]
    plot = svg_tag(
        "svg",
        *body,
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
        overflow="visible",
    )
    drawing = svg_tag("svg", *_grid(edges), plot, class_="plot", role="img", aria_label=alt)
    curves = [
        [line.label, color_class(line.slot), [p[:2] for p in line.points]] for line in thinned
    ]
    data = json.dumps([*edges, curves], separators=(",", ":"))
    return svg_tag("div", drawing, class_="chart", data_curves=data)


def _thinned(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Evenly chosen points, the last one among them, with two decimals."""
    step = max(1, math.ceil(len(points) / MOST_POINTS))
    chosen = points[::-1][::step][::-1]
    return [CurvePoint(p.round, *(round(value, 2) for value in p[1:])) for p in chosen]


def _band(line: ChartLine, edges: ChartFrame) -> Markup:
    if all(p.low == p.high for p in line.points):
        return Markup("")
    bands = []
    for points in line.pieces():
        upper = [f"{edges.x(p.round)},{edges.y(p.high)}" for p in points]
        lower = [f"{edges.x(p.round)},{edges.y(p.low)}" for p in reversed(points)]
        kind = f"band {color_class(line.slot)}"
        bands.append(svg_tag("polygon", class_=kind, points=" ".join(upper + lower)))
    return Markup("").join(bands)


def _curve(line: ChartLine, edges: ChartFrame) -> Markup:
    """The line, in pieces where there are gaps, and a dot on the end of each."""
    if not line.points:
        return Markup("")
    kind = f"curve {color_class(line.slot)}{' thin' * line.thin}"
    dash = {"stroke_dasharray": _dash(line.slot)} if _dash(line.slot) else {}
    drawn = []
    for points in line.pieces():
        places = [f"{edges.x(p.round)},{edges.y(p.mean)}" for p in points]
        path = svg_tag("polyline", class_=kind, points=" ".join(places), **dash)
        x, y = places[-1].split(",")
        dot = svg_tag("path", class_=f"dot {color_class(line.slot)}", d=f"M{x} {y}h0")
        drawn.append(path + dot)
    return Markup("").join(drawn)


def _grid(edges: ChartFrame) -> list[Markup]:
    """Lines and numbers at steps that people count in."""
    drawn = []
    for value in axis_ticks(edges.low, edges.high, 5):
        y = f"{edges.y(value)}%"
        drawn.append(svg_tag("line", class_="grid", x1="0", x2="100%", y1=y, y2=y))
        drawn.append(svg_tag("text", f"{value:g}", class_="tick y", x="0", y=y, dx="-8", dy="4"))
    counted = [v for v in axis_ticks(edges.first, edges.last, 6) if v > edges.first]
    for value in [edges.first, *counted]:
        x = f"{edges.x(int(value))}%"
        drawn.append(svg_tag("text", f"{value:g}", class_="tick x", x=x, y="100%", dy="18"))
    return drawn


def axis_ticks(low: float, high: float, most: int) -> list[float]:
    """About `most` round numbers from `low` to `high`.

    Steps are 1, 2 or 5 times a power of ten.
    """
    reach = max(high - low, 1)
    power = 10 ** math.floor(math.log10(max(reach / most, 1)))
    step = next(power * n for n in (1, 2, 5, 10) if reach / (power * n) <= most)
    first = math.ceil(low / step) * step
    return [first + step * n for n in range(math.floor((high - first) / step) + 1)]


def score_bar(value: float, slot: int, whisker: float | None = None) -> Markup:
    """A horizontal bar from 0 to `value` of 100.

    `whisker`, a standard deviation, adds a line from that much below to that much above.
    """
    width = number_text(max(0.0, value))  # kappa may be negative
    drawn = [svg_tag("rect", class_=color_class(slot), width=width, height="10")]
    if whisker:
        ends = (max(0.0, value - whisker), min(100.0, value + whisker))
        left, right = (number_text(end) for end in ends)
        drawn.append(svg_tag("path", class_="whisker", d=f"M{left} 5H{right}"))
    return _strip(drawn)


def stacked_bar(parts: Mapping[str, float], slots: Mapping[str, int], longest: float) -> Markup:
    """Bars laid end to end, one per part; `longest` is the value that fills the whole width.

    `slots` gives each part its colour. Tooltips name part and bytes.
    """
    drawn, at = [], 0.0
    for name, value in parts.items():
        width = 100 * value / longest if longest else 0.0
        drawn.append(
            svg_tag(
                "rect",
                svg_tag("title", f"{name}: {value:,.0f} bytes"),
                class_=color_class(slots[name]),
                x=number_text(at),
                width=number_text(width),
                height="10",
            )
        )
        at += width
    return _strip(drawn)


def _strip(drawn: Sequence[Markup]) -> Markup:
    """Bars whose numbers stand beside them as text; screen readers skip the drawing."""
    return svg_tag(
        "svg",
        *drawn,
        class_="bar",
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def legend_swatch(slot: int, line: bool = True) -> Markup:
    """The sample of a colour in a legend: a piece of line, or a square for bars.

    Lines are dashed as their curves are.
    """
    if not line:
        square = svg_tag("rect", class_=color_class(slot), width="14", height="12", y="1", rx="2")
        return svg_tag("svg", square, class_="swatch", width="14", height="14", aria_hidden="true")
    dash = {"stroke_dasharray": _dash(slot)} if _dash(slot) else {}
    piece = svg_tag("path", class_=f"curve {color_class(slot)}", d="M0 7h28", **dash)
    return svg_tag("svg", piece, class_="swatch", width="28", height="14", aria_hidden="true")
