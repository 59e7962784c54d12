"""Where a model comes from: a run folder, as a module with what there is to know of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from protofed.core.errors import ProtofedError
from protofed.core.rng import rng
from protofed.core.site import ClientId
from protofed.data.transforms import ImageTransform
from protofed.experiment.environment import describe_environment
from protofed.experiment.opened import TrainedRun, open_trained_model
from protofed.experiment.result import read_evaluations, read_result
from protofed.experiment.rundir import RunDir
from protofed.experiment.submitted import is_remote
from protofed.product.facts import ModelMetadata, portable_spec
from protofed.product.portable import InferenceModule, ModelOutputs, record_inputs

CHECKED = 64  # images that a written file is checked on, from all domains alike
DRAWN = "images of noise (the real ones are at the sites)"


class TrainedProduct(NamedTuple):
    """A model that can be asked, wherever it lies."""

    facts: ModelMetadata
    answer: Callable[[Tensor], ModelOutputs]  # images [N, side, side, 3] uint8
    portable: InferenceModule | None = None  # where it can be looked into, for heat maps


class LoadedModel(NamedTuple):
    """A model of a run, and images with what the run itself says of them."""

    product: TrainedProduct
    portable: InferenceModule
    images: Tensor  # [N, side, side, 3] uint8
    logits: Tensor  # [N, C]
    kind: str = "test images"  # what these images are


def load_trained_model(folder: Path, client: ClientId | None = None) -> LoadedModel:
    """The newest model of a run; of personal methods, a client's own."""
    opened = open_trained_model(folder)
    away = is_remote(opened.experiment)
    _check_client(opened, client, away)
    images = _drawn(opened.experiment.data.side) if away else _real_images(opened)
    site, state = opened.speaker(client)
    inbox = opened.method.publish(opened.server)
    portable = record_inputs(opened.method, site, inbox, state, images[:1])
    with torch.no_grad():
        logits = opened.method.predict(site, inbox, state, site.pixels.normalize(images))
    facts = _facts(opened, RunDir(folder), client)
    product = TrainedProduct(facts, portable.answer, portable)
    return LoadedModel(product, portable, images, logits, *([DRAWN] if away else []))


def _check_client(opened: TrainedRun, client: ClientId | None, away: bool) -> None:
    """A client must be named where each has a model, and only there; its model must be here."""
    sites, label = opened.federation.sites, opened.method.info.label
    if not opened.method.personal:
        if client is not None:
            raise ProtofedError(f"{label} has one model for all clients: leave --client out")
        return
    if away:
        raise ProtofedError(
            f"{label} leaves each site with a model of its own, and these models never left the "
            f"sites: there is none here to take along"
        )
    if client not in sites:
        there = ", ".join(f"{number} ({site.domain})" for number, site in sorted(sites.items()))
        asked = "" if client is None else f", and there is no client {client}"
        raise ProtofedError(
            f"{label} leaves each client with a model of its own{asked}\n"
            f"choose one with --client: {there}"
        )


def _real_images(opened: TrainedRun) -> Tensor:
    """Test images of every domain, in colour."""
    tests = [test.images for test in opened.federation.tests.values() if len(test)]
    if not tests:
        raise ProtofedError("this run has no test images, on which its model could be checked")
    each = -(-CHECKED // len(tests))
    return torch.cat([images[:each].expand(-1, -1, -1, 3) for images in tests])


def _drawn(side: int) -> Tensor:
    """Noise, where there are no images: a file must answer as the run on any pixels."""
    chance = rng("product", "drawn")
    return torch.randint(256, (CHECKED, side, side, 3), dtype=torch.uint8, generator=chance)


def _facts(opened: TrainedRun, folder: RunDir, client: ClientId | None) -> ModelMetadata:
    experiment, site = opened.experiment, opened.federation.server
    pixels = cast(ImageTransform, site.pixels)  # what every federation is assembled with
    home = "" if client is None else opened.federation.sites[client].domain
    net = experiment.nets[0 if client is None else client % len(experiment.nets)]
    versions = describe_environment()
    return ModelMetadata(
        classes=opened.federation.benchmark.classes,
        side=experiment.data.side,
        channels=pixels.channels,
        mean=pixels.mean,
        std=pixels.std,
        method=opened.method.info.label,
        net=net,
        round=opened.round,
        rounds=experiment.rounds,
        client=client,
        domain=home,
        digest=experiment.digest,
        scores=_scores(folder, opened.round, client),
        notices=tuple(opened.federation.notices),
        made_with={name: versions[name] for name in ("protofed", "torch", "pillow")},
        spec=portable_spec(experiment),
    )


def _scores(folder: RunDir, number: int, client: ClientId | None) -> dict[str, Any]:
    """Accuracy on the test images: a client's own, the finished run's, or the newest round's."""
    newest = next(one for one in read_evaluations(folder) if one.round == number)
    if client is not None and newest.clients:
        return {"last": {"rule": f"round {number}", "domains": newest.clients[str(client)]}}
    if not folder.done.exists():
        return {"last": {"rule": f"round {number}", **newest.scores.to_dict()}}
    told = read_result(folder).to_dict()
    return {name: told[name] for name in ("last", "last_five")}
