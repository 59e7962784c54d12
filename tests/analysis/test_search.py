"""The way of a search, on scores that are computed instead of trained for."""

from __future__ import annotations

import csv
import io
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from protofed.analysis.parallel_runs import run_all
from protofed.analysis.search import (
    BATCH,
    OptunaSampler,
    SearchPlan,
    SearchTrial,
    best_trial,
    held_out_score,
    plan_search,
    rank_trials,
    run_search,
    rung_rounds,
    search_document,
    search_rule,
)
from protofed.analysis.search_axes import RangeAxis
from protofed.analysis.sweep import GridCell, grid_cells, named_variants
from protofed.errors import ProtofedError
from protofed.experiment.result import ScoreRule, count_evaluations
from protofed.experiment.run_folder import RunDir
from protofed.runtime.text_tables import TABLE_FORMATS, TableFormat, render_document
from protofed.spec.spec_parser import parse_experiment
from tests.analysis.conftest import SHARED

MU = ["method.mu=0.001..10"]


def plan(tmp_path: Path, *axes: str, raw: dict[str, Any] | None = None, **how: int) -> SearchPlan:
    return plan_search("fedprox", axes or MU, raw or {"rounds": 18}, tmp_path, **how)


def curve(cell: GridCell) -> float:
    """Grows with the rounds, is best where mu is near 0.1, and differs between seeds."""
    mu = cell.experiment.to_dict()["method"]["mu"]
    rounds = cell.stop_after or cell.experiment.rounds
    return float(90 - 10 * abs(math.log10(mu) + 1) - 20 / rounds + cell.seed)


class Played:
    """Stands in for runs; remembers every call. Above mu = 5 a run fails."""

    def __init__(self) -> None:
        self.calls: list[Sequence[GridCell]] = []

    def __call__(self, cells: Sequence[GridCell]) -> Mapping[Path, float | str]:
        self.calls.append(cells)
        return {
            c.folder: "diverged" if c.experiment.to_dict()["method"]["mu"] > 5 else curve(c)
            for c in cells
        }


def searched(made: SearchPlan) -> list[SearchTrial]:
    return sorted(run_search(made, Played()), key=lambda trial: trial.number)


def test_a_search_comes_near_the_best_and_takes_the_same_way_again(tmp_path: Path) -> None:
    found = searched(plan(tmp_path, trials=40))
    best = best_trial(found)
    assert best is not None
    assert isinstance(best.settings["method.mu"], float)
    assert 0.05 < best.settings["method.mu"] < 0.2
    again = searched(plan(tmp_path, trials=16))
    assert [t.to_dict() for t in again] == [t.to_dict() for t in found[:16]]


def test_the_sampler_learns_from_pruned_trials_too(tmp_path: Path) -> None:
    """Later trials are nearer to the best than the first, which are drawn at random."""
    found = [t for t in searched(plan(tmp_path, trials=48)) if t.cells]
    far = [abs(math.log10(float(str(t.settings["method.mu"]))) + 1) for t in found]
    assert statistics.fmean(far[24:]) < 0.6 * statistics.fmean(far[:10])


@pytest.mark.parametrize(("rungs", "eta"), [(3, 3), (4, 2), (2, 4), (1, 3)])
def test_who_goes_on_is_who_a_slow_loop_lets_go_on(rungs: int, eta: int, tmp_path: Path) -> None:
    made = plan(tmp_path, trials=21, seeds=2, rungs=rungs, eta=eta)
    found = searched(made)
    came: dict[int, list[tuple[float, int]]] = {rung: [] for rung in made.rungs}
    for first in range(0, 21, BATCH):
        going = found[first : first + BATCH]
        for rung in made.rungs:
            stop = None if rung == 18 else rung
            scores = {}
            for trial in going:
                runs = [curve(cell._replace(stop_after=stop)) for cell in trial.cells]
                wild = float(str(trial.settings["method.mu"])) > 5
                scores[trial.number] = -math.inf if wild else sum(runs) / len(runs)
            came[rung] += [(-score, number) for number, score in scores.items()]
            keep = sorted(came[rung])[: -(-len(came[rung]) // eta)]
            for trial in going:
                score = scores[trial.number]
                if score == -math.inf:
                    assert trial.state == "failed"
                elif rung == 18:
                    assert (trial.state, trial.rounds) == ("finished", 18)
                    assert trial.mean == pytest.approx(score)
                elif (-score, trial.number) not in keep:
                    assert (trial.state, trial.rounds) == ("pruned", rung)
                    assert trial.mean == pytest.approx(score)
            going = [
                t
                for t in going
                if (-scores[t.number], t.number) in keep and scores[t.number] > -math.inf
            ]


def test_pruning_saves_most_rounds_and_loses_nothing_here(tmp_path: Path) -> None:
    pruned, whole = (searched(plan(tmp_path, trials=8, rungs=rungs)) for rungs in (3, 1))
    spent = [sum(trial.rounds for trial in found) for found in (pruned, whole)]
    assert spent[0] < 0.5 * spent[1]
    one, other = best_trial(pruned), best_trial(whole)
    assert one is not None
    assert other is not None
    assert (one.number, one.scores) == (other.number, other.scores)


def test_a_rung_is_one_batch_of_all_seeds_and_the_last_has_no_pause(tmp_path: Path) -> None:
    played = Played()
    list(run_search(plan(tmp_path, trials=10, seeds=3), played))
    sizes = [(len(cells), {cell.stop_after for cell in cells}) for cells in played.calls]
    assert sizes[0] == (3 * BATCH, {2})
    assert [stops for _, stops in sizes[:3]] == [{2}, {6}, {None}]
    assert sizes[3] == (3 * 2, {2})
    for cells in played.calls:
        assert {cell.seed for cell in cells} == {0, 1, 2}


def test_a_trial_that_fails_is_told_and_the_search_goes_on(tmp_path: Path) -> None:
    found = searched(plan(tmp_path, trials=24))
    assert len(found) == 24
    failed = [trial for trial in found if trial.state == "failed"]
    assert failed
    assert {trial.fault for trial in failed} == {"diverged"}
    assert all(float(str(trial.settings["method.mu"])) > 5 for trial in failed)
    assert rank_trials(found)[-len(failed) :] == failed


def test_where_everything_fails_the_search_ends_early_and_says_why(tmp_path: Path) -> None:
    played = Played()
    with pytest.raises(ProtofedError, match="every trial failed:\ndiverged"):
        list(run_search(plan(tmp_path, "method.mu=6..9"), played))
    assert len(played.calls) == 1


def test_values_that_exclude_each_other_fail_alone(tmp_path: Path) -> None:
    axes = ["method.base.name=fedprox,fedavg", "method.base.mu=0.1,1"]
    made = plan_search("pgct", axes, {"method": {"name": "pgct", "base": "fedprox"}}, tmp_path)
    found = list(run_search(made, lambda cells: {cell.folder: 1.0 for cell in cells}))
    wrong = [trial for trial in found if trial.settings["method.base.name"] == "fedavg"]
    assert [trial.state for trial in wrong] == ["failed", "failed"]
    assert "mu: no such field" in wrong[0].fault


def test_a_pruned_trial_never_ranks_above_a_finished_one() -> None:
    made = [
        SearchTrial(1, {}, (), "pruned", 2, [99.0]),
        SearchTrial(2, {}, (), "finished", 9, [50.0]),
        SearchTrial(3, {}, (), "failed", 3),
        SearchTrial(4, {}, (), "pruned", 3, [60.0]),
        SearchTrial(5, {}, (), "finished", 9, [50.0, 51.0]),
    ]
    assert [trial.number for trial in rank_trials(made)] == [5, 2, 4, 1, 3]
    assert best_trial(made[:1]) is None


def test_a_choice_with_trials_enough_is_enumerated_without_optuna(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    axes = ["method.mu=0.1,1,2", "training.epochs=1..3"]
    found = searched(plan(tmp_path, *axes, trials=9))
    assert [list(t.settings.values()) for t in found] == [
        [mu, epochs] for mu in (0.1, 1, 2) for epochs in (1, 2, 3)
    ]
    with pytest.raises(ProtofedError, match=r"protofed\[sweep\]"):
        searched(plan(tmp_path, *axes, trials=8))


def test_no_settings_are_tried_twice(tmp_path: Path) -> None:
    found = searched(plan(tmp_path, "method.mu=0.1,0.2,0.3", "training.epochs=1..4", trials=11))
    assert len({repr(trial.settings) for trial in found}) == len(found)
    sampler = OptunaSampler([RangeAxis("training.epochs", 1, 4, log=False, whole=True)])
    assert sorted(str(s["training.epochs"]) for s in sampler.ask(10)) == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("rounds", "every", "rungs", "eta", "wanted"),
    [
        (18, 1, 3, 3, (2, 6, 18)),
        (20, 1, 3, 3, (3, 7, 20)),
        (20, 5, 3, 3, (5, 10, 20)),
        (2, 1, 3, 3, (1, 2)),
        (1, 1, 3, 3, (1,)),
        (40, 1, 4, 2, (5, 10, 20, 40)),
        (40, 1, 1, 3, (40,)),
    ],
)
def test_rungs_are_scored_rounds(
    rounds: int, every: int, rungs: int, eta: int, wanted: tuple[int, ...]
) -> None:
    made = parse_experiment({"rounds": rounds, "evaluate_every": every})
    assert rung_rounds(made, rungs, eta) == wanted


def test_every_trial_is_scored_on_the_same_held_out_images(tmp_path: Path) -> None:
    for given, share in (({"rounds": 2}, 0.2), ({"rounds": 2, "validation": 0.4}, 0.4)):
        for trial in searched(plan(tmp_path, raw=given, trials=3)):
            assert [cell.experiment.validation for cell in trial.cells] == [share]


def test_rounds_can_be_searched_where_nothing_is_pruned(tmp_path: Path) -> None:
    for axis in ("rounds=2..30", "evaluate_every=1,2"):
        with pytest.raises(ProtofedError, match="pruned after the same rounds"):
            plan(tmp_path, *MU, axis)
    found = searched(plan(tmp_path, *MU, "rounds=2,30", trials=6, rungs=1))
    ended = [trial for trial in found if trial.state == "finished"]
    assert {trial.rounds for trial in ended} == {2, 30}
    assert [trial.rounds for trial in ended] == [trial.settings["rounds"] for trial in ended]


def test_a_field_cannot_be_searched_twice(tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match="more than once"):
        plan(tmp_path, *MU, "method.mu=1,2")


def test_a_score_is_taken_where_the_cell_stops_even_if_the_run_went_on(tmp_path: Path) -> None:
    raw = {**SHARED, "rounds": 7, "leave_out": "print", "validation": 0.3}
    (cell,) = grid_cells(named_variants(["fedavg"], raw), range(1), tmp_path)
    assert run_all([cell], 0, lambda progress: None) == {}
    lines = RunDir(cell.folder).lines(cell.folder / "scores.jsonl")
    trained_on = [line["domains"]["optical"] for line in lines]
    assert len(set(trained_on)) > 1
    for stop in (1, 2, 6, None):
        stopped = cell._replace(stop_after=stop)
        until = trained_on[:stop]
        assert held_out_score(stopped, "last") == until[-1]
        assert held_out_score(stopped, "last_five") == pytest.approx(statistics.fmean(until[-5:]))


def test_the_document_states_the_protocol_and_every_trial(tmp_path: Path) -> None:
    made = plan(tmp_path, trials=8, seeds=2)
    found = searched(made)
    document = search_document(made, found, "last_five", "protofed compare x_y")
    content = document.content
    assert isinstance(content, dict)
    assert content["protocol"] == {
        "axes": [{"field": "method.mu", "low": 0.001, "high": 10, "log": True}],
        "sampler": "TPE (Optuna), seed 0",
        "trials": 8,
        "batch": 8,
        "seeds": [0, 1],
        "rounds": 18,
        "rungs": [2, 6, 18],
        "eta": 3,
        "rounds_played": 2 * sum(trial.rounds for trial in found),
        "validation": 0.2,
        "score": "last_five",
        "rule": "mean of the last 5 evaluations after round 18, mean of the last 5 evaluations "
        "after round 6, mean of the last 2 evaluations after round 2",
    }
    assert any(f"score: {content['protocol']['rule']};" in note for note in document.notes)
    assert [t["trial"] for t in content["trials"]] == [t.number for t in rank_trials(found)]
    assert content["best"] == content["trials"][0]
    assert content["best"]["sd"] == pytest.approx(statistics.stdev(content["best"]["scores"]))
    text = render_document(document, "terminal", 200)
    assert text.splitlines()[-1] == "protofed compare x_y"
    assert text.count("pruned  ") + text.count("finished") + text.count("failed  ") == 8
    for form in ("markdown", "latex", "csv"):
        assert str(content["best"]["settings"]["method.mu"]) in render_document(document, form)


@pytest.mark.parametrize(
    ("rounds", "every", "rule"),
    [
        (3, 1, "last"),
        (9, 1, "last"),
        (10, 1, "last_five"),
        (28, 3, "last_five"),  # 9 times every third round, and after the last
        (27, 3, "last"),
    ],
)
def test_the_rule_follows_the_number_of_evaluations(
    rounds: int, every: int, rule: str, tmp_path: Path
) -> None:
    made = plan(tmp_path, raw={"rounds": rounds, "evaluate_every": every})
    scored = {n for n in range(1, rounds + 1) if n % every == 0 or n == rounds}
    assert count_evaluations(rounds, every) == len(scored)
    assert search_rule(made, None) == rule
    assert search_rule(made, "last_five") == "last_five"
    assert search_rule(made, "last") == "last"


def test_where_rounds_are_searched_the_last_one_counts(tmp_path: Path) -> None:
    made = plan(tmp_path, *MU, "rounds=2,30", rungs=1)
    assert search_rule(made, None) == "last"


@pytest.mark.parametrize("rule", get_args(ScoreRule))
@pytest.mark.parametrize("form", TABLE_FORMATS)
def test_every_format_states_the_rule_in_words(
    form: TableFormat, rule: ScoreRule, tmp_path: Path
) -> None:
    made = plan(tmp_path, raw={"rounds": 3}, trials=4, rungs=1)
    found = searched(made)
    text = render_document(search_document(made, found, rule, "protofed compare x_y"), form, 200)
    words = {"last": "last round", "last_five": "mean of the last 3 evaluations"}
    assert words.pop(rule) in text
    assert not any(other in text for other in words.values())


def test_in_csv_each_score_has_its_rule(tmp_path: Path) -> None:
    made = plan(tmp_path, trials=16)
    found = searched(made)
    assert {trial.state for trial in found} == {"finished", "pruned", "failed"}
    text = render_document(search_document(made, found, "last_five", None), "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(found)
    for row in rows:
        counted = min(5, int(row["rounds"]))
        words = "" if row["state"] == "failed" else f"mean of the last {counted} evaluations"
        assert row["rule"] == words


def test_without_a_finished_trial_the_document_says_so(tmp_path: Path) -> None:
    made = plan(tmp_path, trials=1)
    lost = SearchTrial(1, {"method.mu": 9.0}, (), "failed", 2, fault="diverged\nin round 3")
    document = search_document(made, [lost], "last", None)
    assert document.notes[-2:] == [
        "trial 1 failed: diverged",
        "no trial was finished, so there are no best settings",
    ]
