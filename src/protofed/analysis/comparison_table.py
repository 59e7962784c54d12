"""Methods x domains over seeds: the table that `compare`, `ablate`, `sweep` and reports show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from protofed.analysis.finished_runs import RunRecord, describe_identical, identical_rows
from protofed.analysis.statistics import (
    FEWEST_BLOCKS,
    FEWEST_RANKED,
    MeanRanks,
    PairedDifference,
    SeedSpread,
    fewest_pairs,
    holm_correction,
    mean_ranks,
    paired_difference,
)
from protofed.errors import ProtofedError, require_known_name
from protofed.experiment.result import RunResult, ScoreRule, choose_rule, mark_unseen
from protofed.federation.score_metrics import LOWER_IS_BETTER, METRIC_LABELS, MetricName
from protofed.runtime.console import format_percent
from protofed.runtime.text_tables import (
    PLAIN_WIDTH,
    Cell,
    RankedCell,
    TableDocument,
    TableFormat,
    TextTable,
    data_frame,
    render_document,
)

if TYPE_CHECKING:
    from pandas import DataFrame

SUMMARIES = ("mean", "worst", "spread")


@dataclass(frozen=True)
class MethodRow:
    """One row of a comparison: a method, or one setting of it, over its seeds; scores in per cent.

    `cells` holds mean and standard deviation over seeds by domain, then under ``mean``, ``worst``
    and ``spread``; None where a domain has no test images. `difference` is the paired difference of
    the means over domains to the baseline, None for the baseline itself and rows identical to it.
    """

    label: str
    seeds: tuple[int, ...]
    digests: tuple[str, ...]
    cells: dict[str, SeedSpread | None]
    difference: PairedDifference | None


@dataclass(frozen=True)
class ComparisonTable:
    """Methods x domains over seeds, with the rule behind the scores and what a reader must know.

    `compare_records` makes it. `to_dict` gives plain data for JSON, `comparison_document` the same
    as text. `baseline` is None if none of its runs finished: then no row has a difference.
    `identical` groups the labels of rows that agree in every score; they count as one method.
    """

    domains: tuple[str, ...]
    rows: tuple[MethodRow, ...]
    baseline: str | None
    rule: str
    ranks: MeanRanks | None
    notes: tuple[str, ...]
    unseen: str | None = None  # the domain that nobody trained on
    identical: tuple[tuple[str, ...], ...] = ()
    metric: MetricName = "accuracy"
    largest: dict[str, float | None] | None = None  # share of the largest class, by column
    references: tuple[MethodRow, ...] = ()  # each place alone, all pooled: no methods to compare

    @property
    def score(self) -> str:
        """What the cells are, in words."""
        return METRIC_LABELS[self.metric]

    @property
    def lower(self) -> bool:
        """Whether low values are good."""
        return self.metric in LOWER_IS_BETTER

    @property
    def tested(self) -> int:
        """How many different methods are compared with the baseline."""
        return len(_distinct([row.label for row in self.rows], self.identical)) - 1

    @property
    def columns(self) -> tuple[str, ...]:
        """Domains, then the summaries over them."""
        return (*self.domains, *SUMMARIES)

    def standing(self, column: str, label: str) -> Literal["best", "second", ""]:
        """Whether a row is the best or second best of a column by what is printed; ties are."""
        printed = {r.label: f"{cell.mean:.2f}" for r in self.rows if (cell := r.cells[column])}
        falling = column != "spread" and not self.lower
        order = sorted(set(printed.values()), key=float, reverse=falling)
        if len(order) < 2 or printed.get(label) not in order[:2]:
            return ""
        return "best" if printed[label] == order[0] else "second"

    def __str__(self) -> str:
        return self.to_text().rstrip("\n")

    def _repr_html_(self) -> str:
        """The table, as a notebook shows it."""
        return self.to_html()

    def to_text(self, form: TableFormat = "terminal") -> str:
        """The table with its footnotes in one of the formats of the command line."""
        return render_document(comparison_document(self), form, width=PLAIN_WIDTH)

    def to_markdown(self) -> str:
        """The table in Markdown, with its footnotes as a list."""
        return self.to_text("markdown")

    def to_latex(self) -> str:
        """The table for LaTeX's booktabs, with its footnotes as comments."""
        return self.to_text("latex")

    def to_html(self) -> str:
        """The table as HTML, with its footnotes as paragraphs."""
        return self.to_text("html")

    def to_frame(self) -> DataFrame:
        """Means over seeds as a pandas DataFrame: a row per method. Needs pandas.

        Columns are the domains, then mean, worst and spread; with a baseline also the paired
        difference to it with its interval and p-value.
        """
        return data_frame({row.label: _frame_row(self, row) for row in self.rows}, "method")

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        rows, references = (
            [_row_content(row) for row in some] for some in (self.rows, self.references)
        )
        found = self.ranks and self.ranks._asdict()
        tables = {"rows": rows, "references": references, "ranks": found}
        return {**asdict(self), **tables, "notes": list(self.notes)}


def _row_content(row: MethodRow) -> dict[str, Any]:
    """A row as plain data, ready for JSON."""
    return {
        **asdict(row),
        "cells": {n: cell and cell._asdict() for n, cell in row.cells.items()},
        "difference": row.difference and row.difference._asdict(),
    }


def _frame_row(table: ComparisonTable, row: MethodRow) -> dict[str, object]:
    cells = {name: cell and cell.mean for name, cell in row.cells.items()}
    if not table.baseline:
        return {**cells, "seeds": len(row.seeds)}
    found = row.difference
    gap = (found.mean, found.low, found.high, found.p) if found else (None,) * 4
    names = ("difference", "difference_low", "difference_high", "p")
    return {**cells, "seeds": len(row.seeds), **dict(zip(names, gap, strict=True))}


def compare_records(
    records: Sequence[RunRecord],
    baseline: str | None = None,
    rule: ScoreRule | None = None,
    notes: Sequence[str] = (),
    lost: bool = False,
) -> ComparisonTable:
    """Compare finished runs: one row per label, one column per domain, paired by seed.

    `baseline` is the label that differences are taken to, the first row if None. `rule` is chosen
    by `choose_rule` if None. With `lost` there are no differences, because the runs of the baseline
    failed and no other row may replace it. `notes` are printed under the table. ::

        records = [read_record(folder) for folder in Path("runs").iterdir()]
        table = compare_records(records, baseline="FedAvg")
    """
    labels = list(dict.fromkeys(record.label for record in records))
    base = None if lost else require_known_name("baseline", baseline or labels[0], labels)
    of = {label: {r.seed: r.result for r in records if r.label == label} for label in labels}
    if sum(map(len, of.values())) < len(records):
        raise ProtofedError("two runs of one row have the same seed: label them apart")
    chosen = choose_rule((record.result for record in records), rule)
    same = identical_rows(records)
    return ComparisonTable(
        domains=tuple(records[0].result.last.domains),
        rows=tuple(_rows(of, base, chosen, same)),
        baseline=base,
        rule=_rule(records, chosen),
        ranks=_ranks({label: of[label] for label in _distinct(labels, same)}, chosen),
        notes=tuple(notes),
        unseen=records[0].experiment.leave_out,
        identical=same,
        metric=records[0].result.metric,
        largest=_largest(records),
    )


def records_by_metric(records: Sequence[RunRecord], metric: MetricName) -> list[RunRecord]:
    """The records with another score in place of accuracy, for tables and figures of it."""
    return [record._replace(result=record.result.by_metric(metric)) for record in records]


def _largest(records: Sequence[RunRecord]) -> dict[str, float | None] | None:
    """By column, what a constant answer would score, as a mean over seeds; of accuracy alone."""
    found = {record.seed: record.result.largest_shares for record in records}
    shares = [scores for scores in found.values() if scores is not None]
    if len(shares) < len(found) or records[0].result.metric != "accuracy":
        return None
    values = {name: [s.domains.get(name) for s in shares] for name in shares[0].domains}
    values |= {name: [getattr(s, name) for s in shares] for name in SUMMARIES}
    spreads = {name: _spread(column) for name, column in values.items()}
    return {name: spread and spread.mean for name, spread in spreads.items()}


Groups = Sequence[Sequence[str]]  # labels of rows that are identical


def _first_of(label: str, same: Groups) -> str:
    """The row that stands for a row: the first of its group, or itself."""
    return next((group[0] for group in same if label in group), label)


def _distinct(labels: Sequence[str], same: Groups) -> list[str]:
    """The labels without those of rows that repeat another one."""
    return [label for label in labels if _first_of(label, same) == label]


def _rows(
    of: Mapping[str, Mapping[int, RunResult]], base: str | None, rule: ScoreRule, same: Groups
) -> list[MethodRow]:
    """All rows; each is compared with the baseline unless it is the baseline or a copy of it."""
    tests = len(_distinct(list(of), same)) - 1
    rows = []
    for label, runs in of.items():
        copy = base is not None and _first_of(label, same) == _first_of(base, same)
        rows.append(_row(label, runs, None if base is None or copy else of[base], rule, tests))
    return _corrected(rows, same)


def _row(
    label: str,
    runs: Mapping[int, RunResult],
    base: Mapping[int, RunResult] | None,
    rule: ScoreRule,
    tests: int,
) -> MethodRow:
    """A row from a method's runs by seed, and from the baseline's if it is another one."""
    scores = {seed: run.scores(rule) for seed, run in sorted(runs.items())}
    domains = next(iter(scores.values())).domains
    values = {name: [s.domains[name] for s in scores.values()] for name in domains}
    values |= {name: [getattr(s, name) for s in scores.values()] for name in SUMMARIES}
    means = [(s.mean, _mean(base, seed, rule)) for seed, s in scores.items()]
    pairs = [(ours, theirs) for ours, theirs in means if ours is not None and theirs is not None]
    return MethodRow(
        label=label,
        seeds=tuple(scores),
        digests=tuple(runs[seed].digest[:12] for seed in scores),
        cells={name: _spread(column) for name, column in values.items()},
        difference=paired_difference([a for a, _ in pairs], [b for _, b in pairs], tests)
        if pairs
        else None,
    )


def _mean(runs: Mapping[int, RunResult] | None, seed: int, rule: ScoreRule) -> float | None:
    """The mean over domains of the run with a seed, if there is one."""
    return runs[seed].scores(rule).mean if runs and seed in runs else None


def _rule(records: Sequence[RunRecord], rule: ScoreRule) -> str:
    """The rule in words; rows that took their scores by different ones are refused."""
    found = {record.result.rules[rule]: record.label for record in records}
    if len(found) > 1:
        rules = "; ".join(f"{label}: {words}" for words, label in found.items())
        lacking = "repeat the runs that lack the score of a site"
        raise ProtofedError(
            f"scores taken by different rules ({rules})",
            hint="use <score=last>" if rule == "last_five" else lacking,
        )
    return next(iter(found))


def _spread(values: Sequence[float | None]) -> SeedSpread | None:
    known = [value for value in values if value is not None]
    return SeedSpread.of(known) if known else None


def _corrected(rows: Sequence[MethodRow], same: Groups) -> list[MethodRow]:
    """The rows with p-values that count how many methods were tested against the baseline.

    A row that repeats another one is no test of its own and has the p-value of the other.
    """
    found = {row.label: row.difference.p for row in rows if row.difference}
    tested = _distinct(list(found), same)
    ps = dict(zip(tested, holm_correction([found[label] for label in tested]), strict=True))
    return [
        replace(row, difference=row.difference._replace(p=ps[_first_of(row.label, same)]))
        if row.difference
        else row
        for row in rows
    ]


def _ranks(of: Mapping[str, Mapping[int, RunResult]], rule: ScoreRule) -> MeanRanks | None:
    """Mean ranks over seeds by AVG, of methods that all have the same seeds and a score in each.

    The domains are no repeats: they share the training of their run, so its luck shows in all.
    """
    seeds = sorted(next(iter(of.values())))
    unlike = any(sorted(runs) != seeds for runs in of.values())  # with other seeds, another mean
    if len(of) < FEWEST_RANKED or len(seeds) < 2 or unlike:
        return None
    means = {label: [runs[seed].scores(rule).mean for seed in seeds] for label, runs in of.items()}
    known = {label: [m for m in line if m is not None] for label, line in means.items()}
    return mean_ranks(known) if known == means else None


LARGEST = "largest class"
LEAST_P = 0.001  # that is printed as a number
HEADS = {"mean": "AVG", "worst": "worst", "spread": "spread"}


def format_spread(value: SeedSpread | None) -> str:
    """Mean and standard deviation over seeds as text, in per cent.

    ``61.15`` for one seed, ``61.15 ± 0.42`` for several, ``-`` if there is no score.
    """
    if value is None:
        return "-"
    return f"{value.mean:.2f}" if value.std is None else f"{value.mean:.2f} ± {value.std:.2f}"


def spread_numbers(value: SeedSpread | None) -> list[str]:
    """Mean and standard deviation with all digits, for programs that read CSV.

    Two strings; both are empty if there is no score, the second for a single seed.
    """
    return ["" if number is None else str(number) for number in value or (None, None)]


def format_difference(value: PairedDifference | None) -> str:
    """The paired difference to the baseline and its 95 % interval: ``+1.20 [+0.30, +2.10]``.

    A single pair has no interval: ``+1.20``. The baseline's own cell is empty.
    """
    if value is None:
        return ""
    if value.low is None or value.high is None:
        return f"{value.mean:+.2f}"
    return f"{value.mean:+.2f} [{value.low:+.2f}, {value.high:+.2f}]"


def format_p_value(value: PairedDifference | None) -> str:
    """The p-value of the paired test, ``p = 0.031``, or why there is none.

    With too few pairs the test cannot reach 5 %, so no number is printed that would look like one.
    """
    if value is None:
        return ""
    return "too few seeds to test" if value.p is None else _p_value(value.p)


def _p_value(p: float) -> str:
    return "p < 0.001" if p < LEAST_P else f"p = {p:.3f}"


def table_header(table: ComparisonTable) -> list[str]:
    """The column heads: method, domains, AVG, worst, spread; with a baseline, difference and test.

    A domain that was left out of training is marked, as ``sketch (unseen)``.
    """
    columns = [HEADS.get(name, mark_unseen(name, table.unseen)) for name in table.columns]
    return ["method", *columns, *([f"to {table.baseline}", "test"] if table.baseline else [])]


def table_row(table: ComparisonTable, row: MethodRow) -> list[str]:
    """The cells of one row as text, as many as `table_header` has heads.

    A row that agrees with the baseline in every score is called identical instead of compared.
    """
    cells = [format_spread(row.cells[name]) for name in table.columns]
    if not table.baseline:
        return [row.label, *cells]
    first = _first_of(table.baseline, table.identical)
    copy = row.label != table.baseline and _first_of(row.label, table.identical) == first
    difference = "identical" if copy else format_difference(row.difference)
    return [row.label, *cells, difference, format_p_value(row.difference)]


def largest_row(table: ComparisonTable) -> list[str]:
    """The last row, which no method made: the share of the largest class; empty if unknown."""
    if table.largest is None:
        return []
    cells = [format_percent(table.largest.get(name)) for name in table.columns]
    return [LARGEST, *cells, *([""] * (len(table_header(table)) - len(cells) - 1))]


def table_footnotes(table: ComparisonTable) -> list[str]:
    """The lines under the table: rule, seeds, statistics, notes, and the digests of the runs.

    A table without them cannot be checked, so every text format prints them.
    """
    seeds = sorted({seed for row in table.rows for seed in row.seeds})
    count = f"{len(seeds)} seed{'s' * (len(seeds) > 1)} ({', '.join(map(str, seeds))})"
    several = len(seeds) > 1
    deviation = ", ± standard deviation over seeds" if several else ""
    notes = [f"{table.score} in %, {table.rule}; {count}{deviation}"]
    if table.largest:
        notes.append(f"{LARGEST}: share of the test images, what a constant answer would score")
    if table.tested and several and table.baseline:
        notes.append(
            f"to {table.baseline}: paired by seed, 95 % interval (Student's t); test: Wilcoxon "
            f"signed rank, Holm-corrected, from {fewest_pairs(table.tested)} seeds on"
        )
    notes += [describe_ranks(table.ranks)] if table.ranks else []
    notes += describe_identical(table.identical)
    every = (*table.rows, *table.references)
    runs = "; ".join(f"{row.label} {' '.join(row.digests)}" for row in every)
    return [*notes, *table.notes, f"runs: {runs}"]


def describe_ranks(ranks: MeanRanks) -> str:
    """The mean ranks in one line, with Friedman's test or with what it needs.

    Nemenyi's distance between ranks is given only if Friedman's test has found a difference.
    """
    means = ", ".join(f"{label} {rank:.2f}" for label, rank in ranks.means.items())
    told = f"mean rank by AVG over {ranks.blocks} seeds: {means}"
    if ranks.p is None:
        return f"{told}; tested from {FEWEST_BLOCKS} seeds on"
    if ranks.critical is None:
        return f"{told}; no difference found (Friedman {_p_value(ranks.p)})"
    return (
        f"{told}; methods differ at 5 % if further apart than {ranks.critical:.2f} "
        f"(Nemenyi; Friedman {_p_value(ranks.p)})"
    )


def comparison_document(table: ComparisonTable) -> TableDocument:
    """The table as text with its footnotes; the two best of each column are marked.

    CSV has one line per method and column: method, column, mean, std, seeds, rule.
    """
    rows = [_ranked_row(table, row) for row in table.rows]
    rows += [[*table_row(table, row)] for row in table.references]
    if last := largest_row(table):
        rows.append([*last])
    return TableDocument(
        tables=[TextTable(table_header(table), rows, line_before=len(table.rows))],
        content=table.to_dict(),
        notes=table_footnotes(table),
        records=_records(table),
    )


def _ranked_row(table: ComparisonTable, row: MethodRow) -> list[Cell]:
    label, *cells = table_row(table, row)
    scored = len(table.columns)
    ranked = [
        RankedCell(text, table.standing(name, row.label))
        for name, text in zip(table.columns, cells[:scored], strict=True)
    ]
    return [label, *ranked, *cells[scored:]]


def _records(table: ComparisonTable) -> TextTable:
    rows = [
        [row.label, name, *spread_numbers(row.cells[name]), str(len(row.seeds)), table.rule]
        for row in (*table.rows, *table.references)
        for name in table.columns
    ]
    return TextTable(["method", "column", "mean", "std", "seeds", "rule"], rows)
