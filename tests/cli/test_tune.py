"""``protofed tune``: the same budget for every method, no test image, and a command that works."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from protofed.analysis.tuning import plan_tuning, tuning_axes
from protofed.cli import COMMANDS
from protofed.experiment.run_records import load_spec
from protofed.methods import METHODS
from tests.cli.conftest import Cli
from tests.cli.test_compare import TINY

WORDS = ("tune", "fedavg", "fedprox", *TINY, "--trials", "3", "--rungs", "1", "--workers", "0")


def test_every_method_gets_the_same_budget_and_no_test_image(cli: Cli) -> None:
    ended = cli(*WORDS, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert [one["method"] for one in found["methods"]] == ["fedavg", "fedprox"]
    assert {one["protocol"]["rounds_played"] for one in found["methods"]} == {
        found["methods"][0]["protocol"]["rounds_played"]
    }
    for one in found["methods"]:
        assert len(one["trials"]) == 3
        best = max(one["trials"], key=lambda trial: trial["score"])
        assert one["score"] == best["score"]
    specs = [load_spec(folder) for folder in Path("runs").iterdir()]
    assert len(specs) == 6
    assert {spec.validation for spec in specs} == {0.2}
    words = shlex.split(found["command"])
    chosen = found["methods"][1]["settings"]
    assert f"fedprox:training.lr={chosen['training.lr']}," in words[3]
    final = cli(*words[1:], "--json", "--workers", "0")
    assert final.code == 0, final.err
    rows = json.loads(final.out)["rows"]
    assert [len(row["digests"]) for row in rows] == [3, 3]
    made = {folder: load_spec(folder) for folder in Path("runs").iterdir()}
    tested = [spec for spec in made.values() if spec.validation is None]
    assert {spec.training.lr for spec in tested} == {
        one["settings"]["training.lr"] for one in found["methods"]
    }


def test_the_table_says_what_the_budget_was(cli: Cli) -> None:
    ended = cli(*WORDS)
    assert "every method had the same budget: 3 trials" in ended.out
    assert "not on test images" in ended.out
    assert "protofed compare fedavg:training.lr=" in ended.out
    assert cli(*WORDS).out == ended.out  # read, not run again


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fedavg", "fedavg"], "named more than once"),
        (["fedavgg"], "did you mean 'fedavg'"),
        (["fedavg", "--lr", "a..b"], "training.lr"),
    ],
)
def test_what_cannot_be_tuned_is_told_before_anything_runs(
    words: list[str], says: str, cli: Cli
) -> None:
    ended = cli("tune", *words)
    assert ended.code == 2
    assert says in ended.err
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", METHODS)
def test_the_tuned_fields_of_every_method_can_be_searched(name: str) -> None:
    tuned = METHODS[name].tuned
    assert len(tuned) <= 2
    (plan,) = plan_tuning([name], {})
    assert [axis.field for axis in plan.axes] == ["training.lr", *(f"method.{f}" for f in tuned)]
    for field in tuned:
        fixed = tuning_axes(
            name, {"method": {"name": name, field: getattr(METHODS[name](), field)}}
        )
        assert len(fixed) == len(tuned)


def test_tune_is_a_command() -> None:
    assert "tune" in COMMANDS


def test_the_page_lists_the_tuned_fields_of_every_method() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()
    for name, method in METHODS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
        for field, values in method.tuned.items():
            low, high = values.removeprefix("log:").split("..")
            by = ", by magnitude" if values.startswith("log:") else ""
            assert f"`{field}` ({low} to {high}{by})" in row
        assert method.tuned or "nothing" in row
