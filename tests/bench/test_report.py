"""The tables: what they say, and that the docs show the results that are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from benchmarks import peak, report
from benchmarks.__main__ import PARTS, parser
from benchmarks.measure import ratios
from benchmarks.report import Goal
from benchmarks.workloads import WORKLOADS, make_net


def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report.RESULTS.read_text())
    return found


def test_the_docs_show_the_results() -> None:
    text = report.SPAN.file.read_text()
    assert text.count(report.SPAN.begin) == text.count(report.SPAN.end) == 1
    assert report.SPAN.within(text, report.markdown(kept())) == text, (
        "run python -m benchmarks --docs"
    )


def test_other_results_make_another_page() -> None:
    results = kept()
    results["parts"]["startup"]["median"]["--help"] = 12.34
    text = report.SPAN.file.read_text()
    assert "| 12.34 s" in report.SPAN.within(text, report.markdown(results))
    assert report.SPAN.within(text, report.markdown(results)) != text


def test_ratios_are_taken_repeat_by_repeat() -> None:
    systems = {"ours": {"seconds": [1.0, 2.0, 4.0]}, "plain": {"seconds": [3.0, 4.0, 40.0]}}
    assert ratios(systems, "ours") == {"plain": 3.0}  # of 3, 2 and 10
    assert ratios({"plain": systems["plain"]}, "ours") == {}


@pytest.mark.parametrize(
    ("goal", "value", "verdict"),
    [
        (Goal("", (), "x", least=2.0), 2.0, "met"),
        (Goal("", (), "x", least=2.0), 1.99, "missed"),
        (Goal("", (), "s", most=0.5), 0.5, "met"),
        (Goal("", (), "s", most=0.5), 0.51, "missed"),
        (Goal("", (), "s"), 9.0, ""),
    ],
)
def test_goals_are_judged(goal: Goal, value: float, verdict: str) -> None:
    assert goal.verdict(value) == verdict


def test_every_goal_belongs_to_a_part() -> None:
    assert {goal.path[0] for goal in report.GOALS} <= PARTS.keys()


def test_a_wrong_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--only", "w1,w9"])
    assert "no part w9; there are startup" in capsys.readouterr().err


def test_the_operations_of_a_sample_are_those_of_the_layers() -> None:
    """Each layer three times, forward and two gradients; the first needs none of its input."""
    conv1 = 2 * 3 * 32 * 25 * 32**2
    conv2 = 2 * 32 * 64 * 25 * 16**2
    linear = 2 * (64 * 8 * 8 * 512 + 512 * 128 + 128 * 10)
    assert peak.flops_of_sample(WORKLOADS["w1-lsa"]) == 2 * conv1 + 3 * (conv2 + linear)
    conv1 = 2 * 3 * 32 * 25 * 28**2
    conv2 = 2 * 32 * 64 * 25 * 10**2
    linear = 2 * (64 * 5 * 5 * 512 + 512 * 512 + 512 * 10)
    assert peak.flops_of_sample(WORKLOADS["w1"]) == 2 * conv1 + 3 * (conv2 + linear)
    weights = sum(leaf.numel() for leaf in make_net(WORKLOADS["w1"]).parameters())
    assert round(weights / 1e6, 2) == 1.14


def test_the_peak_is_a_speed() -> None:
    assert 0.1 < peak.measure(1, seconds=0.02) < 10_000
