"""Runs that differ in hyperparameters: which ones, and whether they differ in nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence

from protofed.core.errors import ProtofedError
from protofed.figures.fields import differing_fields, spec_fields
from protofed.figures.series import check_plottable, group_by_method
from protofed.study.collect import RunRecord

REDEAL = ("data", "partition")  # sections that change which images the clients hold
OWN = ("method.", "public.")  # what methods have of their own


def varied_fields(records: Sequence[RunRecord]) -> list[str]:
    """The fields in which runs of the same method differ, over all methods."""
    found = [
        path for group in group_by_method(records).values() for path in differing_fields(group)
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
    strange = [p for p in differing_fields(records) if p not in paths and not p.startswith(OWN)]
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
    return spec_fields(record.experiment)[path]


def group_by_value(
    records: Sequence[RunRecord], paths: Sequence[str]
) -> dict[str, list[RunRecord]]:
    """The records by the values of some fields, as text; a run that lacks one stands apart."""
    found: dict[str, list[RunRecord]] = {}
    for record in records:
        fields = spec_fields(record.experiment)
        found.setdefault(json.dumps([fields.get(path) for path in paths]), []).append(record)
    return found


def sorted_values(values: Sequence[object]) -> list[object]:
    """Each value once: numbers by size, others as they come."""
    once = list({json.dumps(value): value for value in values}.values())
    return sorted(once, key=float) if all_numeric(once) else once  # type: ignore[arg-type]


def all_numeric(values: Sequence[object]) -> bool:
    """Whether all values are numbers."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
