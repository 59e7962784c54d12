"""A federation without processes: real desks with real images, and a postman who walks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from protofed.core.serialization import pack_tree, unpack_tree
from protofed.deploy.coordinator import SubmittedJob, coordinate_run
from protofed.deploy.policy import SitePolicy
from protofed.deploy.site_worker import RequestHandler
from protofed.engines.flower_engine import (
    FlowerEngine,
    NoAnswer,
    OutgoingRequest,
    RunInfo,
    SiteRoster,
)
from protofed.engines.site_protocol import SiteRequest, SiteResponse
from protofed.experiment.round_report import RoundReport
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import ExperimentRun
from protofed.federation.build import Federation
from protofed.federation.remote_sites import (
    SiteDescription,
    parse_site_description,
    remote_clients,
    remote_experiment,
    remote_federation,
    run_description,
    test_sizes,
)
from protofed.spec.experiment_spec import Experiment

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

    def __init__(self, desks: Mapping[str, RequestHandler]):
        self.desks = desks
        self.lose: Callable[[str, SiteRequest], str] = lambda name, ask: ""
        self.carried: list[SiteRequest] = []
        self.seconds: list[float] = []  # that each question was given

    def ask(
        self, letters: Mapping[str, OutgoingRequest], deadline: float, least: int = 1
    ) -> dict[str, bytes | NoAnswer]:
        """Each desk's answer."""
        self.seconds.append(deadline)
        answers: dict[str, bytes | NoAnswer] = {}
        for name, letter in letters.items():
            ask = unpack_tree(letter.content)
            self.carried.append(ask)
            answer = self.desks[name].answer(letter.content)
            assert len(answer) <= letter.max_answer_bytes
            reason = self.lose(name, ask)
            answers[name] = NoAnswer(reason) if reason else answer
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

    def watch(self, report: RoundReport) -> None:
        """How far the run is."""
        self.lines.append({"progress": report})


def job(folder: Path, **more: Any) -> SubmittedJob:
    """A run of all sites into the folder `out`."""
    given = {"sites": SITES, "count": 0, "deadline": 9.0, "wait": 0.1, "resume": False, **more}
    return SubmittedJob(**{"spec": SPEC, "here": str(folder), "out": "out", **given})


def submitted(post: Known, work: SubmittedJob) -> list[dict[str, Any]]:
    """Play a submitted run to its end; what was told of it."""
    carrier: Any = post
    heard = Heard()
    coordinate_run(carrier, work, heard)
    return heard.lines


def desks(data: Path, home: Path) -> dict[str, RequestHandler]:
    """The desks of all sites, each with its own folder of images and of states."""
    return {
        name: RequestHandler(name, data / name, home / name, SitePolicy(min_examples=1))
        for name in SITES
    }


def told(desk: RequestHandler, ask: SiteRequest) -> SiteResponse:
    """A desk's answer."""
    answer = unpack_tree(desk.answer(pack_tree(ask)))
    assert type(answer) is SiteResponse
    return answer


def offers(desks: Mapping[str, RequestHandler]) -> list[SiteDescription]:
    """What the desks say of themselves."""
    ask = SiteRequest("describe", ABOUT)
    return [
        parse_site_description(name, ask, desk.answer(pack_tree(ask)))
        for name, desk in desks.items()
    ]


class Made(NamedTuple):
    """A run of the federation, not yet played."""

    experiment: Experiment
    federation: Federation
    run: ExperimentRun[Any, Any]


def made(raw: Mapping[str, Any], post: Walking, folder: Path) -> Made:
    """A run over a postman's desks."""
    known = offers(post.desks)
    experiment = remote_experiment(raw, known)
    federation = remote_federation(experiment, known)
    fleet = SiteRoster(remote_clients(experiment), test_sizes(experiment, known))
    about = RunInfo(RUN, run_description(experiment, known), experiment.rounds)
    least, carrier = experiment.min_clients, cast(Any, post)
    engine: FlowerEngine[Any, Any] = FlowerEngine(
        carrier, experiment.method, federation.server, fleet, about, 9.0, least
    )
    run = ExperimentRun(experiment, experiment.method, RunDir(folder), federation, engine)
    return Made(experiment, federation, run)


def events(folder: Path) -> list[dict[str, Any]]:
    """What went wrong in a run."""
    return RunDir(folder).lines(folder / "events.jsonl")
