"""``protofed compare`` and ``ablate``: grids of runs, and the table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from protofed.cli.options import (
    FormatOption,
    JsonOption,
    LeaveOutOption,
    Metric,
    MetricOption,
    RunsOption,
    ScoreOption,
    SetOption,
    StaleOption,
    TrackOption,
    TrackToOption,
    WhereOption,
    WorkersOption,
    chosen_format,
    parse_workers,
    run_options,
    stopped_by_user,
    tell_left_out,
)

if TYPE_CHECKING:
    from protofed.analysis.run_process import RunOptions
    from protofed.analysis.sweep import GridCell, GridVariant
    from protofed.experiment.result import ScoreRule
    from protofed.experiment.runner import Workers
    from protofed.runtime.text_tables import TableFormat


def run_grid(grid: Sequence[GridCell], workers: Workers, options: RunOptions) -> dict[Path, str]:
    """Run what is not finished with progress on stderr; return the faults of failed runs by folder.

    Ctrl-C stops all runs and ends with exit code 130.
    """
    from protofed.analysis.parallel_runs import GridWatcher, process_count, run_all

    with GridWatcher() as watch, stopped_by_user(watch.say):
        return run_all(grid, process_count(workers), watch, options)


def run_leave_out_each(
    variants: Sequence[GridVariant],
    seeds: Sequence[int],
    score: ScoreRule | None,
    workers: Workers,
    form: TableFormat,
    runs: Path,
    options: RunOptions,
) -> None:
    """Run every variant once per left-out domain; print the scores on the unseen domains.

    Finished runs are read and interrupted ones resume. If some runs fail, the exit code is 1.
    """
    from protofed.analysis.finished_runs import describe_identical, identical_rows, read_record
    from protofed.analysis.leave_one_domain_out import (
        leave_each_out,
        leave_out_label,
        unseen_document,
        unseen_scores,
    )
    from protofed.analysis.parallel_runs import changed_code_notes, check_any_finished
    from protofed.analysis.sweep import grid_cells
    from protofed.cli.output import print_document
    from protofed.experiment.result import choose_rule

    grid = grid_cells(leave_each_out(variants), seeds, runs)
    faults = run_grid(grid, workers, options)
    check_any_finished(grid, faults)
    done = [c for c in grid if c.folder not in faults]
    records = [
        read_record(c.folder, leave_out_label(c.label, c.experiment.leave_out)) for c in done
    ]
    failed = [f"{c.label}, seed {c.seed}: failed" for c in grid if c.folder in faults]
    chosen = choose_rule((record.result for record in records), score)
    notices = [str(n) for r in records for n in r.result.notices if n.kind != "unseen"]
    same, changed = describe_identical(identical_rows(records)), changed_code_notes(done)
    notes = [*failed, *same, *changed, *dict.fromkeys(notices)]
    rule = records[0].result.rules[chosen]
    print_document(unseen_document(unseen_scores(records, chosen), rule, notes), form)
    if faults:
        raise typer.Exit(1)


Words = Annotated[
    list[str], typer.Argument(help="Methods, as fpl or fpl:tau=0.05,upcr=0.", show_default=False)
]
Name = Annotated[
    str, typer.Argument(help="Method, see `protofed methods`; or path/to/mine.py:Mine.")
]
Data = Annotated[
    str | None, typer.Option(help="Benchmark, see `protofed data list`, or a folder of your data.")
]
NetName = Annotated[str | None, typer.Option("--net", help="Net; default: the benchmark's.")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds; default 20.")]
Spec = Annotated[Path | None, typer.Option(help="TOML file with what all runs share.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds per row: 0, 1, 2, ...")]
Baseline = Annotated[
    str | None, typer.Option(help="Row that the others are compared with; default: the first.")
]


def compare_command(
    methods: Words,
    data: Data = None,
    net: NetName = None,
    rounds: Rounds = None,
    spec: Spec = None,
    assignments: SetOption = None,
    seeds: Seeds = 1,
    baseline: Baseline = None,
    score: ScoreOption = None,
    metric: MetricOption = "accuracy",
    leave_out: LeaveOutOption = None,
    references: Annotated[
        bool, typer.Option("--references", help="Beside them each place alone, and all pooled.")
    ] = False,
    workers: WorkersOption = "auto",
    stale: StaleOption = "refuse",
    track: TrackOption = None,
    track_to: TrackToOption = None,
    form: FormatOption = "terminal",
    as_json: JsonOption = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """Run several methods with the same seeds and compare them in one table.

    METHODS are names; a colon introduces fields of one method: fedavg fpl fpl:tau=0.05,upcr=0.
    Finished runs are not repeated; after Ctrl-C the same command resumes.
    """
    from protofed.analysis.leave_one_domain_out import EACH
    from protofed.analysis.sweep import named_variants

    left = None if leave_out == EACH else leave_out
    flags = {"data.name": data, "net": net, "rounds": rounds, "leave_out": left}
    shared = shared_spec(spec, assignments, flags)
    if leave_out == EACH:
        if baseline:
            raise typer.BadParameter("--leave-out each has no --baseline")
        if metric != "accuracy" or references:
            raise typer.BadParameter("--leave-out each has no --metric and no --references")
        count, form = parse_workers(workers), chosen_format(form, as_json)
        rows, options = named_variants(methods, shared), run_options(stale, track, track_to)
        run_leave_out_each(rows, range(seeds), score, count, form, runs, options)
        return
    if references and metric != "accuracy":
        raise typer.BadParameter("--references shows accuracy only: leave --metric out")
    from protofed.analysis.references import reference_variants

    options = run_options(stale, track, track_to)
    grid = GridOptions(seeds, baseline, score, metric, workers, form, as_json, runs, options)
    beside = reference_variants(shared) if references else []
    run_and_compare(named_variants(methods, shared), grid, beside)


def ablate_command(
    method: Name,
    data: Data = None,
    net: NetName = None,
    rounds: Rounds = None,
    spec: Spec = None,
    assignments: SetOption = None,
    seeds: Seeds = 1,
    score: ScoreOption = None,
    metric: MetricOption = "accuracy",
    workers: WorkersOption = "auto",
    stale: StaleOption = "refuse",
    track: TrackOption = None,
    track_to: TrackToOption = None,
    form: FormatOption = "terminal",
    as_json: JsonOption = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """Run a method without each of its parts, as the ablation study of its paper does.

    The complete method is the last row, and the baseline of the differences.
    """
    from protofed.analysis.sweep import ablation_variants

    shared = shared_spec(spec, assignments, {"data.name": data, "net": net, "rounds": rounds})
    rows = ablation_variants(method, shared)
    options = run_options(stale, track, track_to)
    base = rows[-1].label
    grid = GridOptions(seeds, base, score, metric, workers, form, as_json, runs, options)
    run_and_compare(rows, grid)


def track_command(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Run folders, or folders that hold them.", show_default=False),
    ],
    to: Annotated[Path, typer.Option(help="Folder for the logs.")] = Path("tensorboard"),
    where: WhereOption = None,
) -> None:
    """Write run folders as TensorBoard logs.

    Needs the extra `track`; view them with `tensorboard --logdir`.
    """
    from protofed.analysis.run_index import choose_runs
    from protofed.experiment.round_report import read_reports
    from protofed.tracking.tensorboard_tracker import TensorBoardTracker

    tracker = TensorBoardTracker(to)
    chosen = choose_runs(folders, where or [], read_reports)
    tell_left_out(chosen.left_out)
    for folder in chosen.folders:
        typer.echo(f"{folder}: {tracker.open(folder)} values -> {tracker.place(folder)}")
        tracker.end(None)


def shared_spec(
    spec: Path | None, assignments: Sequence[str] | None, flags: dict[str, Any]
) -> dict[str, Any]:
    """What all runs have in common, as plain data; the seed is not among it.

    `flags` are values by field, None where a flag was not given.
    """
    from protofed.cli.run import raw_spec, split_commas

    flags["net"] = split_commas(flags["net"])
    given = {field: value for field, value in flags.items() if value is not None}
    raw, _ = raw_spec(spec, list(assignments or []), given)
    if "seed" in raw:
        raise typer.BadParameter(
            "seed: every row runs with the same seeds; set their number with --seeds"
        )
    return raw


class GridOptions(NamedTuple):
    """What `compare`, `ablate` and `sweep` take alike, as it was typed.

    `run_and_compare` parses it, so the three commands treat every option the same way.
    """

    seeds: int
    baseline: str | None  # the label of a row, in any case
    score: ScoreRule | None  # the default for these runs if none
    metric: Metric
    workers: str
    form: TableFormat
    as_json: bool
    runs: Path
    how: RunOptions


def run_and_compare(
    variants: Sequence[GridVariant], options: GridOptions, references: Sequence[GridVariant] = ()
) -> None:
    """Run a grid, then print its table.

    A failed run is reported and the others are shown; the exit code is then 1.
    """
    from protofed.analysis.compare_methods import compare_variants
    from protofed.analysis.comparison_table import comparison_document
    from protofed.cli.output import print_document

    form, workers = chosen_format(options.form, options.as_json), parse_workers(options.workers)
    play = partial(run_grid, workers=workers, options=options.how)
    seeds, runs = range(options.seeds), options.runs
    rules = options.baseline, options.score, options.metric
    table, faults = compare_variants(variants, seeds, runs, play, *rules, references)
    print_document(comparison_document(table), form)
    if faults:
        raise typer.Exit(1)
