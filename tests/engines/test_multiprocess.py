"""Worker processes change nothing but the time: not a bit, not an error, and none is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic.dataclasses import dataclass

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.metrics import CorrectCounts
from protofed.core.site import SERVER, ArrayDataset, RoundContext, Site
from protofed.engines.engine import require_replies
from protofed.engines.local_engine import LocalEngine
from protofed.engines.multiprocess import WorkerEngine, WorkerPool, worker_count
from protofed.errors import ProtofedError
from protofed.federation.round import run_round
from protofed.methods import METHODS
from protofed.methods.fedavg import FedAvg
from protofed.testing.method_checks import toy_sites
from tests.engines.conftest import Hire

ROUNDS = 2
Sites = Mapping[int, Site]


class Borrowing(WorkerEngine[Any, Any]):
    """An engine whose workers are not its own."""

    def __init__(
        self, pool: WorkerPool, method: AnyMethod, sites: Sites, tests: dict[str, ArrayDataset]
    ):
        super().__init__(method, sites, tests, workers=len(pool.workers))
        self.borrowed = pool

    def _start_workers(self) -> WorkerPool:
        return self.borrowed

    def _stop_workers(self) -> None:
        self.pool = None


def federation(method: AnyMethod) -> tuple[Site, Sites, dict[str, ArrayDataset]]:
    server, sites = toy_sites(method)
    some = next(iter(sites.values())).train
    return server, {SERVER: server, **sites}, {"all": some, "none": some.slice(0, 0)}


def played(engine: LocalEngine[Any, Any], server: Site) -> tuple[Any, dict[str, Any]]:
    """The state after some rounds, and what was scored."""
    method, clients = engine.method, [c for c in sorted(engine.sites) if c != SERVER]
    state = method.init_server(server)
    for number in range(ROUNDS):
        state = run_round(method, server, state, engine, clients, RoundContext(number, ROUNDS))
    who = clients if method.personal else [SERVER]
    scored: dict[int, dict[str, CorrectCounts]] = engine.score(method.publish(state), who)
    engine.close()
    return state, {"states": dict(sorted(engine.states.items())), "scored": scored}


@pytest.mark.parametrize("name", METHODS)
def test_any_number_of_workers_gives_the_same_bits(name: str, hire: Hire) -> None:
    method = METHODS[name]()
    server, sites, tests = federation(method)
    state, rest = played(LocalEngine(method, sites, tests), server)
    for count in (1, 2, 4):
        other, others = played(Borrowing(hire(count), method, sites, tests), server)
        assert tree.equal(state, other)
        assert tree.equal(rest["states"], others["states"])
        assert rest["scored"] == others["scored"]


def test_patience_lets_short_work_stay_in_this_process() -> None:
    method = METHODS["fedavg"]()
    server, sites, tests = federation(method)
    engine = WorkerEngine(method, sites, tests, workers=2, patience=1000)
    state, _ = played(engine, server)
    assert engine.pool is None
    assert engine.patience < 1000
    assert tree.equal(state, played(LocalEngine(method, sites, tests), server)[0])


def test_workers_that_were_started_before_are_used_and_ended() -> None:
    method = METHODS["fedavg"]()
    server, sites, tests = federation(method)
    pool = WorkerPool(3)
    processes = [worker.process for worker in pool.workers]
    engine = WorkerEngine(method, sites, tests, workers=2, patience=1000, pool=pool)
    assert engine._has_workers()
    assert engine.pool is pool
    assert [worker.process for worker in pool.workers] == processes[:2]
    state, _ = played(engine, server)
    assert engine.news == []
    assert [process.returncode in (0, 1) for process in processes] == [True, True, False]
    assert tree.equal(state, played(LocalEngine(method, sites, tests), server)[0])


def test_workers_that_nobody_needed_end_with_the_engine() -> None:
    method = METHODS["fedavg"]()
    _, sites, tests = federation(method)
    pool = WorkerPool(1)
    (process,) = (worker.process for worker in pool.workers)
    WorkerEngine(method, sites, tests, workers=1, pool=pool).close()
    assert process.returncode == -signal.SIGKILL


def test_patience_may_end_in_the_middle_of_a_round(hire: Hire) -> None:
    method = METHODS["scaffold"]()
    server, sites, tests = federation(method)
    engine = Borrowing(hire(2), method, sites, tests)
    engine.patience = 1e-9  # one client trains here, the others at the workers
    state, rest = played(engine, server)
    other, others = played(LocalEngine(method, sites, tests), server)
    assert tree.equal([state, rest["states"]], [other, others["states"]])


def test_a_dead_worker_is_told_and_its_client_begun_again() -> None:
    method = METHODS["fedavg"]()
    server, sites, tests = federation(method)
    engine = WorkerEngine(method, sites, tests, workers=1)
    assert engine._has_workers()
    assert engine.pool is not None
    engine.pool.workers[0].process.kill()
    state, _ = played(engine, server)
    longest = max((c for c in sites if c != SERVER), key=lambda c: (len(sites[c].train), -c))
    assert engine.news == [
        f"client {longest}: its worker process died (SIGKILL) and was started again"
    ]
    assert tree.equal(state, played(LocalEngine(method, sites, tests), server)[0])


def test_a_worker_that_dies_twice_over_a_client_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = METHODS["fedavg"]()
    server, sites, tests = federation(method)
    engine = WorkerEngine(method, sites, tests, workers=1)
    start = WorkerPool._start

    def start_and_kill(pool: WorkerPool, worker: Any, task: Any, given: Any) -> None:
        os.kill(worker.process.pid, signal.SIGSTOP)  # so that it dies over this task
        start(pool, worker, task, given)
        worker.process.kill()

    monkeypatch.setattr(WorkerPool, "_start", start_and_kill)
    with pytest.raises(
        ProtofedError, match=r"client \d+: its worker process died \(SIGKILL\) twice"
    ):
        played(engine, server)
    assert engine.pool is None


def test_a_fault_of_a_client_is_raised_here_with_its_trace(hire: Hire) -> None:
    method = METHODS["fedavg"]()
    server, sites, tests = federation(method)
    engine = Borrowing(hire(2), method, sites, tests)
    received = method.publish(method.init_server(server))
    broken = tree.map(lambda leaf: leaf[:0] if leaf.dim() else leaf, received)
    with pytest.raises(RuntimeError) as caught:
        engine.exchange({0: broken}, RoundContext(0, 1))
    assert "in a worker process" in "".join(caught.value.__notes__)
    assert "functional_call" in "".join(caught.value.__notes__)


@dataclass(frozen=True)
class Telling(FedAvg):
    """Reports its threads; raises what a lost network would."""

    raises: bool = False

    def train(
        self, site: Site, received: Message, state: Any, context: RoundContext
    ) -> tuple[Message, Any]:
        if self.raises:
            raise ConnectionRefusedError("the tracking server does not answer")
        reply, state = super().train(site, received, state, context)
        return replace(reply, metrics={"threads": float(torch.get_num_threads())}), state


def test_threads_are_the_specs_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "2")
    server, sites, tests = federation(Telling())
    engine = WorkerEngine(Telling(), sites, tests, workers=1, threads=1)
    received = Telling().publish(Telling().init_server(server))
    replies = require_replies(engine.exchange({0: received}, RoundContext(0, 1)))
    assert replies[0].metrics == {"threads": 1.0}
    engine.close()


def test_a_clients_own_network_fault_is_not_taken_for_a_dead_worker(hire: Hire) -> None:
    server, sites, tests = federation(Telling())
    engine = Borrowing(hire(2), Telling(raises=True), sites, tests)
    received = Telling().publish(Telling().init_server(server))
    with pytest.raises(ConnectionRefusedError, match="the tracking server does not answer"):
        engine.exchange({0: received}, RoundContext(0, 1))


@pytest.mark.parametrize("method", ["scaffold", "local"])
def test_states_and_replies_beyond_the_limit_lie_on_disk(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = METHODS[method]()
    server, sites, tests = federation(chosen)
    state, rest = played(LocalEngine(chosen, sites, tests), server)
    monkeypatch.setattr("protofed.engines.local_engine.IN_MEMORY", 0)
    monkeypatch.setattr("protofed.engines.local_engine.SHARD", 10_000)
    engine = LocalEngine(chosen, sites, tests, scratch=tmp_path)
    other, others = played(engine, server)
    assert tree.equal([state, rest["states"]], [other, others["states"]])
    engine.save(tmp_path)
    assert len(list(tmp_path.glob("clients-*"))) > 1  # cut into files of a bounded size
    again = LocalEngine(chosen, sites, tests, scratch=tmp_path)
    again.load(tmp_path)
    assert tree.equal(dict(sorted(again.states.items())), rest["states"])


def test_auto_takes_what_the_machine_can_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protofed.engines.multiprocess.usable_cores", lambda: 8)
    monkeypatch.setattr("protofed.engines.multiprocess.free_memory", lambda: 2**40)
    assert worker_count(participants=10, threads=1) == 8
    assert worker_count(participants=3, threads=1) == 3
    assert worker_count(participants=10, threads=4) == 2
    assert worker_count(participants=10, threads=8) == 0
    assert worker_count(participants=1, threads=1) == 0
    monkeypatch.setattr("protofed.engines.multiprocess.free_memory", lambda: 3 * 2**30)
    assert worker_count(participants=10, threads=1) == 3


SCRIPT = """
    import os, sys, time
    from protofed.engines.multiprocess import WorkerPool
    pool = WorkerPool(2)
    print(*[worker.process.pid for worker in pool.workers], flush=True)
    time.sleep(100)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks processes up in /proc")
@pytest.mark.parametrize(
    "ending",
    [
        signal.SIGKILL,
        *(pytest.param(how, marks=pytest.mark.long) for how in (signal.SIGINT, signal.SIGTERM)),
    ],
)
def test_no_worker_outlives_its_parent(ending: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert all(alive(pid) for pid in workers)
    parent.send_signal(ending)
    parent.communicate(timeout=60)
    until = time.monotonic() + 60
    while any(alive(pid) for pid in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in workers if alive(pid)]


def test_workers_that_may_run_other_code_are_not_used() -> None:
    def edited() -> None:
        raise ProtofedError("edited since the run began: mine.py")

    server, sites, tests = federation(FedAvg())
    engine = WorkerEngine(FedAvg(), sites, tests, workers=2, check_code=edited)
    found, want = played(engine, server), played(LocalEngine(FedAvg(), sites, tests), server)
    assert tree.equal(found[0], want[0])
    assert found[1]["scored"] == want[1]["scored"]
    assert engine.news == [
        "workers cannot be used here, so one process does it all: "
        "edited since the run began: mine.py"
    ]
