"""A search for good values by Optuna (extra ``sweep``), scored on images held out from clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from protofed.analysis.grid import GridCell, GridVariant, grid_cells
from protofed.errors import ProtofedError
from protofed.spec.spec_parser import Raw, choose_named, set_field

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
