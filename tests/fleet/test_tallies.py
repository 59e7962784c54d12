"""Right answers as sites count them: whatever comes is refused in words, or can be true."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.core.answer_counts import AnswerCounts
from protofed.core.metrics import CorrectCount, CorrectCounts
from protofed.engines.site_protocol import counts_from_json, counts_to_json
from protofed.errors import ProtofedError
from tests.fleet.odd_json import TOKENS, VALUES


def counted(text: str) -> CorrectCounts | None:
    """The tallies that come of a site's words, if they are taken; they then can be true."""
    fault, found = "", CorrectCounts()
    try:
        found = counts_from_json(text, 5, 3)
    except ProtofedError as refused:
        fault = str(refused)
    if fault:
        assert fault.isprintable()
        assert len(fault) < 300
        return None
    assert 1 <= len(found) <= 20
    assert "" in found
    for name, tally in found.items():
        assert name.isprintable()
        assert len(name) <= 200
        assert {type(count) for count in tally[:2]} == {int}
        assert 0 <= tally.correct <= tally.total == 5
    return found


def test_good_tallies_are_taken_and_odd_ones_refused() -> None:
    assert counted('{"": [3, 5], "local": [0, 5]}') == {
        "": CorrectCount(3, 5),
        "local": CorrectCount(0, 5),
    }
    for token in TOKENS:
        assert counted(token) is None
        if token not in ("0", "-0"):
            assert counted(f'{{"": [{token}, 5]}}') is None
        assert counted(f'{{"": [3, {token}]}}') is None
        assert counted(f'{{"": {token}}}') is None
        assert counted(f'{{"": [3, 5], "other": {token}}}') is None
    for odd in ('{"": [3, 5], "": [3, 5]}', '{"": [3, 5], "\\u001b": [3, 5]}', '{"a": [3, 5]}'):
        assert counted(odd) is None
    assert counted(json.dumps({"": [3, 5], "a" * 201: [3, 5]})) is None
    assert counted(json.dumps({"": [3, 5], **{f"{n}": [3, 5] for n in range(20)}})) is None


NAMES = st.sampled_from(["", "local", "\ud800"])


@settings(max_examples=400, deadline=None)
@given(value=VALUES, other=VALUES, name=NAMES)
def test_random_tallies(value: object, other: object, name: str) -> None:
    count_all(value, other, name)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(value=VALUES, other=VALUES, name=NAMES)
def test_thousands_of_tallies(value: object, other: object, name: str) -> None:
    count_all(value, other, name)


def count_all(value: object, other: object, name: str) -> None:
    counted(json.dumps(value))
    counted(json.dumps({"": [3, 5], name: value}))
    counted(json.dumps({"": [value, other]}))


COUNTED = {"images": [3, 2, 0], "hits": [2, 1, 0], "answers": [3, 1, 1]}


def told(**fields: object) -> str:
    return json.dumps({"": [3, 5, fields]})


def test_answers_counted_by_class_are_taken_if_they_can_be_true() -> None:
    found = counted(told(**COUNTED))
    assert found is not None
    assert found[""].answers == AnswerCounts((3, 2, 0), (2, 1, 0), (3, 1, 1))
    whole = AnswerCounts((3, 2, 0), (2, 1, 0), (3, 1, 1), wins=(8, 9, 0), features=(4, 0, 5, 5))
    whole = whole._replace(cells=(0, 2, 2, 1, 3, 1, 4, 1))
    counts = {"": CorrectCount(3, 5, whole), "local": CorrectCount(1, 5)}
    assert counts_from_json(counts_to_json(counts), 5, 3) == counts
    faulty: tuple[dict[str, object], ...] = (
        {"images": [3, 2]},
        {"images": [3, 3, 0]},
        {"hits": [2, 0, 0]},  # not as many as were right
        {"answers": [3, 1, 0]},
        {"wins": [99, 0, 0]},
        {"cells": [0, 5]},
        {"cells": [0]},
        {"cells": [9**20, 1]},
        {"sure": [5, 3, 1]},
        {"features": [1, 2, 3]},
        {"models": 2},
        {"names": ["a"]},
        {"hits": {}},
        {"hits": [2, 1, -1]},
        {"hits": [2, True, 0]},
    )
    for odd in faulty:
        assert counted(told(**{**COUNTED, **odd})) is None, odd
    assert counted(told(images=[3, 2, 0])) is None
    for token in TOKENS:
        assert counted(f'{{"": [3, 5, {token}]}}') is None
        assert counted(f'{{"": [3, 5, {{"images": {token}}}]}}') is None
