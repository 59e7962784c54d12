"""python -m faults_flower: break a real federation on this machine, and count what was kept."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import machine
from benchmarks.measure import ROOT
from benchmarks.record import Results, Span, keep, kept, some_of
from PIL import Image

from faults_flower.cases import CASES, DEADLINE, EQUAL, GRACE, SITES
from faults_flower.fleet import Fleet

RESULTS = ROOT / "faults_flower" / "results.json"
SPAN = Span(
    ROOT / "docs" / "reliability.md",
    "<!-- faults-flower: begin -->",
    "<!-- faults-flower: end -->",
)
WORDS = {
    "equal": f"nothing: {', '.join(EQUAL)} end with the scores and the model of `protofed run`",
    "kill": "all processes of a site killed in a round, the site started again",
    "node": "a site's worker or its link to the server killed in a round, `join` goes on",
    "stop": "all processes of a site stopped (SIGSTOP) past a deadline, then continued",
    "coordinator": "`submit` killed in a round, then `submit --resume`",
    "server": "`serve` and all it runs killed in a round, both started again",
}


def images(folder: Path, sites: Sequence[str]) -> Path:
    """Tiny noisy images of two classes for each site."""
    draw = np.random.default_rng(0)
    for site in sites:
        for label, name in enumerate(("bird", "cat")):
            (folder / site / name).mkdir(parents=True)
            for number in range(9):
                picture = draw.integers(0, 100, (16, 16, 3)) + 100 * label
                file = folder / site / name / f"{number}.png"
                Image.fromarray(picture.astype(np.uint8)).save(file)
    return folder


def measure(name: str, count: int) -> Iterator[dict[str, Any]]:
    """Some cases of one kind, in a federation of their own; processes left behind count too."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with Fleet(folder / "fleet", images(folder / "images", SITES), SITES) as fleet:
            yield from map(dict, CASES[name](fleet, folder / name, count))
        assert fleet.left() == [], "processes were left behind"


def markdown(results: Results) -> str:
    """The results for the documentation."""
    lines = [
        f"Three sites with registered keys behind TLS. Rounds had a deadline of {DEADLINE:g} s and "
        f"must end {GRACE:g} s after it at the latest; the seconds are the longest.",
        "",
        "| what is broken | cases | as promised | slowest round | back after | resumed in |",
        "|---|---|---|---|---|---|",
    ]
    for name, cases in results["parts"].items():
        good = sum(case["ok"] for case in cases)
        most = [_most(cases, field) for field in ("slowest_round", "back", "resumed_in")]
        lines.append(f"| {WORDS[name]} | {len(cases)} | {good} | {' | '.join(most)} |")
    versions = ", ".join(f"{n} {v}" for n, v in results["machine"]["versions"].items())
    made = f"- made by `make faults-flower`, {results['made']}; "
    return "\n".join([*lines, "", f"{made}{results['machine']['cores']} cores, {versions}"])


def _most(cases: Sequence[Results], field: str) -> str:
    found = [case[field] for case in cases if field in case]
    return f"{max(found):.1f} s" if found else ""


def main() -> None:
    """Break a federation and write down what came of it, or bring the page in line."""
    parser = argparse.ArgumentParser("python -m faults_flower", description=__doc__)
    parser.add_argument("--only", type=some_of(CASES), default=list(CASES), help="kill,stop")
    parser.add_argument("--count", type=int, default=10, help="cases of each kind")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("--docs", action="store_true", help="only bring the page in line")
    given = parser.parse_args()
    if given.docs:
        SPAN.write(markdown(json.loads(given.out.read_text())))
        return
    results: Results = {"machine": machine.describe()}
    parts = kept(given.out, results)
    for name in given.only:
        parts[name] = []
        for case in measure(name, given.count):
            print(name, case, flush=True)
            parts[name].append(case)
            keep(given.out, results, parts, CASES)
    print(markdown(results))
    broken = [name for name in given.only if not all(case["ok"] for case in parts[name])]
    sys.exit(f"broken promises: {', '.join(broken)}" if broken else 0)


if __name__ == "__main__":
    main()
