"""``protofed compare``, ``ablate`` and ``sweep``: grids of runs, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from protofed.analysis.comparison_table import ComparisonTable
    from protofed.analysis.grid import GridCell, GridVariant
    from protofed.analysis.leave_one_domain_out import UnseenScores
    from protofed.experiment.result import RunResult


def run_grid(grid: Sequence[GridCell], workers: int) -> dict[Path, str]:
    """Run what is not finished, `workers` at a time (0: all cores); faults of some, by folder."""
    from protofed.analysis.parallel_runs import run_all
    from protofed.cli.output import GridWatcher
    from protofed.errors import ProtofedError
    from protofed.runtime.resources import usable_cores

    with GridWatcher() as watch:
        try:
            faults = run_all(grid, workers or usable_cores(), watch)
        except KeyboardInterrupt:
            watch.say("stopped; the same command goes on")
            raise typer.Exit(130) from None
    if all(cell.folder in faults for cell in grid):
        raise ProtofedError("every run failed:\n" + "\n".join(dict.fromkeys(faults.values())))
    return faults


LeaveOut = Annotated[
    str | None,
    typer.Option(help="Domain that nobody trains on and all are tested on; each: one by one."),
]


def run_leave_out_each(
    variants: Sequence[GridVariant],
    seeds: Sequence[int],
    score: Literal["last_five", "last"],
    workers: int,
    form: str,
    runs: Path,
) -> None:
    """Run every variant without each of its domains, side by side; go on with what was begun."""
    from protofed.analysis.finished_runs import read_record
    from protofed.analysis.grid import grid_cells
    from protofed.analysis.leave_one_domain_out import (
        leave_each_out,
        leave_out_label,
        unseen_scores,
    )

    grid = grid_cells(leave_each_out(variants), seeds, runs)
    faults = run_grid(grid, workers)
    done = [c for c in grid if c.folder not in faults]
    records = [
        read_record(c.folder, leave_out_label(c.label, c.experiment.leave_out)) for c in done
    ]
    failed = [f"{c.label}, seed {c.seed}: failed" for c in grid if c.folder in faults]
    rule = records[0].result.rules[score]
    notices = [n for r in records for n in r.result.notices if "left out of training" not in n]
    _print_unseen(unseen_scores(records, score), form, rule, [*failed, *dict.fromkeys(notices)])
    if faults:
        raise typer.Exit(1)


def _print_unseen(
    found: Sequence[UnseenScores], form: str, rule: str, notes: Sequence[str]
) -> None:
    from protofed.analysis.leave_one_domain_out import (
        FORMATS,
        unseen_footnotes,
        unseen_summary,
        unseen_table,
    )
    from protofed.cli.output import print_table

    if form in FORMATS:
        typer.echo(FORMATS[form](found, rule, notes), nl=False)
        return
    for one in found:
        print_table(*unseen_table(one), line_before=len(one.rows))
        typer.echo()
    if len(found) > 1:
        print_table(*unseen_summary(found))
        typer.echo()
    for line in unseen_footnotes(found, rule, notes):
        typer.echo(line)


LOOK = 0.3  # seconds between two looks at a run that another process is busy with


def _patiently(cell: GridCell) -> RunResult:
    """A trial's result; one that another process is running is waited for."""
    from protofed.errors import BusyError
    from protofed.experiment.runner import run
    from protofed.runtime.atomic_io import is_locked

    told = False
    while True:
        try:
            return run(cell.experiment, cell.folder)
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
    score: Literal["last_five", "last"],
    runs: Path,
) -> None:
    """Print each trial as it ends, then the best one as flags."""
    from protofed.analysis.hyperparameter_search import parse_axis, run_search

    def play(cell: GridCell) -> float:
        found = getattr(_patiently(cell), score)
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
        typer.echo("stopped; the same command goes on", err=True)
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
Set = Annotated[
    list[str] | None, typer.Option("--set", help="section.field=value for all runs; repeatable.")
]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds a method: 0, 1, 2, ...")]
Baseline = Annotated[str | None, typer.Option(help="Row to compare with; default: the first.")]
Score = Annotated[
    Literal["last_five", "last"], typer.Option(help="Mean of the last five evaluations, or last.")
]
Workers = Annotated[int, typer.Option(min=0, help="Runs side by side; 0: one a core.")]
Form = Annotated[
    Literal["table", "markdown", "latex", "csv", "json"],
    typer.Option("--format", help="What to print."),
]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders.")]


def compare_command(
    methods: Words,
    data: Data = None,
    net: NetName = None,
    rounds: Rounds = None,
    spec: Spec = None,
    assignments: Set = None,
    seeds: Seeds = 1,
    baseline: Baseline = None,
    score: Score = "last_five",
    leave_out: LeaveOut = None,
    workers: Workers = 0,
    form: Form = "table",
    runs: Runs = Path("runs"),
) -> None:
    """Run several methods with the same seeds, and set them side by side.

    METHODS are names, with fields of their own after a colon: fedavg fpl fpl:tau=0.05,upcr=0.
    Finished runs are not repeated; after Ctrl-C the same command goes on.
    """
    from protofed.analysis.grid import named_variants
    from protofed.analysis.leave_one_domain_out import EACH

    left = None if leave_out == EACH else leave_out
    flags = {"data.name": data, "net": net, "rounds": rounds, "leave_out": left}
    shared = _shared(spec, assignments, flags)
    if leave_out == EACH:
        if baseline:
            raise typer.BadParameter("--leave-out each has no --baseline")
        run_leave_out_each(
            named_variants(methods, shared), range(seeds), score, workers, form, runs
        )
        return
    _play(named_variants(methods, shared), seeds, baseline, score, workers, form, runs)


def ablate_command(
    method: Name,
    data: Data = None,
    net: NetName = None,
    rounds: Rounds = None,
    spec: Spec = None,
    assignments: Set = None,
    seeds: Seeds = 1,
    score: Score = "last_five",
    workers: Workers = 0,
    form: Form = "table",
    runs: Runs = Path("runs"),
) -> None:
    """Run a method without each of its parts, as its paper does."""
    from protofed.analysis.grid import ablation_variants

    shared = _shared(spec, assignments, {"data.name": data, "net": net, "rounds": rounds})
    rows = ablation_variants(method, shared)
    _play(rows, seeds, rows[-1].label, score, workers, form, runs)


def sweep_command(
    method: Name,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="section.field=a,b,c; several make all combinations."),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--search", help="section.field=low..high; searched on held-out images."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Runs of a --search.")] = 20,
    data: Data = None,
    net: NetName = None,
    rounds: Rounds = None,
    spec: Spec = None,
    assignments: Set = None,
    seeds: Seeds = 1,
    baseline: Baseline = None,
    score: Score = "last_five",
    workers: Workers = 0,
    form: Form = "table",
    runs: Runs = Path("runs"),
) -> None:
    """Run a method with every combination of some values, or search for good ones.

    A --grid is scored on the test images, to show how sensitive a method is. A --search tunes, so
    it never sees them: it is scored on a part of each client's own images.
    """
    from protofed.analysis.grid import grid_variants as combinations

    shared = _shared(spec, assignments, {"data.name": data, "net": net, "rounds": rounds})
    if bool(grid) == bool(ranges):
        raise typer.BadParameter("give either --grid or --search")
    if ranges and (seeds > 1 or workers or baseline or form != "table"):
        raise typer.BadParameter("a --search has none of --seeds, --workers, --baseline, --format")
    if ranges:
        search_with_progress(method, ranges, trials, shared, score, runs)
        return
    _play(combinations(method, grid or [], shared), seeds, baseline, score, workers, form, runs)


def track_command(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)],
    to: Annotated[Path, typer.Option(help="Where the logs go.")] = Path("tensorboard"),
) -> None:
    """Write run folders as TensorBoard logs."""
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
        raise typer.BadParameter("seed: every row runs with the same seeds; say how many: --seeds")
    return raw


def _play(
    variants: Sequence[GridVariant],
    seeds: int,
    baseline: str | None,
    score: Literal["last_five", "last"],
    workers: int,
    form: str,
    runs: Path,
) -> None:
    """Run the grid, then print its table; a run that failed is told, and the rest still counts."""
    from protofed.analysis.comparison_table import compare_records as set_side_by_side
    from protofed.analysis.finished_runs import check_comparable, read_record
    from protofed.analysis.grid import grid_cells
    from protofed.errors import require_known_name

    grid = grid_cells(variants, range(seeds), runs)
    if baseline:
        labels = {variant.label.lower(): variant.label for variant in variants}
        baseline = labels.get(baseline.lower(), baseline)
        require_known_name("baseline", baseline, labels.values())
    faults = run_grid(grid, workers)
    done = [read_record(c.folder, c.label) for c in grid if c.folder not in faults]
    notes = check_comparable(done, free=_free(variants))
    notes += [f"{c.label}, seed {c.seed}: failed" for c in grid if c.folder in faults]
    wanted = baseline or variants[0].label
    lost = wanted not in {record.label for record in done}
    if lost:
        notes.append(f"no differences: {wanted}, which they would be to, failed")
    _print_comparison(set_side_by_side(done, wanted, score, notes, lost), form)
    if faults:
        raise typer.Exit(1)


def _free(variants: Sequence[GridVariant]) -> set[str]:
    """The sections that the variants differ in by intention, and what goes with the method."""
    from protofed.analysis.finished_runs import APART

    sections = {name for variant in variants for name in variant.raw}
    first = variants[0].raw
    differ = {n for n in sections if any(v.raw.get(n) != first.get(n) for v in variants)}
    return {*APART, *differ}


def _print_comparison(table: ComparisonTable, form: str) -> None:
    from protofed.analysis.comparison_table import FORMATS, table_terminal
    from protofed.cli.output import echo_line, print_table

    if form in FORMATS:
        typer.echo(FORMATS[form](table), nl=False)
        return
    head, rows, notes = table_terminal(table)
    print_table(head, rows)
    typer.echo()
    for note in notes:
        echo_line(note)
