"""Errors that people read: hints in the language of the caller, and across processes."""

from __future__ import annotations

import pickle

import pytest

from protofed.cli.typer_fixes import option_flag
from protofed.errors import BusyError, DivergedError, ProtofedError


def test_a_hint_names_options_in_the_language_of_its_reader() -> None:
    fault = ProtofedError(
        "runs/a is not empty", hint="choose another <out>, or set <data.side=32> or <rounds=5>"
    )
    assert str(fault) == (
        "runs/a is not empty\nchoose another `out`, or set `data.side=32` or `rounds=5`"
    )
    assert fault.render(option_flag) == (
        "runs/a is not empty\nchoose another --out, or set --set data.side=32 or --rounds 5"
    )


def test_without_a_hint_there_is_the_message_alone() -> None:
    assert str(ProtofedError("a < b > c")) == "a < b > c"
    assert ProtofedError("a").hint == ""
    assert ProtofedError("a <out>").render(option_flag) == "a <out>"  # only hints have options


@pytest.mark.parametrize(
    "fault",
    [
        ProtofedError("what", hint="do <this>"),
        BusyError("who"),
        DivergedError(3, "the loss"),
    ],
)
def test_an_error_crosses_to_another_process_whole(fault: ProtofedError) -> None:
    again = pickle.loads(pickle.dumps(fault))
    assert type(again) is type(fault)
    assert str(again) == str(fault)
    assert again.hint == fault.hint
    assert vars(again) == vars(fault)
