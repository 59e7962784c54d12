"""What is compared: named variants of one experiment, each run with the same seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from protofed.core.errors import ProtofedError
from protofed.experiment.parse import Raw, choose, experiment_from, method_from, set_field
from protofed.experiment.runner import default_folder
from protofed.experiment.spec import Experiment

FULL = "full"  # the method as it is, among its ablations


class Variant(NamedTuple):
    """One row of a table: its label, and the experiment behind it as plain data."""

    label: str
    raw: Raw


class Cell(NamedTuple):
    """One run of the grid."""

    label: str
    seed: int
    experiment: Experiment
    folder: Path


def named(words: Sequence[str], raw: Raw) -> list[Variant]:
    """Variants from words such as ``fpl`` and ``fpl:tau=0.05,upcr=0``."""
    variants = []
    for word in words:
        name, _, settings = word.partition(":")
        own = choose(raw, "method", name)
        for setting in filter(None, settings.split(",")):
            own = set_field(own, f"method.{setting}")
        label = method_from(own["method"]).about.label
        variants.append(Variant(f"{label} ({settings})" if settings else label, own))
    return _distinct(variants)


def ablations(name: str, raw: Raw) -> list[Variant]:
    """A method as it is, and without each of the parts that its paper takes away."""
    whole = choose(raw, "method", name)
    method = method_from(whole["method"])
    if not method.ablations:
        raise ProtofedError(f"{name} declares no ablations\nuse compare, as {name}:field=value")
    table = dict(whole["method"])
    return [
        *(
            Variant(label, {**whole, "method": {**table, **fields}})
            for label, fields in method.ablations.items()
        ),
        Variant(f"{method.about.label} ({FULL})", whole),
    ]


def grid(name: str, axes: Iterable[str], raw: Raw) -> list[Variant]:
    """All combinations of ``section.field=a,b,c`` axes."""
    choices: list[list[tuple[str, str]]] = []
    for axis in axes:
        field, equals, values = axis.partition("=")
        if not equals or not values:
            raise ProtofedError(f"--grid {axis}: write section.field=value,value,...")
        if field.split(".")[0] in ("seed", "partition", "data", "validation"):
            raise ProtofedError(
                f"--grid {field}: rows of a table train and are scored on the same images"
                f"\nuse one run each (protofed run), and protofed plot sensitivity"
            )
        choices.append([(field, value) for value in values.split(",")])
    variants = []
    for settings in product(*choices):
        own = choose(raw, "method", name)
        for field, value in settings:
            own = set_field(own, f"{field}={value}")
        words = ", ".join(f"{field.removeprefix('method.')}={value}" for field, value in settings)
        variants.append(Variant(words or name, own))
    return _distinct(variants)


def cells(variants: Sequence[Variant], seeds: Sequence[int], runs: Path) -> list[Cell]:
    """Every variant with every seed; all specs are checked before anything runs."""
    made = []
    for label, raw in variants:
        for seed in seeds:
            experiment = experiment_from({**raw, "seed": seed})
            made.append(Cell(label, seed, experiment, runs / default_folder(experiment).name))
    return made


def _distinct(variants: list[Variant]) -> list[Variant]:
    labels = [variant.label for variant in variants]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ProtofedError(f"named more than once: {', '.join(twice)}")
    return variants
