"""A recipe: one table of a paper as experiments, with its printed numbers and all sources."""

from __future__ import annotations

import dataclasses
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from protofed.analysis.sweep import GridCell, GridVariant, grid_cells
from protofed.core.model import Precision
from protofed.core.site import SCAN_BATCH, ArrayDataset, RoundContext, Site
from protofed.core.training import torch_threads
from protofed.data.benchmarks import BENCHMARKS, load_benchmark
from protofed.data.digits_mini import DOMAINS
from protofed.data.download import missing_images, unset_folder_notes
from protofed.errors import ProtofedError, require_known_name
from protofed.experiment.result import ScoreRule, count_evaluations
from protofed.federation.build import Federation, build_federation
from protofed.methods import METHODS
from protofed.spec.experiment_spec import Experiment, flatten_spec
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


Source = Literal["paper", "public_code", "our_choice", "tuned"]
SOURCES: dict[Source, str] = {
    "paper": "paper",
    "public_code": "public code",
    "our_choice": "our choice",
    "tuned": "tuned on held-out images",
}


class SourcedValue(NamedTuple):
    """A setting and its source: the paper, released code, our own choice, or `protofed tune`.

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
    tuned: Raw = Field(default_factory=dict)

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

    Fields that are not set keep the method's defaults. A table `training` among them replaces
    fields of the recipe's local training for this row.
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
    tuning: str = ""  # the command that found the tuned values

    def row_training(self, label: str) -> Values:
        """The fields of a row's own local training, by their dotted names."""
        own = self.rows.get(label, SourcedFields()).values()
        return {name: value for name, value in own.items() if name.startswith("training.")}


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
        for part in self.parts:
            tuned = [label for label, fields in part.rows.items() if fields.tuned]
            if bool(tuned) != bool(part.tuning):
                raise ValueError(f"{part.name}: tuned values stand beside their command, `tuning`")
        labels = [row.label for row in self.rows]
        for label in (self.baseline, *(label for part in self.parts for label in part.rows)):
            require_known_name(f"row of {self.name}", label, labels)
        return self

    def part(self, name: str) -> RecipePart:
        """The part with a name; one that does not exist is refused with those that do."""
        names = [part.name for part in self.parts]
        return self.parts[names.index(require_known_name(f"part of {self.name}", name, names))]

    def with_rows(self, labels: Sequence[str]) -> Self:
        """The recipe with some of its rows, the baseline always among them; none means all."""
        known = [row.label for row in self.rows]
        wanted = {require_known_name(f"row of {self.name}", label, known) for label in labels}
        rows = [row for row in self.rows if row.label in {*wanted, self.baseline}]
        return self.model_copy(update={"rows": tuple(rows)}) if wanted else self

    def with_precision(self, precision: Precision | None) -> Self:
        """The recipe in another precision, listed as a difference; None changes nothing.

        For CPUs that cannot compute in bfloat16, which most recipes ask for.
        """
        chosen = self.our_choice.get("precision", "float32")
        if precision is None or precision == chosen:
            return self
        told = f"computed in {precision}, the recipe in {chosen}"
        return self.model_copy(
            update={
                "our_choice": {**self.our_choice, "precision": precision},
                "differences": (told, *self.differences),
            }
        )

    def settings(self, part: RecipePart) -> Values:
        """The values of a part, the method's apart; what the part says goes before the recipe."""
        own = {
            "data.name": SourcedValue(part.benchmark, "paper"),
            "data.domains": SourcedValue(list(part.columns.values()), "paper"),
        }
        return {**self.values(), **part.values(), **own}

    def fields(self, part: RecipePart, row: RecipeRow) -> Values:
        """The values of a row's method in a part, and those of its own local training."""
        here = part.rows.get(row.label, SourcedFields())
        return {**row.values(), **here.values()}

    def raw(self, part: RecipePart, row: RecipeRow) -> Raw:
        """The experiment behind a row, and its scoring, as plain data."""
        method = nest_values(self.fields(part, row))
        settings = nest_values(self.settings(part))
        training = {**settings["training"], **method.pop("training", {})}
        return {**settings, "training": training, "method": {"name": row.method, **method}}


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


Scale = Literal["smoke", "quick", "paper"]
SMOKE_NOTE = (
    "NOT COMPARABLE with the paper: a few images of digits-mini, two rounds, a small net; "
    "it shows only that every row runs, so the paper's numbers are left out"
)
SMOKE_NET = "moon-cnn"  # the smallest


class RunPlan(NamedTuple):
    """What runs for a part at a scale, and how its scores are read.

    `columns` maps the paper's column names to our domains; at scale ``smoke`` it has the domains of
    digits-mini under their own names. `note` says what runs instead of the recipe's rounds and
    seeds.
    """

    part: RecipePart
    cells: tuple[GridCell, ...]
    columns: dict[str, str]  # head -> domain
    rule: ScoreRule
    note: str  # what runs instead of the recipe


def plan_runs(
    recipe: Recipe, part: RecipePart, scale: Scale, seeds: int | None, runs: Path
) -> RunPlan:
    """The runs of a part: every row with every seed, in folders below `runs`.

    `seeds` is their number; None takes the recipe's at scale ``paper`` and one at the others.
    """
    settings = nest_values(recipe.settings(part))
    scoring = settings["scoring"]
    count = seeds or (scoring["seeds"] if scale == "paper" else 1)
    variants = [
        GridVariant(row.label, scaled_spec(recipe.raw(part, row), scale)) for row in recipe.rows
    ]
    shown = DOMAINS[: len(part.columns)]
    columns = dict(zip(shown, shown, strict=True)) if scale == "smoke" else part.columns
    made = tuple(grid_cells(variants, range(count), runs))
    note = SMOKE_NOTE
    if scale != "smoke":
        rounds = made[0].experiment.rounds  # the same in all rows
        note = describe_scale((rounds, settings["rounds"]), (count, scoring["seeds"]))
    return RunPlan(part, made, columns, cast(ScoreRule, scoring["rule"]), note)


def describe_scale(rounds: tuple[int, int], seeds: tuple[int, int]) -> str:
    """What runs instead of the recipe, and what that does to the scores.

    Both arguments are pairs: the number that runs, and the recipe's own.
    """
    parts = {
        "round": (*rounds, "scores are lower"),
        "seed": (*seeds, "differences are less certain"),
    }
    other = {word: part for word, part in parts.items() if part[0] != part[1]}
    if not other:
        return "the recipe as it is"
    told = [f"{n} {word}{'s' * (n > 1)} instead of {of}" for word, (n, of, _) in other.items()]
    effects = [effect for n, of, effect in other.values() if n < of]
    return "the recipe with " + ": ".join(filter(None, [" and ".join(told), ", ".join(effects)]))


class SmokeSize(NamedTuple):
    """What stands in for a recipe at scale ``smoke``: a few images of digits-mini, a few rounds.

    `server_epochs` replaces the hundreds of methods that train at the server; 0 leaves them.
    """

    clients: int = 4
    samples: int = 12  # of each client
    epochs: int = 1
    batch: int = 8
    rounds: int = 2  # prototypes act from the second on
    server_epochs: int = 2


ROWS_RUN = SmokeSize()  # just enough to see every row run


def scaled_spec(raw: Raw, scale: Scale, size: SmokeSize = ROWS_RUN) -> Raw:
    """The experiment of `Recipe.raw` at a scale, as plain data without its scoring."""
    spec = {name: value for name, value in raw.items() if name != "scoring"}
    if scale == "quick":
        return {**spec, "rounds": min(raw["scoring"]["quick_rounds"], raw["rounds"])}
    return spec if scale == "paper" else _smoke(spec, size)


def _smoke(raw: Raw, size: SmokeSize) -> Raw:
    """The same method on next to nothing; equal rows of different parts become one run."""
    domains = DOMAINS[: len(raw["data"]["domains"])]
    method = dict(raw["method"])
    known = {field.name for field in dataclasses.fields(METHODS[method["name"]])}
    if size.server_epochs and "server_epochs" in known:
        method["server_epochs"] = size.server_epochs
    return {
        "data": {"name": "digits-mini", "domains": list(domains), "side": 16},
        "method": method,
        # Different nets must go together, so they stay as they are.
        "net": raw["net"] if isinstance(raw["net"], list) else SMOKE_NET,
        "partition": {"kind": "shares", "clients": size.clients, "samples": size.samples},
        "training": {**raw["training"], "epochs": size.epochs, "batch": size.batch},
        "rounds": size.rounds,
    }


def missing_for_part(part: RecipePart, scale: Scale) -> str:
    """Why a part cannot run at a scale; empty if it can.

    All sets that are missing on this disk are named, each with the command that gets it. At scale
    ``smoke`` no real images are needed.
    """
    if part.benchmark not in BENCHMARKS:
        return f"the images of {part.benchmark} cannot be had in protofed yet"
    if scale == "smoke":
        return ""
    missing = missing_images(part.benchmark, tuple(part.columns.values()))
    if missing:
        return "\n".join([*map(str, missing), *unset_folder_notes()])
    try:
        load_benchmark(part.benchmark, tuple(part.columns.values()))
    except ProtofedError as fault:
        return str(fault)
    return ""


def choose_parts(recipe: Recipe, names: Sequence[str]) -> list[RecipePart]:
    """The named parts of a recipe, or all of them if none is named.

    An unknown name is refused with the known ones.
    """
    return [recipe.part(name) for name in names] or list(recipe.parts)


SMOKE_RUN = 4.0  # seconds of a run at scale smoke, nearly all of them for starting a process
# Seconds to train on 1,000 images of 32 pixels, measured on one core; only an order of magnitude.
PACE = {
    "lsa-cnn": 2.1,
    "moon-cnn": 0.2,
    "moon-mlp": 0.1,
    "moon-resnet18": 63.0,
    "resnet10": 31.0,
    "seproto-cnn": 1.6,
    "seproto-cnn2": 1.0,
}


class RoundPace(NamedTuple):
    """Seconds that one round of training and one evaluation take.

    `run` extrapolates to a whole experiment.
    """

    training: float
    scoring: float

    def run(self, experiment: Experiment) -> float:
        """The seconds of a whole run."""
        rounds = experiment.rounds
        scorings = count_evaluations(rounds, experiment.evaluate_every)
        return rounds * self.training + scorings * self.scoring


def rough_estimate(recipe: Recipe, part: RecipePart, scale: Scale) -> float | None:
    """Seconds that a part takes on one core, from a table of measured nets; nothing is run.

    None if the number of images is not known.
    """
    each = rough_run_estimate(recipe, part, scale)
    seeds = nest_values(recipe.settings(part))["scoring"]["seeds"] if scale == "paper" else 1
    return None if each is None else each * len(recipe.rows) * seeds


def rough_run_estimate(recipe: Recipe, part: RecipePart, scale: Scale) -> float | None:
    """Seconds that one run of a part takes on one core, from a table of measured nets.

    None if the number of images is not known.
    """
    if part.benchmark not in BENCHMARKS or part.images is None:
        return None
    raw = nest_values(recipe.settings(part))
    quick = min(raw["rounds"], raw["scoring"]["quick_rounds"])
    rounds = raw["rounds"] if scale == "paper" else quick
    nets = raw["net"] if isinstance(raw["net"], list) else [raw["net"]]
    pace = sum(PACE[net] for net in nets) / len(nets) * (raw["data"]["side"] / 32) ** 2
    return float(rounds * raw["training"]["epochs"] * part.images / 1000 * pace)


def measured_estimate(
    plans: Iterable[RunPlan], open_cells: Callable[[RunPlan], list[GridCell]], workers: int
) -> float:
    """Seconds that all unfinished runs may take, from a few batches of the first row of each part.

    `open_cells` returns the unfinished runs of a plan; `workers` of them run at a time.
    """
    total = 0.0
    for plan in plans:
        left = open_cells(plan)
        if left:
            pace = measure_pace(plan.cells[0].experiment)
            total += sum(pace.run(cell.experiment) for cell in left)
    return total / max(1, workers)  # without workers, one run after the other


def measure_pace(experiment: Experiment) -> RoundPace:
    """Time one training batch and one evaluation block, and extrapolate to a round.

    Builds the federation of the experiment, so its images must be there. Takes seconds.
    """
    with torch_threads(experiment.threads):
        federation = build_federation(experiment)
        site = max(federation.sites.values(), key=lambda site: len(site.train))
        return RoundPace(
            _training(experiment, federation, site), _scoring(experiment, federation, site)
        )


def _training(experiment: Experiment, federation: Federation, site: Site) -> float:
    method, training = experiment.method, experiment.training
    few = replace(
        site, train=_first(site.train, training.batch), training=replace(training, epochs=1)
    )
    server = method.init_server(federation.server)
    step = RoundContext(0, experiment.rounds)
    received = method.send(federation.server, server, [site.id], step)[site.id]
    state = method.init_client(site)
    seconds = _timed(lambda: method.train(few, received, state, step))
    images = sum(len(other.train) for other in federation.sites.values()) * training.epochs
    return seconds * experiment.participation * images / len(few.train)


def _scoring(experiment: Experiment, federation: Federation, site: Site) -> float:
    images = sum(len(test) for test in federation.tests.values())
    block = _first(max(federation.tests.values(), key=len), SCAN_BATCH)
    model = site.initial_model()
    seconds = _timed(lambda: [site.forward_eval(model, x) for x, _ in site.eval_batches(block)])
    models = len(federation.sites) if experiment.method.personal else 1
    return seconds * models * images / len(block)


def _first(data: ArrayDataset, most: int) -> ArrayDataset:
    return data.take(torch.arange(min(most, len(data))))


def _timed(work: Callable[[], object]) -> float:
    """Seconds of the second time, as the first warms up."""
    work()
    began = time.monotonic()
    work()
    return time.monotonic() - began
