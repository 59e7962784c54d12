"""A spec without images, and the experiment that it makes with what the sites offer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from protofed.data.folder_images import FolderInfo
from protofed.errors import ProtofedError
from protofed.experiment import run_records
from protofed.federation.remote_sites import SiteDescription
from protofed.spec.experiment_spec import Experiment
from protofed.spec.spec_parser import parse_experiment

PLACE = "/federation"  # stands where a folder of images would; its last part is the label
RECORD = "federation.json"  # in a run folder: what the sites had offered when the run began
ANY = "(any site)"  # stands for sites that are not known yet; none can have this name
OF_THE_SITES = ("name", "domains", "revision", "strict")
DEFAULTS = ("side", "channels", "pad", "flip")


class FederationRecord(TypedDict):
    """The shape of ``federation.json``, which a run across machines has in its folder.

    `run` is its name at the sites; `offers` is what each site described when the run began.
    """

    run: str
    offers: list[SiteDescription]


FEDERATION = TypeAdapter(FederationRecord)


def is_remote(experiment: Experiment) -> bool:
    """Whether the images of an experiment are at the sites of a federation.

    Such an experiment can be submitted, but not run or scored on this machine alone.
    """
    return experiment.data.name == PLACE


def recorded_descriptions(folder: Path) -> list[SiteDescription]:
    """What the sites of a run described (classes, counts, digests) when the run began."""
    return run_records.read_record_file(FEDERATION, folder / RECORD)["offers"]


def _as_submitted(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A spec as it was handed in; that of a run folder also says what the sites had brought."""
    data = raw.get("data")
    if not isinstance(data, Mapping) or data.get("name") != PLACE:
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
            f"{', '.join(DEFAULTS)} can be set"
        )
    if raw.get("device", "cpu") != "cpu":
        raise ProtofedError(
            "device: in a federation sites compute on their processors; leave it out"
        )
    if "partition" in raw:
        raise ProtofedError("partition: in a federation a site is a client; leave it out")
    sums = sorted((offer.site, offer.fingerprint) for offer in offers)
    made = {
        **{field: getattr(FolderInfo, field) for field in DEFAULTS},
        **given,
        "name": PLACE,
        "domains": names,
        "revision": hashlib.sha256(json.dumps(sums).encode()).hexdigest()[:12],
    }
    experiment = parse_experiment({**raw, "data": made, "device": "cpu"})
    if experiment.public is not None:
        raise ProtofedError(
            f"method: {experiment.method.info.label} needs public images, which a federation "
            f"does not have yet"
        )
    return experiment
