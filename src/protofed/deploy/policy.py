"""What may leave a site, as its owner sets in a TOML file; enforced at the site itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod, Method
from protofed.core.metrics import CorrectCounts
from protofed.core.prototypes import Prototypes
from protofed.errors import ProtofedError, count_noun, printable_text
from protofed.nets import find_net_builder
from protofed.runtime.code_reference import CodeAccess, is_reference, parse_reference
from protofed.spec.method_lookup import method_name, parse_method
from protofed.spec.spec_faults import explain_faults
from protofed.spec.spec_parser import read_spec

MOST_LINES = 5


class SitePolicy(BaseModel):
    """What may leave a site, and what it may be asked for; enforced at the site itself.

    The fields are those of the site's TOML file; a site without a file has these defaults::

        policy = SitePolicy(methods=("fedavg",), min_examples=10)
        policy.allows("fpl", rounds=5)  # "this site's policy does not allow fpl (allowed: fedavg)"

    `docs/federation-security.md` explains each of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    methods: tuple[str, ...] | None = None  # all of protofed's own; others only by name
    nets: tuple[str, ...] = ()  # nets that are not protofed's own
    min_examples: int = Field(default=5, ge=1, strict=True)  # behind a prototype
    send_counts: bool = Field(default=True, strict=True)  # how many are behind each
    send_answers: bool = Field(default=True, strict=True)  # on test images, counted by class
    max_rounds: int | None = Field(default=None, ge=1, strict=True)  # of one run
    max_epochs: int = Field(default=100, ge=1, strict=True)  # of one round
    max_repeats: int = Field(default=2, ge=0, strict=True)  # of a round with another message
    max_scores: int | None = Field(default=None, ge=0, strict=True)  # of one run; 0: none
    max_runs_per_day: int | None = Field(default=None, ge=1, strict=True)
    max_memory_gb: float | None = Field(default=None, gt=0, strict=True)  # of the worker
    max_message_mb: int = Field(default=512, ge=1, le=16_384, strict=True)  # that is taken in

    @property
    def code_access(self) -> CodeAccess:
        """Which code that is not protofed's own may be loaded here: what this policy names.

        Code never travels: it must be installed at the site.
        """
        return CodeAccess(allowed=frozenset((*self._method_names, *self.nets)))

    @property
    def _method_names(self) -> set[str]:
        """The allowed methods by the names of this policy, and by those of their classes."""
        names = set(self.methods or ())
        return names | {method_name(parse_method(name)) for name in names}

    @property
    def most_bytes(self) -> int:
        """How long a message to this site may be."""
        return self.max_message_mb << 20

    def allows(self, method: str | AnyMethod, rounds: int) -> str | None:
        """Why a run must not start at this site, as text; None if it may.

        A method that is given by name has its default hyperparameters. A method built on another
        needs both of them allowed.
        """
        try:
            made = parse_method(method, self.code_access) if isinstance(method, str) else method
        except ProtofedError as fault:
            return str(fault)
        parts = list(_built_on(made))
        names = [method_name(part) for part in parts]
        for name in names:
            if is_reference(name) and name not in self._method_names:
                return f"this site's policy does not name {name}, which is not protofed's own"
            if self.methods is not None and name not in self._method_names:
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
        """A reply without what must not leave: prototypes of too few examples, and counts.

        A table without any row left is not sent at all. Unless the method can do without it, the
        server then leaves this site out of the round and continues.
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

    def filtered_counts(self, counts: CorrectCounts) -> CorrectCounts:
        """The counts of a score without what must not leave.

        Answers counted by class tell how many test images each class has, so they stay where counts
        of examples stay.
        """
        if self.send_answers and self.send_counts:
            return counts
        return {name: one._replace(answers=None) for name, one in counts.items()}

    def describe(self) -> list[str]:
        """The policy for people, on three lines: which runs, what is sent, what it may cost."""
        methods = "any method" if self.methods is None else ", ".join(self.methods) or "no method"
        counts = "with" if self.send_counts else "without"
        scores = "one score per round"
        if self.max_scores is not None:
            scores = (
                f"{_up_to(self.max_scores, 'score')} per run" if self.max_scores else "no scores"
            )
        if self.send_answers and self.send_counts and self.max_scores != 0:
            scores += ", with answers by class"
        memory = f"{self.max_memory_gb:g} GB" if self.max_memory_gb else "80 % of the machine's"
        return [
            f"runs: {methods}; {_up_to(self.max_rounds, 'round')} per run; "
            f"{_up_to(self.max_runs_per_day, 'run')} per day",
            f"sent: models; prototypes of {self.min_examples} or more examples, {counts} their "
            f"counts; the number of all examples; {scores}",
            f"limits: {count_noun(self.max_epochs, 'epoch')} and "
            f"{count_noun(self.max_repeats, 'repeat')} per round; messages of "
            f"{self.max_message_mb} MB; memory {memory}",
        ]


def _up_to(most: int | None, noun: str) -> str:
    return f"any number of {noun}s" if most is None else f"up to {count_noun(most, noun)}"


def read_policy(path: Path | None) -> SitePolicy:
    """Read a site's policy from its TOML file; without a file, the default policy.

    An unknown field, method or value is an error that names the file.
    """
    if path is None:
        return SitePolicy()
    raw = read_spec(path)
    try:
        policy = SitePolicy.model_validate(raw)
        for name in policy.methods or ():
            _check_installed(name)
            parse_method(name)
        for name in policy.nets:
            _check_installed(name)
            find_net_builder(name)
    except ValidationError as fault:
        lines = explain_faults(fault, ("policy",), {"": list(SitePolicy.model_fields)})
        shown = [printable_text(f"{path}: {line}") for line in lines[:MOST_LINES]]
        raise ProtofedError("\n".join(shown)) from fault
    except ProtofedError as fault:
        raise ProtofedError(f"{path}: {fault}") from fault
    return policy


def _check_installed(name: str) -> None:
    if is_reference(name) and parse_reference(name).is_file:
        raise ProtofedError(
            f"{name}: name code by its module, as package.module:Mine, and install it at this "
            "site; a path means nothing to the coordinator"
        )


def _built_on(method: AnyMethod) -> Iterator[AnyMethod]:
    """A method, and those it is built on; plain averaging, which all are, has no name here."""
    yield method
    for field in fields(method):
        inner = getattr(method, field.name)
        if isinstance(inner, Method) and type(inner) is not Method:
            yield from _built_on(inner)
