"""Runs that differ in hyperparameters: which ones, and whether they differ in nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence

from protofed.core.errors import ProtofedError
from protofed.figures.fields import differing, fields_of
from protofed.figures.series import by_method, comparable
from protofed.study.collect import Record

REDEAL = ("data", "partition")  # sections that change which images the clients hold
OWN = ("method.", "public.")  # what methods have of their own


def varied(records: Sequence[Record]) -> list[str]:
    """The fields in which runs of the same method differ, over all methods."""
    found = [path for group in by_method(records).values() for path in differing(group)]
    return list(dict.fromkeys(found))


def exactly(kind: str, count: int, records: Sequence[Record], hint: str) -> list[str]:
    """The varied fields, which must be so many; the runs must agree in all others."""
    paths = varied(records)
    if not paths:
        raise ProtofedError(f"{kind}: nothing differs between the runs but method and seed\n{hint}")
    if len(paths) != count:
        words = f"{count} field{'s' * (count > 1)} must differ between runs of one method"
        raise ProtofedError(f"{kind}: {words}, here {len(paths)}: {', '.join(paths)}\n{hint}")
    strange = [p for p in differing(records) if p not in paths and not p.startswith(OWN)]
    if strange:
        raise ProtofedError(f"{kind}: the methods' runs differ in more: {', '.join(strange)}")
    return paths


def check(records: Sequence[Record], paths: Sequence[str]) -> list[str]:
    """Refuse runs with other images or clients than their fields explain; notes on the others."""
    sections = [path.partition(".")[0] for path in paths]
    groups = [list(records)]
    if set(sections) & set(REDEAL):
        groups = list(by_value(records, paths).values())
    notes = [note for group in groups for note in comparable(group, sections)]
    return list(dict.fromkeys(notes))


def value_of(record: Record, path: str) -> object:
    """A field of a run's spec."""
    return fields_of(record.experiment)[path]


def by_value(records: Sequence[Record], paths: Sequence[str]) -> dict[str, list[Record]]:
    """The records by the values of some fields, as text; a run that lacks one stands apart."""
    found: dict[str, list[Record]] = {}
    for record in records:
        fields = fields_of(record.experiment)
        found.setdefault(json.dumps([fields.get(path) for path in paths]), []).append(record)
    return found


def ordered(values: Sequence[object]) -> list[object]:
    """Each value once: numbers by size, others as they come."""
    once = list({json.dumps(value): value for value in values}.values())
    return sorted(once, key=float) if numeric(once) else once  # type: ignore[arg-type]


def numeric(values: Sequence[object]) -> bool:
    """Whether all values are numbers."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
