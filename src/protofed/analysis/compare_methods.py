"""Compare methods with the same seeds in one call; the command line uses the same steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from protofed.analysis.comparison_table import (
    ComparisonTable,
    compare_records,
    records_by_metric,
)
from protofed.analysis.finished_runs import (
    APART,
    check_comparable,
    label_experiments,
    method_notes,
    read_record,
)
from protofed.analysis.parallel_runs import (
    GridWatcher,
    changed_code_notes,
    check_any_finished,
    process_count,
    run_all,
)
from protofed.analysis.references import reference_variants, with_references
from protofed.analysis.run_process import RunOptions
from protofed.analysis.sweep import GridCell, GridVariant, grid_cells, named_variants
from protofed.core.method import AnyMethod
from protofed.core.training import Training
from protofed.errors import ProtofedError, require_known_name
from protofed.experiment.result import ScoreRule
from protofed.experiment.runner import Workers
from protofed.experiment.stale_code import StaleRule
from protofed.federation.score_metrics import MetricName
from protofed.spec.experiment_spec import ArrayData, Data
from protofed.spec.spec_parser import Raw, parse_experiment, set_value

Faults = dict[Path, str]  # of failed runs, by folder
RunGrid = Callable[[Sequence[GridCell]], Faults]


def compare(
    methods: Sequence[AnyMethod | str],
    data: Data | ArrayData | str = "digits-mini",
    *,
    seeds: int | Sequence[int] = 1,
    rounds: int | None = None,
    net: str | None = None,
    training: Training | None = None,
    settings: Mapping[str, object] | None = None,
    baseline: str | None = None,
    score: ScoreRule | None = None,
    references: bool = False,
    runs: Path | str = "runs",
    workers: Workers = "auto",
    stale: StaleRule = "refuse",
    progress: bool = True,
) -> ComparisonTable:
    """Run methods with the same seeds on the same data, and compare them in one table.

    `methods` are objects, names, or names with settings as on the command line. `settings` holds
    any other fields of the experiment by dotted name. `workers` is how many runs are at work at a
    time, 0 for this process alone. `references` adds each place alone, and the images of all places
    pooled, which no method is tested against. Finished runs are read, interrupted ones resume. A
    run that fails is named in the notes; if all fail, that is an error. ::

        table = compare([FedAvg(), FPL(tau=0.1), "fedprox:mu=0.1"], data="digits", seeds=3)
        table  # in a notebook; or print(table), table.to_frame(), table.to_latex()
    """
    raw: Raw = {"data": data}
    given = {"rounds": rounds, "net": net, "training": training}
    raw |= {name: value for name, value in given.items() if value is not None}
    for field, value in (settings or {}).items():
        raw = set_value(raw, field, value)
    variants = label_variants(methods, raw)
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    count = process_count(workers)

    def play(cells: Sequence[GridCell]) -> Faults:
        if not progress:
            return run_all(cells, count, lambda now: None, RunOptions(stale))
        with GridWatcher() as watch:
            return run_all(cells, count, watch, RunOptions(stale))

    beside = reference_variants(raw) if references else ()
    table, _ = compare_variants(
        variants, numbers, Path(runs), play, baseline, score, references=beside
    )
    return table


def label_variants(methods: Sequence[AnyMethod | str], raw: Raw) -> list[GridVariant]:
    """One row per method; settings are named where a method occurs more than once."""
    if isinstance(methods, str):
        raise ProtofedError(f"give a list of methods, as ['{methods}'], not one text")
    if not methods:
        raise ProtofedError("no methods to compare; name at least one")
    rows = [
        named_variants([method], raw)[0].raw
        if isinstance(method, str)
        else {**raw, "method": method}
        for method in methods
    ]
    labels = label_experiments([parse_experiment(row) for row in rows])
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ProtofedError(f"the same method is named twice: {', '.join(twice)}")
    return [GridVariant(label, row) for label, row in zip(labels, rows, strict=True)]


def compare_variants(
    variants: Sequence[GridVariant],
    seeds: Sequence[int],
    runs: Path,
    play: RunGrid,
    baseline: str | None = None,
    score: ScoreRule | None = None,
    metric: MetricName = "accuracy",
    references: Sequence[GridVariant] = (),
) -> tuple[ComparisonTable, Faults]:
    """Let `play` run every variant with every seed; return the table and the faults of failed runs.

    If every run fails, that is an error. `baseline` is the label of a row, in any case, the first
    by default; if its runs failed there are no differences. `references` are rows of
    `reference_variants`, to which no method is compared by a test.
    """
    if not seeds:
        raise ProtofedError("no seeds to run", hint="give one or more, as <seeds=3>")
    every = [*variants, *references]
    cells = grid_cells(every, seeds, runs)
    base = _baseline_label(baseline, variants)
    faults = play(cells)
    check_any_finished(cells, faults)
    done = [read_record(c.folder, c.label) for c in cells if c.folder not in faults]
    notes = [*check_comparable(done, free=_free_sections(every)), *method_notes(done)]
    notes += changed_code_notes([cell for cell in cells if cell.folder not in faults])
    notes += [
        f"{c.label}, seed {c.seed}: failed: {faults[c.folder].splitlines()[0]}"
        for c in cells
        if c.folder in faults
    ]
    lost = base not in {record.label for record in done}
    if lost:
        notes.append(f"no differences: the baseline, {base}, failed")
    beside = {variant.label for variant in references}
    compared = records_by_metric([r for r in done if r.label not in beside], metric)
    table = compare_records(compared, base, score, notes, lost)
    return with_references(table, [r for r in done if r.label in beside], score), faults


def _baseline_label(typed: str | None, variants: Sequence[GridVariant]) -> str:
    """The label of the row that was named, or of the first."""
    if typed is None:
        return variants[0].label
    labels = {variant.label.lower(): variant.label for variant in variants}
    return require_known_name("baseline", labels.get(typed.lower(), typed), labels.values())


def _free_sections(variants: Sequence[GridVariant]) -> set[str]:
    """The sections in which the variants differ on purpose, and those that follow the method."""
    sections = {name for variant in variants for name in variant.raw}
    first = variants[0].raw
    differ = {n for n in sections if any(v.raw.get(n) != first.get(n) for v in variants)}
    return {*APART, *differ}
