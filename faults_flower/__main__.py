"""python -m faults_flower: break a real federation on this machine, and count what was kept."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from faults_flower.cases import CASES, DEADLINE, GRACE, SITES
from faults_flower.fleet import Fleet

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "faults_flower" / "results.json"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- faults-flower: begin -->", "<!-- faults-flower: end -->"
WORDS = {
    "kill": "all processes of a site killed in a round, the site started again",
    "node": "a site's worker or SuperNode killed in a round, `join` goes on",
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


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """The results for the documentation."""
    lines = [
        f"Rounds had a deadline of {DEADLINE:g} s and must end {GRACE:g} s after it at the latest; "
        "the seconds are the longest, on a busy machine with two cores.",
        "",
        "| what is broken | cases | as promised | slowest round | back after | resumed in |",
        "|---|---|---|---|---|---|",
    ]
    for name, cases in results.items():
        good = Counter(case["ok"] for case in cases)[True]
        most = [_most(cases, field) for field in ("slowest_round", "back", "resumed_in")]
        lines.append(f"| {WORDS[name]} | {len(cases)} | {good} | {' | '.join(most)} |")
    return "\n".join(lines)


def _most(cases: list[dict[str, Any]], field: str) -> str:
    found = [case[field] for case in cases if field in case]
    return f"{max(found):.1f} s" if found else ""


def main() -> None:
    """Add cases to the results, or bring the page in line with them."""
    parser = argparse.ArgumentParser("python -m faults_flower", description=__doc__)
    parser.add_argument("--only", choices=CASES, action="append", help="one kind; repeatable")
    parser.add_argument("--count", type=int, default=10, help="cases of each kind")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("--docs", action="store_true", help="only bring the page in line")
    given = parser.parse_args()
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in () if given.docs else given.only or CASES:
        for case in measure(name, given.count):  # kept one by one, so that a long call may be ended
            results.setdefault(name, []).append(case)
            given.out.write_text(json.dumps(results, indent=2) + "\n")
    if given.docs:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        tail = rest.partition(END)[2]
        PAGE.write_text(f"{head}{BEGIN}\n{table(results)}\n{END}{tail}")
    print(table(results))


if __name__ == "__main__":
    main()
