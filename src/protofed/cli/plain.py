"""How our commands differ from typer's."""

from __future__ import annotations

import click
from typer.core import TyperCommand


class Plain(TyperCommand):
    """A command whose help has no backslashes: typer escapes brackets for rich, which is off."""

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace("\\[", "[")


class Several(Plain):
    """A command whose ``--sites a b c`` means ``--sites a --sites b --sites c``."""

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
