"""What sites tell in JSON: whatever it is, it is either refused in words or can be true."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.core.serialization import pack_tree, unpack_tree
from protofed.deploy.coordinator import gather_descriptions
from protofed.engines.flower_engine import NoAnswer
from protofed.engines.site_protocol import SiteRequest, make_refusal, make_response
from protofed.errors import ProtofedError
from protofed.federation.remote_sites import SiteDescription, parse_site_description
from tests.fleet.desks import Known, desks, job
from tests.fleet.odd_json import TOKENS, VALUES

ASK = SiteRequest("describe")
GOOD: dict[str, Any] = {
    "site": "north",
    "classes": ["cat", "dog"],
    "train": 5,
    "held": {"cat": 2, "dog": 3},
    "test": 1,
    "fingerprint": "ab" * 32,
    "note": "",
    "versions": ["torch 2.13.0"],
}


def told(text: str) -> SiteDescription:
    """The offer that comes of a site's words."""
    return parse_site_description("north", ASK, pack_tree(make_response(ASK, text)))


def plausible(offer: SiteDescription) -> bool:
    """Whether an offer is what it must be, looked at value by value."""
    counts = [offer.train, offer.test, *offer.held.values()]
    texts = [*offer.classes, *offer.versions, offer.note, offer.fingerprint, offer.site]
    return (
        {type(count) for count in counts} == {int}
        and all(0 <= count <= 10**9 for count in counts)
        and offer.train > 0
        and {type(text) for text in texts} == {str}
        and all(text.isprintable() and len(text) <= 300 for text in texts)
        and all(1 <= len(label) <= 200 for label in offer.classes)
        and list(offer.classes) == sorted({*offer.classes})
        and 1 <= len(offer.classes) <= 10_000
        and offer.held.keys() <= {*offer.classes}
        and (not offer.held or sum(offer.held.values()) == offer.train)
        and 0 not in offer.held.values()
        and len(offer.versions) <= 10
        and re.fullmatch("[0-9a-f]{64}", offer.fingerprint) is not None
        and offer.site == "north"
    )


def judged(text: str) -> None:
    """Either words that name the site and what can be done, or an offer that can be true."""
    try:
        offer = told(text)
    except ProtofedError as refused:
        fault, hint = str(refused.args[0]), refused.hint
    else:
        assert plausible(offer), offer
        return
    assert hint == "to leave north out of a new run, name the others with <sites>"
    assert fault.isprintable()
    assert len(fault) < 700


def with_token(field: str, token: str) -> str:
    """A good offer with something else in one field, as text."""
    return json.dumps({**GOOD, field: "HERE"}).replace('"HERE"', token)


def test_a_good_offer_is_taken_as_it_is() -> None:
    offer = told(json.dumps(GOOD))
    assert offer._asdict() == {**GOOD, "classes": ("cat", "dog"), "versions": ("torch 2.13.0",)}
    assert plausible(offer)
    assert told(json.dumps({**GOOD, "held": {}, "train": 10**9, "test": 0})).train == 10**9


@pytest.mark.parametrize("field", GOOD)
def test_in_every_field_odd_values_are_refused_or_can_be_true(field: str) -> None:
    for token in TOKENS:
        judged(with_token(field, token))
        judged(with_token(field, token)[:-1])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("train", value) for value in (10**400, 10**9 + 1, 0, -1, True, 5.0, "5", None, [5])),
        *(("test", value) for value in (10**400, 10**9 + 1, -1, False, 1.0, "1", math.nan)),
        *(("held", value) for value in (7, "5", {"cat": 10**400}, {"cat": 5.0}, {"cat": "5"})),
        *(("held", value) for value in ({"cat": 2, "dog": True}, {"owl": 5}, {"cat": 4})),
        *(("classes", value) for value in ([], "ab", {"a": 1}, ["a", 1], ["a", "a"], ["a", ""])),
        *(("classes", value) for value in (["a" * 201], ["a\n"], ["\ud800"], ["\x1b[2J"], [None])),
        ("classes", [str(number) for number in range(10_001)]),
        *(("fingerprint", value) for value in ("", "ab", "AB" * 32, "g" * 64, "a" * 65, 7, None)),
        *(("note", value) for value in (None, 7, ["a"], "a" * 301, "\x1b[2J", "\ud800")),
        *(("versions", value) for value in ("torch", ["a"] * 11, [7], [""], ["a" * 61], None)),
        *(("site", value) for value in ("south", "", 7, None, ["north"])),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_refused_is_named_with_its_field(field: str, value: object) -> None:
    with pytest.raises(ProtofedError, match=rf"its description is refused: .*\b{field}\b"):
        told(json.dumps({**GOOD, field: value}))


@pytest.mark.parametrize("field", GOOD)
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ProtofedError, match=f"{field} is missing"):
        told(json.dumps({name: value for name, value in GOOD.items() if name != field}))


def test_an_unknown_field_and_one_that_comes_twice_are_refused() -> None:
    with pytest.raises(ProtofedError, match="more is no field"):
        told(json.dumps({**GOOD, "more": 1}))
    with pytest.raises(ProtofedError, match="has a key twice"):
        told(json.dumps(GOOD)[:-1] + ', "train": 6}')


@pytest.mark.parametrize("text", [*TOKENS, json.dumps([GOOD]), json.dumps(json.dumps(GOOD))])
def test_what_is_no_offer_at_all_is_refused(text: str) -> None:
    with pytest.raises(ProtofedError, match="leave north out of a new run"):
        told(text)


CHANGES = st.dictionaries(st.sampled_from([*GOOD, "more"]), VALUES, max_size=4)


@settings(max_examples=400, deadline=None)
@given(changes=CHANGES)
def test_random_changes_of_an_offer(changes: dict[str, Any]) -> None:
    judged(json.dumps({**GOOD, **changes}))


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(changes=CHANGES)
def test_thousands_of_changes_of_an_offer(changes: dict[str, Any]) -> None:
    judged(json.dumps({**GOOD, **changes}))


@settings(max_examples=1500, deadline=None)
@given(value=VALUES, start=st.integers(0, 300), more=st.text(max_size=5))
def test_random_texts_as_an_offer(value: object, start: int, more: str) -> None:
    judged(json.dumps(value))
    good = json.dumps(GOOD)
    judged(good[:start] + more + good[start:])
    judged(good[:start] + more + good[start + len(more) :])


def test_the_words_of_a_site_are_cut_and_cannot_steer_a_terminal() -> None:
    for fault in ("\x1b[2J" * 1000, "a" * 60_000):
        with pytest.raises(ProtofedError) as refused:
            parse_site_description("north", ASK, pack_tree(make_refusal(ASK, fault)))
        assert str(refused.value.args[0]).isprintable()
        assert len(str(refused.value)) < 2500
    other = make_response(SiteRequest("describe", run="\x1b" * 1000, round=10**4000))
    with pytest.raises(ProtofedError, match="answers another question") as refused:
        parse_site_description("north", ASK, pack_tree(other))
    assert str(refused.value.args[0]).isprintable()
    assert len(str(refused.value)) < 2500


def test_one_bad_offer_is_named_with_its_site_and_what_to_do(images: Path, tmp_path: Path) -> None:
    class Boasting(Known):
        def ask(self, letters: Any, deadline: float, least: int = 1) -> dict[str, bytes | NoAnswer]:
            answers = super().ask(letters, deadline, least)
            letter = answers["site-b"]
            assert isinstance(letter, bytes)
            said = {**json.loads(unpack_tree(letter).text), "train": 10**400, "held": {}}
            return {
                **answers,
                "site-b": pack_tree(
                    make_response(unpack_tree(letters["site-b"].content), json.dumps(said))
                ),
            }

    post: Any = Boasting(desks(images, tmp_path))
    with pytest.raises(ProtofedError) as refused:
        gather_descriptions(post, job(tmp_path), lambda words: None)
    assert re.search(r"\nsite-b: its description is refused: train must be", str(refused.value))
    assert "leave site-b out of a new run, name the others with `sites`" in str(refused.value)
    assert "site-a" not in str(refused.value)
