"""What lies in a folder of runs: an entry for each, filters, and the choice for a report or figure.

An entry is read as plain data, so a run is listed even if its method is gone or a file is damaged.
"""

from __future__ import annotations

import json
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from protofed.analysis.finished_runs import format_value, short_field_name
from protofed.errors import ProtofedError, count_noun, printable_text, require_known_name
from protofed.experiment import run_records
from protofed.experiment.result import read_evaluations, read_result
from protofed.experiment.run_folder import PRUNED_FILE, RunDir
from protofed.experiment.runner import MOST_FAILED
from protofed.federation.evaluation import last_5_mean, score_rules
from protofed.runtime.atomic_io import is_locked
from protofed.spec.experiment_spec import LATER_FIELDS, SiteData, flatten_spec
from protofed.spec.method_lookup import method_slug
from protofed.spec.spec_parser import RECORDED

RunState = Literal["finished", "interrupted", "running", "failed", "damaged"]
RUN_STATES: tuple[RunState, ...] = get_args(RunState)
OF_A_RUN = ("spec.json", "done", "scores.jsonl", "rounds.jsonl", "checkpoints")
LONGEST = 200  # letters of a fault
LONGEST_VALUE = 40  # letters of a setting's value


@dataclass(frozen=True)
class RunEntry:
    """One run folder in a list: what it is a run of, how far it is, and how it scored.

    `fields` is the spec by dotted path, empty if it cannot be read; `fault` says why a run is
    damaged or has failed. Scores are means over domains, by the stated `rule` and after the last
    scored round.
    """

    folder: Path
    state: RunState
    fault: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)
    digest: str = ""
    rounds: int = 0  # finished ones
    score: float | None = None
    last: float | None = None
    rule: str = ""
    fingerprint: str = ""  # of the code; empty if it was not recorded
    changed: float = 0.0  # when its newest file was written, in seconds since 1970
    size: int = 0  # bytes of all its files

    @property
    def method(self) -> str:
        """The method's short name; ``Mine`` for one from ``/path/to/mine.py:Mine``."""
        return method_slug(str(self.fields.get("method.name", "")))

    @property
    def data(self) -> str:
        """The benchmark, the last part of a folder's path, or ``federation``."""
        if "data.at" in self.fields:
            return SiteData.label
        return Path(str(self.fields.get("data.name", ""))).name

    @property
    def planned(self) -> int | None:
        """The rounds that the spec asks for."""
        found = self.fields.get("rounds")
        return found if isinstance(found, int) else None

    def describe_state(self) -> str:
        """The state in a few words: ``interrupted at round 3``, ``damaged: no spec.json``."""
        if self.state == "interrupted":
            return f"interrupted at round {self.rounds}"
        return f"{self.state}: {self.fault}" if self.fault else self.state


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """The run folders among some folders and inside them, each once.

    A folder of runs stands for the runs in it, also for those in its subfolders, one level down. A
    folder without runs is returned as it is, for its reader to refuse.
    """
    found: dict[str, Path] = {}
    for folder in folders:
        for run in _runs_of(folder) or [folder]:
            found.setdefault(os.path.realpath(run), run)
    return list(found.values())


def _runs_of(folder: Path) -> list[Path]:
    if looks_like_run(folder):
        return [folder]
    inside = _subfolders(folder)
    deeper = {child: [] if looks_like_run(child) else _subfolders(child) for child in inside}
    every = [run for child, below in deeper.items() for run in (child, *below)]
    return [run for run in every if looks_like_run(run)]


def looks_like_run(folder: Path) -> bool:
    """Whether a folder has one of the files of a run, so that it is worth a line in a list."""
    return any(os.path.lexists(folder / name) for name in OF_A_RUN)


def _subfolders(folder: Path) -> list[Path]:
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return []
    return [child for child in inside if child.is_dir() and not child.name.startswith(".")]


def read_entry(folder: Path) -> RunEntry:
    """Read one run folder for a list; nothing is raised, a damaged run is an entry as well.

    A folder whose lock is held is a running one, whatever its files say at this moment.
    """
    running = is_locked(folder)
    size, changed = measure_files(folder)
    entry = RunEntry(folder, "damaged", changed=changed, size=size)
    try:
        entry = _with_spec(entry)
        entry = _with_progress(entry)
    except (ProtofedError, OSError) as fault:
        entry = replace(entry, fault=shorten_fault(folder, fault))
    return replace(entry, state="running", fault="") if running else entry


def shorten_fault(folder: Path, fault: ProtofedError | OSError) -> str:
    """What is wrong with a folder in a few words on one line, without the folder's name."""
    text = fault.strerror or "" if isinstance(fault, OSError) else str(fault.args[0])
    line = text.partition("\n")[0].removeprefix(f"{folder}: ").replace(f"{folder}{os.sep}", "")
    return printable_text(line.removeprefix(f"{folder} "), LONGEST)


def measure_files(folder: Path) -> tuple[int, float]:
    """The bytes of all files in a folder, and when the newest was written (seconds since 1970).

    Files may disappear meanwhile; links are not followed. To prune a run does not make it newer.
    """
    size, changed = 0, 0.0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                found = os.stat(os.path.join(place, name), follow_symlinks=False)
                size += found.st_size
                changed = changed if name == PRUNED_FILE else max(changed, found.st_mtime)
    if not changed:
        with suppress(OSError):
            changed = folder.stat().st_mtime
    return size, changed


def _with_spec(entry: RunEntry) -> RunEntry:
    if not (entry.folder / "spec.json").exists():
        raise ProtofedError("no spec.json")
    saved = run_records.read_record_file(run_records.SPEC, entry.folder / "spec.json")
    fields = flatten_spec({name: value for name, value in saved.items() if name not in RECORDED})
    for name, kind in (("method.name", str), ("rounds", int)):
        value = fields.get(name)
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ProtofedError(f"spec.json is damaged: {name} is missing or wrong")
    try:
        json.dumps(fields, allow_nan=False)
    except ValueError as fault:
        raise ProtofedError("spec.json is damaged: it holds NaN or infinity") from fault
    return replace(entry, fields=fields, digest=saved["digest"])


def _with_progress(entry: RunEntry) -> RunEntry:
    """The rounds, scores and state of a run whose spec has been read."""
    place = RunDir(entry.folder)
    code = run_records.read_world(entry.folder).get("fingerprint")
    entry = replace(entry, fingerprint=code if isinstance(code, str) else "")
    if place.done.exists():
        result = read_result(place)
        scores, rule = (result.last_five.mean, result.last.mean), result.rules["last_five"]
        rounds = entry.planned or 0
        return replace(
            entry, state="finished", rounds=rounds, score=scores[0], last=scores[1], rule=rule
        )
    lines = place.lines(place.rounds)
    entry = replace(entry, rounds=lines[-1]["round"] if lines else 0)
    if evaluations := read_evaluations(place):
        scored = [one.scores for one in evaluations]
        rule = score_rules(len(scored), [one.missing for one in evaluations])["last_five"]
        entry = replace(entry, score=last_5_mean(scored).mean, last=scored[-1].mean, rule=rule)
    reason = _failure(place, entry)
    return replace(entry, state="failed" if reason else "interrupted", fault=reason)


def _failure(place: RunDir, entry: RunEntry) -> str:
    """Why a run stopped by itself: its newest rounds all failed; empty if they did not."""
    lost = {
        e["round"]: e["reason"] for e in place.lines(place.events) if e.get("client", 0) is None
    }
    first = 1 if entry.rounds == entry.planned else entry.rounds - MOST_FAILED + 1
    newest = range(first, entry.rounds + 1)
    if first < 1 or not newest or not all(number in lost for number in newest):
        return ""
    return printable_text(f"round {entry.rounds}: {lost[entry.rounds]}", LONGEST)


IN_COLUMNS = ("method.name", "data.name", "data.at", "rounds")  # a list shows them anyway
FOLLOWS = {"public": ["method.name"], "partition": ["data.name"]}  # sections whose fields do


def differing_settings(entries: Sequence[RunEntry]) -> list[dict[str, object]]:
    """For each entry the fields in which it differs from comparable ones of the list.

    The fields of a method are compared between runs of that method, those of the data between runs
    with the same data, and so on; the method, the data and the rounds themselves are left out.
    """
    read = [entry for entry in entries if entry.fields]
    paths = dict.fromkeys(path for entry in read for path in entry.fields)
    shown: dict[str, set[str]] = {}
    for path in paths:
        if path not in IN_COLUMNS:
            groups: dict[str, set[str]] = {}
            for entry in read:
                value = json.dumps(entry.fields.get(path))
                groups.setdefault(_comparable(entry, path), set()).add(value)
            shown[path] = {group for group, values in groups.items() if len(values) > 1}
    return [
        {p: v for p, v in e.fields.items() if p in shown and _comparable(e, p) in shown[p]}
        for e in entries
    ]


def _comparable(entry: RunEntry, path: str) -> str:
    """What runs must have in common for one of their fields to be compared."""
    parts = path.split(".")
    above = [".".join(parts[:end]) for end in range(1, len(parts))]
    kinds = [f"{section}.{word}" for section in above for word in ("name", "kind")]
    kinds += FOLLOWS.get(parts[0], [])
    return json.dumps([entry.fields.get(kind) for kind in kinds if kind != path])


def format_differing(settings: Mapping[str, object]) -> str:
    """Some fields in short form: ``tau=0.05, seed=1``."""
    return ", ".join(
        f"{short_field_name(path)}={printable_text(format_value(value), LONGEST_VALUE)}"
        for path, value in settings.items()
    )


CONDITION = re.compile(r"\s*([\w.-]+)\s*(!=|<=|>=|=|<|>)\s*([^=\s].*?)\s*", re.DOTALL)
ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ALWAYS_KNOWN = ("method", "data", "net", "seed", "rounds", "state")


class RunCondition(NamedTuple):
    """A condition on runs, as ``method=fedprox`` or ``training.epochs>=5``.

    Two numbers are compared as numbers, anything else as text in any case. A run without the field
    fulfils ``!=`` only.
    """

    path: str
    operator: str
    value: str

    def holds(self, entry: RunEntry) -> bool:
        """Whether a run fulfils the condition."""
        values = _values(entry, self.path)
        number = _number(self.value)
        if self.operator in ORDERS:
            order = ORDERS[self.operator]
            return any(
                number is not None and _is_number(v) and order(v, number)  # type: ignore[arg-type]
                for v in values
            )
        same = any(
            v == number if number is not None and _is_number(v) else _text(v) == _text(self.value)
            for v in values
        )
        return same == (self.operator == "=")


def _values(entry: RunEntry, path: str) -> list[object]:
    """What a condition on a field is held against: a value, or a full and a short name."""
    if path == "state":
        return [entry.state]
    if path in ("method", "data"):
        names = [entry.fields.get(f"{path}.name"), getattr(entry, path)]
        return [name for name in names if name]
    if entry.fields and path in LATER_FIELDS:  # a record leaves it out at its default
        return [entry.fields.get(path, LATER_FIELDS[path])]
    return [entry.fields[path]] if path in entry.fields else []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            found = kind(text)
        except ValueError:
            continue
        return found if isinstance(found, int) or math.isfinite(found) else None
    return None


def _text(value: object) -> str:
    """A value as a condition names it: a list as ``a,b``."""
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return (value if isinstance(value, str) else json.dumps(value)).casefold()


def parse_condition(text: str) -> RunCondition:
    """A condition from its text: a field, one of ``= != < <= > >=``, and a value."""
    found = CONDITION.fullmatch(text)
    if not found:
        raise ProtofedError(
            f"cannot read the condition '{printable_text(text, LONGEST)}'",
            hint="write <where=field=value>, with one of = != < <= > >=, as training.epochs>=5",
        )
    condition = RunCondition(*found.groups())
    if condition.operator in ORDERS and _number(condition.value) is None:
        raise ProtofedError(f"{text}: {condition.operator} compares numbers only")
    if condition.path == "state":
        require_known_name("state", condition.value.lower(), RUN_STATES)
    return condition


def filter_runs(entries: Sequence[RunEntry], conditions: Iterable[str]) -> list[RunEntry]:
    """The entries that fulfil all conditions, each as `parse_condition` reads it.

    A field that no run has is an error, unless there are no runs.
    """
    parsed = [parse_condition(text) for text in conditions]
    there = (path for entry in entries for path in entry.fields)
    known = dict.fromkeys([*ALWAYS_KNOWN, *there, *LATER_FIELDS])
    for condition in parsed if entries else []:
        require_known_name("field", condition.path, known)
    return [entry for entry in entries if all(one.holds(entry) for one in parsed)]


class ChosenRuns(NamedTuple):
    """The run folders to show, and a line on each folder that was left out, with the reason."""

    folders: list[Path]
    left_out: list[str]


def choose_runs(
    folders: Sequence[Path], conditions: Sequence[str], check: Callable[[Path], object]
) -> ChosenRuns:
    """The runs among some folders (or in them) that fulfil conditions and pass a check.

    `check` raises for a run that cannot be shown; the others still are. If none is left, that is an
    error: the fault itself if there was a single run.
    """
    found = find_runs(folders)
    if conditions:
        entries = [read_entry(folder) for folder in found]
        found = [entry.folder for entry in filter_runs(entries, conditions)]
        if not found:
            among = f"none of {count_noun(len(entries), 'run')} fulfils"
            raise ProtofedError(f"{among} {' and '.join(conditions)}", hint="change <where>")
    faults: dict[Path, ProtofedError | OSError] = {}
    for folder in found:
        try:
            check(folder)
        except (ProtofedError, OSError) as fault:
            faults[folder] = fault
    if len(found) == len(faults) == 1:
        raise faults[found[0]]
    lines = [f"{folder}: {shorten_fault(folder, fault)}" for folder, fault in faults.items()]
    if found and len(found) == len(faults):
        raise ProtofedError("\n".join(["none of these runs can be shown:", *lines]))
    return ChosenRuns([folder for folder in found if folder not in faults], lines)
