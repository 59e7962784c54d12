"""From results.json to the tables on the terminal and in docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks.machine import BFLOAT16_FLAGS
from benchmarks.measure import ROOT
from benchmarks.record import Span

RESULTS = ROOT / "benchmarks" / "results.json"
SPAN = Span(
    ROOT / "docs" / "performance.md",
    "<!-- python -m benchmarks --docs: begin -->",
    "<!-- end -->",
)
Results = Mapping[str, Any]
NAMES = {
    "ours": "protofed",
    "bfloat16": "protofed, bfloat16",
    "plain": "plain loop",
    "flower": "Flower simulation",
    "blazefl-processes": "BlazeFL, processes",
    "blazefl-threads": "BlazeFL, threads",
    "pfllib": "PFLlib",
    "fpl": "FPL",
}


class Goal(NamedTuple):
    """A figure, where it stands in the results, and what it should be."""

    what: str
    path: tuple[str, ...]  # into the parts
    unit: str  # of the printed figure: times, %, GB or s
    most: float | None = None
    least: float | None = None
    flags: tuple[str, ...] = ()  # of which a CPU needs one to be judged; none: every CPU is

    def words(self) -> str:
        """The goal as people read it."""
        if self.least is not None:
            return f"at least {show(self.least, self.unit)}"
        return f"at most {show(self.most, self.unit)}" if self.most is not None else ""

    def verdict(self, value: float, cpu: Sequence[str] = ()) -> str:
        """Whether a figure meets the goal on a CPU with these flags."""
        if self.least is None and self.most is None:
            return ""
        if self.flags and not set(self.flags) & set(cpu):
            return f"needs {' or '.join(self.flags)}"
        low = self.least is None or value >= self.least
        return "met" if low and (self.most is None or value <= self.most) else "missed"


def _rounds(part: str, plain: float | None, flower: float | None) -> list[Goal]:
    return [
        Goal(f"{part}: faster than a plain loop", (part, "ratios", "plain"), "x", least=plain),
        Goal(f"{part}: faster than Flower", (part, "ratios", "flower"), "x", least=flower),
        *(
            Goal(f"{part}: faster than {NAMES[peer]}", (part, "ratios", peer), "x")
            for peer in ("blazefl-processes", "blazefl-threads", "pfllib")
        ),
    ]


def _bfloat16(part: str, least: float) -> list[Goal]:
    """Ours in bfloat16 against the peers in float32."""
    peers = {"plain": "a plain loop", "flower": "Flower"}
    return [
        Goal(
            f"{part}, bfloat16: faster than {name}",
            (part, "ratios_bfloat16", peer),
            "x",
            least=least,
            flags=BFLOAT16_FLAGS,
        )
        for peer, name in peers.items()
    ]


GOALS = [
    *_rounds("w1", 2.0, 2.0),
    *_rounds("w1-lsa", 1.7, 1.7),
    *_bfloat16("w1-lsa", 2.7),
    *_rounds("w2", None, None),
    *_bfloat16("w2", 2.3),
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
        verdict = ""
        if value is not None and not results["quick"]:
            verdict = goal.verdict(value, results["machine"]["flags"])
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
    cpu = f"{machine['cpu']}, {' '.join(machine['flags'])}"
    if "capability" in machine:
        cpu += f"; torch computes with {machine['capability']}"
    lines = [
        f"- {machine['cores']} cores ({cpu}), {machine['memory_gb']} GB; {versions}",
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
    return "\n".join([*lines, *_calls(parts), *_systems(parts), *_left_out(parts)])


def _by_fact(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The names that each fact holds for, with commas."""
    names: dict[str, list[str]] = {}
    for fact, name in found:
        names.setdefault(fact, []).append(name)
    return {fact: ", ".join(dict.fromkeys(held)) for fact, held in names.items()}


def _calls(parts: Results) -> list[str]:
    """When each part was begun, and how idle the machine was then."""
    found = [
        (
            f"begun {taken['begun']}, when others used {100 * taken['busy']:.0f} % of the cores; "
            f"shares are of {taken['peak']:.0f} GFLOP/s",
            name,
        )
        for name, part in parts.items()
        if (taken := part.get("taken"))
    ]
    return [f"- {names}: {fact}" for fact, names in _by_fact(found).items()]


def _systems(parts: Results) -> list[str]:
    """The versions of systems that say them."""
    found = [
        (f"{NAMES.get(name, name)}: {system['about']}", part)
        for part, all_of_it in parts.items()
        for name, system in all_of_it.get("systems", {}).items()
        if "about" in system
    ]
    return [f"- {fact} ({names})" for fact, names in _by_fact(found).items()]


def _left_out(parts: Results) -> list[str]:
    found = [
        (f"{NAMES.get(name, name)}: {why}", part)
        for part, all_of_it in parts.items()
        for name, why in all_of_it.get("skipped", {}).items()
    ]
    return [f"- left out of {names}: {fact}" for fact, names in _by_fact(found).items()]


def markdown(results: Results) -> str:
    """All of it, as it stands in the docs."""
    warning = (
        "**A short trial on small work, to show that everything runs; not figures to quote.**\n\n"
        if results["quick"]
        else ""
    )
    return f"{warning}{goals(results)}\n\n{seconds(results)}\n\n{facts(results)}\n"
