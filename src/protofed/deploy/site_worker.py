"""The process of a site that holds torch and the images, and answers the coordinator.

It keeps each client's state on the site's own disk, by run and round, with the reply beside it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from protofed.core.message import Failure, Message
from protofed.core.method import AnyMethod
from protofed.core.metrics import count_correct
from protofed.core.serialization import pack_tree, unpack_tree
from protofed.core.site import ArrayDataset, Site
from protofed.core.training import torch_threads
from protofed.data.benchmark_info import Benchmark, Domain
from protofed.data.folder_images import read_site_domain
from protofed.deploy.policy import SitePolicy, read_policy
from protofed.deploy.request_judge import (
    RUN_NAME,
    AnsweredRun,
    AnswerLedger,
    LedgerLine,
    RequestJudge,
    RunDescription,
    check_answers,
    check_fields,
    check_inbox,
    check_test_counts,
    parse_description,
    parse_inquiry,
)
from protofed.deploy.worker_socket import NO_QUESTION, open_worker_socket
from protofed.engines.engine import try_training
from protofed.engines.site_protocol import (
    SiteRequest,
    SiteResponse,
    counts_to_json,
    make_refusal,
    make_response,
)
from protofed.errors import ProtofedError, count_noun, printable_text
from protofed.federation.build import data_fingerprints
from protofed.federation.remote_sites import (
    SiteDescription,
    remote_side,
    site_place,
    software_versions,
)
from protofed.runtime.atomic_io import atomic_write, atomic_write_json
from protofed.runtime.child_process import exit_with_pipe
from protofed.runtime.console import name_some, print_line
from protofed.runtime.resources import tune_malloc

KEPT_RUNS = 8  # of which a site keeps states; the longest untouched ones go first
LINEAGE = "lineage.json"
Place = tuple[int, int]


class KeptReply(NamedTuple):
    """What a site has kept of one exchange: its reply, and its private state after it.

    The reply is stored as it was made; the policy is applied each time it leaves the site.
    """

    reply: Any
    state: Any


class ClientStateStore:
    """The private states and replies of one run, in files of the site.

    An exchange that is asked for with the same message, from the same state, gets the reply it had
    before, also in a later session. So a repeated request costs no training and moves no state. A
    session that resumes at an earlier round builds on the states from before that round, whatever
    was made after it.
    """

    def __init__(self, home: Path, ask: SiteRequest):
        if not RUN_NAME.fullmatch(ask.run) or not RUN_NAME.fullmatch(ask.session):
            raise ProtofedError("not the name of a run")
        self.folder = home / "runs" / ask.run
        if not self.folder.exists():
            self.folder.mkdir(parents=True, mode=0o700)
            _drop_old(self.folder.parent)
        self.lineage = self._continued(ask)

    def _continued(self, ask: SiteRequest) -> dict[Place, str]:
        """The places that the session stands on, each with the key of what was made in it."""
        try:
            told = json.loads((self.folder / LINEAGE).read_bytes())
            session, places = (
                told["session"],
                {_place(name): key for name, key in told["legs"].items()},
            )
        except (OSError, ValueError, TypeError, KeyError):
            session, places = "", {}
        if session == ask.session:
            return places
        return {place: key for place, key in places.items() if place < (ask.start, 0)}

    def before(self, ask: SiteRequest) -> KeptReply | None:
        """What was made in the newest exchange before this one; None for the first one."""
        for place in sorted(
            (place for place in self.lineage if place < (ask.round, ask.exchange)), reverse=True
        ):
            if kept := self._read(place, self.lineage[place]):
                return kept
        return None

    def at(self, ask: SiteRequest, key: str) -> KeptReply | None:
        """What was made in this exchange from the same message and state, if anything.

        The session builds on it from then on. `key` is the digest of both, see `site_worker`.
        """
        kept = self._read((ask.round, ask.exchange), key)
        if kept:
            self._stand_on(ask, key)
        return kept

    def keep(self, ask: SiteRequest, key: str, kept: KeptReply) -> None:
        """Write what came of an exchange, and drop what no checkpoint can lead back to."""
        atomic_write(self._file((ask.round, ask.exchange), key), pack_tree(list(kept)))
        self._stand_on(ask, key)
        needed = max((place for place in self.lineage if place < (ask.floor, 0)), default=(0, 0))
        for file, place in self._files():
            if place < min(needed, (ask.floor, 0)):
                file.unlink(missing_ok=True)

    def _stand_on(self, ask: SiteRequest, key: str) -> None:
        self.lineage[ask.round, ask.exchange] = key
        places = {f"{number}-{place}": made for (number, place), made in self.lineage.items()}
        atomic_write_json(self.folder / LINEAGE, {"session": ask.session, "legs": places})

    def _files(self) -> Iterator[tuple[Path, Place]]:
        for file in self.folder.glob("*.safetensors"):
            yield file, _place("-".join(file.stem.split("-")[:2]))

    def _file(self, place: Place, key: str) -> Path:
        return self.folder / f"{place[0]}-{place[1]}-{key[:32]}.safetensors"

    def _read(self, place: Place, key: str) -> KeptReply | None:
        """What was kept; nothing of a file that is gone or damaged, which is made again."""
        try:
            return KeptReply(*unpack_tree(self._file(place, key).read_bytes()))
        except (OSError, ProtofedError, TypeError):
            return None


def _place(name: str) -> Place:
    number, place = name.split("-")
    return int(number), int(place)


def _drop_old(runs: Path) -> None:
    folders = sorted(runs.iterdir(), key=lambda folder: folder.stat().st_mtime)
    for folder in folders[:-KEPT_RUNS]:
        shutil.rmtree(folder, ignore_errors=True)


LOG = "worker.log at the site"
MOST_TRACEBACKS = 50
MOST_REPORTED = 1_000  # refusals that are remembered as printed


class RunSeat(NamedTuple):
    """This site's place in one run.

    `own` is its place as a client, None if it is left out of the training; `server` is what the
    method's server side sees, and `test` are the test images.
    """

    brief: RunDescription
    server: Site
    own: Site | None
    test: ArrayDataset

    @property
    def method(self) -> AnyMethod:
        """The method of the run."""
        return self.brief.experiment.method


class RequestHandler:
    """Answers one request at a time; what it must remember is in files below `home`.

    Every request is judged first: by its form, by what its run is about, by the policy, and by what
    was answered before. What happens is printed, for the owner of the site; names of files appear
    only there.
    """

    def __init__(self, name: str, data: Path, home: Path, policy: SitePolicy):
        self.name, self.data, self.home, self.policy = name, data, home, policy
        self.ledger = AnswerLedger(home)
        self.judge = RequestJudge(policy, self.ledger)
        self.broken = 0  # questions that ended in a fault of the program
        self.seats: dict[str, RunSeat] = {}  # the newest alone
        self.skipped: dict[str, str] = {}  # files that were reported
        self.reported: set[tuple[str, str]] = set()  # refusals: run and reason

    def answer(self, content: bytes) -> bytes:
        """Answer a packed request with a packed response; a refusal is a response too.

        Bytes that are no request at all raise a ProtofedError.
        """
        ask = unpack_tree(content, self.policy.most_bytes)
        if type(ask) is not SiteRequest:
            raise ProtofedError(f"a {type(ask).__name__} is no question")
        work = {
            "hello": self._hello,
            "describe": self._describe,
            "train": self._train,
            "score": self._score,
        }
        try:
            check_fields(ask)
            return pack_tree(work[ask.what](ask))
        except ProtofedError as fault:
            return pack_tree(self._refused(ask, printable_text(str(fault), 300)))
        except Exception as fault:  # a broken question must not end the worker
            self.broken += 1
            if self.broken <= MOST_TRACEBACKS:  # a server that wants to fill the disk cannot
                traceback.print_exc()
            return pack_tree(self._refused(ask, f"{type(fault).__name__}, see {LOG}"))

    def _refused(self, ask: SiteRequest, reason: str) -> SiteResponse:
        """A refusal, put on record; in a run the same one is printed once."""
        what = ask.what if type(ask.what) is str else "?"
        run = _run_of(ask)
        self.ledger.write_refusal(run, printable_text(what, 20), reason)
        if (run, reason) not in self.reported:
            print_line(f"{_title(ask)}refused: {reason}")
        if run:
            self.reported.add((run, reason))
        if len(self.reported) > MOST_REPORTED:
            self.reported.clear()
        return make_refusal(ask, reason)

    def _hello(self, ask: SiteRequest) -> SiteResponse:
        return make_response(ask, text=self.name)

    def _describe(self, ask: SiteRequest) -> SiteResponse:
        """Describe this site; a run that its policy forbids is refused here already."""
        inquiry = parse_inquiry(ask.brief, self.policy.code_access)
        self.judge.inquiry(inquiry)
        self.judge.side(inquiry.side)
        domain, classes = self._images(inquiry.side)
        counts = domain.train.labels.bincount(minlength=len(classes)).tolist()
        held = {name: count for name, count in zip(classes, counts, strict=True) if count}
        sums = data_fingerprints(Benchmark("", classes, (domain,)))
        offer = SiteDescription(
            site=self.name,
            classes=classes,
            train=len(domain.train),
            held=held if self.policy.send_counts else {},
            test=len(domain.test),
            fingerprint=sums[self.name],
            note=domain.note,
            versions=software_versions(),
        )
        return make_response(ask, text=json.dumps(offer._asdict()))

    def _images(self, side: int) -> tuple[Domain, tuple[str, ...]]:
        """This site's images; what is wrong with them is for its own log alone."""
        try:
            domain, classes, skipped = read_site_domain(self.data, self.name, side)
        except ProtofedError as fault:
            print(f"error: {fault}", file=sys.stderr, flush=True)
            print_line(f"the images cannot be used: {fault}")
            raise ProtofedError(f"its images cannot be used, see {LOG}") from fault
        if skipped and skipped != self.skipped:
            names = name_some([f"{name} ({why})" for name, why in skipped.items()])
            print_line(f"skipping {count_noun(len(skipped), 'file')} of {self.data}: {names}")
        self.skipped = skipped
        return domain, classes

    def _seat(self, ask: SiteRequest) -> tuple[RunSeat, AnsweredRun]:
        """The place in a run that a question is about, if the run may be; the newest is kept."""
        brief = (
            self.seats[ask.brief].brief
            if ask.brief in self.seats
            else parse_description(ask.brief, self.policy.code_access)
        )
        record = self.judge.run(ask, brief)
        if ask.brief not in self.seats:
            experiment = brief.experiment
            side = remote_side(experiment)
            self.judge.side(side)
            domain, classes = self._images(side)
            if list(classes) != brief.classes:
                raise ProtofedError("its classes are not those that were agreed on")
            place = site_place(experiment, classes, brief.sizes, domain)
            self.seats = {ask.brief: RunSeat(brief, *place)}
        if record is None:
            label = brief.experiment.method.info.label
            print_line(f"{_title(ask)}{label}, {count_noun(brief.experiment.rounds, 'round')}")
            self.ledger.write(LedgerLine("begin", ask.run, brief.digest))
            record = self.ledger.runs[ask.run]
        return self.seats[ask.brief], record

    def _train(self, ask: SiteRequest) -> SiteResponse:
        """Train for one exchange; the same message from the same state gets the reply of before.

        The policy is applied on the way out, so a stricter one holds for old replies too.
        """
        seat, record = self._seat(ask)
        if seat.own is None:
            raise ProtofedError("is left out of the training")
        check_inbox(ask.received, seat.own)
        store = ClientStateStore(self.home, ask)
        last = store.before(ask)
        state = last.state if last else seat.method.init_client(seat.own)
        key = _key(ask.received, state)
        kept = store.at(ask, key)
        if kept is None:
            self.judge.training(ask, record)
            place = ask.round + 1, ask.exchange + 1
            self.ledger.write(LedgerLine("train", ask.run, seat.brief.digest, *place, key))
            kept = self._trained(ask, seat, seat.own, state)
            store.keep(ask, key, kept)
        failed = isinstance(kept.reply, Failure)
        return make_response(ask, reply=kept.reply if failed else self.policy.filtered(kept.reply))

    def _trained(self, ask: SiteRequest, seat: RunSeat, site: Site, state: Any) -> KeptReply:
        """What comes of the training in one exchange."""
        began = time.monotonic()
        with torch_threads(seat.brief.experiment.threads):
            reply, after = try_training(seat.method, site, ask.received, state, ask.step)
        failed = reply.reason if isinstance(reply, Failure) else ""
        _tell_trained(ask, failed, time.monotonic() - began)
        return KeptReply(reply, after)

    def _score(self, ask: SiteRequest) -> SiteResponse:
        """The right answers on this site's test images: of the product, or of its own model."""
        seat, record = self._seat(ask)
        site = seat.own if seat.method.personal and seat.own else seat.server
        check_inbox(ask.received, site)
        last = ClientStateStore(self.home, ask).before(ask) if site is seat.own else None
        state = last.state if last else seat.method.init_client(site)
        key = _key(ask.received, state)
        self.judge.scoring(ask, seat.brief, record, key)
        check_test_counts(seat.test.labels, self.policy)
        # On record before it is looked at: a refusal tells something of the answers, too.
        line = LedgerLine("score", ask.run, seat.brief.digest, ask.round, message=key)
        self.ledger.write(line)
        with torch_threads(seat.brief.experiment.threads):
            check_answers(seat.method, site, ask.received, state, seat.test, self.policy)
            counted = count_correct(seat.method, site, ask.received, state, seat.test)
        return make_response(ask, text=counts_to_json(self.policy.filtered_counts(counted)))


def _key(received: Message, state: Any) -> str:
    """What an answer follows from: the message, and the state that it meets."""
    return hashlib.sha256(pack_tree([received, state])).hexdigest()


def _run_of(ask: SiteRequest) -> str:
    """The name of a question's run, if it has one."""
    return ask.run if type(ask.run) is str and RUN_NAME.fullmatch(ask.run) else ""


def _title(ask: SiteRequest) -> str:
    """The run that a line is about; one that is only asked about has no name yet."""
    return f"run {_run_of(ask)[:8]}: " if _run_of(ask) else "a new run: "


def _tell_trained(ask: SiteRequest, fault: str, seconds: float) -> None:
    leg = f", exchange {ask.exchange + 1}" if ask.exchange else ""
    how = fault or f"trained in {seconds:.1f} s"
    print_line(f"{_title(ask)}round {ask.round + 1} of {ask.rounds}{leg}: {how}")


def worker_main_site() -> None:
    """Run the worker of a site: answer at a socket until the parent ends."""
    parser = argparse.ArgumentParser()
    for name in ("name", "data", "home", "socket", "policy", "life"):
        parser.add_argument(f"--{name}", required=name != "policy")
    given = parser.parse_args()
    exit_with_pipe(int(given.life))
    tune_malloc()
    policy = read_policy(Path(given.policy) if given.policy else None)
    limit_memory(policy.max_memory_gb)
    handler = RequestHandler(given.name, Path(given.data), Path(given.home), policy)
    with open_worker_socket(Path(given.socket)) as door:
        while True:
            # A link that was killed while it waited: the next one asks again.
            with suppress(EOFError, OSError, AuthenticationError), door.accept() as connection:
                _serve(handler, connection)


def limit_memory(gigabytes: float | None) -> None:
    """Limit the memory of this process to some gigabytes, else to four fifths of the machine's.

    A request that needs more is then refused, instead of bringing the machine down.
    """
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = int(gigabytes * 1e9) if gigabytes else pages * 4 // 5
    with suppress(ValueError, OSError):  # a lower limit is set already
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _serve(handler: RequestHandler, connection: Connection) -> None:
    content = connection.recv_bytes(handler.policy.most_bytes)
    try:
        answer = handler.answer(content)
    except (ProtofedError, MemoryError) as fault:  # not even a question
        print(f"refused: {fault or type(fault).__name__}", file=sys.stderr, flush=True)
        answer = NO_QUESTION
    connection.send_bytes(answer)


if __name__ == "__main__":
    worker_main_site()
