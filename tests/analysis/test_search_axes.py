from __future__ import annotations

import pytest

from protofed.analysis.search_axes import ChoiceAxis, RangeAxis, parse_axis
from protofed.errors import ProtofedError

FEDPROX = {"method": {"name": "fedprox"}, "rounds": 2}


def in_range(text: str) -> RangeAxis:
    axis = parse_axis(text, FEDPROX)
    assert isinstance(axis, RangeAxis)
    return axis


@pytest.mark.parametrize(
    ("text", "low", "high", "log"),
    [
        ("method.mu=0.01..1", 0.01, 1, True),  # spans a decade
        ("method.mu=0.1..1", 0.1, 1, True),
        ("method.mu=0.5..1", 0.5, 1, False),
        ("method.mu=0..100", 0, 100, False),
        ("method.mu=log:0.5..1", 0.5, 1, True),
        ("method.mu = 1..2", 1, 2, False),  # a float field: 1.5 is in it
        ("training.lr=1e-3..1e-1", 1e-3, 1e-1, True),
        ("participation=0.5..1", 0.5, 1, False),
    ],
)
def test_a_range_of_a_float_field(text: str, low: float, high: float, log: bool) -> None:
    axis = in_range(text)
    assert (axis.low, axis.high, axis.log, axis.whole) == (low, high, log, False)
    assert axis.every_value() is None


def test_a_range_of_a_whole_field_has_whole_numbers() -> None:
    axis = in_range("training.epochs=1..5")
    assert (axis.whole, axis.log) == (True, False)
    assert list(axis.every_value() or ()) == [1, 2, 3, 4, 5]
    assert in_range("training.batch=4..64").log


def test_values_with_commas_are_a_choice() -> None:
    assert parse_axis("training.lr=0.01,0.03,0.1", FEDPROX) == ChoiceAxis(
        "training.lr", (0.01, 0.03, 0.1)
    )
    assert parse_axis("net=moon-mlp,moon-cnn", FEDPROX) == ChoiceAxis(
        "net", ("moon-mlp", "moon-cnn")
    )
    nested = parse_axis("method.base.mu=0.1,1", {"method": {"name": "pgct", "base": "fedprox"}})
    assert nested == ChoiceAxis("method.base.mu", (0.1, 1))


@pytest.mark.parametrize(
    "text", ["lam", "method.mu=1", "method.mu=1..", "method.mu=2..1", "=1..2", "method.mu=a..b"]
)
def test_what_is_no_axis_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(ProtofedError, match=r"field=low\.\.high .*log:.* or section\.field=value"):
        parse_axis(text, FEDPROX)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("method.muu=0..1", r"method\.muu: no such field; did you mean 'mu'"),
        ("training.rate=0..1", r"training\.rate: no such field"),
        ("mu=0..1", r"did you mean 'method\.mu'"),
        ("method.mu=-1..1", r"method\.mu: .* greater than or equal to 0"),
        ("training.lr=0.1,-1", r"training\.lr: .* greater than"),
        ("training.epochs=0.5..3", r"training\.epochs: .* integer"),
        ("training.epochs=1..3.5", r"training\.epochs: .* integer"),
        ("training.epochs=1,2.5", r"training\.epochs"),
        ("net=moon-mlp,moon-rnn", "unknown name 'moon-rnn'"),
        ("method.mu=log:0..1", "above 0"),
        ("method.mu=0.1,0.10", "more than once"),
        ("method.mu=0.1,", "several values"),
        ("method=fedavg,fpl", "tunes one method"),
        ("method.name=fedavg,fpl", "tunes one method"),
        ("seed=0,1", "same images"),
        ("partition.samples=9..12", "same images"),
        ("data.side=16,32", "same images"),
        ("validation=0.1..0.5", "same images"),
        ("leave_out=syn,print", "same images"),
    ],
)
def test_a_field_that_cannot_be_searched_is_named(text: str, says: str) -> None:
    with pytest.raises(ProtofedError, match=says) as caught:
        parse_axis(text, FEDPROX)
    assert text.partition("=")[0] in str(caught.value)


def test_a_switch_is_a_choice_and_no_range() -> None:
    raw = {"method": {"name": "fedga"}}
    switch = ChoiceAxis("method.centred", (True, False))
    assert parse_axis("method.centred=true,false", raw) == switch
    with pytest.raises(ProtofedError, match=r"method\.centred: .* boolean"):
        parse_axis("method.centred=0..1", raw)


class Drawn:
    """An Optuna trial that takes the value it is given."""

    def __init__(self, value: float):
        self.value = value

    def suggest_float(self, name: str, low: float, high: float, log: bool) -> float:
        return self.value


@pytest.mark.parametrize(
    ("text", "value", "rounded"),
    [
        ("method.mu=0.0001..1", 0.000123456, 0.0001235),
        ("method.mu=0.0001..1", 0.99999999, 1.0),
        ("method.mu=0..1", 0.000123456, 0.0),
        ("method.mu=0..100", 12.3456, 12.3),
        ("method.mu=0.9990..0.9999", 0.99951234567, 0.9995123),  # as fine as the range is
        ("method.mu=0.33333333..0.5", 0.33333334, 0.33333333),  # never outside
    ],
)
def test_what_is_drawn_is_as_fine_as_its_range(text: str, value: float, rounded: float) -> None:
    assert in_range(text).suggest(Drawn(value)) == rounded
