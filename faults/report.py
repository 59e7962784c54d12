"""From results.json to the table on the terminal and in docs/reliability.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.measure import ROOT
from benchmarks.record import Span
from benchmarks.report import table

RESULTS = ROOT / "faults" / "results.json"
SPAN = Span(
    ROOT / "docs" / "reliability.md",
    "<!-- python -m faults --docs: begin -->",
    "<!-- python -m faults --docs: end -->",
)
Results = Mapping[str, Any]


class Promise(NamedTuple):
    """What is promised, by the number in our list of faults, and what to say of the figures."""

    number: str
    words: str
    more: str  # filled in with what was found


PROMISES = {
    "kills": Promise(
        "D19",
        "a run killed by SIGKILL at a random moment ends with the same bytes",
        "{runs} runs of 6 methods; {with_workers} kills with two workers; "
        "{unfinished} kills left an unfinished file",
    ),
    "steps": Promise(
        "D20",
        "a write, fsync or rename that fails, or at which the process dies, leaves the old state "
        "or the new one",
        "each of the {steps} steps of a run: error, kill, half a write",
    ),
    "flips": Promise(
        "D21",
        "a flipped bit in a checkpoint is found, the one before is used, and both are told",
        "{resumed_held} of {resumed} more: the run gone on with to the end",
    ),
    "resumes": Promise(
        "D22",
        "a run killed in any round goes on and ends with the same bytes",
        "{methods} methods, each in every round",
    ),
    "full": Promise(
        "D23", "a full disk: one clear line, exit code 2, the last checkpoint whole", "by {how}"
    ),
    "readonly": Promise(
        "D23", "a folder turned read-only: the same, and it goes on when it may", "by {how}"
    ),
    "limit": Promise(
        "D24", "a client without memory: one line that names it, exit code 2", "by RLIMIT_AS"
    ),
    "growth": Promise(
        "D24",
        "a long run's memory grows by less than 2 %",
        "at most {growth:.1%} over {rounds} rounds",
    ),
    "taken": Promise(
        "D25", "a second process on a folder is refused; a killed one's lock binds nobody", ""
    ),
    "worker": Promise(
        "", "a killed worker is reported by its client, started again, and moves no bit", ""
    ),
}


def promises(results: Results) -> str:
    """Each promise with its figures."""
    rows = [("", "promise", "held", "how it was tried")]
    for name, promise in PROMISES.items():
        found = results["parts"].get(name)
        if found is None:
            rows.append((promise.number, promise.words, "not tried", ""))
            continue
        held = f"{found['held']:,} of {found['tried']:,}"
        rows.append((promise.number, promise.words, held, promise.more.format(**found)))
    return table(rows)


def markdown(results: Results) -> str:
    """The table, under which conditions it was made, and what failed."""
    machine = results["machine"]
    warning = "**A short form of all cases.**\n\n" if results["quick"] else ""
    versions = ", ".join(f"{n} {machine['versions'][n]}" for n in ("Python", "torch"))
    took = sum(part["seconds"] for part in results["parts"].values())
    made = (
        f"- made by `make faults` in {took / 60:.0f} minutes, {results['made']}; "
        f"{machine['cores']} cores, {versions}"
    )
    failures = [
        f"- **failed** {name}: {' '.join(failure.split())}"
        for name, part in results["parts"].items()
        for failure in part["failures"]
    ]
    return "\n".join([f"{warning}{promises(results)}", "", made, *failures, ""])
