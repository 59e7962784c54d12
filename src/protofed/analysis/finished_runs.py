"""Finished runs read back for a table or figure, named, and checked that they belong together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from protofed.errors import ProtofedError, join_words
from protofed.experiment import run_records
from protofed.experiment.result import RunResult, read_result
from protofed.experiment.run_folder import RunDir
from protofed.experiment.stale_code import describe_files
from protofed.federation.evaluation import DomainScores
from protofed.runtime.atomic_io import file_sha256
from protofed.spec.experiment_spec import Experiment


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
    tables = [experiment.flat_fields() for experiment in experiments]
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
    fields = experiment.flat_fields()
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
    world: run_records.World  # data, versions, code
    partition: str  # SHA-256 of who holds what

    @property
    def code(self) -> Mapping[str, str]:
        """The digests of the code that made it, by file; empty if they are not on record."""
        code = self.world.get("code")
        return code if isinstance(code, dict) else {}

    @property
    def fingerprint(self) -> str:
        """One digest of all code that made it; "" if it is not on record."""
        return str(self.world.get("fingerprint", ""))


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
    return [*_missing(records), *_versions(records), *code_notes(records)]


DECIMALS = 9  # of scores that are compared: a mean over clients may differ in its last bit


def identical_rows(records: Sequence[RunRecord]) -> tuple[tuple[str, ...], ...]:
    """The labels whose runs agree in every score: each seed, each evaluation, each domain.

    One tuple per group of two or more, in the order of the records. Most such rows did the same
    training under two names, as FedBN does on a net without batch norm.
    """
    groups: dict[object, list[str]] = {}
    for label in dict.fromkeys(record.label for record in records):
        runs = [record for record in records if record.label == label]
        scores = {(run.seed, run.result.unseen or ""): _all_scores(run) for run in runs}
        groups.setdefault(tuple(sorted(scores.items())), []).append(label)
    return tuple(tuple(labels) for labels in groups.values() if len(labels) > 1)


def _all_scores(record: RunRecord) -> tuple[str, ...]:
    result = record.result
    history = [evaluation.scores for evaluation in result.history]
    every: list[DomainScores] = [*history, result.last_five, result.last]
    return tuple(
        f"{name} {'' if score is None else round(score, DECIMALS)}"
        for scores in every
        for name, score in scores.domains.items()
    )


def describe_identical(groups: Iterable[Sequence[str]]) -> list[str]:
    """A line for each group of `identical_rows`: ``FedAvg and FedBN are identical in every score``.

    To be printed under the table that holds these rows.
    """
    return [f"{join_words(labels)} are identical in every score" for labels in groups]


def method_notes(records: Sequence[RunRecord]) -> list[str]:
    """What the methods of some runs warn of, and which models have collapsed.

    Each text stands once, with the label of its row. The seeds are named where only some runs of
    the row have it.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for record in records:
        for notice in record.result.notices:
            if notice.kind in ("method", "collapse"):
                found.setdefault((record.label, str(notice)), []).append(record.seed)
    runs = Counter(record.label for record in records)
    return [
        f"{label}{'' if len(seeds) == runs[label] else _named_seeds(seeds)}: {text}"
        for (label, text), seeds in found.items()
    ]


def _named_seeds(seeds: Sequence[int]) -> str:
    return f", seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _two(one: RunRecord, other: RunRecord) -> str:
    return f"{one.result.folder} and {other.result.folder}"


def _same_spec(one: RunRecord, other: RunRecord, apart: set[str]) -> None:
    mine, theirs = one.experiment.to_dict(), other.experiment.to_dict()
    wrong = sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k))
    wrong = [name for name in wrong if name not in apart]
    if wrong:
        raise ProtofedError(
            f"{_two(one, other)} cannot stand in one table: they differ in {', '.join(wrong)}",
            hint=_how_to_choose(one.experiment, other.experiment, apart),
        )


def _how_to_choose(one: Experiment, other: Experiment, apart: Collection[str]) -> str:
    """How to leave out one of two runs that cannot stand together."""
    paths = [p for p in differing_fields([one, other]) if p.split(".")[0] not in apart]
    value = one.flat_fields()[paths[0]] if paths else None
    plain = isinstance(value, str | int | float) and not set(str(value)) & set("<>")
    which = f"<where={paths[0]}={format_value(value)}>" if plain else "<where>"
    return f"choose runs that differ in method and seed only, as with {which}"


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


def code_notes(records: Sequence[RunRecord]) -> list[str]:
    """What a reader must know about the code behind some runs; nothing if it was the same.

    Methods and nets have files of their own; what counts is a file that two runs share but that was
    edited between them. Runs of an earlier version have no record of their code.
    """
    lines, seen = [], dict[str, RunRecord]()
    changed: dict[tuple[str, str], list[str]] = {}
    for record in records:
        for file, digest in record.code.items():
            twin = seen.setdefault(file, record)
            if twin.code[file] != digest:
                changed.setdefault((_run_name(twin), _run_name(record)), []).append(file)
    for (first, second), files in changed.items():
        told = describe_files(files)
        lines.append(f"made by different code: {second} and {first} differ in {told}")
    unknown = [_run_name(record) for record in records if not record.code]
    if unknown:
        lines.append(f"the code that made them is not on record: {'; '.join(unknown)}")
    return lines


def _run_name(record: RunRecord) -> str:
    return f"{record.label or record.result.folder.name} (seed {record.seed})"


def _versions(records: Sequence[RunRecord]) -> list[str]:
    found = sorted({str(record.world.get("torch")) for record in records})
    return [f"runs were made with different versions of torch: {', '.join(found)}"][
        : len(found) > 1
    ]
