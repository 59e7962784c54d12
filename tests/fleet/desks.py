"""A federation without processes: real desks with real images, and a postman who walks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from protofed.core.pack import pack, unpack
from protofed.deploy.coordinate import coordinate
from protofed.deploy.job import Job
from protofed.deploy.offers import offer_from
from protofed.deploy.policy import Policy
from protofed.deploy.site import Desk
from protofed.engines.base import Engine
from protofed.engines.flower import Fleet, FlowerEngine, Told
from protofed.engines.post import Letter, Lost
from protofed.engines.wire import Answer, Ask
from protofed.experiment.federation import Federation
from protofed.experiment.remote import Offer, brief_of, clients_of, coordinator, tests_of
from protofed.experiment.rundir import RunDir
from protofed.experiment.runner import Note, Progress, Run, Tell
from protofed.experiment.spec import Experiment
from protofed.experiment.submitted import experiment_of

SITES = ("site-a", "site-b", "site-c")
RUN = "ab" * 8
INQUIRY = {"method": {"name": "fedavg"}, "rounds": 1, "scores": 1, "side": 16}
ABOUT = json.dumps(INQUIRY)
SPEC: dict[str, Any] = {
    "data": {"side": 16},
    "training": {"epochs": 1, "batch": 4},
    "net": "moon-mlp",
    "rounds": 2,
}


class Walking:
    """Carries letters to desks in this process; `lose` says which answers get lost."""

    def __init__(self, desks: Mapping[str, Desk]):
        self.desks = desks
        self.lose: Callable[[str, Ask], str] = lambda name, ask: ""
        self.carried: list[Ask] = []
        self.seconds: list[float] = []  # that each question was given

    def ask(
        self, letters: Mapping[str, Letter], deadline: float, least: int = 1
    ) -> dict[str, bytes | Lost]:
        """Each desk's answer."""
        self.seconds.append(deadline)
        answers: dict[str, bytes | Lost] = {}
        for name, letter in letters.items():
            ask = unpack(letter.content)
            self.carried.append(ask)
            answer = self.desks[name].answer(letter.content)
            assert len(answer) <= letter.most
            reason = self.lose(name, ask)
            answers[name] = Lost(reason) if reason else answer
        return answers


class Known(Walking):
    """A postman who also knows who is online."""

    here: tuple[str, ...] = SITES
    nameless = 0

    def online(self) -> dict[str, int]:
        """Some of the sites."""
        return {name: number for number, name in enumerate(self.here)}


class Heard:
    """Whoever submitted a run, and remembers what was told."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def waiting(self, words: str) -> None:
        """Who is waited for."""
        self.lines.append({"waiting": words})

    def begins(self, experiment: Experiment, folder: Path, finished: int) -> None:
        """What the run is."""
        self.lines.append({"folder": folder, "finished": finished})

    def watch(self, progress: Progress) -> None:
        """How far the run is."""
        self.lines.append({"progress": progress})


def job(folder: Path, **more: Any) -> Job:
    """A run of all sites into the folder `out`."""
    given = {"sites": SITES, "count": 0, "deadline": 9.0, "wait": 0.1, "resume": False, **more}
    return Job(**{"spec": SPEC, "here": str(folder), "out": "out", **given})


def submitted(post: Known, work: Job) -> list[dict[str, Any]]:
    """Play a submitted run to its end; what was told of it."""
    carrier: Any = post
    heard = Heard()
    coordinate(carrier, work, heard)
    return heard.lines


def desks(data: Path, home: Path) -> dict[str, Desk]:
    """The desks of all sites, each with its own folder of images and of states."""
    return {name: Desk(name, data / name, home / name, Policy(min_examples=1)) for name in SITES}


def told(desk: Desk, ask: Ask) -> Answer:
    """A desk's answer."""
    answer = unpack(desk.answer(pack(ask)))
    assert type(answer) is Answer
    return answer


def offers(desks: Mapping[str, Desk]) -> list[Offer]:
    """What the desks say of themselves."""
    ask = Ask("describe", ABOUT)
    return [offer_from(name, ask, desk.answer(pack(ask))) for name, desk in desks.items()]


class Made(NamedTuple):
    """A run of the federation, not yet played."""

    experiment: Experiment
    federation: Federation
    run: Run[Any, Any]


def made(raw: Mapping[str, Any], post: Walking, folder: Path) -> Made:
    """A run over a postman's desks."""
    known = offers(post.desks)
    experiment = experiment_of(raw, known)
    federation = coordinator(experiment, known)
    fleet = Fleet(clients_of(experiment), tests_of(experiment, known))
    about = Told(RUN, brief_of(experiment, known), experiment.rounds)

    def hire(tell: Tell, note: Note) -> Engine:
        least = experiment.min_clients
        carrier: Any = post
        engine: FlowerEngine[Any, Any] = FlowerEngine(
            carrier, experiment.method, federation.server, fleet, about, 9.0, least, note, tell
        )
        return engine

    run = Run(experiment, experiment.method, RunDir(folder), federation, hire)
    return Made(experiment, federation, run)


def events(folder: Path) -> list[dict[str, Any]]:
    """What went wrong in a run."""
    return RunDir(folder).lines(folder / "events.jsonl")
