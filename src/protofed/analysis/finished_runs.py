"""Finished runs read back for a table or figure, named, and checked that they belong together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from protofed.errors import ProtofedError
from protofed.experiment import run_records
from protofed.experiment.result import RunResult, read_result
from protofed.experiment.run_folder import RunDir
from protofed.runtime.atomic_io import file_sha256
from protofed.spec.experiment_spec import Experiment, flatten_spec


def label_experiments(experiments: Sequence[Experiment]) -> list[str]:
    """One label per experiment, as ``FPL`` or, beside another FPL, ``FPL (tau=0.5)``.

    Settings are named only where experiments of one method differ in them. The seed never is, so
    the runs of one table row share their label.
    """
    names = [experiment.method.info.label for experiment in experiments]
    by_method = {
        name: [e for e, other in zip(experiments, names, strict=True) if other == name]
        for name in dict.fromkeys(names)
    }
    paths = {name: differing_fields(group) for name, group in by_method.items()}
    return [
        add_settings(name, format_settings(experiment, paths[name]))
        for name, experiment in zip(names, experiments, strict=True)
    ]


def add_settings(label: str, settings: str) -> str:
    """A label with its settings in parentheses, ``FPL (tau=0.5)``, or alone if there are none."""
    return f"{label} ({settings})" if settings else label


def differing_fields(experiments: Sequence[Experiment]) -> list[str]:
    """The paths of the fields in which some experiments differ, except the seed.

    A field that not all of them have follows from another one that differs, for example from the
    partition's kind, so it is left out.
    """
    tables = [flatten_spec(experiment.to_dict()) for experiment in experiments]
    return [
        path
        for path, value in tables[0].items()
        if path != "seed"
        and all(path in table for table in tables)
        and any(table[path] != value for table in tables)
    ]


def format_settings(experiment: Experiment, paths: Sequence[str]) -> str:
    """Some fields of an experiment in short form, as ``mu=0.1, base=fpl``.

    `paths` are dotted, as `differing_fields` returns them.
    """
    fields = flatten_spec(experiment.to_dict())
    return ", ".join(f"{short_field_name(path)}={format_value(fields[path])}" for path in paths)


def short_field_name(path: str) -> str:
    """A field's path without what a reader can guess: ``method.base.name`` is ``base``."""
    return path.removeprefix("method.").removesuffix(".name")


def format_value(value: object) -> str:
    """A field's value as a label shows it: numbers are short, text has no quotes."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


APART = ("method", "seed", "public")  # what the runs of one table may differ in


class RunRecord(NamedTuple):
    """One finished run as tables and figures use it.

    `label` names its row, `world` holds the data digests and versions of ``env.json``, and
    `partition` is the SHA-256 of ``partition.json``, equal for runs that gave each client the same
    images.
    """

    label: str
    seed: int
    experiment: Experiment
    result: RunResult
    world: run_records.World  # data, versions
    partition: str  # SHA-256 of who holds what


def read_record(folder: Path, label: str | None = None) -> RunRecord:
    """Read a finished run from its folder; without a `label` the row is called after the method.

    A folder without a finished run, or with a spec or scores that the run did not write, is
    refused.
    """
    place = RunDir(folder)
    if not place.done.exists():
        raise ProtofedError(f"{folder} holds no finished run", hint="run it to its end first")
    experiment = run_records.load_spec(folder)
    return RunRecord(
        label=label or experiment.method.info.label,
        seed=experiment.seed,
        experiment=experiment,
        result=read_result(place),
        world=run_records.read_record_file(run_records.WORLD, folder / "env.json"),
        partition=file_sha256(folder / "partition.json"),
    )


def check_comparable(records: Sequence[RunRecord], free: Iterable[str] = APART) -> list[str]:
    """Refuse runs that may not be compared; return what a reader must know about the others.

    Runs may differ in the sections of `free` only. They must have the same images, and with equal
    seeds the same images at each client. Missing seeds and different torch versions become notes.
    """
    if not records:
        raise ProtofedError("no runs to compare")
    first, apart = records[0], set(free)
    for record in records[1:]:
        _same_spec(first, record, apart)
        if record.world.get("data") != first.world.get("data"):
            raise ProtofedError(f"{_two(first, record)} were made with different images")
    _same_partitions(records)
    return [*_missing(records), *_versions(records)]


def _two(one: RunRecord, other: RunRecord) -> str:
    return f"{one.result.folder} and {other.result.folder}"


def _same_spec(one: RunRecord, other: RunRecord, apart: set[str]) -> None:
    mine, theirs = one.experiment.to_dict(), other.experiment.to_dict()
    wrong = sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k))
    wrong = [name for name in wrong if name not in apart]
    if wrong:
        raise ProtofedError(
            f"{_two(one, other)} cannot stand in one table: they differ in {', '.join(wrong)}"
        )


def _same_partitions(records: Sequence[RunRecord]) -> None:
    """Runs with the same seed must have the same images at the same clients."""
    seen: dict[int, RunRecord] = {}
    for record in records:
        twin = seen.setdefault(record.seed, record)
        if twin.partition != record.partition:
            raise ProtofedError(
                f"{_two(twin, record)} have the same seed but other images at their clients",
                hint="repeat the one whose partition.json is wrong with <again>",
            )


def _missing(records: Sequence[RunRecord]) -> list[str]:
    every = sorted({record.seed for record in records})
    lines = []
    for label in dict.fromkeys(record.label for record in records):
        lacks = sorted(set(every) - {r.seed for r in records if r.label == label})
        if lacks:
            seeds = ", ".join(map(str, lacks))
            lines.append(f"{label} lacks seed {seeds}: differences use the seeds that both have")
    return lines


def _versions(records: Sequence[RunRecord]) -> list[str]:
    found = sorted({str(record.world.get("torch")) for record in records})
    return [f"runs were made with different versions of torch: {', '.join(found)}"][
        : len(found) > 1
    ]
