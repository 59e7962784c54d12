"""What a coordinator asks of a site, and what the site answers: trees, packed as any other."""

from __future__ import annotations

import json
import re
from dataclasses import field, replace

from protofed.core import tree
from protofed.core.answer_counts import SURE_BINS, AnswerCounts
from protofed.core.message import Failure, Message
from protofed.core.metrics import MAIN, CorrectCount, CorrectCounts
from protofed.core.reply_validation import FRAME
from protofed.core.site import RoundContext
from protofed.errors import ProtofedError, printable_text
from protofed.runtime.json_files import (
    parse_json_object,
    require_int,
    require_list,
    require_object,
    require_text,
)

MOST_PREDICTORS = 20
MOST_FAULT = 500  # characters of a site's reason that are shown
MOST_PREDICTOR_NAME = 200
MOST_COUNT = 2**62  # of pairs of images
Question = tuple[str, str, str, int, int]  # what, run, session, round, exchange
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


@tree.node
class SiteRequest:
    """A request of the coordinator to a site; a repeated one is answered as before.

    It carries everything the site needs to answer it, because a site may have been restarted since
    the last one.
    """

    what: str  # "hello", "describe", "train" or "score"
    brief: str = ""  # JSON: what the run is about, for a site that has forgotten or never knew
    run: str = ""  # its name; a site keeps its private states under it
    session: str = ""  # of the coordinator: a resumed run has a new one
    start: int = 0  # the round in which the session began; later states are of an older one
    floor: int = 0  # rounds behind the oldest checkpoint that the coordinator may go back to
    round: int = 0
    rounds: int = 0
    exchange: int = 0
    received: Message = field(default_factory=Message)

    @property
    def step(self) -> RoundContext:
        """The round and exchange that it is about."""
        return RoundContext(self.round, self.rounds, self.exchange)

    @property
    def question(self) -> Question:
        """What distinguishes it from other requests; the answer repeats it."""
        return self.what, self.run, self.session, self.round, self.exchange


@tree.node
class SiteResponse:
    """A site's answer, which says which request it belongs to.

    `text` is JSON of a site that describes itself or scores, `reply` the message of a client that
    has trained. A `fault` says why there is neither.
    """

    what: str
    run: str
    session: str
    round: int
    exchange: int
    text: str = ""  # JSON: of a site that describes itself or scores
    fault: str = ""  # why there is no answer
    reply: Message | Failure = field(default_factory=Message)  # of a client that has trained

    @property
    def question(self) -> Question:
        """Which request it answers."""
        return self.what, self.run, self.session, self.round, self.exchange


def make_response(
    ask: SiteRequest, text: str = "", reply: Message | Failure | None = None
) -> SiteResponse:
    """The answer to a request: text, or a reply of training."""
    made = SiteResponse(*ask.question, text=text)
    return made if reply is None else replace(made, reply=reply)


def make_refusal(ask: SiteRequest, fault: str) -> SiteResponse:
    """The answer that says why a request is refused.

    Fields of the request that are not of the right type are not repeated in it.
    """
    what, run, session = (part if type(part) is str else "" for part in ask.question[:3])
    number, exchange = (part if type(part) is int else 0 for part in ask.question[3:])
    return SiteResponse(what[:20], run[:64], session[:64], number, exchange, fault=fault)


def check_response(answer: object, question: Question) -> SiteResponse:
    """Return an answer to just this request; anything else that came is an error.

    That includes a late answer to another request, and a refusal, whose reason is the error's text.
    """
    if type(answer) is not SiteResponse or type(answer.reply) not in (Message, Failure):
        raise ProtofedError(f"a {type(answer).__name__} is no answer")
    fields = (*answer.question, answer.text, answer.fault)
    if [type(field) for field in fields] != [str, str, str, int, int, str, str]:
        raise ProtofedError("an answer whose fields are not text and numbers")
    if answer.question != question:
        shown = printable_text(str(answer.question), MOST_FAULT)
        raise ProtofedError(f"answers another question: {shown}, ignored")
    if answer.fault:
        raise ProtofedError(printable_text(answer.fault, MOST_FAULT))
    return answer


def counts_to_json(counts: CorrectCounts) -> str:
    """Right answers and test images of each predictor as JSON: ``{"": [17, 20]}``.

    Counts of answers follow as a third entry, where they are sent.
    """
    return json.dumps(
        {
            name: [one.correct, one.total, *([one.answers.to_dict()] if one.answers else [])]
            for name, one in counts.items()
        }
    )


def most_counts_bytes(images: int, classes: int) -> int:
    """How long the answer to a request for scores can be: each number has at most 20 characters."""
    return FRAME + 20 * (6 * classes + 2 * min(images, classes**2))


def counts_from_json(text: str, images: int, classes: int) -> CorrectCounts:
    """Read what `counts_to_json` wrote, if it can be true of `images` test images.

    What cannot is an error: more right answers than images, another number of images, or counts of
    answers that do not add up.
    """
    try:
        found = parse_json_object(text)
        if MAIN not in found or len(found) > MOST_PREDICTORS:
            raise ProtofedError("it must count the method's own answers")
        return {_predictor(name): _count(one, images, classes) for name, one in found.items()}
    except ProtofedError as fault:
        raise ProtofedError(f"not a count: {fault}") from fault


def _predictor(name: str) -> str:
    return require_text("a name", name, 0, MOST_PREDICTOR_NAME)


def _count(counts: object, images: int, classes: int) -> CorrectCount:
    """Right answers of as many as the site has declared test images."""
    correct, total, *more = require_list("a count", counts, 2, 3)
    whole = require_int("the number of test images", total, images, images)
    right = require_int("the number of right answers", correct, 0, whole)
    answers = _answers(more[0], whole, classes) if more else None
    if answers and sum(answers.hits) != right:
        raise ProtofedError("hits does not add up to the number of right answers")
    return CorrectCount(right, whole, answers)


def _answers(told: object, images: int, classes: int) -> AnswerCounts:
    """Counts of answers that can be true of as many images."""
    fields = require_object("the answers", told)
    kinds = {"images": classes, "hits": classes, "answers": classes, "wins": classes}
    kinds |= {"sure": 3 * SURE_BINS, "cells": 2 * min(images, classes**2), "features": 4}
    for name in fields:
        if name not in kinds:
            raise ProtofedError(f"{printable_text(name, 40)} is no count that is known here")
    read = {
        name: [
            require_int(name, number, 0, MOST_COUNT)
            for number in require_list(name, fields.get(name, []), 0, most)
        ]
        for name, most in kinds.items()
    }
    counts = AnswerCounts.from_dict(read)
    if len(counts.images) != classes or counts.total != images:
        raise ProtofedError("the answers are not on all test images")
    if fault := counts.fault():
        raise ProtofedError(fault)
    return counts
