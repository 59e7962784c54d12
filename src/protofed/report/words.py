"""The page's sentences: what came out, how far runs are, and what each run stands on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from protofed.experiment.card import once_more
from protofed.experiment.parse import experiment_from
from protofed.experiment.spec import Experiment
from protofed.report.runs import Run, flat
from protofed.report.tables import Cell, Table
from protofed.study.formats import gap
from protofed.study.stats import Difference
from protofed.study.table import Comparison, Row

MOST_NAMED = 4  # methods in a title


def title(labels: Sequence[str], data: str) -> str:
    """``FedAvg, FedProx and FPL on digits-mini``."""
    named = joined(labels) if len(labels) <= MOST_NAMED else f"{len(labels)} methods"
    return f"{named} on {data}"


def joined(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + list(words[-1:]))


def _mean(row: Row) -> float:
    value = row.cells["mean"]
    return round(value.mean, 2) if value else 0.0


def lowest(table: Comparison, row: Row) -> tuple[str, float]:
    """The domain that a method serves worst, and its score there."""
    scores = {name: value.mean for name in table.domains if (value := row.cells[name])}
    return min(scores.items(), key=lambda item: item[1], default=("none", 0.0))


def headline(table: Comparison) -> str:
    """What came out, in one sentence."""
    order = sorted(table.rows, key=_mean, reverse=True)
    best, rule = order[0], table.rule
    domain, score = lowest(table, best)
    reached = f"{_mean(best):.2f} % mean accuracy over {len(table.domains)} domains ({rule})"
    low = f"it does worst on {domain} ({score:.2f} %)"
    if len(order) == 1:
        return f"{best.label} reaches {reached}; {low}."
    level = [row.label for row in order if _mean(row) == _mean(best)]
    if len(level) > 1:
        return f"{joined(level)} are level with {reached}; {best.label} does worst on {domain}."
    other = order[1] if best.label == table.baseline else best
    who = f"{other.label}, the next one, is" if other is not best else "that is"
    count = f"{best.label} is the best of {len(order)} methods with {reached}; {low}"
    return f"{count}; {who} {difference(other.difference, table.baseline)}."


def difference(value: Difference | None, baseline: str | None) -> str:
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


def tiles(table: Comparison) -> list[tuple[str, str]]:
    """The same in a few large numbers, each with its meaning."""
    best = max(table.rows, key=_mean)
    domain, score = lowest(table, best)
    found = [
        (f"{_mean(best):.2f} %", f"best mean: {best.label}"),
        (f"{score:.2f} %", f"its worst domain: {domain}"),
    ]
    if best.difference:
        seeds = best.difference.pairs
        text = gap(best.difference).partition(" ")
        note = f"95 % interval {text[2]}" if text[2] else "one seed: no interval"
        found.append((f"{text[0]}", f"points to {table.baseline}; {note}"))
        found.append((str(seeds), "seeds behind the difference" if seeds > 1 else "seed"))
    return found


def progress(runs: Sequence[Run]) -> list[tuple[str, int, int, str]]:
    """Of every run on its way: its name, the rounds behind it, all rounds, its newest mean."""
    return [
        (run.name, run.at, run.experiment.rounds, _newest(run)) for run in runs if not run.record
    ]


def _newest(run: Run) -> str:
    mean = run.evaluations[-1].scores.mean if run.evaluations else None
    return "not scored yet" if mean is None else f"mean accuracy {mean:.2f} %"


def notices(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What readers of the scores must know, and of which methods it is said."""
    said: dict[str, list[str]] = {}
    labels = {run.label for run in runs if run.record}
    for run in runs:
        star = run.experiment.method.about.star
        own = [*(run.record.result.notices if run.record else ()), *([star] if star else [])]
        for notice in own:
            names = said.setdefault(str(notice), [])
            names.extend([run.label] * (run.label not in names))
    return [(text, "" if set(of) == labels else joined(of)) for text, of in said.items()]


def _specs(experiment: Experiment) -> tuple[dict[str, str], dict[str, str]]:
    """The spec, and that of the same method on the same data with nothing else said."""
    spec = experiment.plain()
    images = spec["data"]  # a folder's are taken as they are on record: it may be gone
    data = images if isinstance(images["revision"], str) else {"name": images["name"]}
    said = {"data": data, "method": {"name": spec["method"]["name"]}}
    return flat(spec), flat(experiment_from(said).plain())


def _said(table: Mapping[str, str]) -> dict[str, str]:
    return {field: value for field, value in table.items() if value != "null"}


def changed(groups: Mapping[str, Sequence[Run]]) -> Table:
    """What the runs say otherwise than the defaults; seeds stand with the runs."""
    rows = []
    for place, (label, runs) in enumerate(groups.items()):
        spec, default = (_said(table) for table in _specs(runs[0].experiment))
        for field in dict.fromkeys([*spec, *default]):
            own = field.startswith(("method.", "public."))  # the rest is the same in all runs
            differs = field != "seed" and spec.get(field) != default.get(field)
            if differs and (own or not place):
                values = (spec.get(field, "not set"), default.get(field, "not set"))
                rows.append([Cell(field), *map(Cell, values), Cell(label if own else "all")])
    head = ["field", "here", "default", "methods"]
    return Table("changed", "Where the runs differ from the defaults", head, rows)


def whole_specs(groups: Mapping[str, Sequence[Run]]) -> list[tuple[str, str]]:
    """The whole spec of each method, of its first seed."""
    return [
        (f"{label}, seed {runs[0].seed}", json.dumps(runs[0].experiment.plain(), indent=2))
        for label, runs in groups.items()
    ]


def provenance(runs: Sequence[Run]) -> Table:
    """Which folders, with which digests."""
    rows = [
        [
            Cell(str(run.folder)),
            Cell(run.label),
            Cell(str(run.seed), run.seed),
            Cell(run.experiment.digest[:12], title=run.experiment.digest),
            Cell("finished" if run.record else f"round {run.at} of {run.experiment.rounds}"),
        ]
        for run in runs
    ]
    return Table("runs", "Run folders", ["run folder", "method", "seed", "digest", "state"], rows)


def world(runs: Sequence[Run]) -> Table:
    """Versions and data behind the runs; several values where they differ."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for key, value in flat(run.world).items():
            values = found.setdefault(key.replace("data.", "images of ", 1), [])
            values.extend([value] * (value not in values))
    rows = [[Cell(key), Cell(", ".join(values))] for key, values in found.items()]
    return Table("world", "Environment", ["what", "which"], rows)


def commands(runs: Sequence[Run]) -> list[str]:
    """What to type to make each run once more."""
    return [once_more(run.folder, run.experiment) for run in runs]
