"""What there is to reproduce: every recipe with its size and about how long it takes."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

from protofed.recipes.estimate import rough_estimate
from protofed.recipes.papers import printed_table
from protofed.recipes.recipe import Recipe, read_recipe, recipe_names
from protofed.recipes.scale import Scale

ALL_SCALES: tuple[Scale, ...] = get_args(Scale)
SMOKE_RUN = 4.0  # seconds, nearly all of them for starting a process
HEADS = ["name", "paper", "table", "parts", "rows", *ALL_SCALES]


class ListedRecipe(NamedTuple):
    """A recipe in the list."""

    name: str
    paper: str
    table: str
    parts: tuple[str, ...]
    rows: int
    seconds: dict[Scale, float]  # on one core, of the parts whose images are known
    whole: bool  # whether those are all

    def cells(self) -> list[str]:
        """As a row of a table."""
        star = "" if self.whole else "*"
        times = [format_duration(self.seconds[scale]) + star for scale in ALL_SCALES]
        parts = ", ".join(self.parts)
        return [self.name, self.paper, self.table, parts, str(self.rows), *times]

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return {**self._asdict(), "parts": list(self.parts)}


def list_recipes() -> list[ListedRecipe]:
    """Every recipe."""
    return [_list_recipe(read_recipe(name)) for name in recipe_names()]


def _list_recipe(recipe: Recipe) -> ListedRecipe:
    table = printed_table()[recipe.name]
    times: dict[Scale, list[float | None]] = {
        scale: [rough_estimate(recipe, p, scale) for p in recipe.parts] for scale in ALL_SCALES
    }
    times["smoke"] = [SMOKE_RUN * len(recipe.rows)]  # its parts share their runs
    return ListedRecipe(
        name=recipe.name,
        paper=f"{table.paper} ({table.venue})",
        table=table.table,
        parts=tuple(part.name for part in recipe.parts),
        rows=len(recipe.rows),
        seconds={scale: sum(s for s in known if s is not None) for scale, known in times.items()},
        whole=None not in times["paper"],
    )


def format_duration(seconds: float) -> str:
    """A rough time for people: ``40 s``, ``12 min``, ``5 h``, ``9 days``."""
    for size, unit, most in ((1, "s", 90), (60, "min", 5400), (3600, "h", 48 * 3600)):
        if seconds < most:
            return f"{max(1, round(seconds / size))} {unit}"
    return f"{round(seconds / 86400)} days"
