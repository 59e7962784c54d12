"""python -m benchmarks.deployment: rounds of a real federation beside those of the local engine.

All sites are on this machine and share its cores, so that this is the worst case: on machines of
their own they start Flower's processes side by side.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from faults_flower.__main__ import images
from faults_flower.fleet import Fleet

from benchmarks import machine
from benchmarks.measure import ROOT

RESULTS = ROOT / "benchmarks" / "deployment.json"
NETS = {"seproto-cnn": "5.6 MB", "resnet10": "19.6 MB"}
ROUNDS = 4  # the first is left out: sites pack their images in it


def measure(net: str, sites: int) -> dict[str, float]:
    """The median seconds of a round, with Flower and without."""
    spec: dict[str, Any] = {
        "data": {"side": 16},
        "net": net,
        "rounds": ROUNDS,
        "evaluate_every": ROUNDS,
        "training": {"epochs": 1, "batch": 16},
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        names = [f"site-{number:02d}" for number in range(sites)]
        pictures = images(folder / "images", names)
        with Fleet(folder / "fleet", pictures, names) as fleet:
            run = fleet.submit(spec, folder / "fed", "--deadline", "200")
            assert run.wait(500) == 0, fleet.said("fed")
            whole = {**spec, "data": {**spec["data"], "name": str(pictures)}}
            alone = fleet.local(whole, folder / "local")
            assert alone.wait(200) == 0, fleet.said("local")
        return {"flower": _median(folder / "fed"), "local": _median(folder / "local")}


def _median(out: Path) -> float:
    lines = (out / "rounds.jsonl").read_text().splitlines()
    seconds = [float(json.loads(line)["seconds"]) for line in lines[1:]]
    return round(statistics.median(seconds), 2)


def table(results: dict[str, Any]) -> str:
    """The figures as a table."""
    lines = [
        "| sites | model | a round here, one process | a round with Flower | more for each site |",
        "|---|---|---|---|---|",
    ]
    for case, found in results["cases"].items():
        net, _, sites = case.partition(" ")
        more = (found["flower"] - found["local"]) / int(sites)
        times = f"{found['local']} s | {found['flower']} s | {more:.1f} s"
        lines.append(f"| {sites} | {net}, {NETS[net]} | {times} |")
    cores, cpu = results["machine"]["cores"], results["machine"]["cpu"]
    where = f"All sites on one machine with {cores} cores ({cpu}), busy with other work as well"
    return "\n".join([*lines, "", f"{where}; `python -m benchmarks.deployment`."])


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser("python -m benchmarks.deployment", description=__doc__)
    parser.add_argument("--net", choices=NETS, action="append", help="one net; repeatable")
    parser.add_argument("--sites", type=int, default=10)
    given = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": {}}
    for net in given.net or NETS:
        results["machine"] = machine.describe()
        results["cases"][f"{net} {given.sites}"] = measure(net, given.sites)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
