"""Write the tables and curves of the pages from the runs that are kept in results/.

    python docs/build_results.py            # bring the pages and their pictures in line
    python docs/build_results.py --check    # exit with 1 if a page is out of date

Pages have blocks, between `<!-- NAME: begin -->` and `<!-- NAME: end -->`. A block named
`table RECIPE PART` is a paper's table beside our runs, one named `group NAME` a comparison that
`results/groups.toml` lists by its digests, and one named `pairs NAME` two settings of several
methods, each against the other. What stands between the blocks is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from protofed.analysis.comparison_table import (
    compare_records,
    comparison_document,
    format_difference,
    format_spread,
)
from protofed.analysis.finished_runs import APART, RunRecord, check_comparable, read_record
from protofed.errors import ProtofedError
from protofed.experiment.result import ScoreRule
from protofed.figures.score_charts import draw_curves
from protofed.figures.style import FigureOptions, figure_settings, save_figure
from protofed.paper_tables.claims import Claim, judge_claims
from protofed.paper_tables.paper_comparison import (
    AVG,
    ComparedRow,
    PaperComparison,
    part_footnotes,
)
from protofed.paper_tables.recipe import plan_runs, printed_table, read_recipe
from protofed.paper_tables.run_recipe import read_recipe_runs
from protofed.runtime.text_tables import (
    TextTable,
    markdown_list,
    markdown_table,
    render_document,
)

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(
    ROOT / "docs" / name for name in ("results.md", "performance.md", "methods/fedseproto.md")
)
RUNS = ROOT / "results" / "runs"
GROUPS = ROOT / "results" / "groups.toml"
PICTURES = ROOT / "docs" / "images" / "results"
BLOCK = re.compile(
    r"(<!-- (?P<name>(?:table|group|pairs) [^\n]+?): begin -->\n).*?(<!-- (?P=name): end -->)", re.S
)
RULES: tuple[ScoreRule, ...] = ("last_five", "last")
WIDTH = 120


def build_page(text: str) -> str:
    """The page with every block written anew; pictures are only named."""

    def block(found: re.Match[str]) -> str:
        kind, *words = found["name"].split()
        return f"{found[1]}{BLOCKS[kind](*words)}{found[3]}"

    return BLOCK.sub(block, text)


def draw_pictures(text: str) -> None:
    """Draw the curves of every paper's table of a page."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for found in BLOCK.finditer(text):
        kind, *words = found["name"].split()
        if kind == "table":
            name, part = words
            with figure_settings():
                figure = draw_curves(_finished(name, part), FigureOptions())
                save_figure(figure, PICTURES / f"{name}-{part}.svg")


def paper_block(name: str, part: str) -> str:
    """A paper's table beside ours: averages by both rules, differences, claims, and what ran."""
    by_rule = {rule: _compared(name, part, rule) for rule in RULES}
    five, last = by_rule["last_five"], by_rule["last"]
    claims = judge_claims(five.lines)
    rows = [_claim_row(*pair, claims) for pair in zip(five.lines, last.lines, strict=True)]
    head = ["", "paper", "ours, last five", "ours, last round", "paper", "ours, 95 % interval"]
    table = TextTable([*head, "p", "claim"], rows)
    command = f"protofed reproduce {name} --scale paper --part {part}"
    facts = printed_table()[name]
    title = f"{facts.paper}, {facts.table}, {part}: {facts.caption}."
    columns = "The second *paper* and *ours* are differences to the baseline, of averages."
    return "\n".join(
        [
            _wrap(f"{title} {columns}"),
            "",
            markdown_table(table).rstrip("\n"),
            "",
            f"![Mean accuracy over rounds](images/results/{name}-{part}.svg)",
            "",
            *_details("By domain", _domains(five)),
            *_details("What ran, and what differs from the paper", _notes(five)),
            "```",
            command,
            "```",
            "",
        ]
    )


def _compared(name: str, part: str, rule: ScoreRule) -> PaperComparison:
    recipe = read_recipe(name)
    return read_recipe_runs(recipe, "paper", [part], None, RUNS, rule).parts[0]


def _claim_row(five: ComparedRow, last: ComparedRow, claims: dict[str, Claim]) -> list[str]:
    column = AVG if AVG in five.ours else next(iter(five.ours))
    claim = claims.get(five.label)
    paper = five.paper.get(column) if five.known else None
    delta = five.paper_delta if five.known else None
    return [
        five.label,
        "" if paper is None else f"{paper:.2f}",
        format_spread(five.ours[column]),
        format_spread(last.ours[column]),
        "" if delta is None else f"{delta:+.2f}",
        format_difference(five.our_delta),
        "" if claim is None or claim.p is None else f"{claim.p:.3f}",
        "" if claim is None else str(claim),
    ]


def _domains(part: PaperComparison) -> str:
    rows = [
        [line.label, *(format_spread(line.ours[c]) for c in part.columns)] for line in part.lines
    ]
    printed = [
        [f"{line.label}, paper", *(f"{line.paper[c]:.2f}" for c in part.columns)]
        for line in part.lines
        if line.paper and line.known
    ]
    return markdown_table(TextTable(["", *part.columns], [*rows, *printed])).rstrip("\n")


def _notes(part: PaperComparison) -> str:
    return markdown_list(part_footnotes(part)).rstrip("\n")


def _details(summary: str, content: str) -> list[str]:
    return ["<details>", f"<summary>{summary}</summary>", "", content, "", "</details>", ""]


def _finished(name: str, part: str) -> list[Path]:
    """The kept runs of a paper's table."""
    recipe = read_recipe(name)
    cells = plan_runs(recipe, recipe.part(part), "paper", None, RUNS).cells
    return [cell.folder for cell in cells if (cell.folder / "done").exists()]


def group_block(name: str) -> str:
    """A comparison that is no paper's table, by the digests of its runs."""
    group = _group(name)
    records = list(_records(group["rows"]))
    free = {*APART, *group.get("free", [])}
    notes = check_comparable(records, free)
    rule = cast(ScoreRule, group.get("rule", "last_five"))
    table = compare_records(records, group.get("baseline", records[0].label), rule)
    document = comparison_document(table)
    commands = "\n".join(group["commands"])
    digests = [f"{row.label}: {' '.join(row.digests)}" for row in table.rows]
    ran = markdown_list([*notes, *digests]).rstrip("\n")
    shown = render_document(document, "markdown").rstrip("\n")
    return "\n".join([shown, "", *_details("Runs", ran), "```", commands, "```", ""])


def pairs_block(name: str) -> str:
    """Two settings of several methods: scores of both, and the paired difference over seeds."""
    group = _group(name)
    rows, ran = [], []
    for label, digests in group["rows"].items():
        records = list(_records(dict(zip(group["settings"], digests, strict=True))))
        check_comparable(records, {*APART, *group["free"]})
        table = compare_records(records, rule=group.get("rule", "last_five"))
        first, second = table.rows
        scores = [format_spread(row.cells["mean"]) for row in table.rows]
        rows.append([label, *scores, format_difference(second.difference)])
        ran += [f"{label}, {row.label}: {' '.join(row.digests)}" for row in (first, second)]
    shown = markdown_table(TextTable(["", *group["settings"], "difference"], rows)).rstrip("\n")
    runs = _details("Runs", markdown_list(ran).rstrip("\n"))
    return "\n".join([shown, "", *runs, "```", *group["commands"], "```", ""])


def _group(name: str) -> dict[str, Any]:
    return cast(dict[str, Any], tomllib.loads(GROUPS.read_text(encoding="utf-8"))[name])


def _records(rows: dict[str, Sequence[str]]) -> Iterator[RunRecord]:
    for label, digests in rows.items():
        for digest in digests:
            found = list(RUNS.glob(f"*-{digest[:8]}"))
            if len(found) != 1:
                raise ProtofedError(f"results/runs has no run {digest}")
            yield read_record(found[0], label)


BLOCKS: dict[str, Callable[..., str]] = {
    "table": paper_block,
    "group": group_block,
    "pairs": pairs_block,
}


def _wrap(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def main(words: Sequence[str] | None = None) -> int:
    """Write the page, or compare it with what would be written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args: Any = parser.parse_args(words)
    old = {page: page.read_text(encoding="utf-8") for page in PAGES}
    new = {page: build_page(text) for page, text in old.items()}
    if args.check:
        return int(new != old)
    for page, text in new.items():
        page.write_text(text, encoding="utf-8")
        draw_pictures(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
