"""What docs/federation.md says of the methods is what they say of themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import faults_flower.__main__ as faults_flower
import pytest
from benchmarks import deployment
from faults_flower.cases import CASES, EQUAL

from protofed.methods import METHODS

PAGE = Path(__file__).parent.parent.parent / "docs" / "federation.md"
BEGIN, END = "<!-- travels: begin -->", "<!-- travels: end -->"


def table() -> str:
    """The table of what travels, from the methods themselves."""
    lines = ["| method | a site sends | a site is sent | scored |", "|---|---|---|---|"]
    for method in (made() for made in METHODS.values()):
        up, down = (", ".join(parts) or "nothing" for parts in method.payload[:2])
        scored = "each site's own model" if method.personal else "the shared model"
        if "public images" in method.needs:
            scored = "not in a federation"
        lines.append(f"| {method.info.label} | {up} | {down} | {scored} |")
    return "\n".join(lines)


def test_the_page_says_of_every_method_what_travels() -> None:
    page = PAGE.read_text()
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == table()


@pytest.mark.parametrize("of", [deployment, faults_flower])
def test_the_pages_show_the_results(of: Any) -> None:
    results = json.loads(of.RESULTS.read_text())
    text = of.SPAN.file.read_text()
    assert text.count(of.SPAN.begin) == text.count(of.SPAN.end) == 1
    assert of.SPAN.within(text, of.markdown(results)) == text, f"run {of.__name__} --docs"


def test_ten_of_each_fault_are_on_record_and_all_ended_as_promised() -> None:
    parts = json.loads(faults_flower.RESULTS.read_text())["parts"]
    assert parts.keys() == CASES.keys()
    assert {name for name, cases in parts.items() if len(cases) < 10} == {"equal"}
    assert len(parts["equal"]) == len(EQUAL)
    assert all(case["ok"] for cases in parts.values() for case in cases)
