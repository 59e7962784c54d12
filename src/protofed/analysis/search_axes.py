"""What a search may vary: fields of the spec, each with a range or a choice of values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from protofed.errors import ProtofedError
from protofed.spec.spec_parser import Raw, parse_experiment, parse_value, set_value

DIGITS = 4  # of a number that is drawn, so that it can be typed again
FORMS = (
    "write section.field=low..high for a range (log:low..high searches it by magnitude), "
    "or section.field=value,value,... for a choice"
)
SAME_IMAGES = ("seed", "partition", "data", "validation", "leave_out")


@dataclass(frozen=True)
class RangeAxis:
    """A field whose value is a number between two ends, which are included.

    `log` searches by magnitude, so 0.01 to 0.1 gets as many trials as 0.1 to 1; `whole` gives
    whole numbers only.
    """

    field: str
    low: float
    high: float
    log: bool
    whole: bool

    def suggest(self, trial: Any) -> object:
        """The value that an Optuna trial takes, rounded to what a label can show."""
        if self.whole:
            return int(trial.suggest_int(self.field, int(self.low), int(self.high), log=self.log))
        value = float(trial.suggest_float(self.field, self.low, self.high, log=self.log))
        size = value if self.log else self.high - self.low
        short = round(value, DIGITS - 1 - math.floor(math.log10(size)))
        return min(self.high, max(self.low, short))

    def every_value(self) -> Sequence[object] | None:
        """All values, if they can be counted."""
        return range(int(self.low), int(self.high) + 1) if self.whole else None

    def to_dict(self) -> dict[str, object]:
        """As plain data, ready for JSON."""
        return {"field": self.field, "low": self.low, "high": self.high, "log": self.log}


@dataclass(frozen=True)
class ChoiceAxis:
    """A field whose value is one of several, which have no order."""

    field: str
    values: tuple[object, ...]

    def suggest(self, trial: Any) -> object:
        """The value that an Optuna trial takes."""
        return self.values[trial.suggest_categorical(self.field, range(len(self.values)))]

    def every_value(self) -> Sequence[object] | None:
        """All values."""
        return self.values

    def to_dict(self) -> dict[str, object]:
        """As plain data, ready for JSON."""
        return {"field": self.field, "values": list(self.values)}


SearchAxis = RangeAxis | ChoiceAxis


def parse_axis(text: str, raw: Raw) -> SearchAxis:
    """Parse an axis and check it against the spec: the field must exist and take every end.

    ``method.lam=0.01..1`` is a range, searched by magnitude as it spans a decade;
    ``training.epochs=1..5`` has whole numbers, because the field has; ``training.lr=0.01,0.1`` is
    a choice. `raw` holds what all trials share.
    """
    name, values = (word.strip() for word in text.partition("=")[::2])
    if not name or not values:
        raise ProtofedError(f"search {text}: no field with values", hint=FORMS)
    _check_searchable(name)
    if "," in values or ".." not in values:
        return _parse_choice(text, name, values.split(","), raw)
    return _parse_range(text, name, values, raw)


def _check_searchable(name: str) -> None:
    if name.split(".")[0] in SAME_IMAGES:
        raise ProtofedError(
            f"search {name}: all trials train and are scored on the same images",
            hint="search another field; <set> gives this one a value for all trials",
        )
    if name in ("method", "method.name"):
        raise ProtofedError(f"search {name}: a search tunes one method; name its fields")


def _parse_choice(text: str, name: str, words: Sequence[str], raw: Raw) -> ChoiceAxis:
    values = tuple(parse_value(word) for word in words)
    if len(values) < 2 or "" in values:
        raise ProtofedError(f"search {text}: neither a range nor several values", hint=FORMS)
    taken = [repr(_as_the_spec_takes_it(text, name, value, raw)) for value in values]
    if len(set(taken)) < len(taken):
        raise ProtofedError(f"search {text}: a value is named more than once")
    return ChoiceAxis(name, values)


def _parse_range(text: str, name: str, values: str, raw: Raw) -> RangeAxis:
    bare = values.removeprefix("log:")
    low, high = (parse_value(word) for word in bare.split("..", 1))
    if not _is_number(low) or not _is_number(high) or not low < high:
        raise ProtofedError(f"search {text}: the ends are no numbers, the lower first", hint=FORMS)
    by_magnitude = bare != values
    if by_magnitude and low <= 0:
        raise ProtofedError(f"search {text}: by magnitude the lower end must be above 0")
    ends = [_as_the_spec_takes_it(text, name, value, raw) for value in (low, high)]
    whole = all(isinstance(value, int) for value in (low, high, *ends))
    return RangeAxis(name, low, high, by_magnitude or (low > 0 and high >= 10 * low), whole)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _as_the_spec_takes_it(text: str, name: str, value: object, raw: Raw) -> object:
    """The value in a spec that is complete, whose fields have made it a number, text, ..."""
    try:
        found: object = parse_experiment(set_value(raw, name, value))
    except ProtofedError as fault:
        raise ProtofedError(f"search {text}: {fault.args[0]}", fault.hint) from fault
    for key in name.split("."):
        found = getattr(found, key, value)
    return found
