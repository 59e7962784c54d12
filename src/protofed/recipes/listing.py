"""What there is to reproduce: every recipe with its size and about how long it takes."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

from protofed.recipes.estimate import rough
from protofed.recipes.papers import printed
from protofed.recipes.recipe import Recipe, names, read_recipe
from protofed.recipes.scale import Scale

ALL_SCALES: tuple[Scale, ...] = get_args(Scale)
SMOKE_RUN = 4.0  # seconds, nearly all of them for starting a process
HEADS = ["name", "paper", "table", "parts", "rows", *ALL_SCALES]


class Listed(NamedTuple):
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
        times = [duration(self.seconds[scale]) + star for scale in ALL_SCALES]
        parts = ", ".join(self.parts)
        return [self.name, self.paper, self.table, parts, str(self.rows), *times]

    def plain(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return {**self._asdict(), "parts": list(self.parts)}


def listing() -> list[Listed]:
    """Every recipe."""
    return [_listed(read_recipe(name)) for name in names()]


def _listed(recipe: Recipe) -> Listed:
    table = printed()[recipe.name]
    times: dict[Scale, list[float | None]] = {
        scale: [rough(recipe, p, scale) for p in recipe.parts] for scale in ALL_SCALES
    }
    times["smoke"] = [SMOKE_RUN * len(recipe.rows)]  # its parts share their runs
    return Listed(
        name=recipe.name,
        paper=f"{table.paper} ({table.venue})",
        table=table.table,
        parts=tuple(part.name for part in recipe.parts),
        rows=len(recipe.rows),
        seconds={scale: sum(s for s in known if s is not None) for scale, known in times.items()},
        whole=None not in times["paper"],
    )


def duration(seconds: float) -> str:
    """A rough time for people: ``40 s``, ``12 min``, ``5 h``, ``9 days``."""
    for size, unit, most in ((1, "s", 90), (60, "min", 5400), (3600, "h", 48 * 3600)):
        if seconds < most:
            return f"{max(1, round(seconds / size))} {unit}"
    return f"{round(seconds / 86400)} days"
