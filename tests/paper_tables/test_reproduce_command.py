"""The command: listing, a real smoke run in processes of its own, and what is refused."""

from __future__ import annotations

import io
import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

with warnings.catch_warnings():
    # typer 0.20 asks click 8.5 for two names that click 9 will drop
    warnings.filterwarnings("ignore", r"'click\.utils\.get_", DeprecationWarning)
    import typer

from protofed.analysis.archive_runs import archive_runs
from protofed.analysis.run_process import RunOptions
from protofed.analysis.sweep import GridCell
from protofed.cli.options import option_flag
from protofed.cli.reproduce import LONG, kept_scale, reproduce_command
from protofed.data.digits_mini import DOMAINS
from protofed.errors import ProtofedError
from protofed.experiment.stale_code import StaleRunError
from protofed.paper_figures.figure_recipe import figure_names
from protofed.paper_tables.recipe import ROWS_RUN, plan_runs, read_recipe, recipe_names
from protofed.paper_tables.run_recipe import ReadyRecipe, read_recipe_runs

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the command with words; its exit code and what it wrote."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(reproduce_command)

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app([str(word) for word in words])
        return (int(ended.value.code or 0), *capsys.readouterr())

    return run


def test_the_list_names_every_recipe(call: Call) -> None:
    code, out, _ = call("--list")
    assert code == 0
    names = [*recipe_names(), *figure_names()]
    assert [row.split()[0] for row in out.splitlines() if "-table" in row or "-fig" in row] == names
    told = json.loads(call("--list", "--json")[1])
    assert [row["name"] for row in told] == names


def test_a_table_is_run_in_processes_then_read(call: Call, tmp_path: Path) -> None:
    words = ["fpl-table3", "--scale", "smoke", "--workers", 2, "--runs", tmp_path / "runs"]
    code, out, err = call(*words, "--json")
    assert code == 0
    assert "2 of 2 runs to do" in err
    assert err.count(": finished") == 2
    assert "[2/2] " in err
    told = json.loads(out)
    assert [part["part"] for part in told["parts"]] == ["digits", "office"]
    assert len(list((tmp_path / "runs").glob("*/done"))) == 2
    _, again, err = call(*words, "--json")
    assert "0 of 2 runs to do" in err
    assert again == out


@pytest.mark.usefixtures("without_vlcs")
def test_the_terminal_says_that_smoke_is_not_comparable(call: Call, smoked: Path) -> None:
    code, out, err = call("fedseproto-table2", "--runs", smoked)
    assert code == 0
    assert "vlcs: skipped: the images of vlcs cannot be had" in err
    assert "NOT COMPARABLE" in out
    assert "FedAvg+GA" in out
    assert "difference" not in out
    assert any(line.split()[:5] == ["method", *DOMAINS] for line in out.splitlines())
    assert "Photo" not in out
    assert "recipe, paper: net seproto-cnn" in out


def test_a_failed_run_is_told_after_the_table_with_code_1(
    call: Call, smoked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(
        cells: Sequence[GridCell], workers: int, watch: object, options: RunOptions
    ) -> dict[Path, str]:
        return {cell.folder: "out of luck" for cell in cells[:broken]}

    monkeypatch.setattr("protofed.paper_tables.run_recipe.run_all", fail)
    broken = 1
    code, out, _ = call("fpl-table3", "--runs", smoked)
    assert code == 1
    assert "optical" in out
    assert "MNIST" not in out
    assert "failed: out of luck" in out
    broken = 2
    code, out, _ = call("fpl-table3", "--runs", smoked)
    assert code == 1
    assert out.count("failed: every run failed, the first with: out of luck") == 2


def test_stopping_the_forecast_says_how_to_go_on(
    call: Call, smoked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object) -> list[GridCell]:
        raise KeyboardInterrupt

    monkeypatch.setattr("protofed.paper_tables.run_recipe.cells_to_do", stop)
    code, _, err = call("fpl-table3", "--runs", smoked)
    assert code == 130
    assert "the same command resumes" in err


def long_work(monkeypatch: pytest.MonkeyPatch, seconds: float, terminal: bool) -> None:
    """Let the runs seem to take so long, and the command have a terminal or none."""
    monkeypatch.setattr(ReadyRecipe, "seconds", lambda ready, workers: seconds)
    monkeypatch.setattr("sys.stdin.isatty", lambda: terminal, raising=False)


def test_long_work_without_a_terminal_needs_a_yes(
    call: Call, smoked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["fpl-table3", "--runs", smoked]
    long_work(monkeypatch, 3.2 * 86400, terminal=False)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(reproduce_command)
    with pytest.raises(ProtofedError, match=r"about 3\.2 days, and .* no terminal") as refused:
        app([str(word) for word in words])
    assert refused.value.render(option_flag).endswith(
        "add --yes to start, or --dry-run to see the plan"
    )
    assert call(*words, "--yes")[0] == 0
    long_work(monkeypatch, LONG, terminal=False)
    assert call(*words)[0] == 0


@pytest.mark.parametrize(("answer", "ends"), [("y\n", 0), ("n\n", 1)])
def test_long_work_is_asked_for_on_a_terminal(
    answer: str, ends: int, call: Call, smoked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    long_work(monkeypatch, LONG + 60, terminal=True)
    code, out, err = call("fpl-table3", "--runs", smoked, "--json")
    assert code == ends
    assert "Start about 11 minutes of work? [y/N]" in err
    assert (json.loads(out)["name"] == "fpl-table3") if ends == 0 else out == ""


def test_a_dry_run_plans_and_runs_nothing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROTOFED_DATA", raising=False)
    words = ["fpl-table2", "--scale", "paper", "--dry-run", "--runs", tmp_path, "--workers", 4]
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    assert "plan: 48 runs, 0 finished, 48 to do: about " in out
    assert " days with 4 at a time" in out
    assert out.count("protofed data get ") == 4
    assert not list(tmp_path.iterdir())
    told = json.loads(call(*words, "--json")[1])
    assert (told["scale"], told["workers"], len(told["missing"])) == ("paper", 4, 4)


def test_runs_made_by_other_code_are_asked_for_before_they_are_repeated(
    call: Call, smoked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(smoked, runs)
    for file in runs.glob("*/env.json"):
        env = json.loads(file.read_text())
        file.write_text(json.dumps({**env, "code": {**env["code"], "protofed/core/tree.py": "0"}}))
    words = ["fpl-table3", "--runs", runs]
    assert "0 finished, 0 to do, 2 made by other code" in call(*words, "--dry-run")[1]
    assert "0 finished, 2 to do: " in call(*words, "--dry-run", "--stale", "repeat")[1]
    assert "2 finished, 0 to do" in call(*words, "--dry-run", "--stale", "accept")[1]

    monkeypatch.setattr("protofed.paper_tables.run_recipe.SMOKE_RUN", LONG)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    before = {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()}
    code, out, err = call(*words, "--stale", "repeat", "--workers", 1)
    assert (code, out) == (1, "")
    assert "2 of 2 runs to do" in err
    assert "Start about 20 minutes of work? [y/N]" in err
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(reproduce_command)
    with pytest.raises(StaleRunError, match=r"so were 1 more"):  # without any question
        app([str(word) for word in words])
    assert before == {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()}


def test_a_figure_is_drawn_from_the_tables_runs(
    call: Call, smoked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protofed.paper_figures.figure_recipe.SMOKE", ROWS_RUN)
    words = ["fpl-fig6", "--runs", smoked, "--part", "office", "--out", tmp_path]
    code, out, err = call(*words, "--json")
    assert code == 0
    assert "fpl-fig6 at scale smoke: 0 of 8 runs to do" in err
    (picture,) = json.loads(out)["pictures"]
    files = [tmp_path / f"fpl-fig6-office.{ending}" for ending in ("svg", "png")]
    assert picture["files"] == [str(file) for file in files]
    assert all(file.stat().st_size for file in files)
    assert "FPL converges faster" in call(*words)[1]


def test_a_figures_dry_run_counts_shared_runs_once(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("fpl-fig5", "--dry-run", "--runs", tmp_path)
    assert code == 0
    assert "plan: 2 runs, 0 finished, 2 to do" in out
    assert "office-domains" in out
    assert not list(tmp_path.iterdir())


def test_markdown_and_one_part(call: Call, smoked: Path) -> None:
    _, out, _ = call("fpl-table1", "--part", "office", "--runs", smoked, "--format", "markdown")
    assert out.startswith("## FPL (CVPR 2023), Table 1")
    assert "### office" in out
    assert "### digits" not in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--list"),
        (["fpl-table1", "--scale", "huge"], "'smoke', 'quick', 'paper'"),
        (["fpl-table1", "--format", "pdf"], "'terminal', 'markdown', 'latex'"),
        (["fpl-table1", "--seeds", "0"], "--seeds"),
        (["fpl-table1", "--out", "here"], "only figures write files"),
        (["fpl-fig6", "--row", "FPL"], "--part"),
    ],
)
def test_wrong_words_are_refused(call: Call, words: list[str], told: str) -> None:
    code, _, err = call(*words)
    assert code == 2
    assert told in err


def test_wrong_names_are_refused_with_the_known_ones(call: Call, tmp_path: Path) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(reproduce_command)
    with pytest.raises(ProtofedError, match="unknown recipe 'fpl'"):
        app(["fpl"])
    with pytest.raises(ProtofedError, match="unknown part of fpl-table1 'pacs'"):
        app(["fpl-table1", "--part", "pacs", "--runs", str(tmp_path)])


def test_kept_runs_make_the_table_without_training(
    call: Call, smoked: Path, tmp_path: Path
) -> None:
    archive_runs([smoked], tmp_path / "kept")
    recipe = read_recipe("fpl-table3")
    fresh = read_recipe_runs(recipe, "smoke", [], None, smoked)
    kept = read_recipe_runs(recipe, "smoke", [], None, tmp_path / "kept")
    assert kept.to_dict() == fresh.to_dict()
    assert not kept.faulty
    cell = plan_runs(recipe, recipe.parts[0], "smoke", None, tmp_path / "kept").cells[0]
    shutil.rmtree(cell.folder)
    (part, _) = read_recipe_runs(recipe, "smoke", [], None, tmp_path / "kept").parts
    assert f"{cell.label}, seed 0: not in {tmp_path / 'kept'}" in part.notes
    with pytest.raises(ProtofedError, match="holds no run of fpl-table3 at scale paper"):
        reproduce_command("fpl-table3", source=tmp_path / "kept")


def test_kept_runs_are_those_of_the_paper_unless_another_scale_is_named() -> None:
    assert [kept_scale(scale) for scale in ("smoke", "quick", "paper")] == [
        "paper",
        "quick",
        "paper",
    ]
