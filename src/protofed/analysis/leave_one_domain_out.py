"""Leave-one-domain-out: for each domain a federation that trains without it and is tested on it."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from protofed.analysis.comparison_table import Rule, escape_latex, format_spread
from protofed.analysis.finished_runs import RunRecord
from protofed.analysis.grid import GridVariant
from protofed.analysis.statistics import SeedSpread
from protofed.errors import ProtofedError
from protofed.experiment.result import RunResult
from protofed.spec.spec_parser import parse_experiment

EACH = "each"  # the word for every domain in turn


class UnseenScores(NamedTuple):
    """A method's rows by left-out domain, each with its cells by test domain."""

    label: str
    rows: dict[str, dict[str, SeedSpread | None]]
    mean: SeedSpread | None  # over the left-out domains, each on the run that did not see it
    digests: dict[str, list[str]]

    @property
    def domains(self) -> list[str]:
        """The test domains, in the order of the spec."""
        return list(dict.fromkeys(name for row in self.rows.values() for name in row))

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        rows = {
            left: {name: value and value._asdict() for name, value in row.items()}
            for left, row in self.rows.items()
        }
        mean = self.mean and self.mean._asdict()
        return {"method": self.label, "left_out": rows, "unseen_mean": mean, "runs": self.digests}


def leave_each_out(variants: Sequence[GridVariant]) -> list[GridVariant]:
    """Every variant once for each of its domains, which it leaves out."""
    return [
        GridVariant(f"{label} without {domain}", {**raw, "leave_out": domain})
        for label, raw in variants
        for domain in parse_experiment(raw).data.domains
    ]


def leave_out_label(label: str, left_out: str | None) -> str:
    """The label of the variant that `each` made one without a domain of."""
    return label.removesuffix(f" without {left_out}")


def unseen_scores(records: Sequence[RunRecord], rule: Rule) -> list[UnseenScores]:
    """The finished runs of a leave-out study by method."""
    found = []
    for label in dict.fromkeys(record.label for record in records):
        mine = [record for record in records if record.label == label]
        order = mine[0].experiment.data.domains
        runs = {d: {r.seed: r.result for r in mine if r.result.unseen == d} for d in order}
        runs = {domain: of for domain, of in runs.items() if of}
        on = {left: [_on(run, rule) for run in of.values()] for left, of in runs.items()}
        tested = {name for seeds in on.values() for scores in seeds for name in scores}
        names = [domain for domain in order if domain in tested]
        rows = {left: _row(seeds, names) for left, seeds in on.items()}
        digests = {left: [run.digest[:12] for run in of.values()] for left, of in runs.items()}
        found.append(UnseenScores(label, rows, _mean(runs, rule), digests))
    if not found:
        raise ProtofedError("no run was finished")
    return found


def _on(run: RunResult, rule: Rule) -> dict[str, float | None]:
    return (run.last_five if rule == "last_five" else run.last).domains


def _row(
    seeds: Sequence[dict[str, float | None]], names: Sequence[str]
) -> dict[str, SeedSpread | None]:
    """Each test domain's score over seeds; none if no run was tested on it."""
    columns = {name: [scores.get(name) for scores in seeds] for name in names}
    known = {name: [v for v in values if v is not None] for name, values in columns.items()}
    return {name: SeedSpread.of(values) if values else None for name, values in known.items()}


def _mean(runs: dict[str, dict[int, RunResult]], rule: Rule) -> SeedSpread | None:
    """The mean over left-out domains by seed, then over the seeds that have all of them."""
    seeds = set.intersection(*(set(of) for of in runs.values()))
    means = []
    for seed in sorted(seeds):
        values = [_on(of[seed], rule).get(left) for left, of in runs.items()]
        known = [value for value in values if value is not None]
        means += [statistics.fmean(known)] if known else []
    return SeedSpread.of(means) if means else None


def unseen_table(unseen: UnseenScores) -> tuple[list[str], list[list[str]]]:
    """Head and rows: the left-out domain, the scores on all, and its own once more at the end."""
    head = [f"{unseen.label}, trained without", *unseen.domains, "on the unseen"]
    rows = []
    for left, row in unseen.rows.items():
        cells = [
            f"[{format_spread(row[d])}]" if d == left else format_spread(row[d])
            for d in unseen.domains
        ]
        rows.append([left, *cells, format_spread(row.get(left))])
    return head, [
        *rows,
        ["mean of the unseen", *[""] * len(unseen.domains), format_spread(unseen.mean)],
    ]


def unseen_summary(found: Sequence[UnseenScores]) -> tuple[list[str], list[list[str]]]:
    """Methods x left-out domains, on the unseen only, and the mean."""
    domains = list(dict.fromkeys(left for one in found for left in one.rows))
    head = ["on the unseen domain", *domains, "mean"]
    rows = []
    for one in found:
        own = [one.rows.get(left, {}).get(left) for left in domains]
        rows.append([one.label, *map(format_spread, own), format_spread(one.mean)])
    return head, rows


def unseen_footnotes(found: Sequence[UnseenScores], rule: str, notes: Sequence[str]) -> list[str]:
    """What must stand under the tables."""
    told = [f"accuracy in %, {rule}; [in brackets]: on the domain that was left out"]
    told += [f"note: {note}" for note in notes]
    for one in found:
        runs = "; ".join(f"without {left} {' '.join(of)}" for left, of in one.digests.items())
        told.append(f"runs: {one.label} {runs}")
    return told


def unseen_markdown(found: Sequence[UnseenScores], rule: str, notes: Sequence[str]) -> str:
    """A Markdown table a method, and one of all if there are several."""
    tables = [unseen_table(one) for one in found] + (
        [unseen_summary(found)] if len(found) > 1 else []
    )
    under = [f"- {line}" for line in unseen_footnotes(found, rule, notes)]
    parts = [*(_lines(head, rows) for head, rows in tables), under]
    return "\n".join("\n".join(lines) + "\n" for lines in parts)


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(part.replace("|", "\\|") for part in line) + " |" for line in lines]


def unseen_latex(found: Sequence[UnseenScores], rule: str, notes: Sequence[str]) -> str:
    """A booktabs table a method, and one of all if there are several."""
    tables = [unseen_table(one) for one in found] + (
        [unseen_summary(found)] if len(found) > 1 else []
    )
    above = "".join(f"% {line}\n" for line in unseen_footnotes(found, rule, notes))
    return above + "\n".join(_tabular(head, rows) for head, rows in tables)


def _tabular(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads, *body = ([escape_latex(part) for part in line] for line in [head, *rows])
    lines = [" & ".join(line) + r" \\" for line in body]
    columns = "l" + "c" * (len(head) - 1)
    top = [f"\\begin{{tabular}}{{{columns}}}", r"\toprule", " & ".join(heads) + r" \\", r"\midrule"]
    return "\n".join([*top, *lines, r"\bottomrule", r"\end{tabular}", ""])


def unseen_csv(found: Sequence[UnseenScores], rule: str, notes: Sequence[str]) -> str:
    """One line a method, left-out domain and test domain; no place for notes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "left_out", "tested_on", "mean", "std", "rule"])
    for one in found:
        for left, row in one.rows.items():
            for name, value in row.items():
                writer.writerow([one.label, left, name, *(value or ("", "")), rule])
    return out.getvalue()


def unseen_json(found: Sequence[UnseenScores], rule: str, notes: Sequence[str]) -> str:
    """All there is, as JSON."""
    plain = [{**one.to_dict(), "rule": rule, "notes": list(notes)} for one in found]
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Sequence[UnseenScores], str, Sequence[str]], str]] = {
    "markdown": unseen_markdown,
    "latex": unseen_latex,
    "csv": unseen_csv,
    "json": unseen_json,
}
