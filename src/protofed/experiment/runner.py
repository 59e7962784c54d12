"""The only loop: rounds, exchanges, sampling, scoring, checkpoints, the same for every method.

What goes wrong on the way is recorded, reported, and tolerated only for a few rounds.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias

import torch

from protofed.core.hook_results import first_server_state
from protofed.core.message import Message
from protofed.core.method import C, Method, S
from protofed.core.rng import rng
from protofed.core.site import ClientId, RoundContext
from protofed.core.training import torch_threads
from protofed.engines.engine import Engine, RoundEvent
from protofed.engines.local_engine import CPU, LocalEngine
from protofed.engines.multiprocess import WorkerEngine, WorkerPool, worker_count
from protofed.errors import ProtofedError, count_noun
from protofed.experiment.checkpoint import ResumePoint, load_server_state
from protofed.experiment.model_card import mark_done
from protofed.experiment.result import (
    RunResult,
    read_evaluations,
    read_result,
    result_so_far,
)
from protofed.experiment.round_report import RoundReport, make_report
from protofed.experiment.run_folder import RunDir, check_same_environment
from protofed.experiment.run_followers import (
    RunFollowers,
    RunWatcher,
    Tracker,
    Watch,
    check_trackers,
)
from protofed.experiment.run_records import World
from protofed.experiment.stale_code import (
    StaleRule,
    changed_code_note,
    check_unchanged,
    must_repeat,
)
from protofed.federation.build import (
    Federation,
    build_federation,
    describe_environment,
    require_precision,
)
from protofed.federation.collapse import collapse_notices
from protofed.federation.evaluation import Evaluation, evaluate_round
from protofed.federation.notices import Notice
from protofed.federation.round import Messages, run_round
from protofed.federation.stored_features import with_stored_features
from protofed.runtime.resources import tune_malloc
from protofed.spec.code_fingerprint import code_digests, code_fingerprint, git_commits
from protofed.spec.experiment_spec import Data, Experiment, SiteData
from protofed.spec.method_lookup import code_names, method_name, method_slug

MOST_FAILED = 3  # failed rounds in a row after which a run stops
SHOWN = 3  # refused replies of a round that are reported one by one
DIVERGED = (
    "lower <training.lr> or the method's weights, which makes another experiment in another folder;"
    '\nor set on_nonfinite = "skip", which leaves such a client out of the round'
)
FAILED = "fix the cause and rerun the same command to resume from the last checkpoint"
OWN_CODE = "; if you edit the method or net for it, start over with <again>"
REMOTE_FAILED = (
    "fix the cause (if replies came late, raise <deadline>) and rerun the same command with "
    "<resume> to resume from the last checkpoint"
)


class RunEvents:
    """Records what goes wrong in a run as lines of ``events.jsonl``, and decides when to stop.

    It counts refused replies, failed rounds and damaged checkpoints. A run stops after three
    consecutive failed rounds, or when a client diverges and the spec says so.
    """

    def __init__(self, experiment: Experiment, folder: RunDir):
        self.experiment, self.folder = experiment, folder
        self.now: list[RoundEvent] = []  # of the round that is being played
        self.failed = 0  # rounds in a row

    def note(self, event: RoundEvent) -> None:
        """Put an event on record; stop where the spec says so."""
        if event.diverged and self.experiment.on_nonfinite == "stop":
            raise ProtofedError(event.describe, hint=DIVERGED)
        self.folder.append(self.folder.events, event.to_dict())
        self.now.append(event)

    def passed_over(self, found: ResumePoint, damaged: int = 0) -> list[str]:
        """Put damaged checkpoints on record, where the run really goes on; a line for each.

        So are `damaged` lines of the record itself, which are gone.
        """
        where = f"resuming after round {found.round}" if found.round else "starting over"
        lines: list[dict[str, Any]] = []
        for finished, why in found.faults.items():
            reason = f"the checkpoint of round {finished} cannot be used: {why}; {where}"
            lines.append({"round": found.round, "checkpoint": finished, "reason": reason})
        if damaged:
            reason = f"events.jsonl had {count_noun(damaged, 'damaged line')}, now gone"
            lines.append({"round": found.round, "reason": reason})
        known = self.folder.lines(self.folder.events)  # of a start that was killed, too
        for line in lines:
            if line not in known:
                self.folder.append(self.folder.events, line)
        return [str(line["reason"]) for line in lines]

    def words(self) -> tuple[str, ...]:
        """What went wrong in the round that is being played: of many refused replies, some."""
        refused = [event.describe for event in self.now if event.client is not None]
        lost = [event.describe for event in self.now if event.client is None]
        rest = len(refused) - SHOWN
        more = [f"and {rest} more in this round, see events.jsonl"] if rest > 0 else []
        return (*refused[:SHOWN], *more, *lost)

    def end_round(self) -> None:
        """Count the round; stop after too many failed ones in a row, whose state has been kept."""
        lost = [event for event in self.now if event.client is None]
        self.failed, self.now = self.failed + 1 if lost else 0, []
        if self.failed >= MOST_FAILED:
            raise ProtofedError(
                f"stopped after {self.failed} consecutive failed rounds; all reasons are in "
                f"{self.folder.events}; last failure:\n{lost[-1].describe}",
                hint=self._advice(),
            )

    def _advice(self) -> str:
        """What to do after too many failed rounds: a hint."""
        if isinstance(self.experiment.data, SiteData):
            return REMOTE_FAILED
        return FAILED + (OWN_CODE if code_names(self.experiment.to_dict()) else "")

    def check_any(self) -> None:
        """Refuse to call a run finished in which no round has succeeded."""
        lines = self.folder.lines(self.folder.events)
        lost = {line["round"] for line in lines if line.get("client", 0) is None}
        if len(lost) >= self.experiment.rounds:
            raise ProtofedError(
                f"{self.folder.path}: every round failed, so nothing was trained; the reasons are "
                f"in {self.folder.events}",
                hint="fix the cause and run the experiment into another folder with <out>",
            )

    def summary(self) -> list[str]:
        """Notices for who reads the scores, if there is anything to know."""
        lines, gaps = self.folder.lines(self.folder.events), self._gaps()
        if not lines:
            return gaps
        bad = sum("checkpoint" in line for line in lines)
        whose = [line["client"] for line in lines if "client" in line]
        lost = whose.count(None)
        replies = _were(len(whose) - lost, "reply was", "replies were")
        told = f"{replies} refused and {count_noun(lost, 'round')} failed"
        if bad:
            told = f"{_were(bad, 'checkpoint was', 'checkpoints were')} damaged, {told}"
        if len(whose) + bad < len(lines):
            told += ", as far as events.jsonl was not damaged"
        return [f"{told}: see events.jsonl", *gaps]

    def _gaps(self) -> list[str]:
        """Which rounds some sites have not scored, so that their mean is of the others."""
        found: dict[tuple[str, ...], list[int]] = {}
        for line in self.folder.lines(self.folder.scores):
            if "missing" in line:
                found.setdefault(tuple(line["missing"]), []).append(line["round"])
        every = len(self.experiment.data.domains)
        return [
            f"{_when(rounds)}: not scored by {', '.join(sites)}; the mean is of "
            f"{every - len(sites)} of {every} sites"
            for sites, rounds in found.items()
        ]


def _were(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def _when(rounds: list[int]) -> str:
    if len(rounds) == 1:
        return f"round {rounds[0]}"
    return f"{len(rounds)} rounds between {rounds[0]} and {rounds[-1]}"


def check_min_clients(experiment: Experiment, asked: int) -> None:
    """Refuse a run whose rounds could never have enough replies.

    `asked` clients take part in a round; ``min_clients`` replies are needed.
    """
    if experiment.min_clients > asked:
        raise ProtofedError(
            f"min_clients: {experiment.min_clients} replies are needed, but a round asks {asked} "
            f"clients\nlower min_clients, or raise participation or the number of clients "
            f"(partition.clients; across machines, the sites that take part)"
        )


Workers: TypeAlias = int | Literal["auto"]
START_WORKERS_AFTER = 3.0  # seconds, about what it costs; with workers="auto"
FASTEST = 10_000 * 32**2  # pixels that the quickest net trains on in a second of one core


def start_early(
    experiment: Experiment, workers: Workers, rounds: int, clients: int, images: int | None
) -> WorkerPool | None:
    """Worker processes that import torch while this one is busy; None if the run may do without.

    With ``workers="auto"`` they start if `rounds` rounds over `images` images surely take longer
    than starting them; otherwise `WorkerEngine` waits and sees.
    """
    if torch.device(experiment.device) != CPU:
        return None
    if workers == "auto" and least_seconds(experiment, rounds, images) < START_WORKERS_AFTER:
        return None
    asked = clients_per_round(experiment, clients)
    count = worker_count(asked, experiment.threads) if workers == "auto" else min(workers, clients)
    return WorkerPool(count) if count else None


def least_seconds(experiment: Experiment, rounds: int, images: int | None) -> float:
    """How long one core trains at least in some rounds over all clients' images; 0 if unknown."""
    stored = bool(experiment.feature_views)
    if images is None or stored or not isinstance(experiment.data, Data):
        return 0.0  # rows and features may be quicker by far
    passes = rounds * experiment.method.epochs_per_round(experiment.training)
    return passes * experiment.participation * images * experiment.data.side**2 / FASTEST


def create_local_engine(
    experiment: Experiment,
    federation: Federation,
    scratch: Path,
    workers: Workers,
    asked: int,
    pool: WorkerPool | None = None,
) -> LocalEngine[Any, Any]:
    """The engine for a run on this machine: one process, or several if memory and cores allow.

    `asked` clients train per round. With ``workers="auto"`` the first seconds run in one process,
    as starting others costs about that much; unless `pool` has them already, which the engine then
    owns. A GPU is always used by one process.
    """
    method, everyone, tests = experiment.method, federation.everyone, federation.tests
    device = torch.device(experiment.device)
    if device != CPU:
        return LocalEngine(method, everyone, tests, scratch=scratch, device=device)
    if workers == "auto":
        count, patience = worker_count(asked, experiment.threads), START_WORKERS_AFTER
    else:
        count, patience = workers, 0.0
    if not count:
        if pool:  # the images have left too little memory
            pool.end()
        return LocalEngine(method, everyone, tests, scratch=scratch)
    return WorkerEngine(
        method,
        everyone,
        tests,
        workers=count,
        threads=experiment.threads,
        patience=patience,
        pool=pool,
        scratch=scratch,
        check_code=partial(check_unchanged, experiment, code_digests(experiment)),
    )


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    watch: Watch = lambda report: None,
    again: bool = False,
    keep: Collection[int] = (),
    workers: Workers = "auto",
    trackers: Sequence[Tracker] = (),
    progress: bool = True,
    stale: StaleRule = "refuse",
    stop_after: int | None = None,
) -> RunResult:
    """Run an experiment into a folder, resume it, or read its result if it is finished.

    `watch` is called with a `RoundReport` before the first round and after each; `trackers` log the
    run elsewhere. `progress` shows a bar on stderr, or after 30 s a line now and then where there
    is no terminal. `again` starts over. `keep` names scored rounds whose checkpoints stay beside
    the newest ones. `workers` is the number of processes that share the clients, 0 for none: it
    changes the time, never a bit. `stale` says what happens to a run that other code has made:
    "refuse" raises, "repeat" starts over, "accept" reads a finished one. `stop_after` pauses the
    run at the first scored round from there on and returns the result so far; another call goes on
    with it. ::

        result = run(Experiment(method=FedProx(mu=0.1), rounds=20), "runs/fedprox")
        print(result.last.mean)
    """
    _check_arguments(experiment, trackers)
    folder = RunDir(Path(out) if out else default_folder(experiment))
    folder.check(experiment)
    reason = "" if again else must_repeat(folder, experiment, stale)
    again = again or bool(reason)
    if again or not folder.done.exists():
        code_digests(experiment)  # old code in memory is an error before anything is cleared
        tune_malloc()
        begun = None if again else folder.newest()
        first = begun.round if begun else 0
        display = RunWatcher(experiment, folder.path, first, patient=True) if progress else None
        rounds = pause_round(experiment, stop_after) - first
        with (
            RunFollowers(experiment, folder.path, watch, trackers, display) as followers,
            torch_threads(experiment.threads),
            closing(_local(experiment, folder, keep, workers, rounds)) as made,
            folder.locked(),
        ):
            # another process may have been at it until now
            reason = reason or ("" if again else must_repeat(folder, experiment, stale))
            if again or reason:
                folder.clear()  # only now: what cannot be repeated is not thrown away
            if reason:
                made.news.append(reason)
            if not folder.done.exists():  # as it may by now, where another process was at it
                made.play(followers, stop_after)
                followers.end(read_result(folder) if folder.done.exists() else None)
    return _result(folder, experiment, stale)


def _check_arguments(experiment: object, trackers: Sequence[object]) -> None:
    """Refuse what is no experiment, as a method's name, or no tracker, and say what to pass."""
    if not isinstance(experiment, Experiment):
        raise ProtofedError(
            f"run takes an Experiment, got {experiment!r}\n"
            f"a method goes into one: run(Experiment(method={experiment!r}))"
        )
    check_trackers(trackers)


def _result(folder: RunDir, experiment: Experiment, stale: StaleRule) -> RunResult:
    """What a run folder says now; a notice tells of other code that was accepted."""
    if not folder.done.exists():
        return result_so_far(folder)
    result = read_result(folder)
    note = changed_code_note(folder, experiment) if stale == "accept" else ""
    return replace(result, notices=(*result.notices, Notice("code", note))) if note else result


def _local(
    experiment: Experiment, folder: RunDir, keep: Collection[int], workers: Workers, rounds: int
) -> ExperimentRun[Any, Any]:
    """A run whose clients are all on this machine, with `rounds` rounds to do.

    Workers start while the images are loaded, if the spec alone tells that they are worth it; else
    once the images are counted.
    """
    require_precision(experiment)
    domains, left_out, rule = experiment.data.domains, experiment.leave_out, experiment.partition
    clients = sum(rule.spread(domains, left_out).values())
    known = rule.known_images(domains, left_out)
    pool = start_early(experiment, workers, rounds, clients, known)
    try:
        federation = with_stored_features(experiment, build_federation(experiment))
        sites, images = len(federation.sites), sum(federation.server.sizes.values())
        count = clients_per_round(experiment, sites)
        check_min_clients(experiment, count)
        pool = pool or start_early(experiment, workers, rounds, sites, images)
        engine = create_local_engine(experiment, federation, folder.path, workers, count, pool)
        return ExperimentRun(experiment, experiment.method, folder, federation, engine, keep)
    except BaseException:
        if pool:
            pool.end()
        raise


def default_folder(experiment: Experiment) -> Path:
    """The run folder if none is given: ``runs/METHOD-DATA-DIGEST``.

    Equal experiments share it, so a finished one is read instead of run again.
    """
    method = re.sub(r"[^\w-]+", "", method_slug(method_name(experiment.method)))
    return Path("runs") / f"{method}-{experiment.data.label}-{experiment.digest[:8]}"


def pause_round(experiment: Experiment, stop_after: int | None) -> int:
    """The round after which a run pauses: the first from `stop_after` on that is scored.

    Only scored rounds have checkpoints. It is the run's last round if `stop_after` is None.
    """
    if stop_after is None:
        return experiment.rounds
    every = experiment.evaluate_every
    return min(experiment.rounds, math.ceil(stop_after / every) * every)


class ExperimentRun(Generic[S, C]):
    """One experiment from its newest checkpoint, or from the start, to ``done``.

    Plays rounds, scores them, and writes every line and checkpoint to the run folder. It is the
    same loop for every method and every engine; `close` ends the engine's processes.
    """

    def __init__(
        self,
        experiment: Experiment,
        method: Method[S, C],
        folder: RunDir,
        federation: Federation,
        engine: Engine,
        keep: Collection[int] = (),
    ):
        self.experiment, self.method, self.folder, self.keep = experiment, method, folder, keep
        self.news: list[str] = []  # not yet told
        self.incidents = RunEvents(experiment, folder)
        check_min_clients(experiment, clients_per_round(experiment, len(federation.sites)))
        self.engine = engine
        self.federation = federation.without_images()  # the engine has them

    def close(self) -> None:
        """Leave no process behind."""
        self.engine.close()

    def play(self, watch: Watch, stop_after: int | None = None) -> None:
        """All rounds that are still to do, or those up to a pause; `watch` is told after each."""
        began, total = time.monotonic(), self.experiment.rounds
        end = pause_round(self.experiment, stop_after)
        self.folder.open(self.experiment)
        self.keep = self.folder.keeping(self.keep)
        found = self.folder.find()
        self._record_world(found)
        server, first = self._restore(found)
        self.news += map(str, self.federation.notices)
        watch(RoundReport(first, total, None, math.nan, self._told()))
        newest: Evaluation | None = None
        for number in range(first, end):
            server, line = self._round(server, number)
            finished = number + 1
            if finished % self.experiment.evaluate_every == 0 or finished == total:
                newest = self._score(server, finished)
            pace = (time.monotonic() - began) / (finished - first)
            left, words = pace * (end - finished), (*self._told(), *self.incidents.words())
            watch(make_report(line, total, newest, left, words))
            self.incidents.end_round()
        if end < total:
            return  # paused: its newest checkpoint is of this round
        self.incidents.check_any()
        events = [Notice("events", text) for text in self.incidents.summary()]
        told = [Notice("method", text)] if (text := self.method.result_warning(server)) else []
        collapsed = collapse_notices(read_evaluations(self.folder))
        notices = [*self.federation.notices, *collapsed, *told, *events]
        mark_done(self.folder, self.experiment, notices)

    def _told(self) -> tuple[str, ...]:
        """The news, once."""
        told = (*self.news, *self.engine.news)
        self.news.clear()
        self.engine.news.clear()
        return told

    def _record_world(self, found: ResumePoint) -> None:
        """Write what this run stands on; refuse to go on with one that stood on something else."""
        code = code_digests(self.experiment)
        world: World = {
            **describe_environment(),
            **git_commits(self.experiment),
            "data": self.federation.fingerprints(),
            "fingerprint": code_fingerprint(code),
            "code": code,
        }
        if found.checkpoint:
            check_same_environment(self.folder.path, world)
            must_repeat(self.folder, self.experiment, "refuse")  # never goes on with other code
        self.folder.write("env.json", world)
        self.folder.write("partition.json", self.federation.held())
        if self.federation.public:
            rows = {name: rows.tolist() for name, rows in self.federation.public.items()}
            self.folder.write("public.json", rows)

    def _restore(self, found: ResumePoint) -> tuple[S, int]:
        """The state to go on from, and the number of rounds behind it."""
        damaged = self.folder.rewind(found.round)
        self.news += self.incidents.passed_over(found, damaged)
        self.folder.drop_after(found.round)  # only now: what was wrong with them is on record
        if found.checkpoint is None:
            return first_server_state(self.method, self.federation.server), 0
        self.engine.load(found.checkpoint.folder)
        server: S = load_server_state(found.checkpoint)
        return server, found.round

    def _round(self, server: S, number: int) -> tuple[S, dict[str, Any]]:
        """One round, and its line: what travelled and what each client reported in each leg."""
        began = time.monotonic()
        who = sample_clients(self.experiment, list(self.federation.sites), number)
        up: Counter[str] = Counter()
        down: Counter[str] = Counter()
        legs: list[dict[str, dict[str, float | None]]] = []

        def tell(sent: Messages, received: Messages) -> None:
            down.update(message_bytes(sent))
            up.update(message_bytes(received))
            legs.append({str(c): client_metrics(reply) for c, reply in received.items()})

        step, site = RoundContext(number, self.experiment.rounds), self.federation.server
        note, least = self.incidents.note, self.experiment.min_clients
        server = run_round(self.method, site, server, self.engine, who, step, tell, note, least)
        line = {
            "round": number + 1,
            "bytes_up": up.total(),
            "bytes_down": down.total(),
            "parts": {"up": dict(up), "down": dict(down)},
            "seconds": round(time.monotonic() - began, 3),
            "legs": legs,
        }
        self.folder.append(self.folder.rounds, line)
        return server, line

    def _score(self, server: S, finished: int) -> Evaluation:
        """Score and keep the state after some finished rounds."""
        scored = evaluate_round(finished, self.method, server, self.federation, self.engine)
        later = math.ceil((self.experiment.rounds - finished) / self.experiment.evaluate_every)
        self.folder.append(self.folder.scores, scored.trimmed(later).to_dict())
        self.folder.save(finished, server, self.engine, self.experiment, self.keep)
        return scored


def clients_per_round(experiment: Experiment, clients: int) -> int:
    """How many of `clients` take part in a round.

    The share that the spec's `participation` sets, rounded, and at least one.
    """
    return max(1, round(experiment.participation * clients))


def sample_clients(
    experiment: Experiment, clients: Sequence[ClientId], number: int
) -> list[ClientId]:
    """The clients of round `number`, sorted: a random share, drawn from the round's own stream.

    Equal seeds and rounds give equal clients for every method, so methods can be compared.
    """
    count = clients_per_round(experiment, len(clients))
    drawn = torch.randperm(len(clients), generator=rng(experiment.seed, "participants", number))
    return sorted(clients[i] for i in drawn[:count].tolist())


def message_bytes(messages: Messages) -> Counter[str]:
    """The bytes of the tensors in some messages, by part: ``{"model": ..., "protos": ...}``."""
    return sum((Counter(message.parts) for message in messages.values()), Counter())


def client_metrics(reply: Message) -> dict[str, float | None]:
    """The metrics that a client reported; None replaces NaN and infinity, which JSON lacks."""
    return {k: v if math.isfinite(v) else None for k, v in reply.metrics.items()}
