"""Runs read for one figure: their fields, whether they may stand side by side, their groups."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from protofed.analysis.finished_runs import APART, RunRecord, check_comparable, read_record
from protofed.analysis.run_labels import differing_fields, label_experiments
from protofed.analysis.statistics import SeedSpread
from protofed.core.method import AnyMethod
from protofed.errors import ProtofedError, require_known_name
from protofed.federation.evaluation import DomainScores
from protofed.figures.style import FigureOptions
from protofed.spec.experiment_spec import Experiment, flatten_spec


class RunSeries(NamedTuple):
    """Runs that differ in their seed alone, under the name that a figure shows."""

    label: str
    records: tuple[RunRecord, ...]  # one a seed, in the order of seeds

    @property
    def method(self) -> AnyMethod:
        """The method of all its runs."""
        return self.records[0].experiment.method

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its runs."""
        return tuple(record.seed for record in self.records)


def read_run_records(runs: Sequence[Path]) -> list[RunRecord]:
    """The records of some finished runs, each experiment once."""
    if not runs:
        raise ProtofedError("no runs given\nname one or more run folders")
    records = [read_record(folder) for folder in runs]
    seen: dict[str, RunRecord] = {}
    for record in records:
        twin = seen.setdefault(record.result.digest, record)
        if twin is not record:
            two = f"{twin.result.folder} and {record.result.folder}"
            raise ProtofedError(f"{two} hold the same run: name one of them")
    return records


def compared_series(runs: Sequence[Path]) -> tuple[list[RunSeries], list[str]]:
    """One series a method and setting, in the order of the runs; and what to note under them."""
    records = read_run_records(runs)
    notes = check_plottable(records)
    series = group_by_setting(records)
    return series, [*missing_seed_notes(series), *notes]


def check_plottable(records: Sequence[RunRecord], free: Sequence[str] = ()) -> list[str]:
    """Refuse runs that may not stand together; `free` are sections that may differ besides."""
    # under one label no seed is missing: what tables say of missing ones does not fit figures
    return check_comparable([record._replace(label="") for record in records], (*APART, *free))


def group_by_method(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """The records by their method's label, in the order of the runs."""
    found: dict[str, list[RunRecord]] = {}
    for record in records:
        found.setdefault(record.experiment.method.info.label, []).append(record)
    return found


def group_by_setting(records: Sequence[RunRecord]) -> list[RunSeries]:
    """The records by method and setting; the setting is named where a method has several."""
    labels = label_experiments([record.experiment for record in records])
    found: dict[str, list[RunRecord]] = {}
    for label, record in zip(labels, records, strict=True):
        found.setdefault(label, []).append(record)
    ordered = {label: sorted(group, key=lambda r: r.seed) for label, group in found.items()}
    return [RunSeries(label, tuple(group)) for label, group in ordered.items()]


def missing_seed_notes(series: Sequence[RunSeries]) -> list[str]:
    """A line for the series that lack the same of the seeds that others have."""
    every = {seed for one in series for seed in one.seeds}
    lacking: dict[str, list[str]] = {}
    for one in series:
        if set(one.seeds) != every:
            lacking.setdefault(", ".join(map(str, one.seeds)), []).append(one.label)
    return [f"only seed {seeds}: {', '.join(labels)}" for seeds, labels in lacking.items()]


def baseline_first(series: Sequence[RunSeries]) -> list[RunSeries]:
    """The same series with those of the baseline first: the method of a spec that names none."""
    baseline = type(Experiment.model_fields["method"].default)
    return sorted(series, key=lambda one: not isinstance(one.method, baseline))


def record_accuracy(record: RunRecord, scores: DomainScores, domain: str | None) -> float:
    """The mean over domains, or one domain's score; a run without it is refused."""
    if domain is not None:
        require_known_name("domain", domain, scores.domains)
    found = scores.mean if domain is None else scores.domains[domain]
    if found is None:
        where = "no domain has" if domain is None else f"{domain} has no"
        raise ProtofedError(f"{record.result.folder}: {where} test images, so there is no score")
    return found


def record_scores(record: RunRecord, options: FigureOptions) -> DomainScores:
    """A run's scores by the rule that was asked for."""
    return record.result.scores(options.score)


def accuracy_spread(records: Sequence[RunRecord], options: FigureOptions) -> SeedSpread:
    """The accuracy of runs that differ in their seed: mean and standard deviation."""
    return SeedSpread.of(
        [record_accuracy(r, record_scores(r, options), options.domain) for r in records]
    )


def error_bars(spreads: Sequence[SeedSpread]) -> list[float] | None:
    """The error bars of some spreads: none for a single seed, which has no deviation."""
    stds = [math.nan if spread.std is None else spread.std for spread in spreads]
    return None if all(map(math.isnan, stds)) else stds


def axis_label(options: FigureOptions) -> str:
    """What the numbers of a figure are."""
    return f"accuracy on {options.domain} (%)" if options.domain else "mean accuracy (%)"


def figure_heading(records: Sequence[RunRecord], rule: str = "", spread: str = "") -> str:
    """Benchmark, rule and seeds behind a figure; `spread` says how seeds are shown."""
    first = records[0]
    count = len({record.seed for record in records})
    how = [first.result.rules[rule]] if rule else []
    seeds = [f"{count} seeds{spread}"] if count > 1 else []
    return ", ".join([first.experiment.data.label, *how, *seeds])


REDEAL = ("data", "partition")  # sections that change which images the clients hold
OWN = ("method.", "public.")  # what methods have of their own


def varied_fields(records: Sequence[RunRecord]) -> list[str]:
    """The fields in which runs of the same method differ, over all methods."""
    found = [
        path
        for group in group_by_method(records).values()
        for path in differing_fields([record.experiment for record in group])
    ]
    return list(dict.fromkeys(found))


def require_varied_fields(
    kind: str, count: int, records: Sequence[RunRecord], hint: str
) -> list[str]:
    """The varied fields, which must be so many; the runs must agree in all others."""
    paths = varied_fields(records)
    if not paths:
        raise ProtofedError(f"{kind}: nothing differs between the runs but method and seed\n{hint}")
    if len(paths) != count:
        words = f"{count} field{'s' * (count > 1)} must differ between runs of one method"
        raise ProtofedError(f"{kind}: {words}, here {len(paths)}: {', '.join(paths)}\n{hint}")
    differing = differing_fields([record.experiment for record in records])
    strange = [p for p in differing if p not in paths and not p.startswith(OWN)]
    if strange:
        raise ProtofedError(f"{kind}: the methods' runs differ in more: {', '.join(strange)}")
    return paths


def check_sweep_records(records: Sequence[RunRecord], paths: Sequence[str]) -> list[str]:
    """Refuse runs with other images or clients than their fields explain; notes on the others."""
    sections = [path.partition(".")[0] for path in paths]
    groups = [list(records)]
    if set(sections) & set(REDEAL):
        groups = list(group_by_value(records, paths).values())
    notes = [note for group in groups for note in check_plottable(group, sections)]
    return list(dict.fromkeys(notes))


def field_value(record: RunRecord, path: str) -> object:
    """A field of a run's spec."""
    return flatten_spec(record.experiment.to_dict())[path]


def group_by_value(
    records: Sequence[RunRecord], paths: Sequence[str]
) -> dict[str, list[RunRecord]]:
    """The records by the values of some fields, as text; a run that lacks one stands apart."""
    found: dict[str, list[RunRecord]] = {}
    for record in records:
        fields = flatten_spec(record.experiment.to_dict())
        found.setdefault(json.dumps([fields.get(path) for path in paths]), []).append(record)
    return found


def sorted_values(values: Sequence[object]) -> list[object]:
    """Each value once: numbers by size, others as they come."""
    once = list({json.dumps(value): value for value in values}.values())
    return sorted(once, key=float) if all_numeric(once) else once  # type: ignore[arg-type]


def all_numeric(values: Sequence[object]) -> bool:
    """Whether all values are numbers."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
