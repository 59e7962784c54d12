"""An error names what to do in the caller's own words, and crosses processes unchanged."""

from __future__ import annotations

import pickle

import pytest

from protofed.errors import (
    BusyError,
    ProtofedError,
    count_noun,
    did_you_mean,
    display_path,
    printable_text,
    require_known_name,
)


def test_a_hint_is_written_by_whoever_shows_it() -> None:
    error = ProtofedError("no room", hint="choose another <out>, or <training.epochs=1>")
    assert str(error) == "no room\nchoose another `out`, or `training.epochs=1`"
    shouted = error.render(lambda name, value: f"{name.upper()}({value})")
    assert shouted == "no room\nchoose another OUT(), or TRAINING.EPOCHS(1)"
    assert str(ProtofedError("a < b and c > d")) == "a < b and c > d"


@pytest.mark.parametrize("kind", [ProtofedError, BusyError])
@pytest.mark.parametrize("hint", ["", "wait for <rounds=3>"])
def test_text_and_hint_cross_to_another_process(kind: type[ProtofedError], hint: str) -> None:
    error = kind("busy", hint)
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.hint) == (kind, str(error), hint)


def test_nothing_that_steers_a_terminal_is_left() -> None:
    every = "".join(chr(code) for code in range(0x3000))
    assert printable_text(every).isprintable()
    plain = "".join(c for c in every if c.isprintable())
    assert printable_text(plain) == plain
    assert printable_text("abcdef", 3) == "abc..."
    assert printable_text("abc", 3) == "abc"
    assert display_path("a\nb\udcff") == "a\\nb\\xff"


def test_a_slip_is_answered_with_the_nearest_name() -> None:
    names = ["fedavg", "fedprox", "scaffold"]
    assert require_known_name("method", "fedprox", names) == "fedprox"
    with pytest.raises(ProtofedError) as caught:
        require_known_name("method", "fedporx", names)
    first, second = str(caught.value).splitlines()
    assert first == "unknown method 'fedporx'; did you mean 'fedprox'?"
    assert second == "known: fedavg, fedprox, scaffold"
    assert did_you_mean("zzz", names) == ""


def test_counts_have_their_nouns() -> None:
    assert [count_noun(n, "file") for n in range(3)] == ["0 files", "1 file", "2 files"]
