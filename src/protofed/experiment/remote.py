"""A federation whose images are elsewhere: what its sites declare, and what both sides build of it.

A site is a domain and a client. The coordinator has no images; a site has its own alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from protofed.core.errors import ProtofedError
from protofed.core.site import ClientId, Dataset, Site, to_hold_out
from protofed.data.benchmark import Benchmark, Domain
from protofed.data.folder import FolderEntry
from protofed.data.parts import Part, PartRecord
from protofed.experiment.environment import environment
from protofed.experiment.federation import (
    NOTHING,
    Declared,
    Federation,
    build_nets,
    scored,
    server_site,
)
from protofed.experiment.notices import cautions, left_out_note
from protofed.experiment.spec import Experiment

COLOURS = (FolderEntry.mean, FolderEntry.std)


class Offer(NamedTuple):
    """What a site says of itself before a run; its images stay where they are."""

    site: str
    classes: tuple[str, ...]
    train: int  # images to train on
    held: dict[str, int]  # of each class; nothing if the site keeps that to itself
    test: int  # images to score on
    fingerprint: str  # SHA-256 of its images
    note: str = ""  # what a reader of its scores must know
    versions: tuple[str, ...] = ()


def agreed_classes(offers: Sequence[Offer]) -> tuple[str, ...]:
    """The classes that all sites have; sites that disagree are refused with what differs."""
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
            + "\nrename the folders so that a class has one name everywhere; a site without images "
            "of a class makes an empty folder for it"
        )
    return tuple(every)


def clients_of(experiment: Experiment) -> dict[ClientId, str]:
    """The sites that train, numbered in the order of their names."""
    left = [name for name in experiment.data.domains if name != experiment.leave_out]
    return dict(enumerate(left))


def sizes_of(experiment: Experiment, offers: Sequence[Offer]) -> dict[ClientId, int]:
    """How many images each client trains on, as its site has declared."""
    declared = {offer.site: offer.train for offer in offers}
    held_out = experiment.validation or 0
    return {
        client: declared[name] - (to_hold_out(declared[name], held_out) if held_out else 0)
        for client, name in clients_of(experiment).items()
    }


def tests_of(experiment: Experiment, offers: Sequence[Offer]) -> dict[str, int]:
    """How many images each site scores on."""
    share = experiment.validation
    if share is None:
        return {offer.site: offer.test for offer in offers}
    unseen = experiment.leave_out
    return {
        offer.site: offer.train if offer.site == unseen else to_hold_out(offer.train, share)
        for offer in offers
    }


def brief_of(experiment: Experiment, offers: Sequence[Offer]) -> str:
    """What every site is told with every message."""
    return json.dumps(
        {
            "spec": experiment.plain(),
            "classes": agreed_classes(offers),
            "sizes": sizes_of(experiment, offers),
        }
    )


def coordinator(experiment: Experiment, offers: Sequence[Offer]) -> Federation:
    """The federation as its coordinator sees it: sites with names and sizes, and no image."""
    classes = agreed_classes(offers)
    domains = tuple(Domain(name, NOTHING, NOTHING) for name in experiment.data.domains)
    nets = build_nets(experiment, len(classes))
    sizes = sizes_of(experiment, offers)
    server = server_site(experiment, COLOURS, len(classes), NOTHING, nets[0], sizes)
    clients = clients_of(experiment)
    sites = {
        client: replace(server, id=client, domain=name, net=nets[client % len(nets)])
        for client, name in clients.items()
    }
    return Federation(
        benchmark=Benchmark(experiment.data.label, classes, domains),
        parts=tuple(Part(client, name, torch.arange(0)) for client, name in clients.items()),
        public={},
        server=server,
        sites=sites,
        tests=dict.fromkeys(experiment.data.domains, NOTHING),
        notices=[*cautions(experiment, nets), *left_out_note(experiment), *_notes(offers)],
        declared=_declared(clients, offers),
    )


def _declared(clients: Mapping[ClientId, str], offers: Sequence[Offer]) -> Declared:
    """What goes on record of the sites' images."""
    by_name = {offer.site: offer for offer in sorted(offers)}
    held: list[PartRecord] = [
        {"client": client, "domain": name, "held": _held(by_name[name]), "rows": []}
        for client, name in clients.items()
    ]
    return Declared({name: offer.fingerprint for name, offer in by_name.items()}, held)


def _notes(offers: Sequence[Offer]) -> list[str]:
    """What a reader of the scores must know of the sites."""
    notes = [f"{offer.site}: {offer.note}" for offer in sorted(offers) if offer.note]
    others = {offer.site: _others(offer) for offer in sorted(offers)}
    return notes + [f"{name}: runs {', '.join(found)}" for name, found in others.items() if found]


def versions() -> tuple[str, ...]:
    """What decides bits on this machine."""
    known = environment()
    return tuple(f"{what} {known[what]}" for what in ("protofed", "torch"))


def _others(offer: Offer) -> list[str]:
    """The versions of a site that are not those of the coordinator: its bits may differ."""
    return [version for version in offer.versions if version not in versions()]


def _held(offer: Offer) -> dict[str, int]:
    return offer.held or {"(kept back)": offer.train}


class Place(NamedTuple):
    """The federation as one site sees it."""

    server: Site  # without images: scores what the server publishes
    own: Site | None  # None where the site is left out of training
    test: Dataset


def place_of(
    experiment: Experiment, classes: Sequence[str], sizes: dict[ClientId, int], own: Domain
) -> Place:
    """What a site needs to train and to score as the client of its name would locally."""
    ids = {name: client for client, name in clients_of(experiment).items()}
    nets = build_nets(experiment, len(classes))
    server = server_site(experiment, COLOURS, len(classes), NOTHING, nets[0], sizes)
    if own.name not in ids:
        return Place(server, None, own.test if experiment.validation is None else own.train)
    client = ids[own.name]
    every = Part(client, own.name, torch.arange(len(own.train)))
    alone = Benchmark(experiment.data.label, tuple(classes), (own,))
    (part,), tests = scored(experiment, alone, (every,))
    site = replace(
        server,
        id=client,
        domain=own.name,
        net=nets[client % len(nets)],
        train=own.train.rows(part.rows),
    )
    return Place(server, site, tests[own.name])
