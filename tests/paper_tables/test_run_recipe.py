"""Every recipe really runs at scale smoke; scales, skipped parts and estimates are as told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from protofed.analysis.parallel_runs import GridProgress
from protofed.analysis.run_process import RunOptions
from protofed.analysis.sweep import GridCell
from protofed.data.digits_mini import DOMAINS
from protofed.errors import ProtofedError
from protofed.paper_tables.paper_comparison import RecipeReport, format_duration, list_recipes
from protofed.paper_tables.recipe import (
    RoundPace,
    Scale,
    measure_pace,
    plan_runs,
    printed_table,
    read_recipe,
    recipe_names,
)
from protofed.paper_tables.run_recipe import cells_to_do, prepare_recipe, run_recipe


def nothing(progress: GridProgress) -> None:
    assert not progress.news  # all is finished before


def smoke(name: str, runs: Path) -> RecipeReport:
    return run_recipe(prepare_recipe(read_recipe(name), "smoke", [], None, runs), 2, nothing)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_runs_at_smoke(name: str, smoked: Path) -> None:
    report, facts = smoke(name, smoked), printed_table()[name]
    assert report.skipped == {}
    assert [part.part for part in report.parts] == list(facts.parts)
    for part in report.parts:
        assert not part.comparable
        assert part.notes[0].startswith("NOT COMPARABLE")
        printed = list(facts.parts[part.part].rows)
        assert [line.label for line in part.lines][: len(printed)] == printed
        for line in part.lines:
            assert len(part.columns) == len(facts.parts[part.part].columns) + (
                "AVG" in part.columns
            )
            for column in part.columns:
                cell = line.ours[column]
                assert cell is not None
                assert 0 <= cell.mean <= 100


def test_smoke_shows_what_the_runs_wrote(smoked: Path) -> None:
    ready = prepare_recipe(read_recipe("fedlsa-table5"), "smoke", [], None, smoked)
    (part,) = run_recipe(ready, 1, nothing).parts
    cell = ready.plans[0].cells[-1]
    wrote = json.loads((cell.folder / "scores.jsonl").read_text().splitlines()[-1])["domains"]
    shown = [part.lines[-1].ours[column] for column in DOMAINS]
    assert [score and score.mean for score in shown] == [wrote[domain] for domain in DOMAINS]


def test_smoke_is_small_and_shares_equal_rows(tmp_path: Path) -> None:
    recipe = read_recipe("fedlsa-table2")
    ready = prepare_recipe(recipe, "smoke", [], None, tmp_path)
    for cell in ready.cells:
        spec = cell.experiment.to_dict()
        assert (spec["data"]["name"], spec["rounds"]) == ("digits-mini", 2)
        assert spec["training"]["epochs"] == 1
        assert spec["method"].get("server_epochs", 0) <= 2
    # FedLSA's own weights differ between the parts, all other rows are the same
    assert len(ready.cells) == len(recipe.rows) + 1


def test_quick_has_fewer_rounds_and_one_seed_unless_told(tmp_path: Path) -> None:
    recipe = read_recipe("fpl-table1")
    office = recipe.part("office")
    whole = plan_runs(recipe, office, "paper", None, tmp_path).cells
    quick = plan_runs(recipe, office, "quick", None, tmp_path).cells
    more = plan_runs(recipe, office, "quick", 2, tmp_path).cells
    assert {cell.experiment.rounds for cell in whole} == {100}
    assert {cell.experiment.rounds for cell in quick} == {10}
    assert [{cell.seed for cell in some} for some in (whole, quick, more)] == [
        {0, 1, 2},
        {0},
        {0, 1},
    ]
    one, other = whole[0].experiment.to_dict(), quick[0].experiment.to_dict()
    assert {key for key in one if one[key] != other[key]} == {"rounds"}


@pytest.mark.parametrize(
    ("scale", "seeds", "told"),
    [
        ("paper", None, "the recipe as it is"),
        ("paper", 3, "the recipe as it is"),
        ("paper", 1, "the recipe with 1 seed instead of 3: differences are less certain"),
        ("paper", 5, "the recipe with 5 seeds instead of 3"),
        ("quick", 3, "the recipe with 10 rounds instead of 100: scores are lower"),
        (
            "quick",
            None,
            "the recipe with 10 rounds instead of 100 and 1 seed instead of 3: "
            "scores are lower, differences are less certain",
        ),
    ],
)
def test_the_note_tells_what_really_runs(
    scale: Scale, seeds: int | None, told: str, tmp_path: Path
) -> None:
    recipe = read_recipe("fpl-table1")
    assert plan_runs(recipe, recipe.part("office"), scale, seeds, tmp_path).note == told


def test_a_part_whose_runs_all_failed_leaves_the_others(
    smoked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = prepare_recipe(read_recipe("fpl-table3"), "smoke", [], None, smoked)
    digits, office = ready.plans
    lost = tuple(c._replace(folder=tmp_path / c.folder.name) for c in office.cells)

    def fail(
        cells: Sequence[GridCell], workers: int, watch: object, options: RunOptions
    ) -> dict[Path, str]:
        # One row of digits fails first, then all of office; the second row of digits is there.
        return {digits.cells[0].folder: "too dark", **{c.folder: "out of luck" for c in lost}}

    monkeypatch.setattr("protofed.paper_tables.run_recipe.run_all", fail)
    report = run_recipe(ready._replace(plans=(digits, office._replace(cells=lost))), 1, nothing)
    assert [part.part for part in report.parts] == ["digits"]
    assert report.parts[0].failed == (f"{digits.cells[0].label}, seed 0: failed: too dark",)
    assert report.failed == {"office": "every run failed, the first with: out of luck"}
    assert report.to_dict()["failed"] == report.failed


@pytest.mark.usefixtures("without_vlcs")
def test_a_benchmark_that_is_not_there_is_skipped_with_its_note(smoked: Path) -> None:
    report = smoke("fedseproto-table2", smoked)
    assert report.skipped == {"vlcs": "the images of vlcs cannot be had in protofed yet"}
    assert [part.part for part in report.parts] == ["pacs"]


def test_where_no_part_can_run_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROTOFED_DATA", raising=False)
    with pytest.raises(ProtofedError, match=r"vlcs(.|\n)*protofed data get vlcs"):
        prepare_recipe(read_recipe("fedseproto-table2"), "quick", ["vlcs"], None, tmp_path)
    with pytest.raises(ProtofedError, match=r"PROTOFED_DATA(.|\n)*scale=smoke"):
        prepare_recipe(read_recipe("fpl-table1"), "quick", ["office"], None, tmp_path)
    with pytest.raises(ProtofedError) as refused:
        prepare_recipe(read_recipe("fpl-table1"), "quick", [], None, tmp_path)
    for name in ("mnist", "usps", "svhn", "office-caltech"):  # all of them, not only the first
        assert f"protofed data get {name}" in str(refused.value)
    assert "data get syn" not in str(refused.value)  # rendered, not fetched


def test_finished_runs_are_not_to_do(smoked: Path, tmp_path: Path) -> None:
    recipe = read_recipe("fpl-table3")
    assert cells_to_do(prepare_recipe(recipe, "smoke", [], None, smoked).cells) == []
    assert len(cells_to_do(prepare_recipe(recipe, "smoke", [], None, tmp_path).cells)) == 2


def test_an_estimate_counts_rounds_scorings_and_open_runs(tmp_path: Path, smoked: Path) -> None:
    recipe = read_recipe("fedlsa-table5")
    fresh = prepare_recipe(recipe, "smoke", [], None, tmp_path)
    experiment = fresh.cells[0].experiment
    longer = experiment.model_copy(update={"rounds": 11, "evaluate_every": 5})
    assert RoundPace(2.0, 10.0).run(longer) == 11 * 2 + 3 * 10
    pace = measure_pace(experiment)
    assert min(pace) > 0
    assert fresh.seconds(1) > 0
    assert prepare_recipe(recipe, "smoke", [], None, smoked).seconds(1) == 0


def test_the_list_has_every_recipe_and_times_that_grow_with_the_scale() -> None:
    rows = list_recipes()
    assert tuple(row.name for row in rows) == recipe_names()
    for row in rows:
        assert 0 < row.seconds["quick"] < row.seconds["paper"]
        assert row.whole
        assert len(row.cells()) == 8
    # FedLSA, Office: 4 rows, 3 seeds, 100 rounds, 5 epochs, 990 images, 2.1 s for 1,000
    by_name = {row.name: row for row in rows}
    assert by_name["fedlsa-table5"].seconds["paper"] == pytest.approx(12 * 100 * 5 * 0.99 * 2.1)
    assert by_name["fedlsa-table5"].seconds["quick"] == pytest.approx(4 * 20 * 5 * 0.99 * 2.1)


def test_durations_are_for_people() -> None:
    seconds = [0.2, 89, 600, 7500, 36000, 3.2 * 86400, 74 * 86400]
    told = ["1 second", "89 seconds", "10 minutes", "2.1 hours", "10 hours", "3.2 days", "74 days"]
    assert [format_duration(s) for s in seconds] == told
