"""The tables of the page, as plain rows of cells that the template writes out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from protofed.core.disk import format_bytes
from protofed.experiment.result import mark_unseen
from protofed.report.charts import score_bar, stacked_bar
from protofed.report.runs import ReportRun
from protofed.study.formats import format_spread as scored
from protofed.study.formats import table_header, table_row
from protofed.study.table import ComparisonTable

SHADES = 9  # of a cell's background
MOST_CLASSES = 20  # with a column of their own
UP_AND_DOWN = {"up": "bytes_up", "down": "bytes_down"}


class TableCell(NamedTuple):
    """One cell: its text (a drawing is Markup), what it sorts by, and how it looks."""

    text: str
    key: float | None = None
    look: str = ""
    title: str = ""


class HtmlTable(NamedTuple):
    """A table; the first cell of a row is the row's head."""

    id: str
    caption: str
    head: list[str]
    rows: list[list[TableCell]]

    def numeric(self, place: int) -> bool:
        """Whether a column holds numbers."""
        return any(row[place].key is not None for row in self.rows)


def results_table(table: ComparisonTable) -> HtmlTable:
    """The comparison, as every other format prints it; best and second best are marked."""
    rows = []
    for row in table.rows:
        cells = [TableCell(text) for text in table_row(table, row)]
        for place, name in enumerate(table.columns, start=1):
            value, look = row.cells[name], table.standing(name, row.label)
            cells[place] = TableCell(cells[place].text, value.mean if value else None, look)
        if row.difference:
            cells[-2] = TableCell(cells[-2].text, row.difference.mean)
        rows.append(cells)
    shown = len(rows[0]) if len(rows) > 1 else -2  # one method: nothing to compare it with
    caption, head = "Accuracy in % by method and domain", table_header(table)[:shown]
    return HtmlTable("results-table", caption, head, [cells[:shown] for cells in rows])


def domain_bars(
    table: ComparisonTable, slots: Mapping[str, int]
) -> list[tuple[str, list[tuple[str, str, Markup]]]]:
    """For each domain the methods: label, score, bar."""
    made = []
    for name in table.domains:
        found = [(row.label, row.cells[name]) for row in table.rows]
        bars = [
            (
                label,
                scored(value),
                score_bar(value.mean, slots[label], value.std) if value else Markup(),
            )
            for label, value in found
        ]
        made.append((mark_unseen(name, table.unseen), bars))
    return made


def client_table(label: str, runs: Sequence[ReportRun], place: int) -> HtmlTable | None:
    """Each client's own model on every domain, mean over seeds; none for one shared model."""
    found = [run.record.result.clients for run in runs if run.record]
    tables = [table for table in found if table]
    if not tables:
        return None
    homes = {str(part["client"]): str(part["domain"]) for part in runs[0].parts}
    domains = list(runs[0].evaluations[-1].scores.domains)
    rows = []
    for client in dict.fromkeys(name for table in tables for name in table):
        home, line_of = homes.get(client, ""), [table.get(client, {}) for table in tables]
        cells = [TableCell(f"client {client}"), TableCell(home)]
        for domain in domains:
            value = _mean_of_known(row.get(domain) for row in line_of)
            cells.append(_shaded(value, 100.0, "home" if domain == home else ""))
        rows.append(cells)
    caption = f"{label}: each client's own model on every domain, in %, last round"
    caption += f", mean over {len(tables)} seeds" if len(tables) > 1 else ""
    return HtmlTable(f"clients-{place}", caption, ["client", "own domain", *domains], rows)


def auxiliary_table(runs: Sequence[ReportRun]) -> HtmlTable | None:
    """The other predictors of methods that have some, after the last round."""
    rows, domains = [], list(runs[0].record.result.last.domains) if runs[0].record else []
    for run in runs:
        for name, scores in run.record.result.opinions.items() if run.record else ():
            values = [*(scores.domains.get(domain) for domain in domains), scores.mean]
            rows.append([TableCell(f"{run.name}: {name}"), *(_shaded(v, 100.0) for v in values)])
    caption = "Other predictors of the same models, in %, last round"
    return HtmlTable("opinions", caption, ["predictor", *domains, "AVG"], rows) if rows else None


def holdings_table(run: ReportRun) -> HtmlTable | None:
    """How many images of each class every client holds."""
    if not run.parts:
        return None
    names = list(dict.fromkeys(str(name) for part in run.parts for name in part["held"]))
    names = sorted(names, key=_counting) if len(names) <= MOST_CLASSES else []
    most = max((n for part in run.parts for n in part["held"].values()), default=1)
    rows = []
    for part in run.parts:
        held: dict[str, int] = part["held"]
        total = sum(held.values())
        cells = [TableCell(f"client {part['client']}"), TableCell(str(part["domain"]))]
        cells += [TableCell(str(total), total), TableCell(str(len(held)), len(held))]
        rows.append(cells + [_counted(held.get(name, 0), most) for name in names])
    caption = f"Training images of each client by class (seed {run.seed})"
    head = ["client", "domain", "images", "classes", *names]
    return HtmlTable("holdings", caption, head, rows)


def _counting(name: str) -> tuple[float, str]:
    """Order numbers as people count them, before all other names."""
    return (int(name) if name.isdecimal() else math.inf), name


def traffic_parts(runs: Sequence[ReportRun], way: str) -> dict[str, float]:
    """Bytes per round by part, mean over rounds and seeds."""
    lines = [line for run in runs for line in run.rounds]
    sums: dict[str, float] = {}
    for one in lines:
        for name, count in one["parts"][way].items():
            sums[name] = sums.get(name, 0) + count
    return {name: count / len(lines) for name, count in sums.items() if count}


def traffic_table(groups: Mapping[str, Sequence[ReportRun]], slots: Mapping[str, int]) -> HtmlTable:
    """What crosses the wire in a round, all clients together, by part."""
    found = {
        (label, way): traffic_parts(runs, way)
        for label, runs in groups.items()
        for way in UP_AND_DOWN
    }
    longest = max((sum(parts.values()) for parts in found.values()), default=0.0)
    rows = []
    for (label, way), parts in found.items():
        each = sum(parts.values())
        words = (
            ", ".join(f"{name} {format_bytes(count)}" for name, count in parts.items()) or "nothing"
        )
        whole = _mean_of_known(sum(one[UP_AND_DOWN[way]] for one in run.rounds) for run in groups[label])
        rows.append(
            [
                TableCell(label),
                TableCell({"up": "clients to server", "down": "server to clients"}[way]),
                TableCell(stacked_bar(parts, slots, longest), each),
                TableCell(words, each),
                TableCell(format_bytes(each), each, title=f"{each:,.0f} bytes"),
                TableCell(format_bytes(whole or 0.0), whole, title=f"{whole or 0:,.0f} bytes"),
            ]
        )
    head = ["method", "direction", "per round", "parts", "a round", "whole run"]
    return HtmlTable("traffic", "Bytes on the wire, all clients together", head, rows)


def seconds_table(groups: Mapping[str, Sequence[ReportRun]], slots: Mapping[str, int]) -> HtmlTable:
    """How long rounds take, without scoring."""
    times = {
        label: [float(line["seconds"]) for run in runs for line in run.rounds]
        for label, runs in groups.items()
    }
    middles = {label: statistics.median(own) for label, own in times.items() if own}
    longest = max(middles.values(), default=0.0) or 1.0
    rows = [
        [
            TableCell(label),
            TableCell(score_bar(100 * middle / longest, slots[label]), middle),
            TableCell(f"{middle:.2f} s", middle),
            TableCell(f"{max(times[label]):.2f} s", max(times[label])),
            TableCell(f"{sum(times[label]) / len(groups[label]):.1f} s", sum(times[label])),
        ]
        for label, middle in middles.items()
    ]
    head = ["method", "per round", "median round", "slowest round", "whole run"]
    return HtmlTable(
        "seconds", "Seconds of training and merging on the machine of each run", head, rows
    )


def _mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _shaded(value: float | None, whole: float, look: str = "") -> TableCell:
    if value is None:
        return TableCell("-")
    shade = min(SHADES, max(0, round(SHADES * value / whole)))
    return TableCell(f"{value:.2f}", value, f"s{shade} {look}".strip())


def _counted(count: int, most: int) -> TableCell:
    return TableCell(str(count), count, f"s{round(SHADES * count / most)}" if count else "none")
