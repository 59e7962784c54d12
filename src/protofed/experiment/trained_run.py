"""A run folder opened again: its federation, its states, and what its models say."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.model import Model
from protofed.core.site import ArrayDataset, ClientId, Site
from protofed.core.training import torch_threads
from protofed.engines.local_engine import LocalEngine
from protofed.errors import ProtofedError
from protofed.experiment.checkpoint import Checkpoint, load_server_state
from protofed.experiment.result import check_finished, read_evaluations
from protofed.experiment.run_folder import RunDir, check_is_run
from protofed.experiment.run_records import load_spec, read_federation
from protofed.experiment.stale_code import code_changes, describe_files
from protofed.federation.build import Federation, build_federation
from protofed.federation.evaluation import DomainScores, evaluate_round
from protofed.federation.remote_sites import remote_federation
from protofed.runtime.code_reference import ANY_CODE
from protofed.runtime.console import format_percent
from protofed.spec.experiment_spec import Experiment, SiteData

OURS = ("protofed/", "library ")  # how files of protofed's own begin in a record of code
SAME_SCORE = 1.0  # points by which a score may differ on another CPU
RESTORE = "restore the code, or take the model as it is with <stale=accept>"


class LocalModel(NamedTuple):
    """What a client predicts with after an exchange of a round, before the server merges anything.

    `received` is the message that the client got, with the model that it made of it; `exchange`
    counts from 0.
    """

    client: ClientId
    exchange: int
    received: Message
    state: Any


@dataclass(frozen=True)
class TrainedRun:
    """A run opened after some of its rounds: federation, server state and clients' states.

    Figures, reports and exports ask it for predictions, features and models. For a personal method
    they come from the first client unless another one is named; with `local`, from that client's
    model within the last round.
    """

    experiment: Experiment
    federation: Federation
    round: int
    server: Any
    engine: LocalEngine[Any, Any]
    local: LocalModel | None = None

    @property
    def method(self) -> AnyMethod:
        """The method of the run."""
        return self.experiment.method

    def speaker(self, client: ClientId | None = None) -> tuple[Site, Any]:
        """Who predicts: the server; for personal methods a client, the first one if not named."""
        if self.local:
            return self.federation.sites[self.local.client], self.local.state
        if not self.method.personal:
            site = self.federation.server
            return site, self.method.init_client(site)
        client = min(self.federation.sites) if client is None else client
        return self.federation.sites[client], self.engine.state(client)

    def received(self) -> Message:
        """What it predicts with: the published result, or what a client made of its message."""
        return self.local.received if self.local else self.method.publish(self.server)

    def predictions(self, data: ArrayDataset) -> Tensor:
        """The predicted classes [N] of all images of `data`."""
        return self.scores(data).argmax(1)

    def scores(self, data: ArrayDataset) -> Tensor:
        """What the method says of all images of `data`, [N, C]."""
        site, state = self.speaker()
        received = self.received()
        with torch_threads(self.experiment.threads):
            rows = [self.method.predict(site, received, state, x) for x in _inputs(site, data)]
        return torch.cat(rows)

    def model(self) -> tuple[Site, Model]:
        """The site and the model behind `predictions`."""
        site, state = self.speaker()
        return site, self._whole(site, state)

    def model_at(self, site: Site) -> Model:
        """A client's own model if the method is personal, else the server's."""
        return self._whole(site, self.engine.state(site.id) if self.method.personal else None)

    def _whole(self, site: Site, state: object) -> Model:
        """What was published; what the server lacks, the state adds."""
        own = state if isinstance(state, Model) else Model()
        return site.initial_model() | self.received().model | own

    def features(self, data: ArrayDataset) -> Tensor:
        """The features z [N, D] of all images of `data`."""
        site, model = self.model()
        with torch_threads(self.experiment.threads):
            return torch.cat([site.forward_eval(model, x).z for x in _inputs(site, data)])


def _inputs(site: Site, data: ArrayDataset) -> Iterator[Tensor]:
    return (x for x, _ in site.eval_batches(data))


def _last(place: RunDir) -> Checkpoint | None:
    """The newest state; an earlier one never stands in for the last one of a finished run."""
    found = place.find()
    if found.faults and place.done.exists() and place.rounds_on_disk():
        number, why = max(found.faults.items())
        raise ProtofedError(
            f"{place.path}: the checkpoint of round {number}, its last, cannot be used: {why}",
            hint="repeat the run with <again>",
        )
    return found.checkpoint


def open_trained_run(folder: Path, finished: int | None = None) -> TrainedRun:
    """Open a run with its images, after its last round or after `finished` rounds.

    Only rounds with a checkpoint can be opened: the newest ones, and those that were kept. Runs of
    a federation are refused, since their images are at the sites. So are runs whose model is
    another with the code of today, as for `open_trained_model`.
    """
    opened = open_trained_model(folder, finished)
    if isinstance(opened.experiment.data, SiteData):
        raise ProtofedError(
            f"{folder}: its images are at its sites, and this needs images",
            hint="`protofed predict` and `protofed export` do not need them",
        )
    return opened


def open_trained_model(
    folder: Path, finished: int | None = None, accept_stale: bool = False
) -> TrainedRun:
    """Open a run for its model alone, after its last round or after `finished` rounds.

    This also opens runs of a federation, whose images are at the sites. If code has changed since
    the run was made, its model is scored once more: where that gives other scores than those on
    record, the weights mean something else now, and the run is refused unless `accept_stale`.
    """
    check_is_run(folder)
    experiment = load_spec(folder, ANY_CODE)
    checkpoint = find_checkpoint(folder, finished)
    federation = _federation(folder, experiment)
    engine: LocalEngine[Any, Any] = LocalEngine(
        experiment.method, federation.everyone, federation.tests
    )
    engine.load(checkpoint.folder)
    opened = TrainedRun(
        experiment, federation, checkpoint.round, load_server_state(checkpoint), engine
    )
    if not accept_stale:
        _check_same_model(RunDir(folder), opened)
    return opened


def _check_same_model(place: RunDir, opened: TrainedRun) -> None:
    """Raise if code has changed, and the model scores otherwise than on record or cannot score."""
    changed = code_changes(place, opened.experiment)
    if not changed:
        return
    files = describe_files(changed)
    on_record = {one.round: one for one in read_evaluations(place)}.get(opened.round)
    if on_record is None or isinstance(opened.experiment.data, SiteData):
        if any(not name.startswith(OURS) for name in changed):
            raise ProtofedError(
                f"{place.path} was made by other code, and its model cannot be scored here to see "
                f"whether that matters; changed since: {files}",
                hint=RESTORE,
            )
        return
    with torch_threads(opened.experiment.threads):
        now = evaluate_round(
            opened.round, opened.method, opened.server, opened.federation, opened.engine
        )
    if other := _other_scores(opened, now.scores, on_record.scores):
        raise ProtofedError(
            f"{place.path} was made by other code, and today's makes another model of its weights: "
            f"{other}\nchanged since: {files}",
            hint=RESTORE,
        )


def _other_scores(opened: TrainedRun, now: DomainScores, before: DomainScores) -> str:
    """The first domain whose score is not the one on record, beyond what another CPU rounds."""
    for name, score in before.domains.items():
        found, images = now.domains.get(name), len(opened.federation.tests.get(name, ()))
        if score is None or not images:
            continue
        if found is None or abs(found - score) > max(SAME_SCORE, 150 / images):
            return f"{name} {format_percent(found)} %, on record {format_percent(score)} %"
    return ""


def find_checkpoint(folder: Path, finished: int | None = None) -> Checkpoint:
    """The checkpoint of a run's last round, or of round `finished`; raises if there is none.

    The error tells a checkpoint that was pruned from one that was never kept.
    """
    place = RunDir(folder)
    if place.done.exists():
        check_finished(place)
    checkpoint = _last(place) if finished is None else place.kept(finished)
    if checkpoint:
        return checkpoint
    on_disk, pruned = place.rounds_on_disk(), place.pruned_rounds()
    if finished in pruned or (finished is None and pruned and not on_disk):
        spec, out = shlex.quote(str(folder / "spec.json")), shlex.quote(str(folder))
        raise ProtofedError(
            f"{folder}: the checkpoint of round {finished or max(pruned)} was pruned; the scores "
            f"are still there, the model is not",
            hint=f"repeat the run with <spec={spec}> <out={out}> <again>",
        )
    there = ", ".join(map(str, on_disk)) or "none"
    raise ProtofedError(
        f"{folder}: no checkpoint of round {finished or 'any'}; there are: {there}",
        hint="a run keeps its last checkpoints, and those that <keep> names",
    )


def _federation(folder: Path, experiment: Experiment) -> Federation:
    """What the run stands on: the images, or what the sites have said of theirs."""
    if isinstance(experiment.data, SiteData):
        return remote_federation(experiment, read_federation(folder)["offers"])
    return build_federation(experiment)
