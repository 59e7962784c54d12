"""Runs in, one self-contained HTML page out; the same runs give the same bytes."""

from __future__ import annotations

import base64
import hashlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from protofed.experiment.evaluate import DomainScores
from protofed.report import tables, words
from protofed.report.charts import (
    COLOURS,
    ChartLine,
    CurvePoint,
    chart_frame,
    curve_chart,
    legend_swatch,
)
from protofed.report.confusion import (
    RunConfusion,
    draw_confusion,
    frequent_mistakes,
    matrix_accuracy,
)
from protofed.report.runs import ReportRun
from protofed.study.collect import check_comparable
from protofed.study.formats import table_footnotes
from protofed.study.table import ComparisonTable, Rule, compare_records

FOLDER = resources.files("protofed.report")
Groups = dict[str, list[ReportRun]]  # the seeds of each method, by label


def render_report(
    runs: Sequence[ReportRun],
    confusions: Mapping[Path, RunConfusion] | None = None,
    baseline: str | None = None,
    rule: Rule = "last_five",
    watched: bool = False,
) -> str:
    """The page; a watched one asks for its next version by itself."""
    page = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(_file("template.html.j2"))
    script = _file("page.js")
    return page.render(
        **_content(runs, confusions, _comparison(runs, baseline, rule)),
        style=Markup(_file("style.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        watched=watched,
    )


def _file(name: str) -> str:
    return FOLDER.joinpath(name).read_text(encoding="utf-8")


def _comparison(
    runs: Sequence[ReportRun], baseline: str | None, rule: Rule
) -> ComparisonTable | None:
    """The table of the finished runs, if there are any."""
    records = [run.record for run in runs if run.record]
    if not records:
        return None
    return compare_records(records, baseline, rule, check_comparable(records))


def _content(
    runs: Sequence[ReportRun],
    confusions: Mapping[Path, RunConfusion] | None,
    table: ComparisonTable | None,
) -> dict[str, Any]:
    """All that the template names."""
    groups: Groups = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    slots = {label: place for place, label in enumerate(groups)}
    finished = {label: done for label, own in groups.items() if (done := _finished(own))}
    return {
        "title": words.report_title(list(groups), runs[0].experiment.data.label),
        "progress": words.progress_rows(runs),
        "count": len(runs),
        "headline": words.report_headline(table) if table else "",
        "tiles": words.headline_tiles(table) if table else [],
        "results": tables.results_table(table) if table else None,
        "footnotes": table_footnotes(table) if table else [],
        "legend": [(legend_swatch(slot), label) for label, slot in slots.items()],
        "charts": _charts(groups, slots),
        "bars": tables.domain_bars(table, slots) if table else [],
        "personal": _personal(finished),
        "opinions": tables.auxiliary_table(_finished(runs)) if table else None,
        "confusions": None if confusions is None else _confusions(finished, confusions),
        "notices": words.report_notices(runs),
        "holdings": tables.holdings_table(runs[0]),
        **_cost(groups, slots),
        "changed": words.changed_settings(groups),
        "specs": words.full_specs(groups),
        "world": words.environment_table(runs),
        "provenance": words.provenance_table(runs),
        "commands": words.repeat_commands(runs),
    }


def _finished(runs: Sequence[ReportRun]) -> list[ReportRun]:
    return [run for run in runs if run.record]


def _personal(groups: Mapping[str, Sequence[ReportRun]]) -> list[tables.HtmlTable]:
    made = [tables.client_table(label, own, n) for n, (label, own) in enumerate(groups.items())]
    return [table for table in made if table]


def _cost(groups: Mapping[str, Sequence[ReportRun]], slots: Mapping[str, int]) -> dict[str, Any]:
    """Bytes and seconds, of runs that have at least one round."""
    begun = {label: own for label, runs in groups.items() if (own := [r for r in runs if r.rounds])}
    found = [tables.traffic_parts(own, way) for own in begun.values() for way in tables.UP_AND_DOWN]
    names = dict.fromkeys(name for parts in found for name in parts)
    parts = {name: place % COLOURS for place, name in enumerate(names)}
    return {
        "traffic": tables.traffic_table(begun, parts) if begun else None,
        "parts": [(legend_swatch(slot, line=False), name) for name, slot in parts.items()],
        "seconds": tables.seconds_table(begun, slots) if begun else None,
    }


def _charts(groups: Groups, slots: Mapping[str, int]) -> list[tuple[str, Markup]]:
    """The mean over domains, then each domain, over rounds."""
    scored = [run for own in groups.values() for run in own if run.evaluations]
    if not scored:
        return []
    domains = list(scored[0].evaluations[0].scores.domains)
    made = [("mean over domains", _chart("the mean over domains", groups, slots, _mean))]
    if len(domains) > 1:
        made += [(name, _chart(name, groups, slots, _on(name))) for name in domains]
    return made


Pick = Callable[[DomainScores], float | None]


def _mean(scores: DomainScores) -> float | None:
    return scores.mean


def _on(domain: str) -> Pick:
    return lambda scores: scores.domains.get(domain)


def _chart(name: str, groups: Groups, slots: Mapping[str, int], pick: Pick) -> Markup:
    lines: list[ChartLine] = []
    for label, runs in groups.items():
        done = _finished(runs)
        if done:
            lines.append(ChartLine(label, slots[label], _points(done, pick)))
        for run in runs:
            if not run.record:
                lines.append(ChartLine(run.name, slots[label], _points([run], pick), thin=True))
    lines = [line for line in lines if line.points]
    last = max(run.experiment.rounds for runs in groups.values() for run in runs)
    ends = "; ".join(
        f"{one.label} {one.points[-1].mean:.2f} % after round {one.points[-1].round}"
        for one in lines
    )
    return curve_chart(
        lines, chart_frame(lines, last), f"accuracy on {name} over rounds: {ends or 'none'}"
    )


def _points(runs: Sequence[ReportRun], pick: Pick) -> list[CurvePoint]:
    """The rounds that all these seeds were scored in."""
    by_round: dict[int, list[float]] = {}
    for run in runs:
        for evaluation in run.evaluations:
            value = pick(evaluation.scores)
            if value is not None:
                by_round.setdefault(evaluation.round, []).append(value)
    return [
        CurvePoint(number, statistics.fmean(values), min(values), max(values))
        for number, values in sorted(by_round.items())
        if len(values) == len(runs)
    ]


def _confusions(
    groups: Mapping[str, Sequence[ReportRun]], found: Mapping[Path, RunConfusion]
) -> list[Any]:
    """For each method its runs, the first one open: name, whose model, fault, drawings."""
    return [
        (
            label,
            [(run.seed, found[run.folder], _drawings(found[run.folder])) for run in runs],
        )
        for label, runs in groups.items()
    ]


def _drawings(confusion: RunConfusion) -> list[tuple[str, str, Markup, list[str]]]:
    """Of each domain: its name, the accuracy, the matrix, and the worst mistakes in words."""
    return [
        (
            matrix.domain,
            f"{matrix_accuracy(matrix.counts):.2f} %",
            draw_confusion(matrix, confusion.classes),
            frequent_mistakes(matrix.counts, confusion.classes),
        )
        for matrix in confusion.matrices
    ]
