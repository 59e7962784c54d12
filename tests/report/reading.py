"""The texts of a page, found by a parser of its own: what a reader sees, not what we wrote."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser

ALONE = {"meta", "link", "br"}


class Page(HTMLParser):
    """Elements, the cells of each table by its id, and all text outside scripts and styles."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ALONE:
            self.open.append(tag)
        if tag == "table":
            self.rows = self.tables[dict(attrs).get("id") or ""] = []
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} closes what it did not open"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data
            if "td" in self.open or "th" in self.open:
                self.rows[-1][-1] += data

    def attributes(self, name: str) -> list[str]:
        """The values of an attribute wherever it stands."""
        return [value for _, found in self.elements if (value := found.get(name))]
