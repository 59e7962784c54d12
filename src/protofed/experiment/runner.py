"""The only loop: rounds, exchanges, sampling, scoring, checkpoints, the same for every method."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeAlias

import torch

from protofed.core.message import Message
from protofed.core.method import C, Method, S
from protofed.core.rng import rng
from protofed.core.site import ClientId, RoundContext
from protofed.core.training import torch_threads
from protofed.engines.engine import Engine
from protofed.engines.local_engine import CPU, LocalEngine
from protofed.engines.multiprocess import WorkerEngine, worker_count
from protofed.experiment.checkpoint import ResumePoint, load_server_state
from protofed.experiment.model_card import mark_done
from protofed.experiment.result import RunResult, read_result
from protofed.experiment.run_events import RunEvents, check_min_clients
from protofed.experiment.run_folder import RunDir, check_same_environment
from protofed.experiment.run_records import World
from protofed.federation.build import Federation, build_federation
from protofed.federation.environment import describe_environment
from protofed.federation.evaluation import Evaluation, evaluate_round
from protofed.federation.round import Messages, run_round
from protofed.runtime.resources import tune_malloc
from protofed.spec.experiment_spec import Experiment, method_name

Workers: TypeAlias = int | Literal["auto"]
PATIENCE = 3.0  # seconds in one process before "auto" starts others: about what that costs


def create_local_engine(
    experiment: Experiment,
    federation: Federation,
    scratch: Path,
    workers: Workers,
    asked: int,
) -> LocalEngine[Any, Any]:
    """The engine for a run on this machine: one process, or several if memory and cores allow.

    `asked` clients train per round. With ``workers="auto"`` the first seconds run in one process,
    as starting others costs about that much. A GPU is always used by one process.
    """
    method, everyone, tests = experiment.method, federation.everyone, federation.tests
    device = torch.device(experiment.device)
    if device != CPU:
        return LocalEngine(method, everyone, tests, scratch=scratch, device=device)
    if workers == "auto":
        count, patience = worker_count(asked, experiment.threads), PATIENCE
    else:
        count, patience = workers, 0.0
    if not count:
        return LocalEngine(method, everyone, tests, scratch=scratch)
    return WorkerEngine(
        method,
        everyone,
        tests,
        workers=count,
        threads=experiment.threads,
        patience=patience,
        scratch=scratch,
    )


class RunProgress(NamedTuple):
    """How far a run is, for whoever watches: called once before the first round, then after each.

    `mean` is the newest mean accuracy, without the domains in `missing`. `notices` appear once
    each.
    """

    round: int
    rounds: int
    mean: float | None
    seconds_left: float
    notices: tuple[str, ...] = ()  # each is told once, most of them before the first round
    missing: tuple[str, ...] = ()  # the domains that the mean does not count


Watch = Callable[[RunProgress], None]


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    watch: Watch = lambda progress: None,
    again: bool = False,
    keep: Collection[int] = (),
    workers: Workers = "auto",
) -> RunResult:
    """Run an experiment into a folder, resume it, or read its result if it is finished.

    `watch` is called after each round. `again` starts over. `keep` names scored rounds whose
    checkpoints stay beside the newest ones. `workers` is the number of processes that share the
    clients, 0 for none: it changes the time, never a bit. ::

        result = run(Experiment(method=FedProx(mu=0.1), rounds=20), "runs/fedprox")
        print(result.last.mean)
    """
    folder = RunDir(Path(out) if out else default_folder(experiment))
    folder.check(experiment)
    if again or not folder.done.exists():
        tune_malloc()
        with (
            torch_threads(experiment.threads),
            closing(_local(experiment, folder, keep, workers)) as made,
            folder.locked(),
        ):
            if again:
                folder.clear()  # only now: what cannot be repeated is not thrown away
            if not folder.done.exists():  # as it may by now, where another process was at it
                made.play(watch)
    return read_result(folder)


def _local(
    experiment: Experiment, folder: RunDir, keep: Collection[int], workers: Workers
) -> ExperimentRun[Any, Any]:
    """A run whose clients are all on this machine."""
    federation = build_federation(experiment)
    count = clients_per_round(experiment, len(federation.sites))
    check_min_clients(experiment, count)
    engine = create_local_engine(experiment, federation, folder.path, workers, count)
    return ExperimentRun(experiment, experiment.method, folder, federation, engine, keep)


def default_folder(experiment: Experiment) -> Path:
    """The run folder if none is given: ``runs/METHOD-DATA-DIGEST``.

    Equal experiments share it, so a finished one is read instead of run again.
    """
    name = f"{method_name(experiment.method)}-{experiment.data.label}-{experiment.digest[:8]}"
    return Path("runs") / name


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

    def play(self, watch: Watch) -> None:
        """All rounds that are still to do; `watch` is told after each."""
        began, total = time.monotonic(), self.experiment.rounds
        self.folder.open(self.experiment)
        self.keep = self.folder.keeping(self.keep)
        found = self.folder.find()
        self._record_world(found)
        server, first = self._restore(found)
        self.news += self.federation.notices
        watch(RunProgress(first, total, None, math.nan, self._told()))
        mean: float | None = None
        missing: tuple[str, ...] = ()
        for number in range(first, total):
            server = self._round(server, number)
            finished = number + 1
            if finished % self.experiment.evaluate_every == 0 or finished == total:
                scored = self._score(server, finished)
                mean, missing = scored.scores.mean, scored.missing
            pace = (time.monotonic() - began) / (finished - first)
            left, wrong = pace * (total - finished), self.incidents.words()
            watch(RunProgress(finished, total, mean, left, (*self._told(), *wrong), missing))
            self.incidents.end_round()
        self.incidents.check_any()
        notices = [*self.federation.notices, *self.incidents.summary()]
        mark_done(self.folder, self.experiment, notices)

    def _told(self) -> tuple[str, ...]:
        """The news, once."""
        told = (*self.news, *self.engine.news)
        self.news.clear()
        self.engine.news.clear()
        return told

    def _record_world(self, found: ResumePoint) -> None:
        """Write what this run stands on; refuse to go on with one that stood on something else."""
        world: World = {**describe_environment(), "data": self.federation.fingerprints()}
        if found.checkpoint:
            check_same_environment(self.folder.path, world)
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
            return self.method.init_server(self.federation.server), 0
        self.engine.load(found.checkpoint.folder)
        server: S = load_server_state(found.checkpoint)
        return server, found.round

    def _round(self, server: S, number: int) -> S:
        """One round, with a line on what travelled and what each client reported in each leg."""
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
        return server

    def _score(self, server: S, finished: int) -> Evaluation:
        """Score and keep the state after some finished rounds."""
        scored = evaluate_round(finished, self.method, server, self.federation, self.engine)
        self.folder.append(self.folder.scores, scored.to_dict())
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
