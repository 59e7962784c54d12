from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from matplotlib.patches import Rectangle

from protofed.errors import ProtofedError
from protofed.figures import draw_figure
from protofed.figures.style import FigureOptions, save_figure
from tests.figures.conftest import Made, mean_of_last, ys

FOUR: dict[str, Any] = {
    "data": {"name": "digits-mini", "side": 8},
    "partition": {"kind": "shares", "clients": 4, "samples": 20},
}
DOMAINS = ["optical", "print", "syn", "street"]


def test_two_domains_are_bars_with_the_deviation_over_seeds(made: Made) -> None:
    seeds = [made(seed=0), made(seed=1)]
    five = FigureOptions(score="last_five")
    (axes,) = draw_figure("domains", [*seeds, made("fedprox")], five).axes
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    wanted = [
        statistics.fmean(mean_of_last(run, domain=name) for run in runs)
        for runs in (seeds, [made("fedprox")])
        for name in ("optical", "print")
    ]
    assert [bar.get_height() for bar in bars] == pytest.approx(wanted)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["optical", "print"]
    lefts = [bar.get_x() for bar in bars]
    assert len(set(lefts)) == 4, "bars must not cover each other"
    (ends,) = {len(one.get_segments()) for one in axes.collections if hasattr(one, "get_segments")}
    assert ends == 2


def test_from_three_domains_on_it_is_a_radar(made: Made) -> None:
    (axes,) = draw_figure("domains", [made(**FOUR)], FigureOptions(score="last")).axes
    assert axes.name == "polar"
    scores = [mean_of_last(made(**FOUR), 1, name) for name in DOMAINS]
    (line,) = axes.lines
    assert ys(line) == pytest.approx([*scores, scores[0]])
    assert [text.get_text() for text in axes.get_xticklabels()] == DOMAINS
    low, high = axes.get_ylim()
    assert low <= min(scores)
    assert max(scores) <= high


def test_the_default_rule_follows_the_number_of_evaluations(made: Made) -> None:
    for rounds, count, words in ((9, 1, "last round"), (10, 5, "mean of the last 5 evaluations")):
        run = made(rounds=rounds)
        (axes,) = draw_figure("domains", [run], FigureOptions()).axes
        bars = [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]
        assert bars == pytest.approx([mean_of_last(run, count, d) for d in ("optical", "print")])
        assert words in axes.get_title(loc="left") + axes.get_title()


def test_the_same_runs_give_the_same_bytes(made: Made, tmp_path: Path) -> None:
    for place, runs in enumerate([[made(seed=0), made("fedprox")], [made(**FOUR)]]):
        one, two = (
            save_figure(draw_figure("domains", runs, FigureOptions()), tmp_path / f"{name}{place}")
            for name in "ab"
        )
        assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two]


def test_runs_on_other_data_are_refused(made: Made) -> None:
    with pytest.raises(ProtofedError, match="differ in data, partition"):
        draw_figure("domains", [made(), made(**FOUR)], FigureOptions())
    with pytest.raises(ProtofedError, match="does not use the option 'domain'"):
        draw_figure("domains", [made()], FigureOptions(domain="print"))
