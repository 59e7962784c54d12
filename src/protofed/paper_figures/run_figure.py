"""Running a figure recipe: train what is not finished, then draw each picture from its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from protofed.analysis.parallel_runs import Watch, run_all, stale_folders
from protofed.analysis.run_process import RunOptions
from protofed.analysis.sweep import GridCell, grid_cells
from protofed.core.model import Precision
from protofed.errors import ProtofedError
from protofed.experiment.run_folder import RunDir
from protofed.experiment.stale_code import StaleRule
from protofed.figures import check_drawable, draw_figure, shows_models
from protofed.figures.style import FigureOptions, figure_settings, save_figure
from protofed.paper_figures.figure_recipe import (
    SMOKE_NOTE,
    FigureRecipe,
    Picture,
    figure_names,
    read_figure,
)
from protofed.paper_tables.paper_comparison import ALL_SCALES, ListedRecipe
from protofed.paper_tables.recipe import (
    SMOKE_RUN,
    Recipe,
    RunPlan,
    Scale,
    describe_scale,
    measured_estimate,
    missing_for_part,
    nest_values,
    rough_run_estimate,
)
from protofed.paper_tables.recipe_plan import RecipePlan, plan_part
from protofed.paper_tables.run_recipe import ReadyRecipe, lacks_model
from protofed.runtime.text_tables import TableDocument, TextTable


class ReadyPicture(NamedTuple):
    """A picture at a scale: the runs that it needs, and how it is drawn from them."""

    picture: Picture
    ready: ReadyRecipe  # of its table, with this picture's runs alone
    options: FigureOptions

    @property
    def plan(self) -> RunPlan:
        """Its runs."""
        return self.ready.plans[0]

    @property
    def keep(self) -> set[int]:
        """The rounds whose models stay: those that are shown, and where local models begin."""
        shown, every = self.options.rounds, self.plan.cells[0].experiment.evaluate_every
        before = {number - every for number in shown if number > every}
        return set(shown) | (before if self.options.clients else set())


class ReadyFigure(NamedTuple):
    """A figure at a scale after all checks, ready for `run_figure`.

    `skipped` says why some pictures cannot be drawn. `stale` says what is done with runs that other
    code has made.
    """

    figure: FigureRecipe
    scale: Scale
    pictures: tuple[ReadyPicture, ...]
    skipped: dict[str, str]
    stale: StaleRule = "refuse"

    @property
    def name(self) -> str:
        """What a user calls it."""
        return self.figure.name

    @property
    def notes(self) -> list[str]:
        """What runs instead of the recipe, each once."""
        return list(dict.fromkeys(one.plan.note for one in self.pictures))

    @property
    def cells(self) -> list[GridCell]:
        """All runs, those that several pictures share once."""
        every = (cell for one in self.pictures for cell in one.plan.cells)
        return list({cell.folder: cell for cell in every}.values())

    def to_do(self) -> list[GridCell]:
        """The runs that are not finished, or must be repeated."""
        every = (cell for one in self.pictures for cell in one.ready.to_do())
        return list({cell.folder: cell for cell in every}.values())

    def seconds(self, workers: int) -> float:
        """An estimate of how long the runs to do take; those that pictures share count once."""
        if self.scale == "smoke":
            return SMOKE_RUN * len(self.to_do()) / max(1, workers)
        left = {cell.folder for cell in self.to_do()}

        def own(plan: RunPlan) -> list[GridCell]:
            found = [cell for cell in plan.cells if cell.folder in left]
            left.difference_update(cell.folder for cell in found)
            return found

        return measured_estimate([one.plan for one in self.pictures], own, workers)


def ready_picture(
    figure: FigureRecipe,
    picture: Picture,
    scale: Scale,
    seeds: int | None,
    runs: Path,
    stale: StaleRule = "refuse",
    precision: Precision | None = None,
) -> ReadyPicture:
    """The runs of a picture, in folders below `runs`, and its options.

    Pictures of models show one seed. `seeds` is the number for the others; None takes the recipe's
    at scale ``paper`` and one at the others.
    """
    recipe = figure.table(picture).with_precision(precision)
    part, models = recipe.part(picture.part), shows_models(picture.kind)
    settings = nest_values(recipe.settings(part))
    of = settings["scoring"]["seeds"]
    count = 1 if models else seeds or (of if scale == "paper" else 1)
    cells = tuple(grid_cells(picture.variants(recipe, scale), range(count), runs))
    rounds = (cells[0].experiment.rounds, settings["rounds"])
    note = SMOKE_NOTE if scale == "smoke" else describe_scale(rounds, (count, 1 if models else of))
    renamed = part.model_copy(update={"name": picture.name})
    plan = RunPlan(renamed, cells, part.columns, settings["scoring"]["rule"], note)
    options = picture.options(recipe, scale, cells[0].experiment)
    needed = (options.rounds or (None,)) if models else ()
    return ReadyPicture(picture, ReadyRecipe(recipe, scale, (plan,), {}, stale, needed), options)


def prepare_figure(
    figure: FigureRecipe,
    scale: Scale,
    seeds: int | None,
    runs: Path,
    stale: StaleRule = "refuse",
    precision: Precision | None = None,
) -> ReadyFigure:
    """Check every spec of a figure and look for its images; stop if no picture can be drawn."""
    parts = {p.name: figure.table(p).part(p.part) for p in figure.pictures}
    skipped = {name: why for name, part in parts.items() if (why := missing_for_part(part, scale))}
    if len(skipped) == len(parts):
        reasons = "\n".join(f"{name}: {why}" for name, why in skipped.items())
        raise ProtofedError(
            f"no picture of {figure.name} can be drawn at scale {scale}\n{reasons}",
            hint="<scale=smoke> needs only images that protofed draws itself",
        )
    made = tuple(
        ready_picture(figure, picture, scale, seeds, runs, stale, precision)
        for picture in figure.pictures
        if picture.name not in skipped
    )
    return ReadyFigure(figure, scale, made, skipped, stale)


def plan_figure(
    figure: FigureRecipe,
    scale: Scale,
    seeds: int | None,
    runs: Path,
    workers: int,
    stale: StaleRule = "refuse",
    precision: Precision | None = None,
) -> RecipePlan:
    """Look at what a figure would run, without running it; a line for each picture."""
    planned = []
    taken: set[Path] = set()
    for picture in figure.pictures:
        one = ready_picture(figure, picture, scale, seeds, runs, stale, precision)
        planned.append(plan_part(one.ready, taken, workers))
        taken.update(planned[-1].runs)
    return RecipePlan(figure.name, scale, workers, tuple(planned), {})


class DrawnPicture(NamedTuple):
    """A picture that was drawn: its files, the runs that it shows, and what is not in it."""

    name: str
    kind: str
    data: str
    rounds: int
    seeds: int
    files: tuple[Path, ...]
    runs: tuple[str, ...]  # label and digest
    missing: tuple[str, ...]  # runs that are not shown, each with the reason

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return {**self._asdict(), "files": [str(file) for file in self.files]}


class FigureReport(NamedTuple):
    """What became of each picture of a figure."""

    figure: FigureRecipe
    scale: Scale
    notes: list[str]
    pictures: tuple[DrawnPicture, ...]
    failed: dict[str, str]  # pictures that were not drawn, and why

    @property
    def faulty(self) -> bool:
        """Whether anything is missing."""
        return bool(self.failed) or any(one.missing for one in self.pictures)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        told = {"name", "figure", "caption", "claim", "differences"}
        return {
            "paper": self.figure.paper,
            **self.figure.model_dump(include=told),
            "scale": self.scale,
            "notes": self.notes,
            "pictures": [one.to_dict() for one in self.pictures],
            "failed": self.failed,
        }


def run_figure(ready: ReadyFigure, workers: int, out: Path, watch: Watch) -> FigureReport:
    """Run what is not finished and draw all pictures into the folder `out`.

    Finished runs that kept no model of a round that is shown are repeated: their scores come out
    the same. Runs that fail are left out of their pictures.
    """
    stale_folders(ready.cells, ready.stale)  # before anything is cleared
    for one in ready.pictures:
        for cell in one.plan.cells:
            run = RunDir(cell.folder)
            if run.done.exists() and lacks_model(cell.folder, one.ready.models):
                with run.locked():
                    run.clear()
    keep = tuple(sorted(set().union(*(one.keep for one in ready.pictures))))
    told = run_all(ready.cells, workers, watch, RunOptions(ready.stale, keep=keep))
    return draw_pictures(ready, out, {folder: f"failed: {why}" for folder, why in told.items()})


def draw_kept_runs(
    figure: FigureRecipe,
    scale: Scale,
    seeds: int | None,
    folder: Path,
    out: Path,
    precision: Precision | None = None,
) -> FigureReport:
    """Draw the pictures of a figure from the runs that lie in `folder`; train nothing.

    Kept copies of runs hold no models, so only pictures of scores can be drawn from them.
    """
    made = tuple(
        ready_picture(figure, one, scale, seeds, folder, precision=precision)
        for one in figure.pictures
    )
    cells = {cell.folder: cell for one in made for cell in one.plan.cells}
    absent = {place: f"not in {folder}" for place in cells if not RunDir(place).done.exists()}
    report = draw_pictures(ReadyFigure(figure, scale, made, {}), out, absent)
    if not report.pictures:
        reasons = "\n".join(f"{name}: {why}" for name, why in report.failed.items())
        raise ProtofedError(
            f"{folder} holds no run of {figure.name} at scale {scale} that can be drawn\n{reasons}",
            hint="train them by leaving <from> out",
        )
    return report


def draw_pictures(ready: ReadyFigure, out: Path, faults: Mapping[Path, str]) -> FigureReport:
    """Draw each picture from those of its runs that can be drawn; `faults` are of the others."""
    drawn, failed = [], dict(ready.skipped)
    for one in ready.pictures:
        missing = {cell.folder: _fault(one, cell, faults) for cell in one.plan.cells}
        shown = [cell for cell in one.plan.cells if not missing[cell.folder]]
        lost = [
            f"{cell.label}, seed {cell.seed}: {missing[cell.folder]}"
            for cell in one.plan.cells
            if missing[cell.folder]
        ]
        try:
            if not shown:
                raise ProtofedError(f"none of its runs can be drawn\n{lost[0]}")
            files = _draw(one, shown, out / f"{ready.name}-{one.picture.name}")
        except ProtofedError as fault:
            failed[one.picture.name] = str(fault)
            continue
        drawn.append(_drawn(one, shown, files, lost))
    return FigureReport(ready.figure, ready.scale, ready.notes, tuple(drawn), failed)


def _fault(one: ReadyPicture, cell: GridCell, faults: Mapping[Path, str]) -> str:
    """Why a run cannot be drawn; empty if it can."""
    if cell.folder in faults:
        return faults[cell.folder]
    try:
        check_drawable(one.picture.kind, one.options, cell.folder)
    except ProtofedError as fault:
        return str(fault)
    return ""


def _draw(one: ReadyPicture, shown: Sequence[GridCell], path: Path) -> list[Path]:
    folders = list(dict.fromkeys(cell.folder for cell in shown))
    with figure_settings():
        return save_figure(draw_figure(one.picture.kind, folders, one.options), path)


def _drawn(
    one: ReadyPicture, shown: Sequence[GridCell], files: Sequence[Path], lost: Sequence[str]
) -> DrawnPicture:
    first = shown[0].experiment
    return DrawnPicture(
        one.picture.name,
        one.picture.kind,
        first.data.label,
        first.rounds,
        len({cell.seed for cell in shown}),
        tuple(files),
        tuple(f"{cell.label} {cell.experiment.digest[:12]}" for cell in shown),
        tuple(lost),
    )


HEADS = ["picture", "kind", "data", "rounds", "seeds", "files"]


def figure_document(report: FigureReport) -> TableDocument:
    """The report as text: a row per picture, what the paper's figure claims, and the runs."""
    figure = report.figure
    rows = [
        [one.name, one.kind, one.data, str(one.rounds), str(one.seeds), _files(one)]
        for one in report.pictures
    ]
    notes = [
        *(f"scale {report.scale}: {note}" for note in report.notes),
        f"the paper's figure claims: {figure.claim}",
        *figure.differences,
        *(f"{one.name}: runs: {'; '.join(one.runs)}" for one in report.pictures),
        *(f"{one.name}: left out: {lost}" for one in report.pictures for lost in one.missing),
    ]
    missing = [
        TextTable((), (), name, f"not drawn: {why}".splitlines())
        for name, why in report.failed.items()
    ]
    title = f"{figure.paper}, {figure.figure}: {figure.caption}"
    table = TextTable(HEADS, rows, notes=notes)
    return TableDocument([table, *missing], report.to_dict(), title)


def _files(one: DrawnPicture) -> str:
    return " ".join(str(file) for file in one.files)


def list_figures() -> list[ListedRecipe]:
    """Every figure with its pictures and rough times, in alphabetical order."""
    return [_list_figure(read_figure(name)) for name in figure_names()]


def _list_figure(figure: FigureRecipe) -> ListedRecipe:
    runs: dict[str, tuple[Recipe, Picture]] = {}  # by experiment: pictures share some
    for picture in figure.pictures:
        recipe = figure.table(picture)
        for variant in picture.variants(recipe, "paper"):
            runs.setdefault(json.dumps(variant.raw, sort_keys=True), (recipe, picture))
    times = {scale: [_run_seconds(*one, scale) for one in runs.values()] for scale in ALL_SCALES}
    return ListedRecipe(
        name=figure.name,
        paper=figure.paper,
        table=figure.figure,
        parts=tuple(picture.name for picture in figure.pictures),
        rows=len(runs),
        seconds={scale: sum(s for s in each if s is not None) for scale, each in times.items()},
        whole=None not in times["paper"],
    )


def _run_seconds(recipe: Recipe, picture: Picture, scale: Scale) -> float | None:
    """A rough guess for one experiment of a picture, all its seeds together."""
    if scale == "smoke":
        return SMOKE_RUN
    part = recipe.part(picture.part)
    each = rough_run_estimate(recipe, part, scale)
    seeds = nest_values(recipe.settings(part))["scoring"]["seeds"]
    many = scale == "paper" and not shows_models(picture.kind)
    return each if each is None else each * (seeds if many else 1)
