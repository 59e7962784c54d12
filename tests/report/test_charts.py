from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofed.report.charts import (
    ChartFrame,
    ChartLine,
    CurvePoint,
    axis_ticks,
    chart_frame,
    curve_chart,
    score_bar,
    stacked_bar,
    svg_tag,
)


def test_a_curve_passes_through_its_scores() -> None:
    points = [CurvePoint(n, 40 + n, 38 + n, 43.0 + n) for n in range(1, 12)]
    lines = [ChartLine("FPL", 1, points)]
    edges = chart_frame(lines, last=21)
    assert edges == ChartFrame(1, 21, 30, 60)
    drawn = curve_chart(lines, edges, "what it shows")
    places = re.findall(r'<polyline [^>]*points="([^"]*)"', drawn)[0].split()
    for point, place in zip(points, places, strict=True):
        x, y = map(float, place.split(","))
        assert 1 + x / 100 * 20 == pytest.approx(point.round, abs=0.01)
        assert 60 - y / 100 * 30 == pytest.approx(point.mean, abs=0.01)
    corners = re.findall(r'<polygon [^>]*points="([^"]*)"', drawn)[0].split()
    heights = [60 - float(corner.split(",")[1]) / 100 * 30 for corner in corners]
    assert heights[:11] == pytest.approx([p.high for p in points], abs=0.01)
    assert heights[11:] == pytest.approx([p.low for p in reversed(points)], abs=0.01)


def test_a_long_curve_keeps_its_end_and_a_single_seed_has_no_band() -> None:
    points = [CurvePoint(n, 50.0, 50.0, 50.0) for n in range(1, 1001)]
    drawn = curve_chart(
        [ChartLine("long", 0, points)], chart_frame([ChartLine("long", 0, points)], 1000), ""
    )
    places = re.findall(r'points="([^"]*)"', drawn)
    assert len(places) == 1, "no polygon"
    assert len(places[0].split()) <= 120
    assert places[0].split()[-1].startswith("100,")


def test_a_curve_has_a_gap_where_a_site_was_away() -> None:
    points = [CurvePoint(n, 50.0, 48.0, 52.0) for n in (1, 2, 4, 5, 7)]
    line = ChartLine("FPL", 0, points, gaps=(3, 6))
    assert [[p.round for p in piece] for piece in line.pieces()] == [[1, 2], [4, 5], [7]]
    drawn = curve_chart([line], chart_frame([line], 7), "")
    pieces = re.findall(r'<polyline [^>]*points="([^"]*)"', drawn)
    assert [len(piece.split()) for piece in pieces] == [2, 2, 1]
    assert drawn.count("<polygon") == 3
    unscored = ChartLine("FPL", 0, points)  # rounds that are simply not scored leave no gap
    assert len(unscored.pieces()) == 1
    assert ChartLine("FPL", 0, []).pieces() == [[]]


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(2, 8))
def test_ticks_are_few_and_inside(low: int, reach: int, most: int) -> None:
    found = axis_ticks(low, low + reach, most)
    assert len(found) <= most + 1
    assert all(low <= value <= low + reach for value in found)
    steps = {b - a for a, b in pairwise(found)}
    assert len(steps) <= 1


def test_text_and_attributes_are_escaped() -> None:
    drawn = svg_tag("text", "<b>&", class_='"x', stroke_width=2)
    assert drawn == '<text class="&#34;x" stroke-width="2">&lt;b&gt;&amp;</text>'


def test_bars_are_as_long_as_what_they_stand_for() -> None:
    drawn = score_bar(61.5, 0, 50.0)
    assert 'width="61.5"' in drawn
    assert 'd="M11.5 5H100"' in drawn, "a whisker ends with the bar's field"
    parts = stacked_bar({"model": 300, "protos": 100}, {"model": 0, "protos": 1}, longest=800)
    assert re.findall(r'x="([^"]*)" width="([^"]*)"', parts) == [("0", "37.5"), ("37.5", "12.5")]
