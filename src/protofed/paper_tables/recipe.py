"""A recipe: one table of a paper as experiments, with its printed numbers and all sources."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from protofed.errors import ProtofedError, require_known_name
from protofed.spec.experiment_spec import flatten_spec
from protofed.spec.spec_parser import Raw


class PaperValue(BaseModel):
    """A piece of ``tables.json``, which holds the printed numbers.

    Unknown keys are refused, and nothing changes once it is read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


class PrintedRow(PaperValue):
    """A row as the paper prints it, in per cent.

    `values` are in the order of the part's columns; `avg`, `std` and `delta` are None where the
    paper prints none.
    """

    values: tuple[float, ...]  # by column
    avg: float | None = None  # over the columns; none where a part is a single column
    std: float | None = None  # of the average, or of the only value
    delta: float | None = None  # to the baseline's average

    @property
    def level(self) -> float:
        """The number by which rows are compared: the average, or the only value."""
        return self.values[0] if self.avg is None else self.avg


class PaperErratum(PaperValue):
    """An inconsistency in a printed table, such as a wrong average or a row that is printed twice.

    A test recomputes all averages and differences and finds exactly the listed ones.
    """

    kind: Literal["average", "delta", "copy", "text"]  # text: only told, not in the numbers
    row: str
    note: str
    of: str | None = None  # copy: the row that was copied


class PrintedPart(PaperValue):
    """One part, usually one benchmark, of a printed table.

    `rows` are by the paper's label; `faults` lists what does not fit the rest of the table.
    """

    columns: tuple[str, ...]
    rows: dict[str, PrintedRow]
    faults: tuple[PaperErratum, ...] = ()

    def unknown(self, label: str) -> bool:
        """Whether the numbers of a row are another row's, so that its own are not known."""
        return any(fault.kind == "copy" and fault.row == label for fault in self.faults)


class PrintedTable(PaperValue):
    """A table of a paper: where it is printed, what it shows, and its parts by name.

    The caption is in our words.
    """

    paper: str
    venue: str
    table: str
    caption: str  # in our words
    parts: dict[str, PrintedPart]


@cache
def printed_table() -> dict[str, PrintedTable]:
    """All printed tables by the name of their recipe.

    Read from ``tables.json`` and checked once; later calls return the same tables.
    """
    text = (files(__package__) / "tables.json").read_bytes()
    return TypeAdapter(dict[str, PrintedTable]).validate_json(text)


Source = Literal["paper", "public_code", "our_choice"]
SOURCES: dict[Source, str] = {
    "paper": "paper",
    "public_code": "public code",
    "our_choice": "our choice",
}


class SourcedValue(NamedTuple):
    """A setting and its source: the paper, released code, or our own choice.

    Every value of a recipe has one, so a reader can see which numbers are ours.
    """

    value: Any
    source: Source


Values = dict[str, SourcedValue]  # by dotted name, as on the command line: training.lr


class SourcedFields(BaseModel):
    """Settings in one TOML table per source; no setting may be in two of them.

    `values` flattens them to ``{"training.lr": SourcedValue(0.01, "paper")}``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    paper: Raw = Field(default_factory=dict)
    public_code: Raw = Field(default_factory=dict)
    our_choice: Raw = Field(default_factory=dict)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names = [name for source in SOURCES for name in flatten_spec(getattr(self, source))]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two sources for {', '.join(twice)}")
        return self

    def values(self) -> Values:
        """Every value with its source."""
        return {
            name: SourcedValue(value, source)
            for source in SOURCES
            for name, value in flatten_spec(getattr(self, source)).items()
        }


class RecipeRow(SourcedFields):
    """A row of a recipe: the paper's label, our method, and the method's fields with their sources.

    Fields that are not set keep the method's defaults.
    """

    label: str
    method: str


class RecipePart(SourcedFields):
    """A part of a recipe: one benchmark, its columns, and the settings that differ from the recipe.

    `columns` maps the paper's names to our domains. `rows` sets fields of single rows in this part.
    """

    name: str
    benchmark: str
    columns: dict[str, str]  # the paper's name -> our domain
    images: int | None = None  # that all clients together train on in an epoch; for estimates
    rows: dict[str, SourcedFields] = Field(default_factory=dict)  # fields of some rows in this part
    differences: tuple[str, ...] = ()  # known reasons for other numbers than the paper's


class Recipe(SourcedFields):
    """A paper's table as experiments: shared settings, rows (methods) and parts (benchmarks).

    Read from ``NAME.toml``; `raw` gives the experiment of one row in one part as plain data.
    """

    name: str
    baseline: str  # the label of the row that differences are taken to
    differences: tuple[str, ...] = ()
    rows: tuple[RecipeRow, ...]
    parts: tuple[RecipePart, ...]

    @model_validator(mode="after")
    def _labels_are_known(self) -> Self:
        labels = [row.label for row in self.rows]
        for label in (self.baseline, *(label for part in self.parts for label in part.rows)):
            require_known_name(f"row of {self.name}", label, labels)
        return self

    def part(self, name: str) -> RecipePart:
        """The part with a name; one that does not exist is refused with those that do."""
        names = [part.name for part in self.parts]
        return self.parts[names.index(require_known_name(f"part of {self.name}", name, names))]

    def settings(self, part: RecipePart) -> Values:
        """The values of a part, the method's apart; what the part says goes before the recipe."""
        own = {
            "data.name": SourcedValue(part.benchmark, "paper"),
            "data.domains": SourcedValue(list(part.columns.values()), "paper"),
        }
        return {**self.values(), **part.values(), **own}

    def fields(self, part: RecipePart, row: RecipeRow) -> Values:
        """The values of a row's method in a part."""
        here = part.rows.get(row.label, SourcedFields())
        return {**row.values(), **here.values()}

    def raw(self, part: RecipePart, row: RecipeRow) -> Raw:
        """The experiment behind a row, and its scoring, as plain data."""
        method = nest_values(self.fields(part, row))
        return {**nest_values(self.settings(part)), "method": {"name": row.method, **method}}


def nest_values(values: Values) -> Raw:
    """Settings by dotted name as nested tables, without their sources.

    ``training.lr`` becomes ``{"training": {"lr": ...}}``, as a spec has it.
    """
    tables: Raw = {}
    for name, (value, _) in values.items():
        *path, last = name.split(".")
        table = tables
        for key in path:
            table = table.setdefault(key, {})
        table[last] = value
    return tables


@cache
def recipe_names() -> tuple[str, ...]:
    """The names of all recipes, in alphabetical order.

    Each is a TOML file of this package, as ``fpl-table2``.
    """
    return tuple(
        sorted(
            file.name.removesuffix(".toml")
            for file in files(__package__).iterdir()
            if file.name.endswith(".toml")
        )
    )


def read_recipe(name: str) -> Recipe:
    """Read a recipe by its name; an unknown name is refused with the known ones."""
    file = files(__package__) / f"{require_known_name('recipe', name, recipe_names())}.toml"
    return parse_recipe(name, tomllib.loads(file.read_text(encoding="utf-8")))


def parse_recipe(name: str, table: Mapping[str, Any]) -> Recipe:
    """Check the tables of a recipe's TOML file.

    An error lists every fault with the recipe's name.
    """
    try:
        return Recipe.model_validate({**table, "name": name})
    except ValidationError as fault:
        lines = [
            f"recipe {name}: {'.'.join(map(str, error['loc'])) or 'as a whole'}: {error['msg']}"
            for error in fault.errors()
        ]
        raise ProtofedError("\n".join(lines)) from fault
