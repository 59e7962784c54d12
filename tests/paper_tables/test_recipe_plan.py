"""A plan before anything runs: runs, finished ones, time, and all images that are missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest

from protofed.experiment.stale_code import StaleRule
from protofed.paper_tables.recipe import SMOKE_RUN, plan_runs, read_recipe, rough_estimate
from protofed.paper_tables.recipe_plan import plan_document, plan_recipe
from protofed.runtime.text_tables import render_document


@pytest.fixture
def without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROTOFED_DATA", raising=False)


@pytest.mark.usefixtures("without_data")
def test_everything_missing_is_listed_once_with_its_command(tmp_path: Path) -> None:
    plan = plan_recipe(read_recipe("pgct-table1"), "paper", [], None, tmp_path, 2)
    assert [(one.benchmark, one.source) for one in plan.missing] == [
        ("digits", "mnist"),
        ("cifar10", "cifar10"),
        ("cifar100", "cifar100"),
        ("pathmnist", "pathmnist"),
    ]
    text = render_document(plan_document(plan), "terminal", 200)
    for one in plan.missing:
        assert one.command == f"protofed data get {one.source}"
        assert sum(line.rstrip().endswith(one.command) for line in text.splitlines()) == 1
        assert one.folder == f"$PROTOFED_DATA/{one.benchmark}"
    assert "PROTOFED_DATA is not set" in text
    assert not list(tmp_path.iterdir())


def test_the_folder_of_missing_images_is_below_the_one_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTOFED_DATA", str(tmp_path / "images"))
    plan = plan_recipe(read_recipe("fedlsa-table5"), "quick", [], None, tmp_path, 1)
    (one,) = plan.missing
    assert one.folder == f"{tmp_path}/images/office_caltech10"
    assert "PROTOFED_DATA is not set" not in render_document(plan_document(plan), "markdown")


@pytest.mark.usefixtures("without_data")
def test_without_images_the_time_is_the_rough_one_of_the_runs_to_do(tmp_path: Path) -> None:
    recipe = read_recipe("fpl-table1")
    rough = [rough_estimate(recipe, part, "paper") for part in recipe.parts]
    plan = plan_recipe(recipe, "paper", [], None, tmp_path, 1)
    assert [part.seconds for part in plan.parts] == pytest.approx(rough)
    assert [part.measured for part in plan.parts] == [False, False]
    half = plan_recipe(recipe, "paper", [], None, tmp_path, 2)
    assert half.seconds == pytest.approx(plan.seconds / 2)
    done = plan_runs(recipe, recipe.parts[0], "paper", None, tmp_path).cells[0].folder
    done.mkdir()
    (done / "done").touch()
    later = plan_recipe(recipe, "paper", [], None, tmp_path, 1, "accept")  # has no code on record
    assert later.parts[0].finished == 1
    assert later.parts[0].seconds == pytest.approx((plan.parts[0].seconds or 0) * 11 / 12)
    assert later.summary().startswith("24 runs, 1 finished, 23 to do: about ")
    assert later.summary().endswith(" days with 1 at a time")


def test_smoke_misses_nothing_and_counts_shared_runs_once(tmp_path: Path, smoked: Path) -> None:
    recipe = read_recipe("fpl-table3")
    plan = plan_recipe(recipe, "smoke", [], None, tmp_path, 1)
    assert plan.missing == []
    assert [len(part.runs) for part in plan.parts] == [2, 2]
    assert plan.seconds == 2 * SMOKE_RUN
    assert plan.summary() == "2 runs, 0 finished, 2 to do: about 8 seconds with 1 at a time"
    again = plan_recipe(recipe, "smoke", [], None, smoked, 1)
    assert again.summary() == "2 runs, 2 finished, 0 to do"
    assert again.seconds == 0


def test_runs_made_by_other_code_are_to_do_or_told_of(smoked: Path, tmp_path: Path) -> None:
    recipe = read_recipe("fpl-table3")
    shared = copy_runs(smoked, tmp_path)
    plans = {
        rule: plan_recipe(recipe, "smoke", [], None, shared, 1, rule)
        for rule in get_args(StaleRule)
    }
    assert {rule: plan.summary() for rule, plan in plans.items()} == {
        "refuse": "2 runs, 0 finished, 1 to do, 1 made by other code: "
        "about 4 seconds with 1 at a time",
        "repeat": "2 runs, 0 finished, 2 to do: about 8 seconds with 1 at a time",
        "accept": "2 runs, 1 finished, 1 to do: about 4 seconds with 1 at a time",
    }
    assert [plans[rule].seconds for rule in plans] == [SMOKE_RUN, 2 * SMOKE_RUN, SMOKE_RUN]
    assert [part.finished for part in plans["refuse"].parts] == [0, 0]
    told = [render_document(plan_document(plan), "markdown") for plan in plans.values()]
    assert ["nothing starts before" in text for text in told] == [True, False, False]
    part = plans["refuse"].to_dict()["parts"][0]
    assert (len(part["runs"]), part["finished"]) == (2, 0)
    assert (len(part["to_do"]), len(part["refused"])) == (1, 1)


def copy_runs(smoked: Path, tmp_path: Path) -> Path:
    """The two runs of a recipe: one was made by other code, of one only the folder is missing."""
    recipe = read_recipe("fpl-table3")
    first, second = plan_runs(recipe, recipe.parts[0], "smoke", None, smoked).cells
    made = tmp_path / first.folder.name
    shutil.copytree(first.folder, made)
    env = json.loads((made / "env.json").read_text())
    env["code"]["protofed/core/tree.py"] = "0" * 64
    (made / "env.json").write_text(json.dumps(env))
    assert not (tmp_path / second.folder.name).exists()
    return tmp_path


@pytest.mark.usefixtures("without_vlcs")
def test_a_plan_in_json_has_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROTOFED_DATA", raising=False)
    plan = plan_recipe(read_recipe("fedseproto-table2"), "quick", [], 2, tmp_path, 2)
    told = json.loads(render_document(plan_document(plan), "json"))
    assert [part["part"] for part in told["parts"]] == ["pacs"]
    assert told["skipped"] == {"vlcs": "the images of vlcs cannot be had in protofed yet"}
    assert len(told["parts"][0]["runs"]) == 18
    assert [one["command"] for one in told["missing"]] == ["protofed data get pacs"]
    assert told["seconds"] == plan.seconds > 0
