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

from protofed.experiment.evaluate import Scores
from protofed.report import tables, words
from protofed.report.charts import COLOURS, Line, Point, curves, frame, swatch
from protofed.report.confusion import Confusion, accuracy, draw, mistakes
from protofed.report.runs import Run
from protofed.study.collect import check_comparable
from protofed.study.formats import footnotes
from protofed.study.table import Comparison, Rule, compare

FOLDER = resources.files("protofed.report")
Groups = dict[str, list[Run]]  # the seeds of each method, by label


def render(
    runs: Sequence[Run],
    confusions: Mapping[Path, Confusion] | None = None,
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


def _comparison(runs: Sequence[Run], baseline: str | None, rule: Rule) -> Comparison | None:
    """The table of the finished runs, if there are any."""
    records = [run.record for run in runs if run.record]
    if not records:
        return None
    return compare(records, baseline, rule, check_comparable(records))


def _content(
    runs: Sequence[Run], confusions: Mapping[Path, Confusion] | None, table: Comparison | None
) -> dict[str, Any]:
    """All that the template names."""
    groups: Groups = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    slots = {label: place for place, label in enumerate(groups)}
    finished = {label: done for label, own in groups.items() if (done := _finished(own))}
    return {
        "title": words.title(list(groups), runs[0].experiment.data.label),
        "progress": words.progress(runs),
        "count": len(runs),
        "headline": words.headline(table) if table else "",
        "tiles": words.tiles(table) if table else [],
        "results": tables.results(table) if table else None,
        "footnotes": footnotes(table) if table else [],
        "legend": [(swatch(slot), label) for label, slot in slots.items()],
        "charts": _charts(groups, slots),
        "bars": tables.domain_bars(table, slots) if table else [],
        "personal": _personal(finished),
        "opinions": tables.opinions(_finished(runs)) if table else None,
        "confusions": None if confusions is None else _confusions(finished, confusions),
        "notices": words.notices(runs),
        "holdings": tables.holdings(runs[0]),
        **_cost(groups, slots),
        "changed": words.changed(groups),
        "specs": words.whole_specs(groups),
        "world": words.world(runs),
        "provenance": words.provenance(runs),
        "commands": words.commands(runs),
    }


def _finished(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.record]


def _personal(groups: Mapping[str, Sequence[Run]]) -> list[tables.Table]:
    made = [tables.clients(label, own, n) for n, (label, own) in enumerate(groups.items())]
    return [table for table in made if table]


def _cost(groups: Mapping[str, Sequence[Run]], slots: Mapping[str, int]) -> dict[str, Any]:
    """Bytes and seconds, of runs that have at least one round."""
    begun = {label: own for label, runs in groups.items() if (own := [r for r in runs if r.rounds])}
    found = [tables.traffic_parts(own, way) for own in begun.values() for way in tables.UP_AND_DOWN]
    names = dict.fromkeys(name for parts in found for name in parts)
    parts = {name: place % COLOURS for place, name in enumerate(names)}
    return {
        "traffic": tables.traffic(begun, parts) if begun else None,
        "parts": [(swatch(slot, line=False), name) for name, slot in parts.items()],
        "seconds": tables.seconds(begun, slots) if begun else None,
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


Pick = Callable[[Scores], float | None]


def _mean(scores: Scores) -> float | None:
    return scores.mean


def _on(domain: str) -> Pick:
    return lambda scores: scores.domains.get(domain)


def _chart(name: str, groups: Groups, slots: Mapping[str, int], pick: Pick) -> Markup:
    lines: list[Line] = []
    for label, runs in groups.items():
        done = _finished(runs)
        if done:
            lines.append(Line(label, slots[label], _points(done, pick)))
        for run in runs:
            if not run.record:
                lines.append(Line(run.name, slots[label], _points([run], pick), thin=True))
    lines = [line for line in lines if line.points]
    last = max(run.experiment.rounds for runs in groups.values() for run in runs)
    ends = "; ".join(
        f"{one.label} {one.points[-1].mean:.2f} % after round {one.points[-1].round}"
        for one in lines
    )
    return curves(lines, frame(lines, last), f"accuracy on {name} over rounds: {ends or 'none'}")


def _points(runs: Sequence[Run], pick: Pick) -> list[Point]:
    """The rounds that all these seeds were scored in."""
    by_round: dict[int, list[float]] = {}
    for run in runs:
        for evaluation in run.evaluations:
            value = pick(evaluation.scores)
            if value is not None:
                by_round.setdefault(evaluation.round, []).append(value)
    return [
        Point(number, statistics.fmean(values), min(values), max(values))
        for number, values in sorted(by_round.items())
        if len(values) == len(runs)
    ]


def _confusions(groups: Mapping[str, Sequence[Run]], found: Mapping[Path, Confusion]) -> list[Any]:
    """For each method its runs, the first one open: name, whose model, fault, drawings."""
    return [
        (
            label,
            [(run.seed, found[run.folder], _drawings(found[run.folder])) for run in runs],
        )
        for label, runs in groups.items()
    ]


def _drawings(confusion: Confusion) -> list[tuple[str, str, Markup, list[str]]]:
    """Of each domain: its name, the accuracy, the matrix, and the worst mistakes in words."""
    return [
        (
            matrix.domain,
            f"{accuracy(matrix.counts):.2f} %",
            draw(matrix, confusion.classes),
            mistakes(matrix.counts, confusion.classes),
        )
        for matrix in confusion.matrices
    ]
