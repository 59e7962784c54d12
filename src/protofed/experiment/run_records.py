"""The shapes of a run folder's files, and their one reader: a wrong file is told in a sentence.

Whoever reads a file of a run folder does so by its shape here, so that nobody behind this point
meets a field that is missing, of another type, or a number that no run could have written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from protofed.data.partition import ClientPartRecord
from protofed.errors import ProtofedError, printable_text
from protofed.federation.notices import Notice, NoticeKind
from protofed.federation.remote_sites import SiteDescription
from protofed.runtime.atomic_io import read_file_bytes
from protofed.runtime.code_reference import NO_CODE, CodeAccess, parse_reference
from protofed.runtime.json_files import parse_json, read_json_file
from protofed.spec.experiment_spec import Experiment
from protofed.spec.method_lookup import UnloadedMethod, code_names, find_moved_code
from protofed.spec.spec_parser import RECORDED, parse_experiment

FEDERATION_FILE = "federation.json"  # what the sites had declared when the run began
T = TypeVar("T")
Line = dict[str, Any]
ADVICE = "restore it from a copy, or repeat the run with <again> or into a new <out>"  # a hint

# Exactly the fields that are named, so that no changed letter makes a file say less.
EXACTLY = ConfigDict(extra="forbid", strict=True)
Count = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[int, Field(ge=1, le=1_000_000)]  # of a round, or of a leg
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Percent = Annotated[float, Field(ge=0, le=100)] | None
Metric = Annotated[float, Field(allow_inf_nan=False)] | None
Digest = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]


@with_config(ConfigDict(extra="allow", strict=True))
class SpecRecord(TypedDict):
    """The shape of ``spec.json``: the digest of an experiment beside its fields.

    The fields themselves are checked by `parse_experiment`.
    """

    digest: Digest
    method_label: NotRequired[str]  # its name in tables, for readers that do not load its code
    leave_out: NotRequired[str | None]


@with_config(EXACTLY)
class NoticeRecord(TypedDict):
    """A `Notice` as plain data; `domain` is there only if it is about one."""

    kind: NoticeKind
    text: str
    domain: NotRequired[str]


def notice_record(notice: Notice) -> NoticeRecord:
    """A notice as it stands in files and in the output of ``--json``."""
    record: NoticeRecord = {"kind": notice.kind, "text": notice.text}
    return record if notice.domain is None else {**record, "domain": notice.domain}


@with_config(EXACTLY)
class DoneRecord(TypedDict):
    """The shape of ``done``, the file that marks a run as finished.

    It holds the experiment's digest, what a reader must know (`notices`), and the digest of
    ``scores.jsonl``.
    """

    digest: Digest
    notices: list[NoticeRecord]
    scores: Digest


@with_config(EXACTLY)
class ManifestRecord(TypedDict):
    """The shape of ``manifest.json``: a checkpoint's experiment, round and digests.

    `scores` is the digest of ``scores.jsonl`` up to that round; `sha256` has one entry per file.
    """

    experiment: Digest
    round: Number
    scores: Digest
    sha256: Annotated[dict[str, Digest], Field(min_length=1)]


@with_config(EXACTLY)
class KeepRecord(TypedDict):
    """The shape of ``keep.json``: the rounds whose checkpoints are kept."""

    rounds: list[int]


@with_config(EXACTLY)
class ScoreTables(TypedDict):
    """Accuracy in per cent by domain, with summaries over domains.

    A domain without test images has None. `spread` is the standard deviation between domains.
    """

    domains: dict[str, Percent]
    mean: Percent
    worst: Percent
    spread: Percent


@with_config(EXACTLY)
class AnswerRecord(TypedDict):
    """Counts of a model's answers on one domain: the fields of `AnswerCounts`.

    Only the last five evaluations have `wins` and `sure`, only the last one `cells` and `features`.
    """

    images: list[Count]
    hits: list[Count]
    answers: list[Count]
    models: NotRequired[Number]
    wins: NotRequired[list[Count]]
    sure: NotRequired[list[Count]]
    cells: NotRequired[list[Count]]
    features: NotRequired[list[Count]]


@with_config(EXACTLY)
class ScoreLine(ScoreTables):
    """A line of ``scores.jsonl``: one evaluation of the whole federation.

    `opinions` are a method's auxiliary predictors, `own` and `clients` belong to personal methods,
    and `missing` names sites that did not score. `counts` has what each domain's answers were;
    runs of earlier versions lack it. `classes` names the classes, in the last line.
    """

    round: Number
    opinions: NotRequired[dict[str, ScoreTables]]
    own: NotRequired[ScoreTables]
    clients: NotRequired[dict[str, dict[str, Percent]]]
    missing: NotRequired[list[str]]
    counts: NotRequired[dict[str, AnswerRecord]]
    classes: NotRequired[list[str]]


@with_config(EXACTLY)
class TrafficParts(TypedDict):
    """The bytes that were sent up and down in a round, by part of the message."""

    up: dict[str, Count]
    down: dict[str, Count]


@with_config(EXACTLY)
class RoundLine(TypedDict):
    """A line of ``rounds.jsonl``: traffic and seconds of one round.

    `legs` has one table per exchange, with the metrics that each client reported.
    """

    round: Number
    bytes_up: Count
    bytes_down: Count
    parts: TrafficParts
    seconds: Seconds
    legs: list[dict[str, dict[str, Metric]]]


@with_config(EXACTLY)
class EventLine(TypedDict):
    """A line of ``events.jsonl``: a refused reply, a failed round, or a damaged checkpoint or line.

    `client` is None for a round that failed as a whole; `round` is 0 if a run starts over.
    """

    round: Count  # 0 where a run starts over
    reason: str
    leg: NotRequired[Number]
    client: NotRequired[int | str | None]
    checkpoint: NotRequired[Number]


@with_config(EXACTLY)
class TrackingRecord(TypedDict):
    """The shape of ``tracking.json``: the run's ids in W&B and MLflow.

    They become part of file names, so nothing but an id is let through.
    """

    wandb: NotRequired[Annotated[str, Field(pattern=r"\A[0-9a-f]{16}\z")]]
    mlflow: NotRequired[Annotated[str, Field(pattern=r"\A[0-9a-f]{32}\z")]]


SPEC, DONE = TypeAdapter(SpecRecord), TypeAdapter(DoneRecord)
MANIFEST, KEEP = TypeAdapter(ManifestRecord), TypeAdapter(KeepRecord)
TRACKING = TypeAdapter(TrackingRecord)
World = dict[str, str | dict[str, str]]  # env.json: versions, and digests of data
WORLD: TypeAdapter[World] = TypeAdapter(World)
Holdings = list[ClientPartRecord]  # partition.json: who holds what
HOLDINGS: TypeAdapter[Holdings] = TypeAdapter(Holdings)
LINES: dict[str, TypeAdapter[Any]] = {
    "scores.jsonl": TypeAdapter(ScoreLine),
    "rounds.jsonl": TypeAdapter(RoundLine),
    "events.jsonl": TypeAdapter(EventLine),
}


def read_record_file(shape: TypeAdapter[T], file: Path) -> T:
    """Read a JSON file of a run folder that must have a shape.

    Anything else in the file is an error that names the file, the fault and what to do.
    """
    try:
        return check_shape(shape, read_json_file(file), file)
    except ProtofedError as fault:
        raise ProtofedError(fault.args[0], hint=ADVICE) from fault


def read_world(folder: Path) -> World:
    """What a run was made with, from its ``env.json``; empty if the run has not begun."""
    file = folder / "env.json"
    return read_record_file(WORLD, file) if file.exists() else {}


def check_shape(shape: TypeAdapter[T], content: object, source: object) -> T:
    """Return plain data if it has a shape, else raise the first thing that is wrong with it.

    `source` names the file in the error.
    """
    try:
        return shape.validate_python(content)
    except ValidationError as fault:
        first = fault.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(step) for step in first["loc"]) or "all of it"
        told = printable_text(f"{where}: {first['msg']}", 200)
        raise ProtofedError(f"{source} is damaged: {told}") from fault


def read_record_lines(file: Path) -> list[Line]:
    """Read all lines of a JSON Lines file; a last line that a crash truncated is skipped.

    Any other damaged line is an error. `undamaged_lines` skips those too.
    """
    found = []
    for line, _ in _lines(file):
        if isinstance(line, ProtofedError):
            raise ProtofedError(line.args[0], hint=ADVICE) from line
        found.append(line)
    return found


def undamaged_lines(file: Path) -> list[tuple[Line, bytes]]:
    """The intact lines of a JSON Lines file, each parsed and as bytes.

    For a run that resumes: damaged lines are skipped, and their rounds are played again.
    """
    return [(line, raw) for line, raw in _lines(file) if not isinstance(line, ProtofedError)]


def count_damaged_lines(file: Path) -> int:
    """How many lines of a JSON Lines file are damaged; a truncated last line does not count."""
    return sum(isinstance(line, ProtofedError) for line, _ in _lines(file))


def _lines(file: Path) -> Iterator[tuple[Line | ProtofedError, bytes]]:
    """Each line, read or what is wrong with it, and its bytes; no file has no lines."""
    try:
        *whole, last = read_file_bytes(file).split(b"\n") if file.exists() else [b""]
    except OSError as fault:
        raise ProtofedError(f"{file} cannot be read: {fault.strerror}", hint=ADVICE) from fault
    for number, raw in enumerate([*whole, last], start=1):
        read = _line(LINES[file.name], raw, f"{file}, line {number}")
        if number <= len(whole) or not isinstance(read, ProtofedError):
            yield read, raw + b"\n"


def _line(shape: TypeAdapter[Line], raw: bytes, source: str) -> Line | ProtofedError:
    try:
        return check_shape(shape, parse_json(raw, source), source)
    except ProtofedError as fault:
        return fault


def load_spec(folder: Path, access: CodeAccess = NO_CODE) -> Experiment:
    """The experiment of a run folder, from its ``spec.json``.

    A spec that does not match the digest it was saved with has been edited, and is refused. By
    default no code of a user's own is loaded: its method is then an `UnloadedMethod`, with which
    scores can be read but nothing can be trained.
    """
    file = folder / "spec.json"
    saved = read_record_file(SPEC, file)
    raw = {key: value for key, value in saved.items() if key not in RECORDED}
    if access.load:
        raw = find_moved_code(raw)
        _refuse_code_inside(folder.resolve(), raw)
    experiment = parse_experiment(raw, str(file), access)
    if isinstance(experiment.method, UnloadedMethod) and saved.get("method_label"):
        method = replace(experiment.method, label=saved["method_label"])
        experiment = experiment.model_copy(update={"method": method})
    if experiment.digest != saved["digest"]:
        raise ProtofedError(
            f"{file} is not the spec that the run was begun with (digest {experiment.digest[:12]}, "
            f"not {saved['digest'][:12]})",
            hint="restore it, or start a new run from it with <spec>",
        )
    return experiment


def _refuse_code_inside(folder: Path, raw: Mapping[str, Any]) -> None:
    """A run folder is data: code that lies in it, as in one from a stranger, is not executed."""
    for name in code_names(raw):
        file = parse_reference(name).find_file()
        if file and folder in file.resolve().parents:
            raise ProtofedError(
                f"{folder} names code that lies in the run folder itself: {name}\n"
                "a run folder holds no code; move the file out if you trust it, and name it there"
            )


class FederationRecord(TypedDict):
    """The shape of ``federation.json``, which a run across machines has in its folder.

    `run` is its name at the sites; `offers` is what each site described when the run began.
    """

    run: str
    offers: list[SiteDescription]


FEDERATION = TypeAdapter(FederationRecord)


def read_federation(folder: Path) -> FederationRecord:
    """What the sites of a run described (classes, counts, digests), and the run's name there."""
    return read_record_file(FEDERATION, folder / FEDERATION_FILE)
