"""A site's desk: it answers the coordinator with its own images, which never leave it."""

from __future__ import annotations

import hashlib
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from protofed.core.errors import ProtofedError, printable
from protofed.core.method import AnyMethod
from protofed.core.pack import pack, unpack
from protofed.core.site import Dataset, Site
from protofed.core.tally import tally
from protofed.core.threads import torch_threads
from protofed.data.benchmark import Benchmark, Domain
from protofed.data.folder import own_domain
from protofed.deploy.lines import say, some
from protofed.deploy.policy import Policy
from protofed.deploy.store import Kept, Store
from protofed.engines.base import attempt
from protofed.engines.wire import Answer, Ask, answer_to, tallies_to
from protofed.experiment.environment import fingerprints
from protofed.experiment.parse import method_from, restored
from protofed.experiment.remote import Offer, place_of, versions
from protofed.experiment.spec import Experiment

LOG = "worker.log at the site"


class Seat(NamedTuple):
    """This site's place in one run."""

    experiment: Experiment
    server: Site
    own: Site | None
    test: Dataset


class Desk:
    """Answers one question at a time; what it must remember lies in files below `home`.

    What happens is said on stdout, for who has let this site join; names of files only there.
    """

    def __init__(self, name: str, data: Path, home: Path, policy: Policy):
        self.name, self.data, self.home, self.policy = name, data, home, policy
        self.seats: dict[str, Seat] = {}  # the newest alone
        self.runs: set[str] = set()  # that were told of
        self.skipped: dict[str, str] = {}  # files that were told of

    def answer(self, letter: bytes) -> bytes:
        """A packed answer to a packed question; faults are answers too."""
        ask = unpack(letter)
        if type(ask) is not Ask:
            raise ProtofedError(f"a {type(ask).__name__} is no question")
        work = {
            "hello": self._hello,
            "describe": self._describe,
            "train": self._train,
            "score": self._score,
        }
        try:
            if ask.what not in work:
                raise ProtofedError(f"unknown question '{printable(ask.what, 20)}'")
            return pack(work[ask.what](ask))
        except ProtofedError as fault:
            say(f"{_title(ask)}refused: {fault}")
            return pack(answer_to(ask, fault=str(fault)))
        except Exception as fault:  # its words may hold names of files, so they stay here
            traceback.print_exc()
            say(f"{_title(ask)}{type(fault).__name__}, see {self.home / 'worker.log'}")
            return pack(answer_to(ask, fault=f"{type(fault).__name__}, see {LOG}"))

    def _hello(self, ask: Ask) -> Answer:
        return answer_to(ask, told=self.name)

    def _describe(self, ask: Ask) -> Answer:
        """What this site offers; a run that its policy forbids is refused here already."""
        brief = json.loads(ask.brief)
        self._check(method_from(brief["method"]), int(brief["rounds"]))
        domain, classes = self._images(int(brief["side"]))
        counts = domain.train.labels.bincount(minlength=len(classes)).tolist()
        held = {name: count for name, count in zip(classes, counts, strict=True) if count}
        sums = fingerprints(Benchmark("", classes, (domain,)))
        offer = Offer(
            site=self.name,
            classes=classes,
            train=len(domain.train),
            held=held if self.policy.send_counts else {},
            test=len(domain.test),
            fingerprint=sums[self.name],
            note=domain.note,
            versions=versions(),
        )
        return answer_to(ask, told=json.dumps(offer._asdict()))

    def _images(self, side: int) -> tuple[Domain, tuple[str, ...]]:
        """This site's images; what is wrong with them is for its own log alone."""
        try:
            domain, classes, skipped = own_domain(self.data, self.name, side)
        except ProtofedError as fault:
            print(f"error: {fault}", file=sys.stderr, flush=True)
            say(f"the images cannot be used: {fault}")
            raise ProtofedError(f"its images cannot be used, see {LOG}") from fault
        if skipped and skipped != self.skipped:
            names = some([f"{name} ({why})" for name, why in skipped.items()])
            say(f"{len(skipped)} files of {self.data} are skipped: {names}")
        self.skipped = skipped
        return domain, classes

    def _check(self, method: AnyMethod, rounds: int) -> None:
        if reason := self.policy.allows(method, rounds):
            raise ProtofedError(reason)

    def _seat(self, ask: Ask) -> Seat:
        """The place in a run that a brief tells of; the last one is remembered."""
        if ask.brief not in self.seats:
            brief: dict[str, Any] = json.loads(ask.brief)
            experiment = restored(brief["spec"])
            self._check(experiment.method, experiment.rounds)
            sizes = {int(client): int(size) for client, size in brief["sizes"].items()}
            domain, classes = self._images(experiment.data.side)
            if list(classes) != brief["classes"]:
                raise ProtofedError("its classes are not those that were agreed on")
            place = place_of(experiment, classes, sizes, domain)
            self.seats = {ask.brief: Seat(experiment, *place)}
            if ask.run not in self.runs:
                self.runs.add(ask.run)
                label = experiment.method.about.label
                say(f"{_title(ask)}{label}, {experiment.rounds} rounds")
        return self.seats[ask.brief]

    def _train(self, ask: Ask) -> Answer:
        """A leg of training; asked again, the answer is the one given before."""
        seat, store = self._seat(ask), Store(self.home, ask)
        method, site = seat.experiment.method, seat.own
        if site is None:
            raise ProtofedError("is left out of the training")
        asked = hashlib.sha256(pack(ask.inbox)).hexdigest()
        before = store.at(ask)
        if before is None or before.asked != asked:
            last = store.before(ask)
            state = last.state if last else method.init_client(site)
            began = time.monotonic()
            with torch_threads(seat.experiment.threads):
                reply, after = attempt(method, site, ask.inbox, state, ask.step)
            before = Kept(asked, self.policy.filtered(reply), after)
            store.keep(ask, before)
            _tell_trained(ask, reply.fault, time.monotonic() - began)
        return answer_to(ask, reply=before.reply)

    def _score(self, ask: Ask) -> Answer:
        """The right answers on this site's test images: of the product, or of its own model."""
        seat = self._seat(ask)
        method = seat.experiment.method
        site = seat.own if method.personal and seat.own else seat.server
        last = Store(self.home, ask).before(ask) if site is seat.own else None
        state = last.state if last else method.init_client(site)
        with torch_threads(seat.experiment.threads):
            return answer_to(ask, told=tallies_to(tally(method, site, ask.inbox, state, seat.test)))


def _title(ask: Ask) -> str:
    """The run that a line is about; one that is only asked about has no name yet."""
    return f"run {ask.run[:8]}: " if ask.run else "a new run: "


def _tell_trained(ask: Ask, fault: str, seconds: float) -> None:
    leg = f", exchange {ask.leg + 1}" if ask.leg else ""
    how = fault or f"trained in {seconds:.1f} s"
    say(f"{_title(ask)}round {ask.round + 1} of {ask.rounds}{leg}: {how}")
