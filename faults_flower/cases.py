"""Each case: something is killed or stopped in the middle of a run; what happened then, counted."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

from faults_flower.fleet import PATIENCE, Fleet, wait_for

SITES = ("site-a", "site-b", "site-c")
VICTIM, VICTIM_ID = "site-b", "1"
DEADLINE = 20.0  # seconds
GRACE = 5.0  # seconds after the deadline by which a round must have ended
SPEC: dict[str, Any] = {
    "data": {"side": 16},
    "method": {"name": "scaffold"},  # its clients have private states
    "training": {"epochs": 1, "batch": 4},
    "net": "moon-cnn",
    "min_clients": 2,
    "rounds": 4,
}
EQUAL = ("fedavg", "fpl", "scaffold", "fedseproto", "fedlsa", "pgct")
Case = dict[str, float | bool]


def rounds(out: Path) -> list[dict[str, Any]]:
    """The rounds that a run has finished."""
    from protofed.experiment.run_folder import RunDir

    return RunDir(out).lines(out / "rounds.jsonl")


def took_part(out: Path, after: int) -> bool:
    """Whether the victim's reply counted in a round after some number of rounds."""
    return any(VICTIM_ID in line["legs"][0] for line in rounds(out)[after:])


def wait_rounds(out: Path, number: int, run: Popen[bytes], seconds: float = PATIENCE) -> None:
    """Wait until a run has finished so many rounds; it must not have ended by then."""
    wait_for(lambda: len(rounds(out)) >= number or run.poll() is not None, seconds)
    assert run.poll() is None, f"{out.name} ended with exit code {run.poll()}"


def wait_back(out: Path, after: int, run: Popen[bytes]) -> float:
    """Wait until the victim has taken part in a round after some number of them."""
    took = wait_for(lambda: took_part(out, after) or run.poll() is not None)
    assert run.poll() is None, f"{out.name} ended with exit code {run.poll()}"
    return took


def site_cases(fleet: Fleet, out: Path, count: int, hit: Callable[[], None]) -> Iterator[Case]:
    """A site is hit in the middle of a round, again and again in one long run."""
    raw = {**SPEC, "rounds": 1000, "evaluate_every": 1000}
    run = fleet.submit(raw, out, "--deadline", f"{DEADLINE:g}")
    for _ in range(count):
        wait_back(out, len(rounds(out)), run)
        time.sleep(random.uniform(0, 3))
        before = len(rounds(out))
        hit()
        wait_rounds(out, before + 2, run, 3 * DEADLINE)
        back = wait_back(out, before + 1, run)
        slowest = max(line["seconds"] for line in rounds(out)[before:])
        yield {"slowest_round": slowest, "back": back, "ok": slowest <= DEADLINE + GRACE}
    fleet.signal(out.name, signal.SIGKILL)


def kill(fleet: Fleet, out: Path, count: int) -> Iterator[Case]:
    """All of a site's processes are killed at once; the site is started again."""

    def hit() -> None:
        fleet.signal(VICTIM, signal.SIGKILL)
        fleet.join(VICTIM)

    return site_cases(fleet, out, count, hit)


def node(fleet: Fleet, out: Path, count: int) -> Iterator[Case]:
    """What `join` has started is killed, one after the other; `join` itself stays."""
    turn = itertools.cycle(("deploy.site_worker", "deploy.site_link"))

    def hit() -> None:
        fleet.kill(VICTIM, next(turn))

    return site_cases(fleet, out, count, hit)


def stop(fleet: Fleet, out: Path, count: int) -> Iterator[Case]:
    """All of a site's processes stand still, without a word, past a deadline; then they go on."""

    def hit() -> None:
        fleet.signal(VICTIM, signal.SIGSTOP)
        before = len(rounds(out))
        wait_for(lambda: len(rounds(out)) > before + 1, 3 * DEADLINE)
        fleet.signal(VICTIM, signal.SIGCONT)

    return site_cases(fleet, out, count, hit)


def files(out: Path) -> tuple[bytes, bytes]:
    """What must be equal at the end: the scores, and the server's state."""
    last = max((out / "checkpoints").iterdir())
    return (out / "scores.jsonl").read_bytes(), (last / "server.safetensors").read_bytes()


def equal(fleet: Fleet, out: Path, count: int) -> Iterator[Case]:
    """Nothing is broken: methods of all kinds end with the bytes of the local engine."""
    for name in EQUAL:
        raw = {**SPEC, "method": {"name": name}, "rounds": 2}
        here, there = out.with_name(f"{name}-here"), out.with_name(f"{name}-there")
        code = fleet.submit(raw, there).wait(200)
        whole = {**raw, "data": {**SPEC["data"], "name": str(fleet.images)}}
        assert fleet.local(whole, here).wait(200) == 0, fleet.said(here.name)
        yield {"ok": code == 0 and files(here) == files(there)}


def coordinator_cases(
    fleet: Fleet, out: Path, count: int, hit: Callable[[str], None]
) -> Iterator[Case]:
    """The run is hit in one of its rounds and resumed; its end must be that of an unbroken one."""
    whole = out.with_name(f"{out.name}-whole")
    assert fleet.submit(SPEC, whole).wait(200) == 0, fleet.said(whole.name)
    for number in range(count):
        broken = out.with_name(f"{out.name}-{number}")
        run, wanted = fleet.submit(SPEC, broken), random.randrange(1, SPEC["rounds"])
        wait_rounds(broken, wanted, run)
        time.sleep(random.uniform(0, 3))
        hit(broken.name)
        began = time.monotonic()
        code = fleet.submit(SPEC, broken, "--resume").wait(200)
        seconds = round(time.monotonic() - began, 1)
        yield {"resumed_in": seconds, "ok": code == 0 and files(broken) == files(whole)}


def coordinator(fleet: Fleet, out: Path, count: int) -> Iterator[Case]:
    """`submit` is killed, and what it had started for the run ends with it."""
    return coordinator_cases(fleet, out, count, lambda name: fleet.signal(name, signal.SIGKILL))


def server(fleet: Fleet, out: Path, count: int) -> Iterator[Case]:
    """`serve` with all of Flower's processes is killed, and started again."""

    def hit(name: str) -> None:
        fleet.signal("serve", signal.SIGKILL)
        fleet.running.pop(name).wait(60)  # it notices by itself
        fleet.serve()

    return coordinator_cases(fleet, out, count, hit)


CASES = {
    "equal": equal,
    "kill": kill,
    "node": node,
    "stop": stop,
    "coordinator": coordinator,
    "server": server,
}
