"""What a coordinator asks of a site, and what the site answers: trees, packed as any other."""

from __future__ import annotations

import json
import re
from dataclasses import field, replace

from protofed.core import tree
from protofed.core.message import Failure, Message
from protofed.core.metrics import MAIN, CorrectCount, CorrectCounts
from protofed.core.site import RoundContext
from protofed.errors import ProtofedError, printable_text
from protofed.runtime.json_files import parse_json_object, require_int, require_list, require_text

MOST_OPINIONS = 20
MOST_FAULT = 500  # characters of a site's own words that are shown
MOST_OPINION_NAME = 200
Question = tuple[str, str, str, int, int]  # what, run, session, round, leg
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


@tree.node
class SiteRequest:
    """A question to a site; a repeated one is answered as before."""

    what: str  # "hello", "describe", "train" or "score"
    brief: str = ""  # JSON: what the run is about, for a site that has forgotten or never knew
    run: str = ""  # its name; a site keeps its private states under it
    session: str = ""  # of the coordinator: a run that goes on has a new one
    start: int = 0  # the round in which the session began; later states are of an older one
    floor: int = 0  # rounds behind the oldest checkpoint that the coordinator may go back to
    round: int = 0
    rounds: int = 0
    leg: int = 0
    received: Message = field(default_factory=Message)

    @property
    def step(self) -> RoundContext:
        """Where the run stands."""
        return RoundContext(self.round, self.rounds, self.leg)

    @property
    def question(self) -> Question:
        """What tells it from other questions."""
        return self.what, self.run, self.session, self.round, self.leg


@tree.node
class SiteResponse:
    """A site's answer; it says which question it belongs to."""

    what: str
    run: str
    session: str
    round: int
    leg: int
    told: str = ""  # JSON: of a site that describes itself or scores
    fault: str = ""  # why there is no answer, in words
    reply: Message | Failure = field(default_factory=Message)  # of a client that has trained

    @property
    def question(self) -> Question:
        """Which question it answers."""
        return self.what, self.run, self.session, self.round, self.leg


def make_response(
    ask: SiteRequest, told: str = "", reply: Message | Failure | None = None
) -> SiteResponse:
    """An answer to a question."""
    made = SiteResponse(*ask.question, told=told)
    return made if reply is None else replace(made, reply=reply)


def make_refusal(ask: SiteRequest, fault: str) -> SiteResponse:
    """Why a question is not answered; what is wrong with its fields is not given back."""
    what, run, session = (part if type(part) is str else "" for part in ask.question[:3])
    number, leg = (part if type(part) is int else 0 for part in ask.question[3:])
    return SiteResponse(what[:20], run[:64], session[:64], number, leg, fault=fault)


def check_response(answer: object, question: Question) -> SiteResponse:
    """An answer to just this question; a fault, a late answer and all else that came is refused."""
    if type(answer) is not SiteResponse or type(answer.reply) not in (Message, Failure):
        raise ProtofedError(f"a {type(answer).__name__} is no answer")
    fields = (*answer.question, answer.told, answer.fault)
    if [type(field) for field in fields] != [str, str, str, int, int, str, str]:
        raise ProtofedError("an answer whose fields are not text and numbers")
    if answer.question != question:
        told = printable_text(str(answer.question), MOST_FAULT)
        raise ProtofedError(f"answers another question: {told}, ignored")
    if answer.fault:
        raise ProtofedError(printable_text(answer.fault, MOST_FAULT))
    return answer


def counts_to_json(tallies: CorrectCounts) -> str:
    """Counts as JSON."""
    return json.dumps(tallies)


def counts_from_json(text: str, images: int) -> CorrectCounts:
    """What `tallies_to` wrote, if it can be true of so many test images."""
    try:
        told = parse_json_object(text)
        if MAIN not in told or len(told) > MOST_OPINIONS:
            raise ProtofedError("it must count the method's own answers")
        return {_opinion(name): _tally(counts, images) for name, counts in told.items()}
    except ProtofedError as fault:
        raise ProtofedError(f"not a tally: {fault}") from fault


def _opinion(name: str) -> str:
    return require_text("a name", name, 0, MOST_OPINION_NAME)


def _tally(counts: object, images: int) -> CorrectCount:
    """Right answers of as many as the site has declared test images."""
    correct, total = require_list("a count", counts, 2, 2)
    whole = require_int("the number of test images", total, images, images)
    return CorrectCount(require_int("the number of right answers", correct, 0, whole), whole)
