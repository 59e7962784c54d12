"""A site that is lost when a round is scored: who reads the mean sees that it lacks that site."""

from __future__ import annotations

from pathlib import Path

import pytest

from protofed.engines.site_protocol import SiteRequest
from protofed.experiment.result import read_result
from protofed.experiment.round_report import RoundReport
from protofed.experiment.run_folder import RunDir
from protofed.federation.evaluation import score_rules
from tests.cli.conftest import Cli
from tests.fleet.desks import Known, desks, job, submitted
from tests.fleet.test_equal import spec


def lost_in(*rounds: int) -> Known:
    post = Known({})
    post.lose = lambda name, ask: _lost(name, ask, rounds)
    return post


def _lost(name: str, ask: SiteRequest, rounds: tuple[int, ...]) -> str:
    hit = name == "site-b" and ask.what == "score" and ask.round in rounds
    return "it went offline" if hit else ""


def play(images: Path, folder: Path, method: str, *rounds: int) -> list[RoundReport]:
    post = lost_in(*rounds)
    post.desks = desks(images, folder)
    told = submitted(post, job(folder, spec=spec(method, rounds=3)))
    return [line["progress"] for line in told if "progress" in line]


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_round_that_a_site_has_not_scored_says_so_everywhere(
    method: str, images: Path, tmp_path: Path, cli: Cli
) -> None:
    *_, second, third = play(images, tmp_path, method, 3)
    assert (second.missing, third.missing) == ((), ("site-b",))
    folder = RunDir(tmp_path / "out")
    *whole, last = folder.lines(folder.scores)
    assert all("missing" not in line for line in whole)
    assert last["missing"] == ["site-b"]
    assert last["domains"]["site-b"] is None
    result = read_result(folder)
    assert "round 3: not scored by site-b; the mean is of 2 of 3 sites" in map(str, result.notices)
    assert result.rules["last"] == "last round, without site-b"
    assert result.rules["last_five"].endswith(", not all with site-b")
    shown = cli("resume", folder.path).out
    assert "last round, without site-b" in shown
    assert "last round, without site-b" in folder.card.read_text()


def test_the_mean_of_several_rounds_says_whom_it_lacks() -> None:
    rules = score_rules(1, [["north"]])
    assert rules == {
        "last": "last round, without north",
        "last_five": "mean of the last evaluation, without north",
    }
    five = score_rules(3, [["north", "south"], ["north"], ["north"]])["last_five"]
    assert five == "mean of the last 3 evaluations, without north, not all with south"


def test_what_keeps_a_site_from_scoring_is_told_once(images: Path, tmp_path: Path) -> None:
    told = [line for step in play(images, tmp_path, "fedavg", 1, 2, 3) for line in step.notices]
    assert [line for line in told if "has not scored" in line] == [
        "site-b has not scored: it went offline"
    ]


def test_a_site_that_stays_away_is_told_of_once(images: Path, tmp_path: Path) -> None:
    play(images, tmp_path, "fedavg", 1, 3)
    notices = map(str, read_result(RunDir(tmp_path / "out")).notices)
    found = [note for note in notices if "scored by" in note]
    assert found == ["2 rounds between 1 and 3: not scored by site-b; the mean is of 2 of 3 sites"]


def test_progress_says_which_site_the_mean_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    from protofed.experiment.run_followers import RunWatcher
    from protofed.spec.experiment_spec import Experiment

    with RunWatcher(Experiment(), Path("out")) as watch:
        watch(RoundReport(1, 2, 50.0, 1.0, (), ("site-b",)))
        watch(RoundReport(2, 2, 50.0, 1.0))
    first, second = capsys.readouterr().err.splitlines()[1:]
    assert "mean accuracy 50.00 % without site-b" in first
    assert "without" not in second
