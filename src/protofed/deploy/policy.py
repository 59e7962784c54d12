"""What may leave a site, as its owner says in a TOML file; enforced at the site itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod, Method
from protofed.core.prototypes import Prototypes
from protofed.errors import ProtofedError, count_noun, printable_text
from protofed.spec.spec_parser import explain_faults, parse_method, read_spec

MOST_LINES = 5


class SitePolicy(BaseModel):
    """What may leave a site; a site without a file has these defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    methods: tuple[str, ...] | None = None  # all
    min_examples: int = Field(default=5, ge=1, strict=True)  # behind a prototype
    send_counts: bool = Field(default=True, strict=True)  # how many are behind each
    max_rounds: int | None = Field(default=None, ge=1, strict=True)  # of one run
    max_epochs: int = Field(default=100, ge=1, strict=True)  # of one round
    max_repeats: int = Field(default=2, ge=0, strict=True)  # of a round with another message
    max_scores: int | None = Field(default=None, ge=0, strict=True)  # of one run; 0: none
    max_runs_per_day: int | None = Field(default=None, ge=1, strict=True)
    max_memory_gb: float | None = Field(default=None, gt=0, strict=True)  # of the worker
    max_message_mb: int = Field(default=512, ge=1, le=16_384, strict=True)  # that is taken in

    @property
    def most_bytes(self) -> int:
        """How long a message to this site may be."""
        return self.max_message_mb << 20

    def allows(self, method: str | AnyMethod, rounds: int) -> str | None:
        """Why a run must not start at this site, in words; None if it may.

        A method given by its name alone is taken with the hyperparameters it has by default.
        """
        try:
            made = parse_method(method) if isinstance(method, str) else method
        except ProtofedError as fault:
            return str(fault)
        parts = list(_built_on(made))
        names = [type(part).__name__.lower() for part in parts]
        for name in names:
            if self.methods is not None and name not in self.methods:
                allowed = ", ".join(self.methods) or "none"
                return f"this site's policy does not allow {name} (allowed: {allowed})"
        if self.max_rounds is not None and rounds > self.max_rounds:
            return f"{rounds} rounds, but this site's policy allows {self.max_rounds}"
        if any(part.payload.counts for part in parts) and not self.send_counts:
            return (
                f"{' with '.join(names)} weighs prototypes by the examples behind them, "
                f"which this site's policy keeps back (send_counts = false)"
            )
        return None

    def filtered(self, reply: Message) -> Message:
        """A reply without what must not leave: rows of too few examples, and counts.

        A table that would be left without rows is not sent at all; unless the method can do
        without it, the server then leaves this site out of the round and goes on.
        """
        protos = None if reply.protos is None else self._shown(reply.protos)
        extras = {
            name: self._shown(part) if isinstance(part, Prototypes) else part
            for name, part in reply.extras.items()
        }
        sent = {name: part for name, part in extras.items() if part is not None}
        return replace(reply, protos=protos, extras=sent)

    def _shown(self, table: Prototypes) -> Prototypes | None:
        enough = table.counts >= self.min_examples
        if not enough.any():
            return None
        rows = tree.map(lambda part: part[enough], table)
        return rows if self.send_counts else replace(rows, counts=torch.ones_like(rows.counts))

    @property
    def _memory(self) -> str:
        own = self.max_memory_gb
        return f"{own:g} GB" if own else "four fifths of the machine's"

    def words(self) -> list[str]:
        """The policy for people, a line each."""
        told = "sent" if self.send_counts else "not sent, every prototype says 1"
        methods = "all" if self.methods is None else ", ".join(self.methods) or "none"
        return [
            f"methods that may run: {methods}",
            f"rounds of a run: {self.max_rounds or 'any number'}",
            f"prototypes: of {self.min_examples} examples or more; others stay here",
            f"examples behind a prototype: {told}",
            "examples in all: sent, as averages are weighed by them",
            f"scores of a run: {'one a round' if self.max_scores is None else self.max_scores}",
            f"runs a day: {self.max_runs_per_day or 'any number'}",
            f"epochs of a round: {self.max_epochs} at most",
            f"a round with another message: {count_noun(self.max_repeats, 'repeat')} at most",
            f"a message: {self.max_message_mb} MB at most",
            f"memory: {self._memory} at most",
        ]


def read_policy(path: Path | None) -> SitePolicy:
    """The policy of a file, or the one of a site that has none."""
    if path is None:
        return SitePolicy()
    raw = read_spec(path)
    try:
        policy = SitePolicy.model_validate(raw)
        for name in policy.methods or ():
            parse_method(name)
    except ValidationError as fault:
        lines = explain_faults(fault, ("policy",), list(SitePolicy.model_fields))
        shown = [printable_text(f"{path}: {line}") for line in lines[:MOST_LINES]]
        raise ProtofedError("\n".join(shown)) from fault
    except ProtofedError as fault:
        raise ProtofedError(f"{path}: {fault}") from fault
    return policy


def _built_on(method: AnyMethod) -> Iterator[AnyMethod]:
    """A method, and those it is built on; plain averaging, which all are, has no name here."""
    yield method
    for field in fields(method):
        inner = getattr(method, field.name)
        if isinstance(inner, Method) and type(inner) is not Method:
            yield from _built_on(inner)
