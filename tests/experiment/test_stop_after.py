"""A run that is paused and continued is the run that was never paused, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import pause_round, run
from tests.experiment.conftest import Make, quick

TIMED = {"rounds.jsonl", "card.md"}  # hold seconds


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a run folder that holds no times, by its path."""
    found = (file for file in folder.rglob("*") if file.is_file() and file.name not in TIMED)
    return {str(file.relative_to(folder)): file.read_bytes() for file in found}


def untimed(folder: Path) -> list[dict[str, Any]]:
    lines = RunDir(folder).lines(folder / "rounds.jsonl")
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedproto"])  # none, private, personal
def test_a_paused_run_ends_as_one_that_was_not(name: str, tiny: Make, tmp_path: Path) -> None:
    experiment = tiny(method=quick(name), rounds=5, validation=0.3)
    whole = run(experiment, tmp_path / "whole", workers=0)
    place, seen = tmp_path / "paused", list[int]()
    for stop in (1, 3, None):
        result = run(experiment, place, lambda p: seen.append(p.round), workers=0, stop_after=stop)
        assert (place / "done").exists() == (stop is None)
    assert seen == [0, 1, 1, 2, 3, 3, 4, 5]  # where it stands, then each round, none twice
    assert files(place) == files(tmp_path / "whole")
    assert untimed(place) == untimed(tmp_path / "whole")
    assert (result.last, result.last_five) == (whole.last, whole.last_five)


def test_a_paused_run_says_what_it_has_come_to(tiny: Make, tmp_path: Path) -> None:
    experiment = tiny(rounds=4)
    paused = run(experiment, tmp_path / "a", workers=0, stop_after=2)
    first, second = RunDir(tmp_path / "a").lines(tmp_path / "a" / "scores.jsonl")
    assert paused.last.domains == second["domains"]
    assert paused.rules["last_five"] == "mean of the last 2 evaluations"
    assert paused.last_five.mean == pytest.approx((first["mean"] + second["mean"]) / 2)
    assert paused.digest == experiment.digest


def test_a_pause_that_is_behind_plays_nothing(tiny: Make, tmp_path: Path) -> None:
    run(tiny(), tmp_path / "a", workers=0, stop_after=2)
    before, seen = files(tmp_path / "a"), list[int]()
    run(tiny(), tmp_path / "a", lambda p: seen.append(p.round), workers=0, stop_after=1)
    assert seen == [2]
    assert files(tmp_path / "a") == before


def test_a_run_pauses_where_it_is_scored(tiny: Make, tmp_path: Path) -> None:
    experiment = tiny(rounds=7, evaluate_every=3)
    wanted = {1: 3, 3: 3, 4: 6, 7: 7, 99: 7, None: 7}
    assert {stop: pause_round(experiment, stop) for stop in wanted} == wanted
    run(experiment, tmp_path / "a", workers=0, stop_after=1)
    assert RunDir(tmp_path / "a").rounds_on_disk() == [3]
    assert [line["round"] for line in untimed(tmp_path / "a")] == [1, 2, 3]
