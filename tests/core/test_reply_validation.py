"""No reply that is not what the method said reaches it: the numbers of cases are stated."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.reply_validation import LARGEST, MOST_REASON, ReplyTemplate, rejection_reason
from tests.core.replies import NAMES, Letter, change, letters, poke

NONSENSE = (math.nan, math.inf, -math.inf)
PLACEMENTS, MUTATIONS = 1000, 500


def spread(cases: int) -> list[tuple[str, int]]:
    """So many cases, dealt out evenly to all methods: names and how many each gets."""
    return [(name, len(range(place, cases, len(NAMES)))) for place, name in enumerate(NAMES)]


def filled(name: str) -> list[Letter]:
    """The letters of a method that hold a tensor."""
    return [letter for letter in letters(name) if list(tree.leaves(letter.reply))]


@pytest.mark.parametrize("name", NAMES)
def test_every_honest_reply_is_admitted(name: str) -> None:
    assert [rejection_reason(*letter) for letter in letters(name)] == [""] * len(letters(name))


def test_the_numbers_of_cases_are_as_stated() -> None:
    assert sum(cases for _, cases in spread(PLACEMENTS)) == PLACEMENTS
    assert sum(cases for _, cases in spread(MUTATIONS)) == MUTATIONS


@pytest.mark.parametrize(("name", "cases"), spread(PLACEMENTS))
def test_nan_or_infinity_anywhere_is_refused(name: str, cases: int) -> None:
    """In any float tensor; where a method sends none, in its metrics."""
    dice, draw = random.Random(name), torch.Generator().manual_seed(len(name))
    for _ in range(cases):
        reply, held = dice.choice(letters(name))
        value = dice.choice(NONSENSE)
        floats = [n for n, leaf in enumerate(tree.leaves(reply)) if leaf.is_floating_point()]
        if floats and dice.random() < 0.9:
            bad = change(reply, dice.choice(floats), partial(poke, draw=draw, value=value))
            assert rejection_reason(bad, held).endswith("holds NaN or infinity")
        else:
            bad = replace(reply, metrics={**reply.metrics, "loss": value})
            assert rejection_reason(bad, held) == "metrics.loss: not a finite number"


MUTANTS: list[Callable[[Tensor], object]] = [
    lambda leaf: leaf[None],
    lambda leaf: leaf.reshape(-1)[:-1],
    lambda leaf: torch.cat([leaf.reshape(-1), leaf.reshape(-1)]),
    lambda leaf: leaf.double() if leaf.dtype != torch.float64 else leaf.float(),
    lambda leaf: leaf.to(torch.complex64),
    lambda leaf: leaf.to(torch.int32),
    lambda leaf: leaf.bool(),
    lambda leaf: leaf.to_sparse() if leaf.dim() else leaf.to("meta"),
    lambda leaf: leaf.to("meta"),
    lambda leaf: leaf.tolist(),
    lambda leaf: None,
    lambda leaf: "weights",
    lambda leaf: Model(),
]


def mappings(thing: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths to the tables of named tensors in a message."""
    found = [path] if isinstance(thing, dict) and path[-1:] != ("metrics",) else []
    for name, child in tree.children(thing) or ():
        found += mappings(child, (*path, str(name)))
    return found


def at(thing: Any, path: tuple[str, ...], fn: Callable[[Any], Any]) -> Any:
    """A copy of a tree with what lies at a path replaced."""
    if not path:
        return fn(thing)
    branches = dict(tree.children(thing) or ())
    branches[path[0]] = at(branches[path[0]], path[1:], fn)
    return tree.rebuild(thing, branches)


def without_one(table: dict[str, Any], dice: random.Random, _: object) -> dict[str, Any]:
    gone = dice.choice(list(table))
    return {name: part for name, part in table.items() if name != gone}


@pytest.mark.parametrize(("name", "cases"), spread(MUTATIONS))
def test_another_shape_type_or_key_is_refused_with_its_name(name: str, cases: int) -> None:
    dice = random.Random(name)
    for _ in range(cases):
        reply, held = dice.choice(letters(name))
        leaves = list(tree.named_leaves(reply))
        if leaves and dice.random() < 0.6:
            place = dice.randrange(len(leaves))
            told = rejection_reason(change(reply, place, dice.choice(MUTANTS)), held)
            path, _, last = leaves[place][0].rpartition(".")
            blamed = {f"{path}.{last}", path}
            # A table with fewer labels than counts is one of more counts than labels.
            assert told.split(":")[0] in blamed | (
                {f"{path}.counts"} if last == "labels" else set()
            )
            continue
        where = dice.choice(mappings(reply))
        needed = {n: part for n, part in found_at(reply, where).items() if n not in held.optional}
        if needed and dice.random() < 0.5:
            bad = at(reply, where, partial(without_one, needed, dice))
            assert rejection_reason(bad, held).endswith("is missing")
        else:
            bad = at(reply, where, lambda t: {**t, "more": torch.zeros(3)})
            assert rejection_reason(bad, held) == f"{'.'.join(where)}.more: must not be sent"


def found_at(thing: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        thing = dict(tree.children(thing) or ())[name]
    return thing


@pytest.mark.parametrize("size", [-1, 0, 1.5, 10**9, math.nan, True, None, "17", 18])
@pytest.mark.parametrize("name", NAMES)
def test_a_count_that_was_not_declared_is_refused(name: str, size: object) -> None:
    for reply, held in letters(name):
        declared = held._replace(declared_size=17)
        assert rejection_reason(replace(reply, size=size), declared).startswith("size: ")  # type: ignore[arg-type]


@pytest.mark.parametrize("field", [f.name for f in fields(Message)])
@pytest.mark.parametrize("wrong", [3, "text", [], torch.zeros(2), {"a": "b"}, Message()])
def test_a_field_of_another_kind_is_refused_without_an_exception(field: str, wrong: object) -> None:
    for reply, held in letters("fpl"):
        bad = Message(**{f.name: getattr(reply, f.name) for f in fields(Message)} | {field: wrong})
        assert rejection_reason(bad, held) or (field, wrong) == ("size", 3)


@pytest.mark.parametrize("thing", [None, 3, "reply", {}, Model(), [Message()]])
def test_what_is_no_message_is_refused(thing: object) -> None:
    assert "is no message" in rejection_reason(thing, letters("fedavg")[0].expected)


def table(name: str) -> tuple[Letter, Prototypes]:
    """A method's first letter with prototypes, and these."""
    letter = next(one for one in letters(name) if one.reply.protos is not None)
    assert letter.reply.protos is not None
    return letter, letter.reply.protos


def first(part: Tensor, value: float) -> Tensor:
    changed = part.clone()
    changed[0] = value
    return changed


TABLES: dict[str, tuple[Callable[[Prototypes], Prototypes], str]] = {
    "below": (lambda p: replace(p, labels=first(p.labels, -1)), "a class outside 0..4"),
    "above": (lambda p: replace(p, labels=first(p.labels, 5)), "a class outside 0..4"),
    "twice": (lambda p: replace(p, labels=first(p.labels, int(p.labels[1]))), "more than 1 rows"),
    "huge": (lambda p: replace(p, vectors=first(p.vectors, 1e30)), "beyond 1e+12"),
    "none": (lambda p: tree.map(lambda part: part[:0], p), "shape [0], not [any]"),
    "fewer": (lambda p: replace(p, counts=p.counts[:-1]), "shape [3], not [4]"),
    "nobody": (lambda p: replace(p, counts=first(p.counts, 0)), "a row of 0 examples"),
    "minus": (lambda p: replace(p, counts=first(p.counts, -1)), "a row of -1 examples"),
    "crowd": (lambda p: replace(p, counts=first(p.counts, 10**9)), "more examples than"),
    "halves": (lambda p: replace(p, counts=p.counts / 2), "float32, not int64"),
    "all": (lambda p: replace(p, counts=torch.full_like(p.counts, 17)), "more examples than"),
}


@pytest.mark.parametrize("case", TABLES)
@pytest.mark.parametrize("name", ["fpl", "fedproto", "fedgh", "fedmlp", "fedproto alone"])
def test_a_false_table_of_prototypes_is_refused(name: str, case: str) -> None:
    (reply, held), protos = table(name)
    falsify, words = TABLES[case]
    assert words in rejection_reason(replace(reply, protos=falsify(protos)), held)


def test_prototypes_of_several_rows_a_class_have_a_limit_of_their_own() -> None:
    reply, held = letters("pgct multi")[0]
    many = reply.extras["prototypes"]
    assert isinstance(many, Prototypes)
    assert int(torch.bincount(many.labels).max()) == 2
    third = tree.map(lambda part: torch.cat([part, part[:1], part[:1]]), many)
    told = rejection_reason(replace(reply, extras={"prototypes": third}), held)
    assert "more than 2 rows of class" in told


def test_a_zero_vector_is_admitted_as_dead_features_are_honest() -> None:
    (reply, held), protos = table("fpl")
    assert (
        rejection_reason(replace(reply, protos=replace(protos, vectors=0 * protos.vectors)), held)
        == ""
    )


def test_numbers_up_to_the_limit_are_admitted_and_beyond_it_refused() -> None:
    model = Message(Model({"w": torch.full((2,), LARGEST)}), size=1)
    held = ReplyTemplate(Message(Model({"w": torch.zeros(2)})), (), 1)
    assert rejection_reason(model, held) == ""
    assert "beyond" in rejection_reason(tree.map(lambda w: -1.001 * w, model), held)


def test_a_part_that_may_be_missing_may_and_no_other() -> None:
    late = letters("fedga")[-1]
    assert "gap" in late.reply.extras
    assert rejection_reason(replace(late.reply, extras={}), late.expected) == ""
    strict = late.expected._replace(optional=())
    assert rejection_reason(replace(late.reply, extras={}), strict) == "extras.gap: is missing"


def test_what_a_client_writes_reaches_nobody_as_it_is() -> None:
    reply, held = letters("fedavg")[0]
    hostile = "\x1b[2J\n../../etc/passwd" + "x" * 10_000
    for bad in (
        replace(reply, extras={hostile: torch.zeros(1)}),
        replace(reply, metrics={hostile[:50]: math.nan}),
    ):
        told = rejection_reason(bad, held)
        assert told.isprintable()
        assert len(told) <= MOST_REASON + len("...") + 4 * len("\\x1b")


def test_too_many_or_wordy_metrics_are_refused() -> None:
    reply, held = letters("fedavg")[0]
    for metrics in ({str(n): 0.0 for n in range(21)}, {"x" * 61: 0.0}, {1: 0.0}, {"loss": 10**400}):
        assert rejection_reason(replace(reply, metrics=metrics), held).startswith("metrics")  # type: ignore[arg-type]
    assert rejection_reason(replace(reply, metrics={"loss": 0, "more": 1.5}), held) == ""
