"""Right answers as sites count them: whatever comes is refused in words, or can be true."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.core.metrics import CorrectCount, CorrectCounts
from protofed.engines.site_protocol import counts_from_json
from protofed.errors import ProtofedError
from tests.fleet.odd_json import TOKENS, VALUES


def counted(text: str) -> CorrectCounts | None:
    """The tallies that come of a site's words, if they are taken; they then can be true."""
    fault, found = "", CorrectCounts()
    try:
        found = counts_from_json(text, 5)
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
        assert {type(count) for count in tally} == {int}
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
