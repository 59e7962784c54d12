"""``protofed sweep``: a method with many settings, all of a grid or those that a search tries."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofed.cli.compare import (
    Baseline,
    Data,
    GridOptions,
    Name,
    NetName,
    Rounds,
    Seeds,
    Spec,
    run_and_compare,
    shared_spec,
)
from protofed.cli.options import (
    FormatOption,
    JsonOption,
    MetricOption,
    RunsOption,
    ScoreOption,
    SetOption,
    StaleOption,
    TrackOption,
    TrackToOption,
    WorkersOption,
    chosen_format,
    parse_workers,
    run_options,
    stopped_by_user,
)

if TYPE_CHECKING:
    from protofed.analysis.run_process import RunOptions
    from protofed.analysis.search import SearchPlan, SearchTrial
    from protofed.experiment.result import ScoreRule
    from protofed.experiment.runner import Workers
    from protofed.runtime.text_tables import TableFormat
    from protofed.spec.experiment_spec import Experiment
    from protofed.spec.spec_parser import Raw

RUNS = Path("runs")


def sweep_command(
    method: Name,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="section.field=a,b,c; several give all combinations."),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search", help="section.field=low..high, =log:low..high or =a,b,c; repeatable."
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Settings that a --search tries; default 20.")
    ] = None,
    rungs: Annotated[
        int | None,
        typer.Option(min=1, help="Stages of a --search; 1 prunes nothing; default 3."),
    ] = None,
    eta: Annotated[
        int | None,
        typer.Option(min=2, help="1 in ETA trials reaches the next stage; default 3."),
    ] = None,
    data: Data = None,
    net: NetName = None,
    rounds: Rounds = None,
    spec: Spec = None,
    assignments: SetOption = None,
    seeds: Seeds = 1,
    baseline: Baseline = None,
    score: ScoreOption = None,
    metric: MetricOption = "accuracy",
    workers: WorkersOption = "auto",
    stale: StaleOption = "refuse",
    track: TrackOption = None,
    track_to: TrackToOption = None,
    form: FormatOption = "terminal",
    as_json: JsonOption = False,
    runs: RunsOption = RUNS,
) -> None:
    """Run a method with every combination of some values, or search for good ones.

    A --grid is scored on the test images and shows how sensitive a method is. A --search tunes the
    method, so it never sees them: it is scored on images held out from each client, prunes what is
    behind after few rounds, and ends with the command of the final run.
    """
    how = run_options(stale, track, track_to)
    shared = shared_spec(spec, assignments, {"data.name": data, "net": net, "rounds": rounds})
    if bool(grid) == bool(search):
        raise typer.BadParameter("give either --grid or --search")
    if grid:
        from protofed.analysis.sweep import grid_variants

        if trials or rungs or eta:
            raise typer.BadParameter("--grid takes none of --trials, --rungs, --eta")
        options = GridOptions(seeds, baseline, score, metric, workers, form, as_json, runs, how)
        run_and_compare(grid_variants(method, grid, shared), options)
        return
    from protofed.analysis.search import plan_search, search_rule

    if baseline or metric != "accuracy":
        raise typer.BadParameter("--search takes no --baseline and no --metric")
    form = chosen_format(form, as_json)
    plan = plan_search(
        method, search or [], shared, runs, trials or 20, seeds, rungs or 3, eta or 3
    )
    show_search(plan, search_rule(plan, score), parse_workers(workers), form, how)


def show_search(
    plan: SearchPlan, score: ScoreRule, workers: Workers, form: TableFormat, how: RunOptions
) -> None:
    """Run a search with a line per trial on stderr, then print its ranking.

    It ends with the command of the final run; the exit code is 1 if no trial was finished.
    """
    from protofed.analysis.search import best_trial, search_document
    from protofed.cli.output import print_document

    trials = search_with_progress(plan, score, workers, how)
    best = best_trial(trials)
    command = final_command(plan, best, score) if best else None
    print_document(search_document(plan, trials, score, command), form)
    if form == "csv" and command:
        typer.echo(command, err=True)  # CSV has the trials alone
    if not best:
        raise typer.Exit(1)


def search_with_progress(
    plan: SearchPlan, score: ScoreRule, workers: Workers, how: RunOptions
) -> list[SearchTrial]:
    """Run a search with progress on stderr and one line per trial that ends.

    Ctrl-C stops all runs and ends with exit code 130.
    """
    from protofed.analysis.parallel_runs import GridWatcher, process_count
    from protofed.analysis.search import play_cells, run_search

    count = process_count(workers)
    trials: list[SearchTrial] = []
    with GridWatcher() as watch, stopped_by_user(watch.say):
        play = partial(play_cells, workers=count, watch=watch, rule=score, options=how)
        for trial in run_search(plan, play):
            trials.append(trial)
            watch.say(trial_line(trial))
    return trials


def trial_line(trial: SearchTrial) -> str:
    """What became of a trial, on one line."""
    from protofed.analysis.search import format_score

    name = f"trial {trial.number}: {trial.label}"
    if trial.fault:
        return f"{name}: failed: {trial.fault.splitlines()[0]}"
    return f"{name}: {trial.state} after round {trial.rounds} with {format_score(trial)} %"


def final_command(plan: SearchPlan, best: SearchTrial, score: ScoreRule) -> str:
    """The command that runs the best settings as they are to be reported: on the test images.

    It is complete, so it gives the same experiment without the spec file or flags of the search,
    and quoted for a shell.
    """
    from protofed.spec.spec_parser import set_value

    raw = {name: value for name, value in plan.raw.items() if name != "validation"}
    for field, value in best.settings.items():
        raw = set_value(raw, field, value)
    words = ["protofed", "compare", plan.method, "--seeds", str(plan.seeds)]
    return shlex.join(words + compare_words(raw, best.cells[0].experiment, score, plan.runs))


def compare_words(raw: Raw, experiment: Experiment, score: ScoreRule, runs: Path) -> list[str]:
    """The options of `compare` that give what all its rows share: all of `raw`."""
    from protofed.spec.experiment_spec import SiteData, flatten_spec
    from protofed.spec.spec_parser import format_assignment

    rest = flatten_spec({**raw, "net": experiment.net})
    words = []
    if not isinstance(experiment.data, SiteData):
        words += ["--data", experiment.data.name]
    if isinstance(experiment.net, str):
        words += ["--net", str(rest.pop("net"))]
    words += ["--rounds", str(experiment.rounds)]
    for field, value in rest.items():
        if field not in ("data", "data.name", "method.name", "rounds"):
            words += ["--set", format_assignment(field, value)]
    words += ["--score", score]
    return words if runs == RUNS else [*words, "--runs", str(runs)]
