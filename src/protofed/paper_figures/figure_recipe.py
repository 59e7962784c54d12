"""A figure recipe: one figure of a paper as pictures, each of some rows of a table's recipe."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

from pydantic import Field, ValidationError

from protofed.analysis.sweep import FULL, GridVariant
from protofed.data.digits_mini import DOMAINS
from protofed.errors import ProtofedError, require_known_name
from protofed.experiment.runner import pause_round
from protofed.figures import KINDS
from protofed.figures.style import FigureOptions
from protofed.paper_tables.recipe import (
    PaperValue,
    Recipe,
    RecipePart,
    RecipeRow,
    Scale,
    SmokeSize,
    printed_table,
    read_recipe,
    scaled_spec,
)
from protofed.spec.experiment_spec import Experiment
from protofed.spec.method_lookup import parse_method
from protofed.spec.spec_parser import Raw

SCORED = ("domains", "ablation", "sensitivity", "heatmap")  # kinds that follow a scoring rule
SMOKE = SmokeSize(clients=8, samples=60, epochs=2, batch=16, rounds=5, server_epochs=50)
SMOKE_NOTE = (
    "NOT COMPARABLE with the paper: a small net on a few images of digits-mini, five rounds; it "
    "shows only that the figure is drawn"
)
SKEWED_CLIENTS = 4  # at scale smoke, where labels are skewed: all images of one domain


class Picture(PaperValue):
    """One picture of a figure: a kind of figure, and the runs that it shows.

    `table` and `part` name the recipe whose settings hold. The runs are those of `rows`, then those
    of the row `of`: with the fields of each of its `ablations` ("full" means none), or with all
    combinations of the values in `sweep`. `at` are rounds as shares of all rounds of a run,
    `clients` and `domain` are as in `FigureOptions`.
    """

    name: str
    table: str
    part: str
    kind: str
    rows: tuple[str, ...] = ()
    of: str = ""
    ablations: tuple[str, ...] = ()
    sweep: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    at: tuple[float, ...] = ()
    clients: tuple[str, ...] = ()
    domain: str | None = None

    def variants(self, recipe: Recipe, scale: Scale) -> list[GridVariant]:
        """Its runs without their seeds, from the recipe that `FigureRecipe.table` returns."""
        part, rows = recipe.part(self.part), {row.label: row for row in recipe.rows}
        found = [GridVariant(label, _spec(recipe, part, rows[label], scale)) for label in self.rows]
        if not self.of:
            return found
        whole = _spec(recipe, part, rows[self.of], scale)
        named = self._ablated(whole) if self.ablations else self._swept()
        method = dict(whole["method"])
        return [
            *found,
            *(
                GridVariant(f"{self.of} ({name})", {**whole, "method": {**method, **fields}})
                for name, fields in named.items()
            ),
        ]

    def _ablated(self, whole: Raw) -> dict[str, Mapping[str, Any]]:
        """The fields of each ablation, as the method declares them."""
        known = {**parse_method(whole["method"]).ablations, FULL: {}}
        return {name: known[require_known_name("ablation", name, known)] for name in self.ablations}

    def _swept(self) -> dict[str, Mapping[str, Any]]:
        """The fields of each combination of values."""
        pairs = [[(name, value) for value in values] for name, values in self.sweep.items()]
        return {
            ", ".join(f"{name}={value}" for name, value in chosen): dict(chosen)
            for chosen in product(*pairs)
        }

    def options(self, recipe: Recipe, scale: Scale, experiment: Experiment) -> FigureOptions:
        """How it is drawn from runs such as `experiment`.

        At scale ``smoke`` the domains of digits-mini stand in for those of the part, in order.
        """
        domains = list(recipe.part(self.part).columns.values())
        here = DOMAINS[: len(domains)] if scale == "smoke" else domains
        stand_in = dict(zip(domains, here, strict=True))
        rounds = [pause_round(experiment, math.ceil(s * experiment.rounds)) for s in self.at]
        made = FigureOptions(
            rounds=tuple(dict.fromkeys(rounds)),
            domain=None if self.domain is None else stand_in[self.domain],
            clients=tuple(stand_in.get(word, word) for word in self.clients),
        )
        if self.kind not in SCORED:
            return made
        return replace(
            made, score=recipe.raw(recipe.part(self.part), recipe.rows[0])["scoring"]["rule"]
        )


def _spec(recipe: Recipe, part: RecipePart, row: RecipeRow, scale: Scale) -> Raw:
    """The experiment of a row as plain data; skewed labels stay skewed at scale ``smoke``."""
    raw = recipe.raw(part, row)
    made = scaled_spec(raw, scale, SMOKE)
    if scale == "smoke" and raw["partition"]["kind"] == "dirichlet":
        return {**made, "partition": {**raw["partition"], "clients": SKEWED_CLIENTS}}
    return made


class FigureRecipe(PaperValue):
    """A paper's figure: what it shows, what it claims, and its pictures.

    `rows` are runs that no table has, such as training without a federation. Texts are in our
    words. Read from ``NAME.toml``, where the table `every` holds what all pictures share.
    """

    name: str
    figure: str
    caption: str
    claim: str
    differences: tuple[str, ...] = ()
    rows: tuple[RecipeRow, ...] = ()
    pictures: tuple[Picture, ...]

    @property
    def paper(self) -> str:
        """The paper and where it appeared."""
        table = printed_table()[self.pictures[0].table]
        return f"{table.paper} ({table.venue})"

    def table(self, picture: Picture) -> Recipe:
        """The recipe that a picture takes its runs from, with the figure's own rows."""
        recipe = read_recipe(picture.table)
        return recipe.model_copy(update={"rows": (*recipe.rows, *self.rows)})

    def with_pictures(self, names: Sequence[str]) -> FigureRecipe:
        """The figure with some of its pictures; none means all."""
        known = [picture.name for picture in self.pictures]
        wanted = {require_known_name(f"picture of {self.name}", name, known) for name in names}
        kept = tuple(picture for picture in self.pictures if picture.name in wanted)
        return self.model_copy(update={"pictures": kept}) if wanted else self


@cache
def figure_names() -> tuple[str, ...]:
    """The names of all figure recipes, in alphabetical order.

    Each is a TOML file of this package, as ``fpl-fig6``.
    """
    found = (file.name for file in files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


def read_figure(name: str) -> FigureRecipe:
    """Read a figure recipe by its name; an unknown name is refused with the known ones."""
    file = files(__package__) / f"{require_known_name('figure', name, figure_names())}.toml"
    return parse_figure(name, tomllib.loads(file.read_text(encoding="utf-8")))


def parse_figure(name: str, table: Mapping[str, Any]) -> FigureRecipe:
    """Check the tables of a figure recipe's TOML file.

    An error lists every fault with the recipe's name.
    """
    shared = table.get("every", {})
    pictures = [{**shared, **picture} for picture in table.get("pictures", [])]
    rest = {key: value for key, value in table.items() if key != "every"}
    try:
        made = FigureRecipe.model_validate({**rest, "name": name, "pictures": pictures})
    except ValidationError as fault:
        lines = [
            f"figure {name}: {'.'.join(map(str, error['loc'])) or 'as a whole'}: {error['msg']}"
            for error in fault.errors()
        ]
        raise ProtofedError("\n".join(lines)) from fault
    for picture in made.pictures:
        _check_names(made, picture)
    return made


def _check_names(figure: FigureRecipe, picture: Picture) -> None:
    """Raise if a picture names what there is not."""
    where = f"{figure.name}, {picture.name}"
    require_known_name(f"{where}: kind of figure", picture.kind, KINDS)
    recipe = figure.table(picture)
    part, labels = recipe.part(picture.part), [row.label for row in recipe.rows]
    for label in (*picture.rows, *([picture.of] if picture.of else [])):
        require_known_name(f"{where}: row", label, labels)
    if picture.domain is not None:
        require_known_name(f"{where}: domain", picture.domain, list(part.columns.values()))
