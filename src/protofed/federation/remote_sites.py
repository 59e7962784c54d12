"""A federation whose images are at remote sites: what they declare, and what both sides build.

Each site is one domain and one client. The coordinator has no images; a site has only its own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from protofed.core.model import Net
from protofed.core.reply_validation import FRAME
from protofed.core.serialization import unpack_tree
from protofed.core.site import SERVER, ArrayDataset, ClientId, Site, holdout_size
from protofed.data.benchmark_info import Benchmark, Domain
from protofed.data.folder_images import FolderInfo
from protofed.data.partition import ClientPart, ClientPartRecord
from protofed.engines.flower_engine import NoAnswer
from protofed.engines.site_protocol import SiteRequest, check_response
from protofed.errors import ProtofedError
from protofed.federation.build import (
    NOTHING,
    DeclaredData,
    Federation,
    build_nets,
    describe_environment,
    image_transform,
    require_precision,
    scoring_split,
    server_site,
)
from protofed.federation.notices import Notice, left_out_note, method_warnings
from protofed.federation.stored_features import store_features
from protofed.runtime.code_reference import parse_reference
from protofed.runtime.json_files import (
    parse_json_object,
    require_fields,
    require_int,
    require_list,
    require_object,
    require_text,
)
from protofed.spec.experiment_spec import Experiment, SiteData
from protofed.spec.method_lookup import code_names
from protofed.spec.spec_parser import parse_experiment

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


def remote_side(experiment: Experiment) -> int:
    """The side of the images at the sites, in pixels; raises if the data are not at sites."""
    if not isinstance(experiment.data, SiteData):
        raise ProtofedError("the data of this experiment are not at the sites of a federation")
    return experiment.data.side


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
    share = experiment.held_out_share
    return {
        client: declared[name] - (holdout_size(declared[name], share) if share else 0)
        for client, name in remote_clients(experiment).items()
    }


def test_sizes(experiment: Experiment, offers: Sequence[SiteDescription]) -> dict[str, int]:
    """How many images each site is scored on: its test images, or those held out."""
    share = experiment.held_out_share
    if not share:
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
    server = _server(experiment, len(classes), nets[0], sizes)
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


def _server(experiment: Experiment, classes: int, net: Net, sizes: dict[ClientId, int]) -> Site:
    pixels = image_transform(experiment, COLOURS)
    return server_site(experiment, pixels, classes, NOTHING, net, sizes)


def _declared(clients: Mapping[ClientId, str], offers: Sequence[SiteDescription]) -> DeclaredData:
    """What is recorded about the sites' images."""
    by_name = {offer.site: offer for offer in sorted(offers)}
    held: list[ClientPartRecord] = [
        {"client": client, "domain": name, "held": _held(by_name[name]), "rows": []}
        for client, name in clients.items()
    ]
    return DeclaredData({name: offer.fingerprint for name, offer in by_name.items()}, held)


def _notes(offers: Sequence[SiteDescription]) -> list[Notice]:
    """What a reader of the scores must know about the sites."""
    notes = [Notice("data", offer.note, offer.site) for offer in sorted(offers) if offer.note]
    others = {offer.site: _others(offer) for offer in sorted(offers)}
    return notes + [
        Notice("site", f"runs {', '.join(found)}", name) for name, found in others.items() if found
    ]


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
    require_precision(experiment)
    ids = {name: client for client, name in remote_clients(experiment).items()}
    nets = build_nets(experiment, len(classes))
    server = _server(experiment, len(classes), nets[0], sizes)
    if own.name not in ids:
        test = own.test if experiment.validation is None else own.train
        return _on_features(experiment, SitePlace(server, None, test))
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
    return _on_features(experiment, SitePlace(server, site, tests[own.name]))


def _on_features(experiment: Experiment, place: SitePlace) -> SitePlace:
    """The same place with stored features for images, if the experiment asks for them."""
    if not experiment.feature_views:
        return place
    everyone = {site.id: site for site in (place.server, place.own) if site}
    sites, tests = store_features(experiment, everyone, {"": place.test})
    own = sites[place.own.id] if place.own else None
    return SitePlace(sites[SERVER], own, tests[""])


MOST_IMAGES = 10**9
MOST_CLASSES = 10_000
MOST_CLASS_NAME, MOST_NOTE, MOST_VERSION = 200, 300, 60  # characters
MOST_VERSIONS = 10
FINGERPRINT = re.compile("[0-9a-f]{64}")


def parse_site_description(
    name: str, ask: SiteRequest, answer: bytes | NoAnswer
) -> SiteDescription:
    """Read a site's description of itself from its answer to `ask`.

    Each field is checked for its type and bounds, and all of them for whether they can be true
    together; the error names the field that is wrong.
    """
    if isinstance(answer, NoAnswer):
        raise ProtofedError(answer.reason)
    try:
        return _read(name, check_response(unpack_tree(answer, most=4 * FRAME), ask.question).text)
    except ProtofedError as fault:
        hint = f"to leave {name} out of a new run, name the others with <sites>"
        raise ProtofedError(str(fault), hint) from fault


def _read(name: str, text: str) -> SiteDescription:
    try:
        fields = parse_json_object(text)
        require_fields(fields, SiteDescription._fields)
        description = _description(fields)
        _check_plausible(name, description)
    except ProtofedError as fault:
        raise ProtofedError(f"its description is refused: {fault}") from fault
    return description


def _description(fields: dict[str, object]) -> SiteDescription:
    """A description in which every field is of its type and within its bounds."""
    classes = _texts("classes", fields["classes"], 1, MOST_CLASSES, MOST_CLASS_NAME)
    held = require_object("held", fields["held"])
    return SiteDescription(
        site=require_text("site", fields["site"], 1, MOST_CLASS_NAME),
        classes=tuple(sorted(classes)),
        train=require_int("train", fields["train"], 1, MOST_IMAGES),
        held={label: require_int("held", count, 1, MOST_IMAGES) for label, count in held.items()},
        test=require_int("test", fields["test"], 0, MOST_IMAGES),
        fingerprint=require_text("fingerprint", fields["fingerprint"], 64, 64),
        note=require_text("note", fields["note"], 0, MOST_NOTE),
        versions=_texts("versions", fields["versions"], 0, MOST_VERSIONS, MOST_VERSION),
    )


def _texts(what: str, value: object, least: int, most: int, length: int) -> tuple[str, ...]:
    entries = require_list(what, value, least, most)
    return tuple(require_text(f"an entry of {what}", entry, 1, length) for entry in entries)


def _check_plausible(name: str, description: SiteDescription) -> None:
    """Refuse what cannot be true, though each field for itself could be."""
    if description.site != name:
        raise ProtofedError(f"site must be {name}, not {description.site}")
    if len({*description.classes}) < len(description.classes):
        raise ProtofedError("classes has an entry twice")
    if not description.held.keys() <= {*description.classes}:
        raise ProtofedError("held counts a class that is not in classes")
    counted = sum(description.held.values())
    if description.held and counted != description.train:
        raise ProtofedError(f"held adds up to {counted}, but train is {description.train}")
    if not FINGERPRINT.fullmatch(description.fingerprint):
        raise ProtofedError("fingerprint must be the 64 digits of a SHA-256, 0 to 9 and a to f")


ANY = "(any site)"  # stands for sites that are not known yet; none can have this name
OF_THE_SITES = ("at", "name", "domains", "revision", "strict")
OF_THE_SPEC = ("side", "channels", "pad", "flip")


def _as_submitted(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A spec as it was handed in; that of a run folder also says what the sites had brought."""
    data = raw.get("data")
    if not isinstance(data, Mapping) or "at" not in data:
        return raw
    kept = {field: value for field, value in data.items() if field not in OF_THE_SITES}
    return {**{field: raw[field] for field in raw if field != "partition"}, "data": kept}


def remote_experiment(raw: Mapping[str, Any], offers: Sequence[SiteDescription] = ()) -> Experiment:
    """The experiment that a spec without images makes with the descriptions of some sites.

    Each site is a client and a domain. Without descriptions the result only checks the spec. A spec
    that names images, a partition or a device is refused: the sites decide these.
    """
    raw = _as_submitted(raw)
    unseen = [str(raw["leave_out"])] if raw.get("leave_out") else []
    names = sorted(offer.site for offer in offers) or [ANY, *unseen]
    given = raw.get("data", {})
    if not isinstance(given, Mapping) or set(OF_THE_SITES) & given.keys():
        raise ProtofedError(
            f"data: in a federation the sites bring the images; of data only "
            f"{', '.join(OF_THE_SPEC)} can be set"
        )
    if raw.get("device", "cpu") != "cpu":
        raise ProtofedError(
            "device: in a federation sites compute on their processors; leave it out"
        )
    if "partition" in raw:
        raise ProtofedError("partition: in a federation a site is a client; leave it out")
    sums = sorted((offer.site, offer.fingerprint) for offer in offers)
    made = {
        **given,
        "at": "sites",
        "domains": names,
        "revision": hashlib.sha256(json.dumps(sums).encode()).hexdigest()[:12],
    }
    experiment = parse_experiment({**raw, "data": made, "device": "cpu"})
    _check_code_is_installed(experiment)
    if experiment.public is not None:
        raise ProtofedError(
            f"method: {experiment.method.info.label} needs public images, which a federation "
            f"does not have yet"
        )
    return experiment


def _check_code_is_installed(experiment: Experiment) -> None:
    for name in code_names(experiment.to_dict()):
        if parse_reference(name).is_file:
            raise ProtofedError(
                f"{name}: in a federation code never travels\ninstall it at the coordinator and "
                "at every site, and name it by its module, as package.module:Mine; each site's "
                "policy must name it too"
            )
