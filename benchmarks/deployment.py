"""python -m benchmarks.deployment: rounds of a real federation beside those of the local engine.

All sites are on this machine and share its cores, so that this is the worst case: on machines of
their own they train side by side. They speak TLS and have registered keys.
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
from benchmarks.record import Results, Span, keep, kept, some_of

RESULTS = ROOT / "benchmarks" / "deployment.json"
SPAN = Span(
    ROOT / "docs" / "federation.md",
    "<!-- python -m benchmarks.deployment --docs: begin -->",
    "<!-- python -m benchmarks.deployment --docs: end -->",
)
NETS = {"seproto-cnn": "5.6 MB", "resnet10": "19.6 MB"}
ROUNDS = 4  # the first is left out: sites pack their images in it


def measure(net: str, sites: int) -> dict[str, float]:
    """The median seconds of a round, with Flower and, while its sites wait, without."""
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


def markdown(results: Results) -> str:
    """The figures as a table, and under which conditions they were taken."""
    lines = [
        "| sites | model | a round in one process | a round with Flower | more for each site |",
        "|---|---|---|---|---|",
    ]
    for case, found in results["parts"].items():
        net, _, sites = case.partition(" ")
        more = (found["flower"] - found["local"]) / int(sites)
        times = f"{found['local']} s | {found['flower']} s | {more:.2f} s"
        lines.append(f"| {sites} | {net}, {NETS[net]} | {times} |")
    here = results["machine"]
    versions = ", ".join(f"{name} {here['versions'][name]}" for name in ("torch", "flwr"))
    made = (
        f"- made by `python -m benchmarks.deployment`, {results['made']}; all sites on one machine"
    )
    return "\n".join([*lines, "", f"{made}, {here['cores']} cores ({here['cpu']}), {versions}"])


def main() -> None:
    """Measure, and write down what was found; or only bring the page in line."""
    parser = argparse.ArgumentParser("python -m benchmarks.deployment", description=__doc__)
    parser.add_argument("--only", type=some_of(NETS), default=list(NETS), help="some nets")
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--docs", action="store_true", help="only bring docs/federation.md in line")
    given = parser.parse_args()
    if given.docs:
        SPAN.write(markdown(json.loads(RESULTS.read_text())))
        return
    results: Results = {"machine": machine.describe()}
    parts = kept(RESULTS, results)
    for net in given.only:
        parts[f"{net} {given.sites}"] = measure(net, given.sites)
        keep(RESULTS, results, parts, [*parts])
    print(markdown(results))


if __name__ == "__main__":
    main()
