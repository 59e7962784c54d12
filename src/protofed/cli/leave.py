"""``--leave-out each``: one run for each domain that is left out, and the table of all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from protofed.cli.grid import run_grid

if TYPE_CHECKING:
    from protofed.study.leave import UnseenScores
    from protofed.study.variants import GridVariant

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
    from protofed.study.collect import read_record
    from protofed.study.leave import leave_each_out, leave_out_label, unseen_scores
    from protofed.study.variants import grid_cells

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


def _print_unseen(found: Sequence[UnseenScores], form: str, rule: str, notes: Sequence[str]) -> None:
    from protofed.cli.show import print_table
    from protofed.study.leave import FORMATS, unseen_footnotes, unseen_summary, unseen_table

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
