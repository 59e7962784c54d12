"""The numbers that the papers print, as facts, with what is known to be wrong among them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter


class PaperValue(BaseModel):
    """A piece of tables.json."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PrintedRow(PaperValue):
    """A row as printed, in per cent."""

    values: tuple[float, ...]  # by column
    avg: float | None = None  # over the columns; none where a part is a single column
    std: float | None = None  # of the average, or of the only value
    delta: float | None = None  # to the baseline's average

    @property
    def level(self) -> float:
        """The number by which rows are compared: the average, or the only value."""
        return self.values[0] if self.avg is None else self.avg


class PaperErratum(PaperValue):
    """Something in a printed table that does not fit the rest of it."""

    kind: Literal["average", "delta", "copy", "text"]  # text: only told, not in the numbers
    row: str
    note: str
    of: str | None = None  # copy: the row that was copied


class PrintedPart(PaperValue):
    """A part of a printed table."""

    columns: tuple[str, ...]
    rows: dict[str, PrintedRow]
    faults: tuple[PaperErratum, ...] = ()

    def unknown(self, label: str) -> bool:
        """Whether the numbers of a row are another row's, so that its own are not known."""
        return any(fault.kind == "copy" and fault.row == label for fault in self.faults)


class PrintedTable(PaperValue):
    """A table: where it stands, what it shows, and its parts by name."""

    paper: str
    venue: str
    table: str
    caption: str  # in our words
    parts: dict[str, PrintedPart]


@cache
def printed_table() -> dict[str, PrintedTable]:
    """Every table by the name of its recipe."""
    text = (files(__package__) / "tables.json").read_bytes()
    return TypeAdapter(dict[str, PrintedTable]).validate_json(text)
