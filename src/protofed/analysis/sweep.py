"""Many runs of one experiment: named variants with the same seeds, grids, and their ranking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from protofed.analysis.finished_runs import add_settings
from protofed.errors import ProtofedError
from protofed.experiment.runner import default_folder
from protofed.spec.experiment_spec import Experiment, parse_method
from protofed.spec.spec_parser import Raw, choose_named, parse_experiment, set_field

FULL = "full"  # the method as it is, among its ablations


class GridVariant(NamedTuple):
    """One row of a table before it runs.

    `label` names the row; `raw` is its experiment as plain data, without a seed.
    """

    label: str
    raw: Raw


class GridCell(NamedTuple):
    """One run of a grid: a variant with one seed, its complete experiment and its run folder.

    `run_all` runs cells, `read_record(cell.folder, cell.label)` reads them back.
    """

    label: str
    seed: int
    experiment: Experiment
    folder: Path


def named_variants(words: Sequence[str], raw: Raw) -> list[GridVariant]:
    """One variant per word; a colon introduces settings of the method.

    ``named_variants(["fedavg", "fpl:tau=0.05,upcr=0"], raw)`` gives the rows ``FedAvg`` and ``FPL
    (tau=0.05,upcr=0)``, which share everything in `raw`. Equal labels are refused.
    """
    variants = []
    for word in words:
        name, _, settings = word.partition(":")
        own = choose_named(raw, "method", name)
        for setting in filter(None, settings.split(",")):
            own = set_field(own, f"method.{setting}")
        label = parse_method(own["method"]).info.label
        variants.append(GridVariant(add_settings(label, settings), own))
    return _distinct(variants)


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


VALIDATION = 0.2  # share of each client's images, where the spec names none


class SearchAxis(NamedTuple):
    """A field of the spec and the range in which a search looks for its value."""

    field: str
    low: float
    high: float

    @property
    def log(self) -> bool:
        """Whether the range spans at least a decade: then it is searched by magnitude."""
        return self.low > 0 and self.high >= 10 * self.low


def parse_axis(text: str) -> SearchAxis:
    """Parse ``method.lam=0.01..1`` into an axis; the lower end must come first."""
    field, equals, values = text.partition("=")
    low, dots, high = values.partition("..")
    try:
        made = SearchAxis(field, float(low), float(high))
    except ValueError:
        made = SearchAxis(field, 1.0, 0.0)
    if not (field and equals and dots) or not made.low < made.high:
        raise ProtofedError(f"search {text}: write section.field=low..high")
    return made


def run_search(
    name: str,
    axes: Sequence[SearchAxis],
    trials: int,
    raw: Raw,
    runs: Path,
    play: Callable[[GridCell], float],
) -> Iterator[tuple[GridCell, float | str]]:
    """Run trials one after the other; yield each with its score, or with the error that ended it.

    `play` runs one cell and returns the score to maximise. Trials are scored on images held out
    from the clients, never on test images. The sampler has a fixed seed and finished runs are read,
    so an interrupted search takes the same path again.
    """
    study = _study()
    shared = {"validation": VALIDATION, **choose_named(raw, "method", name)}
    for _ in range(trials):
        trial = study.ask()
        own, words = shared, []
        for one in axes:
            value = trial.suggest_float(one.field, one.low, one.high, log=one.log)
            words.append(f"{one.field}={value:.3g}")
            own = set_field(own, words[-1])
        (cell,) = grid_cells([GridVariant(" ".join(words), own)], [0], runs)
        try:
            score = play(cell)
        except ProtofedError as fault:  # too bold, most likely; the sampler goes elsewhere
            study.tell(trial, state=_failed())
            yield cell, str(fault)
            continue
        study.tell(trial, score)
        yield cell, score


def _failed() -> Any:
    import optuna

    return optuna.trial.TrialState.FAIL


def _study() -> Any:
    try:
        import optuna
    except ImportError:
        raise ProtofedError("a search needs Optuna: pip install 'protofed[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
