"""Errors that people read: hints in the language of the caller, and across processes."""

from __future__ import annotations

import pickle

import click
import pytest
import typer

from protofed.cli import app
from protofed.cli.options import SET_ONLY, option_flag
from protofed.errors import (
    BusyError,
    DivergedError,
    ProtofedError,
    count_noun,
    did_you_mean,
    display_path,
    printable_text,
    require_known_name,
)
from protofed.spec.experiment_spec import Experiment


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


def test_fields_without_a_flag_are_named_with_set() -> None:
    command = typer.main.get_command(app)
    assert isinstance(command, click.Group)
    flags = {flag for part in command.commands["run"].params for flag in part.opts}
    plain = {name for name in Experiment.model_fields if f"--{name.replace('_', '-')}" not in flags}
    sections = {"partition", "public", "training", "augment"}  # of which the fields count
    assert plain == {*SET_ONLY, *sections}
    assert option_flag("precision", "bfloat16") == "--set precision=bfloat16"


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
