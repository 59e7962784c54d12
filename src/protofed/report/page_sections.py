"""The parts of the page: its sentences and its tables."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from protofed.analysis.comparison_table import (
    ComparisonTable,
    MethodRow,
    format_difference,
    largest_row,
    table_header,
    table_row,
)
from protofed.analysis.comparison_table import format_spread as scored
from protofed.analysis.statistics import PairedDifference
from protofed.errors import join_words
from protofed.experiment.model_card import repeat_command
from protofed.experiment.result import mark_unseen
from protofed.federation.evaluation import Evaluation
from protofed.federation.remote_sites import counts_kept_back
from protofed.federation.score_metrics import (
    METRIC_LABELS,
    METRICS,
    Estimate,
    class_scores,
    estimate_metric,
    format_estimate,
    largest_share,
)
from protofed.report.charts import score_bar, stacked_bar
from protofed.report.load_runs import ReportRun, spec_texts
from protofed.runtime.atomic_io import format_bytes
from protofed.runtime.code_reference import NO_CODE
from protofed.runtime.console import format_percent
from protofed.spec.experiment_spec import Experiment
from protofed.spec.spec_parser import parse_experiment

MOST_NAMED = 4  # methods in a title


def report_title(labels: Sequence[str], data: str) -> str:
    """The title of the page: ``FedAvg, FedProx and FPL on digits-mini``.

    More than four methods are counted instead of named.
    """
    named = join_words(labels) if len(labels) <= MOST_NAMED else f"{len(labels)} methods"
    return f"{named} on {data}"


def _row_mean(row: MethodRow) -> float:
    value = row.cells["mean"]
    return round(value.mean, 2) if value else 0.0


def worst_domain(table: ComparisonTable, row: MethodRow) -> tuple[str, float]:
    """The domain on which a method scores lowest, and that score.

    ``("none", 0.0)`` if no domain has a score.
    """
    scores = {name: value.mean for name in table.domains if (value := row.cells[name])}
    worse = max if table.lower else min
    return worse(scores.items(), key=lambda item: item[1], default=("none", 0.0))


def report_headline(table: ComparisonTable) -> str:
    """The main result in one sentence: the best method, its worst domain, and the margin.

    A tie is called one, and a difference that may be chance is qualified as such.
    """
    order = sorted(table.rows, key=_row_mean, reverse=not table.lower)
    best, rule = order[0], table.rule
    domain, score = worst_domain(table, best)
    reached = f"{_row_mean(best):.2f} % mean {table.score} over {len(table.domains)} domains"
    reached += f" ({rule})"
    low = f"it does worst on {domain} ({score:.2f} %)"
    if len(order) == 1:
        return f"{best.label} reaches {reached}; {low}."
    level = [row.label for row in order if _row_mean(row) == _row_mean(best)]
    if tuple(level) in table.identical:
        return f"{join_words(level)} are identical in every score, with {reached}; {low}."
    if len(level) > 1:
        return f"{join_words(level)} are level with {reached}; {best.label} does worst on {domain}."
    other = order[1] if best.label == table.baseline else best
    subject = f"{other.label}, the next one, is" if other is not best else "that is"
    count = f"{best.label} is the best of {len(order)} methods with {reached}; {low}"
    return f"{count}; {subject} {describe_difference(other.difference, table.baseline)}."


def describe_difference(value: PairedDifference | None, baseline: str | None) -> str:
    """A difference to the baseline in words, with its interval.

    ``1.20 points above FedAvg (95 % interval +0.30 to +2.10)``. Says so if the interval includes
    zero, if there is one seed only, or if no seeds are shared.
    """
    if value is None:
        return f"without a seed in common with {baseline}"
    side = "above" if value.mean >= 0 else "below"
    points = f"{abs(value.mean):.2f} points {side} {baseline}"
    if value.low is None or value.high is None:
        return f"{points} (one seed: no interval)"
    span = f"95 % interval {value.low:+.2f} to {value.high:+.2f}"
    clear = value.low > 0 or value.high < 0
    return f"{points} ({span}{'' if clear else ', which includes no difference at all'})"


def headline_tiles(table: ComparisonTable) -> list[tuple[str, str]]:
    """The main results as a few large numbers, each with its meaning.

    Best mean, worst domain of that method and, if there is a baseline, the difference to it.
    """
    best = (min if table.lower else max)(table.rows, key=_row_mean)
    domain, score = worst_domain(table, best)
    found = [
        (f"{_row_mean(best):.2f} %", f"best mean: {best.label}"),
        (f"{score:.2f} %", f"its worst domain: {domain}"),
    ]
    if best.difference:
        seeds = best.difference.pairs
        text = format_difference(best.difference).partition(" ")
        note = f"95 % interval {text[2]}" if text[2] else "one seed: no interval"
        found.append((f"{text[0]}", f"points to {table.baseline}; {note}"))
        found.append((str(seeds), "seeds behind the difference" if seeds > 1 else "seed"))
    return found


def progress_rows(runs: Sequence[ReportRun]) -> list[tuple[str, int, int, str]]:
    """For each unfinished run: name, rounds finished, rounds in total, and its latest score."""
    return [
        (run.name, run.at, run.experiment.rounds, _newest(run)) for run in runs if not run.record
    ]


def _newest(run: ReportRun) -> str:
    mean = run.evaluations[-1].scores.mean if run.evaluations else None
    return "not scored yet" if mean is None else f"mean {METRIC_LABELS[run.metric]} {mean:.2f} %"


def report_notices(runs: Sequence[ReportRun]) -> list[tuple[str, str]]:
    """What readers of the scores must know, each with the methods that it applies to.

    The second text is empty for notices that apply to all.
    """
    methods: dict[str, list[str]] = {}
    labels = {run.label for run in runs if run.record}
    for run in runs:
        caveat = run.experiment.method.info.caveat
        own = [*(run.record.result.notices if run.record else ()), *([caveat] if caveat else [])]
        for notice in own:
            names = methods.setdefault(str(notice), [])
            names.extend([run.label] * (run.label not in names))
    return [(text, "" if set(of) == labels else join_words(of)) for text, of in methods.items()]


def _specs(experiment: Experiment) -> tuple[dict[str, str], dict[str, str]]:
    """The spec, and the default spec of the same method on the same data."""
    spec = experiment.to_dict()
    images = spec["data"]  # of a folder, the recorded values: the folder may be gone
    data = images if isinstance(images["revision"], str) else {"name": images["name"]}
    given = {"data": data, "method": {"name": spec["method"]["name"]}}
    default = parse_experiment(given, access=NO_CODE)
    return spec_texts(experiment.flat_fields()), spec_texts(default.flat_fields())


def _without_null(table: Mapping[str, str]) -> dict[str, str]:
    return {field: value for field, value in table.items() if value != "null"}


def changed_settings(groups: Mapping[str, Sequence[ReportRun]]) -> HtmlTable:
    """The settings that differ from the defaults, without the seed.

    Fields outside `method` and `public` are equal in all runs and are listed once, for "all".
    """
    rows = []
    for place, (label, runs) in enumerate(groups.items()):
        spec, default = (_without_null(table) for table in _specs(runs[0].experiment))
        for field in dict.fromkeys([*spec, *default]):
            own = field.startswith(("method.", "public."))  # the rest is the same in all runs
            differs = field != "seed" and spec.get(field) != default.get(field)
            if differs and (own or not place):
                values = (spec.get(field, "not set"), default.get(field, "not set"))
                rows.append(
                    [TableCell(field), *map(TableCell, values), TableCell(label if own else "all")]
                )
    head = ["field", "here", "default", "methods"]
    return HtmlTable("changed", "Where the runs differ from the defaults", head, rows)


def full_specs(groups: Mapping[str, Sequence[ReportRun]]) -> list[tuple[str, str]]:
    """The complete spec of each method as JSON, for its first seed.

    Each with a heading, to be shown folded.
    """
    return [
        (f"{label}, seed {runs[0].seed}", json.dumps(runs[0].experiment.to_dict(), indent=2))
        for label, runs in groups.items()
    ]


def provenance_table(runs: Sequence[ReportRun]) -> HtmlTable:
    """The run folders with method, seed, digest, code fingerprint and state."""
    rows = [
        [
            TableCell(str(run.folder)),
            TableCell(run.label),
            TableCell(str(run.seed), run.seed),
            TableCell(run.experiment.digest[:12], title=run.experiment.digest),
            TableCell(str(run.world.get("fingerprint", "-"))[:12]),
            TableCell("finished" if run.record else f"round {run.at} of {run.experiment.rounds}"),
        ]
        for run in runs
    ]
    return HtmlTable(
        "runs", "Run folders", ["run folder", "method", "seed", "digest", "code", "state"], rows
    )


def environment_table(runs: Sequence[ReportRun]) -> HtmlTable:
    """Versions and data fingerprints of the runs.

    Values that differ between runs are listed together.
    """
    found: dict[str, list[str]] = {}
    for run in runs:
        world = {key: value for key, value in run.world.items() if key != "code"}  # many files
        for key, value in spec_texts(world).items():
            values = found.setdefault(key.replace("data.", "images of ", 1), [])
            values.extend([value] * (value not in values))
    rows = [[TableCell(key), TableCell(", ".join(values))] for key, values in found.items()]
    return HtmlTable("world", "Environment", ["what", "which"], rows)


def repeat_commands(runs: Sequence[ReportRun]) -> list[str]:
    """The commands that repeat the runs, one per run folder.

    Each writes to a new folder next to the old one.
    """
    return [repeat_command(run.folder, run.experiment) for run in runs]


SHADES = 9  # of a cell's background
MOST_CLASSES = 20  # with a column of their own
UP_AND_DOWN = {"up": "bytes_up", "down": "bytes_down"}


class TableCell(NamedTuple):
    """One cell of a table.

    `text` may be Markup for a drawing; `key` is the number to sort by, `look` a list of CSS
    classes, `title` a tooltip.
    """

    text: str
    key: float | None = None
    look: str = ""
    title: str = ""


class HtmlTable(NamedTuple):
    """A table with a caption and column heads; the first cell of a row is the row's head.

    The template renders it; columns with sort keys can be sorted by clicking.
    """

    id: str
    caption: str
    head: list[str]
    rows: list[list[TableCell]]

    def numeric(self, place: int) -> bool:
        """Whether a column holds numbers, and so is aligned and sorted as such."""
        return any(row[place].key is not None for row in self.rows)


def results_table(table: ComparisonTable) -> HtmlTable:
    """The comparison of methods, as all other formats print it; best and second best are marked.

    With a single method, the columns for the difference to a baseline are left out.
    """
    rows = []
    for row in table.rows:
        cells = [TableCell(text) for text in table_row(table, row)]
        for place, name in enumerate(table.columns, start=1):
            value, look = row.cells[name], table.standing(name, row.label)
            cells[place] = TableCell(cells[place].text, value.mean if value else None, look)
        if row.difference:
            cells[-2] = TableCell(cells[-2].text, row.difference.mean)
        rows.append(cells)
    shown = len(rows[0]) if len(table.rows) > 1 else -2  # one method: nothing to compare it with
    if last := largest_row(table):
        rows.append([TableCell(text) for text in last])
    name = table.score[0].upper() + table.score[1:]
    caption, head = f"{name} in % by method and domain", table_header(table)[:shown]
    return HtmlTable("results-table", caption, head, [cells[:shown] for cells in rows])


def domain_bars(
    table: ComparisonTable, slots: Mapping[str, int]
) -> list[tuple[str, list[tuple[str, str, Markup]]]]:
    """For each domain its name and one bar per method: label, score as text, drawing.

    A domain that was left out of training is marked in its name.
    """
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


def score_tables(runs: Sequence[ReportRun]) -> list[HtmlTable]:
    """Every metric of each run by domain, and each class against all others, last round.

    Runs without counts of answers have none; of many classes only the domains are shown.
    """
    made = []
    for place, run in enumerate(runs):
        last = run.evaluations[-1]
        if last.counts:
            made.append(_metrics_by_domain(run, last, f"metrics-{place}"))
            if last.classes and len(last.classes) <= MOST_CLASSES:
                made.append(_scores_by_class(run, last, f"classes-{place}"))
    return made


def _metrics_by_domain(run: ReportRun, last: Evaluation, name: str) -> HtmlTable:
    rows = []
    for domain, counts in last.counts.items():
        share, images = largest_share(counts), counts.total // counts.models
        cells = [_estimated(estimate_metric(metric, counts)) for metric in METRICS]
        cells.append(TableCell(format_percent(share), share))
        rows.append([TableCell(domain), *cells, TableCell(str(images), images)])
    head = ["domain", *(METRIC_LABELS[metric] for metric in METRICS), "largest class", "images"]
    return HtmlTable(name, f"{run.name}: scores by domain", head, rows)


def _scores_by_class(run: ReportRun, last: Evaluation, name: str) -> HtmlTable:
    rows = []
    for domain, counts in last.counts.items():
        for label, found, images in zip(
            last.classes, class_scores(counts), counts.images, strict=True
        ):
            n = images // counts.models
            cells = [TableCell(domain), TableCell(label), *map(_estimated, found)]
            rows.append([*cells, TableCell(str(n), n)])
    head = ["domain", "class", "sensitivity", "specificity", "PPV", "NPV", "AUROC", "images"]
    return HtmlTable(name, f"{run.name}: each class against all others", head, rows)


def _estimated(found: Estimate) -> TableCell:
    return TableCell(format_estimate(found), found.value)


def client_table(label: str, runs: Sequence[ReportRun], place: int) -> HtmlTable | None:
    """The scores of each client's own model on every domain, as means over seeds.

    None for methods with one model for all. `place` makes the table's id unique on the page.
    """
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
    """The scores of auxiliary predictions, such as those by nearest prototype.

    After the last round, a row per run and predictor. None if no method has any.
    """
    rows, domains = [], list(runs[0].record.result.last.domains) if runs[0].record else []
    for run in runs:
        for name, scores in run.record.result.opinions.items() if run.record else ():
            values = [*(scores.domains.get(domain) for domain in domains), scores.mean]
            rows.append([TableCell(f"{run.name}: {name}"), *(_shaded(v, 100.0) for v in values)])
    caption = "Other predictors of the same models, in %, last round"
    return HtmlTable("opinions", caption, ["predictor", *domains, "AVG"], rows) if rows else None


def holdings_table(run: ReportRun) -> HtmlTable | None:
    """How many training images each client holds: in all, and per class where that is known.

    Up to `MOST_CLASSES` classes get columns of their own. Sites that report only their total show
    "kept back" in place of their number of classes. None before the run has begun.
    """
    if not run.parts:
        return None
    known = [part["held"] for part in run.parts if not counts_kept_back(part["held"])]
    names = sorted({name for held in known for name in held}, key=_counting)
    names = names if len(names) <= MOST_CLASSES else []
    most = max((n for held in known for n in held.values()), default=1)
    rows = []
    for part in run.parts:
        total = sum(part["held"].values())
        cells = [TableCell(f"client {part['client']}"), TableCell(part["domain"])]
        rows.append(
            [*cells, TableCell(str(total), total), *_class_cells(part["held"], names, most)]
        )
    caption = f"Training images of each client by class (seed {run.seed})"
    head = ["client", "domain", "images", "classes", *names]
    return HtmlTable("holdings", caption, head, rows)


def _class_cells(held: Mapping[str, int], names: Sequence[str], most: int) -> list[TableCell]:
    """A client's number of classes, then its images of each of `names`."""
    if counts_kept_back(held):
        return [TableCell("kept back"), *(TableCell("-") for _ in names)]
    counts = [_counted(held.get(name, 0), most) for name in names]
    return [TableCell(str(len(held)), len(held)), *counts]


def _counting(name: str) -> tuple[float, str]:
    """Order numbers as people count them, before all other names."""
    return (int(name) if name.isdecimal() else math.inf), name


def traffic_parts(runs: Sequence[ReportRun], way: str) -> dict[str, float]:
    """Bytes per round by part of the messages, as means over rounds and seeds.

    `way` is "up" (clients to server) or "down".
    """
    lines = [line for run in runs for line in run.rounds]
    sums: dict[str, float] = {}
    for one in lines:
        for name, count in one["parts"][way].items():
            sums[name] = sums.get(name, 0) + count
    return {name: count / len(lines) for name, count in sums.items() if count}


def traffic_table(groups: Mapping[str, Sequence[ReportRun]], slots: Mapping[str, int]) -> HtmlTable:
    """Bytes per round and in the whole run, by method and direction, for all clients together.

    `slots` gives each part of a message its colour.
    """
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
        whole = _mean_of_known(
            sum(one[UP_AND_DOWN[way]] for one in run.rounds) for run in groups[label]
        )
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
    """Seconds per round and run, by method, without evaluation.

    Bars compare the medians of the rounds; a slow first round does not distort them.
    """
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
