"""``protofed compare``, ``ablate`` and ``sweep``: grids of runs, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from protofed.cli.options import (
    FormatOption,
    JsonOption,
    LeaveOutOption,
    RunsOption,
    ScoreOption,
    SetOption,
    WorkersOption,
    chosen_format,
    parse_workers,
)

if TYPE_CHECKING:
    from protofed.analysis.sweep import GridCell, GridVariant
    from protofed.experiment.result import RunResult, ScoreRule
    from protofed.experiment.runner import Workers
    from protofed.runtime.text_tables import TableFormat


def run_grid(grid: Sequence[GridCell], workers: Workers) -> dict[Path, str]:
    """Run what is not finished with progress on stderr; return the faults of failed runs by folder.

    Ctrl-C stops all runs and ends with exit code 130. If every run fails, that is an error.
    """
    from protofed.analysis.parallel_runs import run_all
    from protofed.cli.output import GridWatcher
    from protofed.errors import ProtofedError
    from protofed.runtime.resources import usable_cores

    with GridWatcher() as watch:
        try:
            faults = run_all(grid, usable_cores() if workers == "auto" else workers, watch)
        except KeyboardInterrupt:
            watch.say("stopped; the same command resumes")
            raise typer.Exit(130) from None
    if all(cell.folder in faults for cell in grid):
        raise ProtofedError("every run failed:\n" + "\n".join(dict.fromkeys(faults.values())))
    return faults


def run_leave_out_each(
    variants: Sequence[GridVariant],
    seeds: Sequence[int],
    score: ScoreRule,
    workers: Workers,
    form: TableFormat,
    runs: Path,
) -> None:
    """Run every variant once per left-out domain; print the scores on the unseen domains.

    Finished runs are read and interrupted ones resume. If some runs fail, the exit code is 1.
    """
    from protofed.analysis.finished_runs import read_record
    from protofed.analysis.leave_one_domain_out import (
        leave_each_out,
        leave_out_label,
        unseen_document,
        unseen_scores,
    )
    from protofed.analysis.sweep import grid_cells
    from protofed.cli.output import print_document

    grid = grid_cells(leave_each_out(variants), seeds, runs)
    faults = run_grid(grid, workers)
    done = [c for c in grid if c.folder not in faults]
    records = [
        read_record(c.folder, leave_out_label(c.label, c.experiment.leave_out)) for c in done
    ]
    failed = [f"{c.label}, seed {c.seed}: failed" for c in grid if c.folder in faults]
    rule = records[0].result.rules[score]
    notices = [str(n) for r in records for n in r.result.notices if n.kind != "unseen"]
    notes = [*failed, *dict.fromkeys(notices)]
    print_document(unseen_document(unseen_scores(records, score), rule, notes), form)
    if faults:
        raise typer.Exit(1)


LOOK = 0.3  # seconds between two looks at a run that another process is busy with


def _run_or_wait(cell: GridCell, workers: Workers) -> RunResult:
    """A trial's result; waits for one that another process is running."""
    from protofed.errors import BusyError
    from protofed.experiment.runner import run
    from protofed.runtime.atomic_io import is_locked

    told = False
    while True:
        try:
            return run(cell.experiment, cell.folder, workers=workers)
        except BusyError:
            if not told:
                typer.echo(f"waiting for {cell.folder}, which another process is running", err=True)
            told = True
            while is_locked(cell.folder):
                time.sleep(LOOK)


def search_with_progress(
    method: str,
    ranges: Sequence[str],
    trials: int,
    shared: dict[str, Any],
    score: ScoreRule,
    workers: Workers,
    runs: Path,
) -> None:
    """Run a search; print each trial as it ends, then the best one as flags.

    A failed trial is printed with its error and skipped.
    """
    from protofed.analysis.sweep import parse_axis, run_search

    def play(cell: GridCell) -> float:
        found = _run_or_wait(cell, workers).scores(score)
        # a domain that is left out must not be tuned on either
        return found.without(cell.experiment.leave_out).mean or 0.0

    best: tuple[float, str] = (-1.0, "")
    axes = [parse_axis(text) for text in ranges]
    try:
        for cell, found in run_search(method, axes, trials, shared, runs, play):
            if isinstance(found, str):
                typer.echo(f"failed  {cell.label}: {found.splitlines()[0]}")
            else:
                typer.echo(f"{found:6.2f}  {cell.label}  {cell.experiment.digest[:12]}")
                best = max(best, (found, cell.label))
    except KeyboardInterrupt:
        typer.echo("stopped; the same command resumes", err=True)
        raise typer.Exit(130) from None
    flags = " ".join(f"--set {word}" for word in best[1].split())
    typer.echo(f"best on held-out images: {best[0]:.2f} with {flags or 'nothing: all failed'}")


Words = Annotated[
    list[str], typer.Argument(help="Methods, as fpl or fpl:tau=0.05,upcr=0.", show_default=False)
]
Name = Annotated[str, typer.Argument(help="Method, see `protofed methods`.")]
Data = Annotated[
    str | None, typer.Option(help="Benchmark, see `protofed data list`, or a folder of images.")
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
    score: ScoreOption = "last_five",
    leave_out: LeaveOutOption = None,
    workers: WorkersOption = "auto",
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
    shared = _shared(spec, assignments, flags)
    if leave_out == EACH:
        if baseline:
            raise typer.BadParameter("--leave-out each has no --baseline")
        count, form = parse_workers(workers), chosen_format(form, as_json)
        run_leave_out_each(named_variants(methods, shared), range(seeds), score, count, form, runs)
        return
    grid = GridOptions(seeds, baseline, score, workers, form, as_json, runs)
    run_and_compare(named_variants(methods, shared), grid)


def ablate_command(
    method: Name,
    data: Data = None,
    net: NetName = None,
    rounds: Rounds = None,
    spec: Spec = None,
    assignments: SetOption = None,
    seeds: Seeds = 1,
    score: ScoreOption = "last_five",
    workers: WorkersOption = "auto",
    form: FormatOption = "terminal",
    as_json: JsonOption = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """Run a method without each of its parts, as the ablation study of its paper does.

    The complete method is the last row, and the baseline of the differences.
    """
    from protofed.analysis.sweep import ablation_variants

    shared = _shared(spec, assignments, {"data.name": data, "net": net, "rounds": rounds})
    rows = ablation_variants(method, shared)
    grid = GridOptions(seeds, rows[-1].label, score, workers, form, as_json, runs)
    run_and_compare(rows, grid)


def sweep_command(
    method: Name,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="section.field=a,b,c; several give all combinations."),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--search", help="section.field=low..high; scored on held-out images."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Number of runs of a --search.")] = 20,
    data: Data = None,
    net: NetName = None,
    rounds: Rounds = None,
    spec: Spec = None,
    assignments: SetOption = None,
    seeds: Seeds = 1,
    baseline: Baseline = None,
    score: ScoreOption = "last_five",
    workers: WorkersOption = "auto",
    form: FormatOption = "terminal",
    as_json: JsonOption = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """Run a method with every combination of some values, or search for good ones.

    A --grid is scored on the test images and shows how sensitive a method is. A --search tunes the
    method, so it never sees them: it is scored on images held out from each client.
    """
    from protofed.analysis.sweep import grid_variants

    shared = _shared(spec, assignments, {"data.name": data, "net": net, "rounds": rounds})
    if bool(grid) == bool(ranges):
        raise typer.BadParameter("give either --grid or --search")
    if ranges and (seeds > 1 or baseline or as_json or form != "terminal"):
        raise typer.BadParameter("--search takes none of --seeds, --baseline, --format, --json")
    if ranges:
        search_with_progress(method, ranges, trials, shared, score, parse_workers(workers), runs)
        return
    options = GridOptions(seeds, baseline, score, workers, form, as_json, runs)
    run_and_compare(grid_variants(method, grid or [], shared), options)


def track_command(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)],
    to: Annotated[Path, typer.Option(help="Folder for the logs.")] = Path("tensorboard"),
) -> None:
    """Write run folders as TensorBoard logs.

    Needs the extra `track`; view them with `tensorboard --logdir`.
    """
    from protofed.analysis.tensorboard import write_tensorboard

    for folder in folders:
        typer.echo(f"{folder}: {write_tensorboard(folder, to)} values -> {to / folder.name}")


def _shared(
    spec: Path | None, assignments: Sequence[str] | None, flags: dict[str, Any]
) -> dict[str, Any]:
    """What all runs have in common, as plain data."""
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
    score: ScoreRule
    workers: str
    form: TableFormat
    as_json: bool
    runs: Path


def run_and_compare(variants: Sequence[GridVariant], options: GridOptions) -> None:
    """Run a grid, then print its table.

    A failed run is reported and the others are shown; the exit code is then 1.
    """
    from protofed.analysis.comparison_table import compare_records, comparison_document
    from protofed.analysis.finished_runs import check_comparable, read_record
    from protofed.analysis.sweep import grid_cells
    from protofed.cli.output import print_document

    form, workers = chosen_format(options.form, options.as_json), parse_workers(options.workers)
    grid = grid_cells(variants, range(options.seeds), options.runs)
    baseline = _baseline_label(options.baseline, variants)
    faults = run_grid(grid, workers)
    done = [read_record(c.folder, c.label) for c in grid if c.folder not in faults]
    notes = check_comparable(done, free=_free(variants))
    notes += [f"{c.label}, seed {c.seed}: failed" for c in grid if c.folder in faults]
    lost = baseline not in {record.label for record in done}
    if lost:
        notes.append(f"no differences: the baseline, {baseline}, failed")
    table = compare_records(done, baseline, options.score, notes, lost)
    print_document(comparison_document(table), form)
    if faults:
        raise typer.Exit(1)


def _baseline_label(typed: str | None, variants: Sequence[GridVariant]) -> str:
    """The label of the row that was typed, or of the first."""
    from protofed.errors import require_known_name

    if typed is None:
        return variants[0].label
    labels = {variant.label.lower(): variant.label for variant in variants}
    return require_known_name("baseline", labels.get(typed.lower(), typed), labels.values())


def _free(variants: Sequence[GridVariant]) -> set[str]:
    """The sections in which the variants differ on purpose, and those that follow the method."""
    from protofed.analysis.finished_runs import APART

    sections = {name for variant in variants for name in variant.raw}
    first = variants[0].raw
    differ = {n for n in sections if any(v.raw.get(n) != first.get(n) for v in variants)}
    return {*APART, *differ}
