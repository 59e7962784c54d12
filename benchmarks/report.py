"""From results.json to the tables on the terminal and in docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks.measure import ROOT
from benchmarks.record import Span

RESULTS = ROOT / "benchmarks" / "results.json"
SPAN = Span(
    ROOT / "docs" / "performance.md",
    "<!-- python -m benchmarks --docs: begin -->",
    "<!-- end -->",
)
Results = Mapping[str, Any]
NAMES = {"ours": "protofed", "plain": "plain loop", "flower": "Flower simulation", "fpl": "FPL"}


class Goal(NamedTuple):
    """A figure, where it stands in the results, and what it should be."""

    what: str
    path: tuple[str, ...]  # into the parts
    unit: str  # of the printed figure: times, %, GB or s
    most: float | None = None
    least: float | None = None

    def words(self) -> str:
        """The goal as people read it."""
        if self.least is not None:
            return f"at least {show(self.least, self.unit)}"
        return f"at most {show(self.most, self.unit)}" if self.most is not None else ""

    def verdict(self, value: float) -> str:
        """Whether a figure meets the goal."""
        if self.least is None and self.most is None:
            return ""
        low = self.least is None or value >= self.least
        return "met" if low and (self.most is None or value <= self.most) else "missed"


def _rounds(part: str, plain: float | None, flower: float | None) -> list[Goal]:
    return [
        Goal(f"{part}: faster than a plain loop", (part, "ratios", "plain"), "x", least=plain),
        Goal(f"{part}: faster than Flower", (part, "ratios", "flower"), "x", least=flower),
    ]


GOALS = [
    *_rounds("w1", 2.0, 2.0),
    *_rounds("w1-lsa", None, None),
    *_rounds("w2", None, None),
    *_rounds("w3", None, 2.2),
    Goal("w1: share of the peak", ("w1", "share"), "%", least=0.65),
    Goal("w1-lsa: share of the peak", ("w1-lsa", "share"), "%"),
    Goal("w2: share of the peak", ("w2", "share"), "%", least=0.70),
    Goal("FPL's round by FedAvg's, 5 epochs", ("fpl", "ratios", "fpl"), "x", most=1.05),
    Goal("FPL's round by FedAvg's, 10 epochs", ("fpl-long", "ratios", "fpl"), "x"),
    Goal("w3: memory, one process", ("memory", "systems", "ours", "process_mb"), "GB", most=0.6),
    Goal("many: memory, all processes", ("many", "systems", "ours", "tree_mb"), "GB", most=1.5),
    Goal("scoring and checkpoints in a run", ("evaluation", "share"), "%", most=0.15),
    Goal("scoring against batches of 64", ("scoring", "ratios", "plain"), "x"),
    Goal("averaging against a loop", ("aggregation", "ratios", "plain"), "x"),
    *(
        Goal(f"FINCH of {n} points by finch-clust", (f"finch-{n}", "ratios", "finch-clust"), "x")
        for n in (20, 100, 1000)
    ),
    Goal("protofed --help", ("startup", "median", "--help"), "s", most=0.5),
    Goal("import protofed", ("startup", "median", "import"), "s", most=0.3),
    Goal("protofed run: first round", ("start", "median", "first round"), "s", most=6.0),
    Goal("protofed predict: 30 images", ("start", "median", "predict"), "s", most=3.0),
    Goal("protofed report: three runs", ("start", "median", "report"), "s", most=5.0),
    *(
        Goal(f"protofed {name}: three runs", ("start", "median", name), "s")
        for name in ("runs", "compare", "plot curves")
    ),
]
SHOWN: dict[str, Callable[[float], str]] = {
    "x": lambda value: f"{value:.2f} x",
    "%": lambda value: f"{100 * value:.0f} %",
    "GB": lambda value: f"{value:.2f} GB",
    "s": lambda value: f"{value:.2f} s",
}


def show(value: float | None, unit: str) -> str:
    """A figure with its unit."""
    return "not measured" if value is None else SHOWN[unit](value)


def find(results: Results, goal: Goal) -> float | None:
    """The figure of a goal; None if it was not measured."""
    found: Any = results["parts"]
    for name in goal.path:
        found = found.get(name) if isinstance(found, Mapping) else None
    if found is None:
        return None
    return float(found) / (1000 if goal.unit == "GB" else 1)


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as a Markdown table that lines up on a terminal too; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def goals(results: Results) -> str:
    """Goal and measured side by side."""
    rows = [("figure", "goal", "measured", "")]
    for goal in GOALS:
        value = find(results, goal)
        verdict = "" if value is None or results["quick"] else goal.verdict(value)
        rows.append((goal.what, goal.words(), show(value, goal.unit), verdict))
    return table(rows)


def seconds(results: Results) -> str:
    """What each system took: the median and the range, samples a second, memory."""
    head = ("work", "system", "s, median", "from", "to", "samples/s", "MB, all processes")
    return table([head, *_seconds(results)])


def _seconds(results: Results) -> Iterator[tuple[str, ...]]:
    for part, found in results["parts"].items():
        for name, system in found.get("systems", {}).items():
            values = system["seconds"]
            middle = median(values)
            digits = 2 if middle > 1 else 5
            samples = system.get("samples", found.get("samples"))
            yield (
                part,
                NAMES.get(name, name),
                *(f"{value:.{digits}f}" for value in (middle, min(values), max(values))),
                f"{samples / middle:,.0f}" if samples else "",
                f"{system['tree_mb']:,}" if system.get("tree_mb") else "",
            )


def facts(results: Results) -> str:
    """Under which conditions the figures were taken."""
    machine, parts = results["machine"], results["parts"]
    others = [
        share
        for part in parts.values()
        for system in part.get("systems", {}).values()
        for share in system.get("others", [])
    ]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"- {machine['cores']} cores ({machine['cpu']}, {' '.join(machine['flags'])}), "
        f"{machine['memory_gb']} GB; {versions}",
        f"- the fastest convolution: {results['peak']['one']:.0f} GFLOP/s on one core, "
        f"{results['peak']['all']:.0f} on {results['peak']['cores']} at once",
        f"- {results['repeats']} repeats in turn; protofed with {results['workers']} worker "
        f"processes; load average at the start {results['load'][0]:.2f}",
    ]
    if others:
        lines.append(
            f"- other processes took {100 * median(others):.0f} % of the machine during the median "
            f"round, {100 * max(others):.0f} % during the worst"
        )
    lines += [f"- {name}: {part['work']}" for name, part in parts.items() if "work" in part]
    lines.append(f"- made by `python -m benchmarks`, {results['made']}")
    for name, part in parts.items():
        left_out = part.get("skipped", {}).items()
        lines += [f"- {name}: {NAMES.get(s, s)} left out: {why}" for s, why in left_out]
    return "\n".join(lines)


def markdown(results: Results) -> str:
    """All of it, as it stands in the docs."""
    warning = (
        "**A short trial on small work, to show that everything runs; not figures to quote.**\n\n"
        if results["quick"]
        else ""
    )
    return f"{warning}{goals(results)}\n\n{seconds(results)}\n\n{facts(results)}\n"
