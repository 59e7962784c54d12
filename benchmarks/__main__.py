"""python -m benchmarks: measure, write results.json, print goals beside figures."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import idle, machine, peak, pieces, report, start
from benchmarks.measure import ROOT, interleave, ratios
from benchmarks.record import keep, kept, now, some_of
from benchmarks.serve import Order
from benchmarks.workloads import WORKLOADS, Workload
from protofed.core.model import Precision

PEAK_SECONDS = 0.5
TRIAL = ROOT / "benchmarks" / "trial.json"  # of --quick, which must not replace figures
MOST_PEERS = ("plain", "flower")
PEERS = (*MOST_PEERS, "blazefl-processes", "blazefl-threads", "pfllib")
BFLOAT16: Precision = "bfloat16"
Part = Callable[["Plan"], dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    repeats: int
    quick: bool
    workers: int
    peak: float  # GFLOP/s of as many cores as there are workers

    def work(self, name: str) -> Workload:
        """A workload, in little for a short trial."""
        return WORKLOADS[name].small() if self.quick else WORKLOADS[name]


def against_peers(
    name: str, plan: Plan, peers: Sequence[str] = PEERS, bfloat16: bool = False
) -> dict[str, Any]:
    """Ours and the peers on one workload, with our share of the peak; peers are in float32."""
    work = plan.work(name)
    ours = Order("ours", work, workers=plan.workers)
    orders = {"ours": ours}
    if bfloat16:
        orders[BFLOAT16] = replace(ours, precision=BFLOAT16)
    orders |= {peer: Order(peer, work) for peer in peers}
    found = interleave(orders, plan.repeats)
    if bfloat16:
        found["ratios_bfloat16"] = ratios(found["systems"], BFLOAT16)
    if "ours" in found["systems"]:
        speed = work.expected()[1] / median(found["systems"]["ours"]["seconds"])
        flops = peak.flops_of_sample(work)
        share = round(speed * flops / 1e9 / plan.peak, 4)
        found |= {"megaflops_of_sample": round(flops / 1e6, 1), "share": share}
    return found


def fpl(name: str, plan: Plan) -> dict[str, Any]:
    """FPL against FedAvg, both ours; FPL has no prototypes before its second round."""
    work = plan.work(name)
    orders = {
        "ours": Order("ours", work, workers=plan.workers),
        "fpl": Order("ours", work, method="fpl", workers=plan.workers),
    }
    return interleave(orders, plan.repeats, warm=2)


def memory(plan: Plan) -> dict[str, Any]:
    """W3 in one process."""
    order = Order("ours", plan.work("w3"), workers=0)
    return interleave({"ours": order}, repeats=1, warm=0)


PARTS: dict[str, Part] = {
    "startup": lambda plan: pieces.startup(max(7, plan.repeats)),
    "start": lambda plan: start.start(1 if plan.quick else plan.repeats),
    "aggregation": lambda plan: pieces.aggregation(plan.repeats),
    "finch-20": lambda plan: pieces.clusters(10 * plan.repeats, 20),
    "finch-100": lambda plan: pieces.clusters(10 * plan.repeats, 100),
    "finch-1000": lambda plan: pieces.clusters(plan.repeats, 1000),
    "scoring": lambda plan: pieces.scoring(plan.repeats, 512 if plan.quick else 4096),
    "evaluation": lambda plan: pieces.share_of_scoring(3 if plan.quick else None),
    "w1": lambda plan: against_peers("w1", plan),
    "w1-lsa": lambda plan: against_peers("w1-lsa", plan, bfloat16=True),
    "w2": lambda plan: against_peers("w2", plan, bfloat16=True),
    "w3": lambda plan: against_peers("w3", plan),
    "many": lambda plan: against_peers("many", replace(plan, repeats=1), MOST_PEERS),
    "memory": memory,
    "fpl": lambda plan: fpl("w1", plan),
    "fpl-long": lambda plan: fpl("w1-long", plan),
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    made.add_argument("--only", type=some_of(PARTS), default=list(PARTS), help="some parts: w1,w3")
    made.add_argument("--repeats", type=int, default=5, help="of each system (5)")
    made.add_argument("--quick", action="store_true", help="small work, to see that it runs")
    made.add_argument("--workers", type=int, default=2, help="processes of protofed (2); 0: none")
    made.add_argument("--out", type=Path, help="the file of results (benchmarks/results.json)")
    made.add_argument("--force", action="store_true", help="measure on a busy machine")
    made.add_argument("--docs", action="store_true", help="only bring docs/performance.md in line")
    return made


def look_around(forced: bool) -> float:
    """The share of the cores that others use; too much of it is refused."""
    seen = idle.look()
    if seen.share > idle.LIMIT and not forced:
        raise SystemExit(
            f"python -m benchmarks: the machine is not idle: {seen.words()}\n"
            "end what runs there, or add --force: the figures will say so"
        )
    return round(seen.share, 3)


def measure(args: argparse.Namespace, file: Path) -> dict[str, Any]:
    """Take all chosen figures, kept part by part; those that an equal run took before stay."""
    busy, cores = (
        look_around(args.force or args.quick),
        min(max(1, args.workers), os.cpu_count() or 1),
    )
    results = {
        "machine": machine.describe(),
        "quick": args.quick,
        "workers": args.workers,
        "repeats": args.repeats,
    }
    parts = kept(file, results)
    results["load"] = [round(value, 2) for value in os.getloadavg()]
    results["peak"] = peaks(cores)
    taken = {"begun": now(), "busy": busy, "peak": results["peak"]["all"]}
    plan = Plan(args.repeats, args.quick, args.workers, results["peak"]["all"])
    for name in args.only:
        print(f"{name} ...", flush=True)
        parts[name] = {**PARTS[name](plan), "taken": taken}
        keep(file, results, parts, PARTS)
        if file == report.RESULTS:
            report.SPAN.write(report.markdown(results))
    return results


def peaks(cores: int) -> dict[str, Any]:
    """The speed of the fastest convolution, on one core and on several at once."""
    one = peak.measure(1, PEAK_SECONDS)
    all_cores = one if cores == 1 else peak.measure(cores, PEAK_SECONDS)
    return {"cores": cores, "one": round(one, 1), "all": round(all_cores, 1)}


def main() -> None:
    args = parser().parse_args()
    file = args.out.resolve() if args.out else TRIAL if args.quick else report.RESULTS
    if args.docs:
        report.SPAN.write(report.markdown(json.loads(file.read_text())))
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users start from compiled modules
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the systems
    results = measure(args, file)
    print(report.markdown(results))
    print(f"written: {file}" + (f" and {report.SPAN.file}" if file == report.RESULTS else ""))


if __name__ == "__main__":
    main()
