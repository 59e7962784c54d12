"""A federation whose images are at remote sites: what they declare, and what both sides build.

Each site is one domain and one client. The coordinator has no images; a site has only its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from protofed.core.site import ArrayDataset, ClientId, Site, holdout_size
from protofed.data.benchmark import Benchmark, Domain
from protofed.data.folder_images import FolderInfo
from protofed.data.partition import ClientPart, ClientPartRecord
from protofed.errors import ProtofedError
from protofed.federation.build import (
    NOTHING,
    DeclaredData,
    Federation,
    build_nets,
    scoring_split,
    server_site,
)
from protofed.federation.environment import describe_environment
from protofed.federation.notices import left_out_note, method_warnings
from protofed.spec.experiment_spec import Experiment

COLOURS = (FolderInfo.mean, FolderInfo.std)


class SiteDescription(NamedTuple):
    """What a site declares before a run; its images stay where they are.

    `held` counts images per class and is empty if the site keeps that to itself.
    """

    site: str
    classes: tuple[str, ...]
    train: int  # images to train on
    held: dict[str, int]  # by class; empty if the site keeps that to itself
    test: int  # images to score on
    fingerprint: str  # SHA-256 of its images
    note: str = ""  # what a reader of its scores must know
    versions: tuple[str, ...] = ()


def agreed_classes(offers: Sequence[SiteDescription]) -> tuple[str, ...]:
    """The classes that all sites have, sorted; an error says which site lacks which."""
    every = sorted({name for offer in offers for name in offer.classes})
    lines = []
    for offer in offers:
        lacks = [name for name in every if name not in offer.classes]
        if lacks:
            lines.append(f"  {offer.site} has no folder for class {', '.join(lacks)}")
    if lines:
        raise ProtofedError(
            "the sites disagree about the classes:\n"
            + "\n".join(lines)
            + "\ngive each class the same folder name at every site; a site without images of a "
            "class needs an empty folder for it"
        )
    return tuple(every)


def remote_clients(experiment: Experiment) -> dict[ClientId, str]:
    """The names of the sites that train, by client id.

    Ids follow the order of names; a domain that is left out of training has none.
    """
    left = [name for name in experiment.data.domains if name != experiment.leave_out]
    return dict(enumerate(left))


def client_sizes(experiment: Experiment, offers: Sequence[SiteDescription]) -> dict[ClientId, int]:
    """How many images each client trains on, as its site has declared.

    Images that are held out for validation do not count.
    """
    declared = {offer.site: offer.train for offer in offers}
    held_out = experiment.validation or 0
    return {
        client: declared[name] - (holdout_size(declared[name], held_out) if held_out else 0)
        for client, name in remote_clients(experiment).items()
    }


def test_sizes(experiment: Experiment, offers: Sequence[SiteDescription]) -> dict[str, int]:
    """How many images each site is scored on: its test images, or those held out."""
    share = experiment.validation
    if share is None:
        return {offer.site: offer.test for offer in offers}
    unseen = experiment.leave_out
    return {
        offer.site: offer.train if offer.site == unseen else holdout_size(offer.train, share)
        for offer in offers
    }


def run_description(experiment: Experiment, offers: Sequence[SiteDescription]) -> str:
    """JSON that every site gets with every message: the spec, the classes and the clients' sizes.

    It is all that a site needs to build its own part of the federation (`site_place`).
    """
    return json.dumps(
        {
            "spec": experiment.to_dict(),
            "classes": agreed_classes(offers),
            "sizes": client_sizes(experiment, offers),
        }
    )


def remote_federation(experiment: Experiment, offers: Sequence[SiteDescription]) -> Federation:
    """The federation as its coordinator sees it: sites with names and sizes, but without images.

    Fingerprints and class counts are those that the sites declared.
    """
    classes = agreed_classes(offers)
    domains = tuple(Domain(name, NOTHING, NOTHING) for name in experiment.data.domains)
    nets = build_nets(experiment, len(classes))
    sizes = client_sizes(experiment, offers)
    server = server_site(experiment, COLOURS, len(classes), NOTHING, nets[0], sizes)
    clients = remote_clients(experiment)
    sites = {
        client: replace(server, id=client, domain=name, net=nets[client % len(nets)])
        for client, name in clients.items()
    }
    return Federation(
        benchmark=Benchmark(experiment.data.label, classes, domains),
        parts=tuple(ClientPart(client, name, torch.arange(0)) for client, name in clients.items()),
        public={},
        server=server,
        sites=sites,
        tests=dict.fromkeys(experiment.data.domains, NOTHING),
        notices=[*method_warnings(experiment, nets), *left_out_note(experiment), *_notes(offers)],
        declared=_declared(clients, offers),
    )


def _declared(clients: Mapping[ClientId, str], offers: Sequence[SiteDescription]) -> DeclaredData:
    """What is recorded about the sites' images."""
    by_name = {offer.site: offer for offer in sorted(offers)}
    held: list[ClientPartRecord] = [
        {"client": client, "domain": name, "held": _held(by_name[name]), "rows": []}
        for client, name in clients.items()
    ]
    return DeclaredData({name: offer.fingerprint for name, offer in by_name.items()}, held)


def _notes(offers: Sequence[SiteDescription]) -> list[str]:
    """What a reader of the scores must know about the sites."""
    notes = [f"{offer.site}: {offer.note}" for offer in sorted(offers) if offer.note]
    others = {offer.site: _others(offer) for offer in sorted(offers)}
    return notes + [f"{name}: runs {', '.join(found)}" for name, found in others.items() if found]


def software_versions() -> tuple[str, ...]:
    """The versions that decide a run's bits on this machine: protofed and torch."""
    known = describe_environment()
    return tuple(f"{what} {known[what]}" for what in ("protofed", "torch"))


def _others(offer: SiteDescription) -> list[str]:
    """A site's versions that differ from the coordinator's: its bits may differ too."""
    return [version for version in offer.versions if version not in software_versions()]


KEPT_BACK = "(kept back)"  # stands for all classes of a site that told only its total


def counts_kept_back(held: Mapping[str, int]) -> bool:
    """Whether `held`, a client's images by class name, gives their total alone."""
    return KEPT_BACK in held


def _held(offer: SiteDescription) -> dict[str, int]:
    return offer.held or {KEPT_BACK: offer.train}


class SitePlace(NamedTuple):
    """The federation as one site sees it.

    `server` has no images and scores what the server publishes; `own` is None if the site is left
    out of training.
    """

    server: Site  # without images
    own: Site | None  # None if the site is left out of training
    test: ArrayDataset


def site_place(
    experiment: Experiment, classes: Sequence[str], sizes: dict[ClientId, int], own: Domain
) -> SitePlace:
    """What a site needs to train and score exactly as the client of its name would in a local run.

    `classes` and `sizes` come from the coordinator's run description; `own` holds the site's
    images.
    """
    ids = {name: client for client, name in remote_clients(experiment).items()}
    nets = build_nets(experiment, len(classes))
    server = server_site(experiment, COLOURS, len(classes), NOTHING, nets[0], sizes)
    if own.name not in ids:
        return SitePlace(server, None, own.test if experiment.validation is None else own.train)
    client = ids[own.name]
    every = ClientPart(client, own.name, torch.arange(len(own.train)))
    alone = Benchmark(experiment.data.label, tuple(classes), (own,))
    (part,), tests = scoring_split(experiment, alone, (every,))
    site = replace(
        server,
        id=client,
        domain=own.name,
        net=nets[client % len(nets)],
        train=own.train.take(part.rows),
    )
    return SitePlace(server, site, tests[own.name])
