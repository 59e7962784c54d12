from __future__ import annotations

from pathlib import Path

import pytest

from protofed.analysis.sweep import GridCell, SearchAxis, parse_axis, run_search
from protofed.errors import ProtofedError


def test_an_axis_is_a_range_and_wide_ones_are_searched_by_magnitude() -> None:
    assert parse_axis("method.lam=0.01..1") == SearchAxis("method.lam", 0.01, 1.0)
    assert parse_axis("method.lam=0.01..1").log
    assert not parse_axis("method.lam=0.5..1").log
    assert not parse_axis("method.lam=0..1").log


@pytest.mark.parametrize("text", ["lam", "lam=1", "lam=1..", "lam=2..1", "=1..2", "lam=a..b"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ProtofedError, match=r"low\.\.high"):
        parse_axis(text)


def trials(tmp_path: Path, number: int) -> list[tuple[GridCell, float | str]]:
    """A search whose score is best where mu is near 0.1; above 5 the run fails."""

    def play(cell: GridCell) -> float:
        mu = cell.experiment.to_dict()["method"]["mu"]
        if mu > 5:
            raise ProtofedError("diverged")
        return float(-abs(mu - 0.1))

    axes = [parse_axis("method.mu=0.001..10")]
    return list(run_search("fedprox", axes, number, {"rounds": 2}, tmp_path, play))


def test_a_search_comes_near_the_best_and_takes_the_same_way_again(tmp_path: Path) -> None:
    found = trials(tmp_path, 25)
    assert max(score for _, score in found if not isinstance(score, str)) > -0.05
    again = trials(tmp_path, 10)
    assert [cell.folder for cell, _ in again] == [cell.folder for cell, _ in found[:10]]


def test_a_trial_that_fails_is_told_and_the_search_goes_on(tmp_path: Path) -> None:
    found = trials(tmp_path, 25)
    assert len(found) == 25
    failed = [cell for cell, score in found if score == "diverged"]
    assert failed
    assert all(cell.experiment.to_dict()["method"]["mu"] > 5 for cell in failed)


def test_a_search_is_scored_on_held_out_images(tmp_path: Path) -> None:
    for cell, _ in trials(tmp_path, 3):
        assert cell.experiment.validation == 0.2
