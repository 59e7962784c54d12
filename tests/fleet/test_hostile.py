"""A site that answers with whatever it likes is left out; the coordinator goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from protofed.core.message import Message
from protofed.core.serialization import pack_tree, unpack_tree
from protofed.engines.site_protocol import (
    SiteRequest,
    SiteResponse,
    check_response,
    counts_from_json,
    make_response,
)
from protofed.errors import ProtofedError
from tests.fleet.desks import SPEC, Walking, desks, events, made

TWO = torch.tensor([1, 2])
DEEP = "[" * 100_000
TALLIES = [
    '{"": [Infinity, 5]}',
    '{"": [NaN, 5]}',
    DEEP,
    "{}",
    "[]",
    "7",
    '{"": 3}',
    '{"": [9, 5]}',
]
ODD: list[dict[str, Any]] = [
    {"round": TWO},
    {"what": TWO},
    {"fault": TWO},
    {"text": TWO},
    {"round": True},
    {"reply": 7},
    {"fault": "I will not"},
    {"exchange": 1},
]


def question() -> SiteRequest:
    return SiteRequest("train", run="ab" * 8, session="cd" * 8)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: f"{odd}"[:30])
def test_an_answer_with_odd_fields_is_refused_in_words(odd: dict[str, Any]) -> None:
    answer = make_response(question(), reply=Message(size=3))
    assert check_response(answer, question().question) is answer
    with pytest.raises(ProtofedError):
        check_response(unpack_tree(pack_tree(replace(answer, **odd))), question().question)


@pytest.mark.parametrize("thing", [None, 7, "yes", Message(), [1, 2]])
def test_what_is_no_answer_is_refused(thing: object) -> None:
    with pytest.raises(ProtofedError, match="is no answer"):
        check_response(thing, question().question)


@pytest.mark.parametrize("told", TALLIES, ids=lambda told: told[:20])
def test_what_is_no_tally_is_refused(told: str) -> None:
    with pytest.raises(ProtofedError):
        counts_from_json(told, 5, 3)


def test_a_run_goes_on_without_a_site_that_answers_nonsense(images: Path, tmp_path: Path) -> None:
    class Lying(Walking):
        def ask(self, letters: Any, deadline: float, least: int = 1) -> Any:
            answers: dict[str, Any] = super().ask(letters, deadline, least)
            answer: SiteResponse = unpack_tree(answers["site-b"])
            if answer.what in ("train", "score"):
                answers["site-b"] = pack_tree(replace(answer, **ODD[0], text=DEEP))
            return answers

    post, out = Lying(desks(images, tmp_path)), tmp_path / "fed"
    made({**SPEC, "min_clients": 2}, post, out).run.play(lambda progress: None)
    assert [event["client"] for event in events(out) if "client" in event] == [1, 1]
    assert (out / "done").exists()
