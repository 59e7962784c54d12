"""What docs/federation.md says of the methods is what they say of themselves."""

from __future__ import annotations

from pathlib import Path

from protofed.methods import METHODS

PAGE = Path(__file__).parent.parent.parent / "docs" / "federation.md"
BEGIN, END = "<!-- travels: begin -->", "<!-- travels: end -->"


def table() -> str:
    """The table of what travels, from the methods themselves."""
    lines = ["| method | a site sends | a site is sent | scored |", "|---|---|---|---|"]
    for method in (made() for made in METHODS.values()):
        up, down = (", ".join(parts) or "nothing" for parts in method.travels[:2])
        scored = "each site's own model" if method.personal else "the shared model"
        if "public images" in method.needs:
            scored = "not in a federation"
        lines.append(f"| {method.about.label} | {up} | {down} | {scored} |")
    return "\n".join(lines)


def test_the_page_says_of_every_method_what_travels() -> None:
    page = PAGE.read_text()
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == table()
