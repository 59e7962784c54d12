"""The page's sentences: what came out, how far runs are, and what each run stands on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from protofed.experiment.card import repeat_command
from protofed.experiment.parse import parse_experiment
from protofed.experiment.spec import Experiment
from protofed.report.runs import ReportRun, flatten_spec
from protofed.report.tables import HtmlTable, TableCell
from protofed.study.formats import format_difference
from protofed.study.stats import PairedDifference
from protofed.study.table import ComparisonTable, MethodRow

MOST_NAMED = 4  # methods in a title


def report_title(labels: Sequence[str], data: str) -> str:
    """``FedAvg, FedProx and FPL on digits-mini``."""
    named = join_words(labels) if len(labels) <= MOST_NAMED else f"{len(labels)} methods"
    return f"{named} on {data}"


def join_words(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + list(words[-1:]))


def _row_mean(row: MethodRow) -> float:
    value = row.cells["mean"]
    return round(value.mean, 2) if value else 0.0


def worst_domain(table: ComparisonTable, row: MethodRow) -> tuple[str, float]:
    """The domain that a method serves worst, and its score there."""
    scores = {name: value.mean for name in table.domains if (value := row.cells[name])}
    return min(scores.items(), key=lambda item: item[1], default=("none", 0.0))


def report_headline(table: ComparisonTable) -> str:
    """What came out, in one sentence."""
    order = sorted(table.rows, key=_row_mean, reverse=True)
    best, rule = order[0], table.rule
    domain, score = worst_domain(table, best)
    reached = f"{_row_mean(best):.2f} % mean accuracy over {len(table.domains)} domains ({rule})"
    low = f"it does worst on {domain} ({score:.2f} %)"
    if len(order) == 1:
        return f"{best.label} reaches {reached}; {low}."
    level = [row.label for row in order if _row_mean(row) == _row_mean(best)]
    if len(level) > 1:
        return f"{join_words(level)} are level with {reached}; {best.label} does worst on {domain}."
    other = order[1] if best.label == table.baseline else best
    who = f"{other.label}, the next one, is" if other is not best else "that is"
    count = f"{best.label} is the best of {len(order)} methods with {reached}; {low}"
    return f"{count}; {who} {describe_difference(other.difference, table.baseline)}."


def describe_difference(value: PairedDifference | None, baseline: str | None) -> str:
    """``1.20 points above FedAvg (95 % interval +0.30 to +2.10)``, and what that does not show."""
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
    """The same in a few large numbers, each with its meaning."""
    best = max(table.rows, key=_row_mean)
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
    """Of every run on its way: its name, the rounds behind it, all rounds, its newest mean."""
    return [
        (run.name, run.at, run.experiment.rounds, _newest(run)) for run in runs if not run.record
    ]


def _newest(run: ReportRun) -> str:
    mean = run.evaluations[-1].scores.mean if run.evaluations else None
    return "not scored yet" if mean is None else f"mean accuracy {mean:.2f} %"


def report_notices(runs: Sequence[ReportRun]) -> list[tuple[str, str]]:
    """What readers of the scores must know, and of which methods it is said."""
    said: dict[str, list[str]] = {}
    labels = {run.label for run in runs if run.record}
    for run in runs:
        star = run.experiment.method.info.caveat
        own = [*(run.record.result.notices if run.record else ()), *([star] if star else [])]
        for notice in own:
            names = said.setdefault(str(notice), [])
            names.extend([run.label] * (run.label not in names))
    return [(text, "" if set(of) == labels else join_words(of)) for text, of in said.items()]


def _specs(experiment: Experiment) -> tuple[dict[str, str], dict[str, str]]:
    """The spec, and that of the same method on the same data with nothing else said."""
    spec = experiment.to_dict()
    images = spec["data"]  # a folder's are taken as they are on record: it may be gone
    data = images if isinstance(images["revision"], str) else {"name": images["name"]}
    said = {"data": data, "method": {"name": spec["method"]["name"]}}
    return flatten_spec(spec), flatten_spec(parse_experiment(said).to_dict())


def _said(table: Mapping[str, str]) -> dict[str, str]:
    return {field: value for field, value in table.items() if value != "null"}


def changed_settings(groups: Mapping[str, Sequence[ReportRun]]) -> HtmlTable:
    """What the runs say otherwise than the defaults; seeds stand with the runs."""
    rows = []
    for place, (label, runs) in enumerate(groups.items()):
        spec, default = (_said(table) for table in _specs(runs[0].experiment))
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
    """The whole spec of each method, of its first seed."""
    return [
        (f"{label}, seed {runs[0].seed}", json.dumps(runs[0].experiment.to_dict(), indent=2))
        for label, runs in groups.items()
    ]


def provenance_table(runs: Sequence[ReportRun]) -> HtmlTable:
    """Which folders, with which digests."""
    rows = [
        [
            TableCell(str(run.folder)),
            TableCell(run.label),
            TableCell(str(run.seed), run.seed),
            TableCell(run.experiment.digest[:12], title=run.experiment.digest),
            TableCell("finished" if run.record else f"round {run.at} of {run.experiment.rounds}"),
        ]
        for run in runs
    ]
    return HtmlTable(
        "runs", "Run folders", ["run folder", "method", "seed", "digest", "state"], rows
    )


def environment_table(runs: Sequence[ReportRun]) -> HtmlTable:
    """Versions and data behind the runs; several values where they differ."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for key, value in flatten_spec(run.world).items():
            values = found.setdefault(key.replace("data.", "images of ", 1), [])
            values.extend([value] * (value not in values))
    rows = [[TableCell(key), TableCell(", ".join(values))] for key, values in found.items()]
    return HtmlTable("world", "Environment", ["what", "which"], rows)


def repeat_commands(runs: Sequence[ReportRun]) -> list[str]:
    """What to type to make each run once more."""
    return [repeat_command(run.folder, run.experiment) for run in runs]
