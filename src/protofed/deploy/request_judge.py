"""What a site may be asked: every field held against its policy and the record of its answers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.metrics import MAIN
from protofed.core.model import Model
from protofed.core.reply_validation import LARGEST
from protofed.core.site import ArrayDataset, Site
from protofed.deploy.policy import SitePolicy
from protofed.engines.site_protocol import SiteRequest
from protofed.errors import ProtofedError, printable_text
from protofed.federation.remote_sites import remote_side
from protofed.runtime import atomic_io
from protofed.runtime.code_reference import OUR_CODE, CodeAccess
from protofed.runtime.json_files import (
    parse_json,
    parse_json_object,
    require_fields,
    require_int,
    require_list,
    require_object,
    require_text,
)
from protofed.spec.experiment_spec import Experiment
from protofed.spec.method_lookup import parse_method
from protofed.spec.spec_parser import parse_experiment

ANSWERED, REFUSED = "answered.jsonl", "refused.jsonl"
MOST_REFUSED = 1 << 20  # bytes of refusals; older ones then go to a second file, and later away
DAY = 86400.0  # seconds


class LedgerLine(NamedTuple):
    """One line of ``answered.jsonl``; what does not apply to it is 0 or empty.

    Rounds and legs count from 1. The round of a score is the one after which the model was scored.
    """

    what: str  # "begin" of a run, "train", "score", or "side": images were prepared in a new size
    run: str = ""
    spec: str = ""  # SHA-256 of what the run is about
    round: int = 0
    leg: int = 0  # of "train": an exchange of the round
    message: str = ""  # SHA-256 of the message that was answered and of the private state it met
    side: int = 0  # of "side": width and height in pixels
    time: float = 0.0  # seconds since 1970


@dataclass
class AnsweredRun:
    """What a site has answered in one run: by round, the messages that it answered to.

    `trained` has an entry per round and leg, both from 1, with the key of each training; `scored`
    one per round after which the model was scored.
    """

    spec: str  # SHA-256 of what the run is about
    begun: float  # seconds since 1970
    trained: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    scored: dict[int, list[str]] = field(default_factory=dict)

    def count_scores(self) -> int:
        """How many different scores have left this site."""
        return sum(len(set(keys)) for keys in self.scored.values())


class AnswerLedger:
    """The record of all answers of a site, in a file that only grows.

    It is read again at each start, so limits hold across restarts. An answer is recorded before it
    leaves; what cannot be recorded, as on a full disk, does not leave. A line that a crash cut
    short is removed; any other damage is an error.
    """

    def __init__(self, home: Path):
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.answered, self.refused = home / ANSWERED, home / REFUSED
        self.runs: dict[str, AnsweredRun] = {}
        self.sides: dict[int, float] = {}  # of images: when each was last packed for a server
        self._cut_torn_line()
        for line in self._lines():
            self._take(line)

    def _cut_torn_line(self) -> None:
        """Cut off what a crash left of a last line, or the next one would be joined to it."""
        raw = self.answered.read_bytes() if self.answered.exists() else b""
        if raw and not raw.endswith(b"\n"):
            os.truncate(self.answered, raw.rfind(b"\n") + 1)

    def _lines(self) -> Iterator[LedgerLine]:
        raw = self.answered.read_bytes().splitlines() if self.answered.exists() else []
        for number, text in enumerate(raw, 1):
            try:
                yield _checked(parse_json(text, f"line {number}"))
            except ProtofedError as fault:
                raise ProtofedError(
                    f"{self.answered}: line {number} is damaged, so this site does not know "
                    f"what it has answered\nrestore the file, or move it away to begin with a new "
                    f"record"
                ) from fault

    def _take(self, line: LedgerLine) -> None:
        if line.what == "side":
            self.sides[line.side] = line.time
            return
        run = self.runs.setdefault(line.run, AnsweredRun(line.spec, line.time))
        if line.what == "train":
            run.trained.setdefault((line.round, line.leg), []).append(line.message)
        elif line.what == "score":
            run.scored.setdefault(line.round, []).append(line.message)

    def sides_today(self) -> set[int]:
        """The sizes of images that were asked for in the last 24 hours."""
        return {side for side, when in self.sides.items() if time.time() - when < DAY}

    def begun_today(self) -> int:
        """How many runs have begun in the last 24 hours."""
        return sum(time.time() - run.begun < DAY for run in self.runs.values())

    def write(self, line: LedgerLine) -> None:
        """Put an answer on record with the time of now, before it leaves this site."""
        line = line._replace(time=round(time.time(), 3))
        try:
            content = json.dumps(line._asdict()) + "\n"
            atomic_io.append_durably(self.answered, content.encode())
        except OSError as fault:  # a full disk: what is not on record does not leave
            with suppress(OSError):
                self._cut_torn_line()
            raise ProtofedError(f"its record cannot be written: {fault.strerror}") from fault
        self._take(line)

    def write_refusal(self, run: str, what: str, reason: str) -> None:
        """Put on record what was asked and not answered; a flood of such does not fill the disk."""
        if self.refused.exists() and self.refused.stat().st_size > MOST_REFUSED:
            atomic_io.rename_over(self.refused, self.refused.with_suffix(".old.jsonl"))
        line = {"time": round(time.time(), 3), "run": run[:64], "what": what[:20], "why": reason}
        with self.refused.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def _checked(line: object) -> LedgerLine:
    """A line of the record as it is written; anything else is damage."""
    kinds = {"time": (int, float), **dict.fromkeys(("round", "leg", "side"), int)}
    texts = dict.fromkeys(("run", "spec", "what", "message"), str)
    wanted: dict[str, Any] = {**kinds, **texts}
    if not isinstance(line, dict) or set(line) != set(wanted):
        raise ProtofedError("not a line of the record")
    if any(
        isinstance(line[k], bool) or not isinstance(line[k], kind) for k, kind in wanted.items()
    ):
        raise ProtofedError("not a line of the record")
    return LedgerLine(**line)


RUN_NAME = re.compile(r"[0-9a-f]{8,64}")
MOST_BRIEF = 1 << 20  # characters
MOST_ROUNDS, MOST_EXCHANGES, MOST_SIDE, MOST_CLASSES = 1_000_000, 100, 512, 10_000
MOST_SIDES = 4  # sizes of images in a day
MOST_SITES, MOST_IMAGES = 100_000, 10**9
LARGEST_WEIGHT = 1e4  # no net that was trained holds a larger one; a forged head may
QUESTIONS = ("hello", "describe", "train", "score")
KINDS: dict[str, type] = {
    **dict.fromkeys(("what", "brief", "run", "session"), str),
    **dict.fromkeys(("start", "floor", "round", "rounds", "exchange"), int),
}


class RunInquiry(NamedTuple):
    """What a coordinator says of a run when it asks sites to describe themselves.

    `scores` is how often it will ask for them, `side` the size of the images in pixels.
    """

    method: AnyMethod
    rounds: int
    scores: int  # how often it will ask for them
    side: int


class RunDescription(NamedTuple):
    """What a run is about, as the coordinator states it with each request.

    `digest` is the SHA-256 of all of it: a run must stay what it was.
    """

    experiment: Experiment
    classes: list[str]
    sizes: dict[int, int]  # how many images each client trains on
    digest: str  # SHA-256 of it all


def check_fields(ask: SiteRequest) -> None:
    """Refuse a request whose fields cannot be those of any honest one.

    Checks types and ranges only, before anything is parsed.
    """
    for name, kind in KINDS.items():
        if type(getattr(ask, name)) is not kind:
            raise ProtofedError(f"{name}: not of the kind that it must be")
    if ask.what not in QUESTIONS:
        raise ProtofedError(f"unknown question '{printable_text(ask.what, 20)}'")
    if type(ask.received) is not Message or len(ask.brief) > MOST_BRIEF:
        raise ProtofedError("a question that is none")
    if ask.what in ("hello", "describe"):
        if tree.nbytes(ask.received) or ask.run:
            raise ProtofedError(f"{ask.what}: comes without a run and without a message")
        return
    if not RUN_NAME.fullmatch(ask.run) or not RUN_NAME.fullmatch(ask.session):
        raise ProtofedError("not the name of a run")
    last = ask.rounds if ask.what == "score" else ask.rounds - 1
    if not 0 <= ask.round <= last < MOST_ROUNDS or not 0 <= ask.exchange < MOST_EXCHANGES:
        raise ProtofedError(
            f"round {ask.round + 1} of {ask.rounds}, exchange {ask.exchange + 1}: no such"
        )
    if not 0 <= ask.start <= ask.round or not 0 <= ask.floor <= ask.round:
        raise ProtofedError("a session that begins after its own round")


def parse_inquiry(text: str, access: CodeAccess = OUR_CODE) -> RunInquiry:
    """Read the JSON of a `describe` request; an error names a field that cannot be so.

    The request comes from a coordinator: code that it names is loaded only if `access` allows it.
    """
    fields = parse_json_object(text)
    require_fields(fields, ("method", "rounds", "scores", "side"))
    return RunInquiry(
        parse_method(fields["method"], access),
        require_int("rounds", fields["rounds"], 1, MOST_ROUNDS),
        require_int("scores", fields["scores"], 0, MOST_ROUNDS),
        require_int("side", fields["side"], 1, MOST_SIDE),
    )


def parse_description(text: str, access: CodeAccess = OUR_CODE) -> RunDescription:
    """Read the JSON that describes a run; an error names a field that cannot be so.

    A spec must name the sites' own images, no other place on this machine, and no code but what
    `access` allows.
    """
    fields = parse_json_object(text)
    require_fields(fields, ("spec", "classes", "sizes"))
    spec, sizes = require_object("spec", fields["spec"]), require_object("sizes", fields["sizes"])
    data = spec.get("data")
    if not isinstance(data, dict) or data.get("at") != "sites":
        raise ProtofedError("a spec whose images are not those of the sites")
    require_text("data.revision", data.get("revision"), 1, 64)
    require_list("data.domains", data.get("domains"), 1, MOST_SITES)
    classes = require_list("classes", fields["classes"], 1, MOST_CLASSES)
    require_int("sizes", len(sizes), 1, MOST_SITES)
    experiment = parse_experiment(spec, access=access)
    if experiment.device != "cpu" or remote_side(experiment) > MOST_SIDE:
        raise ProtofedError("a device or a side that no site takes")
    counts = {
        _client_number(client): require_int("sizes", size, 1, MOST_IMAGES)
        for client, size in sizes.items()
    }
    digest = hashlib.sha256(text.encode()).hexdigest()
    return RunDescription(
        experiment, [require_text("a class", c, 1, 200) for c in classes], counts, digest
    )


def _client_number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ProtofedError(f"sizes: '{printable_text(text, 20)}' is no number of a client")
    return int(text)


class RequestJudge:
    """Holds requests against a site's policy and its record of answers.

    Every method returns if the request may be answered, and raises a ProtofedError with the reason
    if not. The reason is sent to the coordinator.
    """

    def __init__(self, policy: SitePolicy, ledger: AnswerLedger):
        self.policy, self.ledger = policy, ledger

    def inquiry(self, asked: RunInquiry) -> None:
        """Refuse a run before it starts if it would be refused later."""
        self._allowed(asked.method, asked.rounds)
        self._room_for_runs()
        most = self.policy.max_scores
        if most and asked.scores > most:
            raise ProtofedError(
                f"{asked.scores} scores, but this site's policy allows {most} of a run "
                f"(max_scores): raise evaluate_every"
            )

    def _allowed(self, method: AnyMethod, rounds: int) -> None:
        if reason := self.policy.allows(method, rounds):
            raise ProtofedError(reason)

    def _room_for_runs(self) -> None:
        most = self.policy.max_runs_per_day
        if most is not None and self.ledger.begun_today() >= most:
            raise ProtofedError(f"this site's policy allows {most} runs a day (max_runs_per_day)")

    def run(self, ask: SiteRequest, brief: RunDescription) -> AnsweredRun | None:
        """Refuse a request of a run that is not what it was, or that the policy forbids.

        Returns the record of the run, None if the site has answered nothing of it yet.
        """
        record, experiment = self.ledger.runs.get(ask.run), brief.experiment
        if record is None:
            self._room_for_runs()
        elif record.spec != brief.digest:
            raise ProtofedError("a run of this name was about something else")
        self._allowed(experiment.method, experiment.rounds)
        epochs = experiment.method.epochs_per_round(experiment.training)
        if epochs > self.policy.max_epochs:
            raise ProtofedError(
                f"{epochs} epochs, but this site's policy allows {self.policy.max_epochs} of a "
                f"round (max_epochs)"
            )
        if ask.rounds != experiment.rounds or ask.exchange >= experiment.method.exchanges:
            raise ProtofedError("a round or an exchange that its spec does not have")
        return record

    def side(self, side: int) -> None:
        """Refuse too many different sizes of images in a day: each is prepared and kept on disk."""
        sides = self.ledger.sides_today()
        if side not in sides:
            if len(sides) >= MOST_SIDES:
                raise ProtofedError(f"images of more than {MOST_SIDES} sizes in a day")
            self.ledger.write(LedgerLine("side", side=side))

    def training(self, ask: SiteRequest, record: AnsweredRun) -> None:
        """Refuse to train again and again for one exchange; an answer from disk costs nothing."""
        before = record.trained.get((ask.round + 1, ask.exchange + 1), [])
        self._repeats(len(before), f"round {ask.round + 1}")

    def scoring(
        self, ask: SiteRequest, brief: RunDescription, record: AnsweredRun, key: str
    ) -> None:
        """Refuse scores that the spec does not ask for, or more than the policy allows.

        `key` identifies the model and state; the same pair may be scored any number of times.
        """
        experiment, most = brief.experiment, self.policy.max_scores
        due = ask.round % experiment.evaluate_every == 0 or ask.round == experiment.rounds
        if not due or ask.round < 1:
            raise ProtofedError(f"no score is due after round {ask.round}")
        known = set(record.scored.get(ask.round, []))
        if key in known:
            return  # the same model and state have the same score, which is known there
        self._repeats(len(known), f"the score of round {ask.round}")
        if most is not None and record.count_scores() >= most:
            raise ProtofedError(f"this site's policy allows {most} scores of a run (max_scores)")

    def _repeats(self, before: int, what: str) -> None:
        if before > self.policy.max_repeats:
            raise ProtofedError(
                f"{what} was asked for {before} times with other messages, and this site's policy "
                f"allows {self.policy.max_repeats} repeats (max_repeats)"
            )


def check_inbox(received: Message, site: Site) -> None:
    """Refuse a message whose model cannot be one of this net that was trained.

    Names, shapes and types must be those of the net, and all numbers finite and not huge.
    """
    if type(received.model) is not Model:
        raise ProtofedError("a message without a model's form")
    fresh = site.initial_model()
    _same_form("weights", received.model.weights, fresh.weights, LARGEST_WEIGHT)
    _same_form("buffers", received.model.buffers, fresh.buffers, LARGEST)
    for name, leaf in tree.named_leaves(received):
        _check_numbers(name, leaf, LARGEST)


def _same_form(
    what: str, found: Mapping[str, Any], wanted: Mapping[str, Tensor], most: float
) -> None:
    for name, tensor in found.items():
        if name not in wanted or not isinstance(tensor, Tensor):
            raise ProtofedError(
                f"model.{what}: {printable_text(str(name), 60)} is no part of this net"
            )
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            raise ProtofedError(f"model.{what}.{name}: not of the form that this net has")
        _check_numbers(f"model.{what}.{name}", tensor, most)


def _check_numbers(name: str, tensor: Tensor, most: float) -> None:
    if tensor.layout != torch.strided or tensor.is_meta:
        raise ProtofedError(f"{printable_text(name, 80)}: not a dense tensor")
    if tensor.numel() and tensor.dtype != torch.bool:
        low, high = (float(edge) for edge in tensor.detach().aminmax())
        if not -most <= low <= high <= most:
            raise ProtofedError(
                f"{printable_text(name, 80)}: holds NaN or a number beyond {most:g}"
            )


def check_test_counts(labels: Tensor, policy: SitePolicy) -> None:
    """Refuse to score on so few test images of a class that a score would count them.

    Only where the policy keeps counts back.
    """
    counts = labels.bincount()
    few = counts[(counts > 0) & (counts < policy.min_examples)]
    if not policy.send_counts and len(few):
        raise ProtofedError(
            f"a class has fewer than {policy.min_examples} test images here, and this site keeps "
            f"its counts back (min_examples, send_counts)"
        )


@torch.inference_mode()
def check_answers(
    method: AnyMethod,
    site: Site,
    received: Message,
    state: Any,
    test: ArrayDataset,
    policy: SitePolicy,
) -> None:
    """Refuse to score a model that gives one answer for nearly every test image.

    Its score would be the number of test images of that class. Only where the policy keeps counts
    back.
    """
    if policy.send_counts or not len(test):
        return
    answers: dict[str, list[Tensor]] = {}
    for x, _ in site.eval_batches(test):
        scores = {MAIN: method.predict(site, received, state, x)}
        for name, each in {
            **scores,
            **method.auxiliary_predictions(site, received, state, x),
        }.items():
            answers.setdefault(name, []).append(each.argmax(1))
    for parts in answers.values():
        most = int(torch.cat(parts).bincount().max())
        if len(test) - most < policy.min_examples:
            raise ProtofedError(
                "the model has one answer for nearly every test image, so its score would "
                "count a class, and this site keeps its counts back (send_counts)"
            )
