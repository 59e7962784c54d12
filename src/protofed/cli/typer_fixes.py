"""How our commands differ from typer's."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import click
from typer.core import TyperArgument, TyperCommand

HELP = {"help_option_names": ["-h", "--help"]}  # of every command


class PlainCommand(TyperCommand):
    """A command whose help says what its arguments are, and has no backslashes.

    Click 8.5 forgets what typer 0.20 tells it of arguments, and typer escapes brackets for rich,
    which is off.
    """

    def get_help(self, ctx: click.Context) -> str:
        made_of = inspect.unwrap(self.callback) if self.callback else None
        hints = get_type_hints(made_of, include_extras=True) if made_of else {}
        for given in self.params:
            if isinstance(given, TyperArgument) and not given.help and given.name:
                given.help = next((told.help for told in hints[given.name].__metadata__), None)
        return super().get_help(ctx).replace("\\[", "[")

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Nothing: click 8.5 lists arguments here, and typer does so beside the options."""


class SeveralValues(PlainCommand):
    """A command whose ``--sites a b c`` means ``--sites a --sites b --sites c``.

    Click options take one value each, so the words are rewritten before click parses them.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words, taking = [], False
        for word in args:
            if word.startswith("-"):
                taking = word == "--sites"
            elif taking:
                words.append("--sites")
            if word != "--sites" or args[-1] == word:
                words.append(word)
        return super().parse_args(ctx, words)


def option_flag(name: str, value: str = "") -> str:
    """An option of an error's hint as the user types it.

    ``out`` becomes ``--out``; ``training.epochs`` with the value 1 becomes ``--set
    training.epochs=1``.
    """
    if "." in name:
        return f"--set {name}={value}" if value else f"--set {name}=..."
    flag = f"--{name.replace('_', '-')}"
    return f"{flag} {value}" if value else flag
