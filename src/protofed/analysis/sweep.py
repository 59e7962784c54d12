"""Many runs of one experiment: named variants with the same seeds, ablations and grids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from protofed.analysis.finished_runs import add_settings
from protofed.errors import ProtofedError
from protofed.experiment.runner import default_folder
from protofed.methods import METHODS
from protofed.spec.experiment_spec import Experiment
from protofed.spec.method_lookup import parse_method
from protofed.spec.spec_parser import Raw, choose_named, parse_experiment, set_field

TRAINING = "training."  # what a setting of a row may begin with, beside the method's own fields
FULL = "full"  # the method as it is, among its ablations


class GridVariant(NamedTuple):
    """One row of a table before it runs.

    `label` names the row; `raw` is its experiment as plain data, without a seed.
    """

    label: str
    raw: Raw


class GridCell(NamedTuple):
    """One run of a grid: a variant with one seed, its complete experiment and its run folder.

    `run_all` runs cells, `read_record(cell.folder, cell.label)` reads them back. A cell with
    `stop_after` is paused after that round, and continues when it is run again without.
    """

    label: str
    seed: int
    experiment: Experiment
    folder: Path
    stop_after: int | None = None


def named_variants(words: Sequence[str], raw: Raw) -> list[GridVariant]:
    """One variant per word; a colon introduces settings of the method, or of its training.

    ``named_variants(["fedavg", "fpl:tau=0.05,upcr=0"], raw)`` gives the rows ``FedAvg`` and ``FPL
    (tau=0.05,upcr=0)``, which share everything in `raw`. Where each method has a learning rate of
    its own, it is ``fpl:training.lr=0.03``. Equal labels are refused.
    """
    variants = []
    for word in words:
        name, settings = split_method_word(word)
        own = choose_named(raw, "method", name)
        for setting in filter(None, settings.split(",")):
            own = set_field(own, setting if setting.startswith(TRAINING) else f"method.{setting}")
        label = parse_method(own["method"]).info.label
        variants.append(GridVariant(add_settings(label, settings), own))
    return _distinct(variants)


def split_method_word(word: str) -> tuple[str, str]:
    """A method's name and its settings: ``fpl:tau=0.05`` or ``path/to/mine.py:Mine:power=2``."""
    name, _, settings = word.rpartition(":")
    if name in METHODS and "=" not in settings:
        raise ProtofedError(f"{word}: write a setting as {name}:field=value")
    return (name, settings) if "=" in settings else (word, "")


def ablation_variants(name: str, raw: Raw) -> list[GridVariant]:
    """The ablations that a method declares, then the complete method as the last row.

    `name` is the method's command-line name; `raw` holds what all rows share.
    """
    whole = choose_named(raw, "method", name)
    method = parse_method(whole["method"])
    if not method.ablations:
        raise ProtofedError(
            f"{name} declares no ablations", hint=f"use compare, as {name}:field=value"
        )
    table = dict(whole["method"])
    return [
        *(
            GridVariant(label, {**whole, "method": {**table, **fields}})
            for label, fields in method.ablations.items()
        ),
        GridVariant(add_settings(method.info.label, FULL), whole),
    ]


def grid_variants(name: str, axes: Iterable[str], raw: Raw) -> list[GridVariant]:
    """All combinations of axes such as ``method.alpha=0.1,0.4`` for one method.

    Fields that decide who holds which images are refused, because the rows of a table must train
    and be scored on the same images.
    """
    choices: list[list[tuple[str, str]]] = []
    for axis in axes:
        field, equals, values = axis.partition("=")
        if not equals or not values:
            raise ProtofedError(f"grid {axis}: write section.field=value,value,...")
        if field.split(".")[0] in ("seed", "partition", "data", "validation"):
            raise ProtofedError(
                f"grid {field}: rows of a table train and are scored on the same images",
                hint="use one run each (protofed run), and protofed plot sensitivity",
            )
        choices.append([(field, value) for value in values.split(",")])
    variants = []
    for settings in product(*choices):
        own = choose_named(raw, "method", name)
        for field, value in settings:
            own = set_field(own, f"{field}={value}")
        words = ", ".join(f"{field.removeprefix('method.')}={value}" for field, value in settings)
        variants.append(GridVariant(words or name, own))
    return _distinct(variants)


def grid_cells(variants: Sequence[GridVariant], seeds: Sequence[int], runs: Path) -> list[GridCell]:
    """Every variant with every seed; all specs are checked before anything runs.

    A run folder below `runs` is named by the experiment's digest, so an experiment that was run
    before is found again, whatever command made it.
    """
    made = []
    for label, raw in variants:
        for seed in seeds:
            experiment = parse_experiment({**raw, "seed": seed})
            made.append(GridCell(label, seed, experiment, runs / default_folder(experiment).name))
    return made


def _distinct(variants: list[GridVariant]) -> list[GridVariant]:
    labels = [variant.label for variant in variants]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ProtofedError(f"named more than once: {', '.join(twice)}")
    return variants
