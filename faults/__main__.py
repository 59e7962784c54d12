"""python -m faults: break runs in every way we know, write results.json, print promises."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.record import keep, kept, some_of

from faults import disks, kills, memory, report, resumes, steps
from faults.work import METHODS, Work

MEMORY = Path("/dev/shm")
PARTS: dict[str, Callable[[Path, bool], dict[str, Any]]] = {
    "kills": kills.kills,
    "steps": steps.steps,
    "flips": disks.flips,
    "resumes": resumes.resumes,
    "full": disks.full,
    "readonly": disks.readonly,
    "limit": memory.limit,
    "growth": memory.growth,
    "taken": disks.taken,
    "worker": kills.worker,
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser("python -m faults", description=__doc__)
    made.add_argument(
        "--only", type=some_of(PARTS), default=list(PARTS), help="some parts: kills,steps"
    )
    made.add_argument("--quick", action="store_true", help="fewer cases of each")
    made.add_argument("--out", type=Path, default=report.RESULTS, help="the file of results")
    made.add_argument("--docs", action="store_true", help="only bring docs/reliability.md in line")
    return made


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Try all chosen parts, kept part by part; those that an equal call tried before stay."""
    results = {"machine": machine.describe(), "quick": args.quick}
    parts = kept(args.out, results)
    warm_up(folder / "warm")
    for name in args.only:
        print(f"{name} ...", flush=True)
        began = time.monotonic()
        parts[name] = PARTS[name](folder / name, args.quick)
        parts[name]["seconds"] = round(time.monotonic() - began, 1)
        keep(args.out, results, parts, PARTS)
    return results


def warm_up(folder: Path) -> None:
    """Run here once, so that every fork finds images and torch's late imports in memory."""
    from protofed.experiment.runner import run
    from protofed.spec.spec_parser import parse_experiment, set_field

    for name in METHODS:
        raw: dict[str, Any] = {"method": {"name": name}, "rounds": 1}
        for word in Work(name, rounds=1).words(folder)[1:]:
            if "=" in word:
                raw = set_field(raw, word)
        run(parse_experiment(raw), folder / name, workers=0)


def place() -> str | None:
    """Where the runs lie: in memory where there is such a folder, as they write gigabytes.

    To a process that is killed it makes no difference: what it wrote is the kernel's already.
    """
    return str(MEMORY) if os.access(MEMORY, os.W_OK) else None


def main() -> None:
    args = parser().parse_args()
    if args.docs:
        report.SPAN.write(report.markdown(json.loads(args.out.read_text())))
        return
    with tempfile.TemporaryDirectory(prefix="protofed-faults-", dir=place()) as folder:
        os.environ["PROTOFED_CACHE"] = f"{folder}/cache"
        results = measure(args, Path(folder))
    print(report.markdown(results))
    broken = [name for name in args.only if results["parts"][name]["failures"]]
    sys.exit(f"broken promises: {', '.join(broken)}" if broken else 0)


if __name__ == "__main__":
    main()
