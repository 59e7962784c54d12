"""Features of a frozen encoder, computed once: a federation of images as one of vectors.

Each image gives k feature vectors, of the image itself and of k - 1 augmented views. Training draws
one of them at each visit; all else takes the first. Methods see a net that takes vectors, so rounds
cost what training neck and head costs. The model is that of the images: it is exported with the
encoder.
"""

from __future__ import annotations

import copy
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from protofed.core.freezing import frozen_weights
from protofed.core.model import Net
from protofed.core.rng import rng
from protofed.core.site import SERVER, ArrayDataset, ClientId, Site
from protofed.core.training import torch_threads
from protofed.data.array_checks import LabelledArrays, check_arrays
from protofed.data.array_folder import ArrayPack, store_arrays
from protofed.data.npz_store import cached_arrays
from protofed.federation.build import (
    Federation,
    build_nets,
    describe_environment,
    experiment_images,
    image_transform,
    server_site,
)
from protofed.spec.code_fingerprint import code_digests
from protofed.spec.experiment_spec import Experiment

AT_ONCE = 64  # images
OF_FEATURES = ("protofed/nets/", "protofed/core/", "protofed/data/transforms.py")


@dataclass(frozen=True)
class FeatureViews:
    """How stored features [B, k, D] become the input of a net: one of the k views [B, D]."""

    def augment(self, images: Tensor, draw: torch.Generator) -> Tensor:
        """One view of each image, drawn from `draw`."""
        count, views, _ = images.shape
        if views == 1:
            return images[:, 0]
        chosen = torch.randint(views, (count,), generator=draw).to(images.device)
        return images[torch.arange(count, device=images.device), chosen]

    def normalize(self, images: Tensor) -> Tensor:
        """The features of the images themselves."""
        return images[:, 0]


def with_stored_features(experiment: Experiment, federation: Federation) -> Federation:
    """The federation on stored features, if the experiment asks for them.

    Public and test images are not augmented, and a client's views are its own.
    """
    if not experiment.feature_views:
        return federation
    everyone, tests = store_features(experiment, federation.everyone, federation.tests)
    sites = {client: site for client, site in everyone.items() if client != SERVER}
    return federation._replace(server=everyone[SERVER], sites=sites, tests=tests)


def store_features(
    experiment: Experiment, sites: Mapping[ClientId, Site], tests: Mapping[str, ArrayDataset]
) -> tuple[dict[ClientId, Site], dict[str, ArrayDataset]]:
    """Sites and test sets with features in place of images; all sites have the same net.

    Features that were computed before, for any method, come from the cache.
    """
    encoder = FrozenEncoder(experiment, next(iter(sites.values())))
    net = _net_of_vectors(encoder.site.net)
    public = encoder.features(encoder.site.public, 1, 0)
    stored = {
        client: replace(
            site,
            net=net,
            pixels=FeatureViews(),
            train=ArrayDataset(
                encoder.features(site.train.images, experiment.feature_views, client),
                site.train.labels,
            ),
            public=public,
        )
        for client, site in sites.items()
    }
    return stored, {
        name: ArrayDataset(encoder.features(test.images, 1, 0), test.labels)
        for name, test in tests.items()
    }


def _net_of_vectors(net: Net) -> Net:
    """A copy of a net that takes the output of its encoder in place of images."""
    made = copy.deepcopy(net)
    made.encoder = nn.Identity()
    return made


class FrozenEncoder:
    """Computes features by the encoder of a site's net, or takes them from the cache.

    The key of the cache is a digest of all that decides them: the images, the encoder's weights,
    normalisation and augmentation, the code, and the machine's way to compute.
    """

    def __init__(self, experiment: Experiment, site: Site):
        self.experiment, self.site = experiment, site
        code = {
            name: digest
            for name, digest in code_digests(experiment).items()
            if name.startswith(OF_FEATURES) or not name.startswith("protofed/")
        }
        about = (code, describe_environment(), site.pixels, experiment.threads)
        how = (experiment.device, experiment.precision, experiment.net_labels)
        self.digest = hashlib.sha256(repr((about, how)).encode())
        file = io.BytesIO()
        torch.save(frozen_weights(site.net), file)
        self.digest.update(file.getvalue())

    def features(self, images: Tensor, views: int, client: ClientId) -> Tensor:
        """Features [N, views, D] of stored images; of augmented views, those of this client."""
        seed = self.experiment.seed if views > 1 else 0
        key = self.digest.copy()
        key.update(repr((views, seed, client if views > 1 else 0, images.shape)).encode())
        key.update(images.numpy().data)
        made = cached_arrays(
            f"features/{key.hexdigest()[:32]}",
            lambda: {"features": self._compute(images, views, seed, client).numpy()},
        )
        return torch.from_numpy(made["features"])

    @torch.no_grad()
    def _compute(self, images: Tensor, views: int, seed: int, client: ClientId) -> Tensor:
        pixels, draw = self.site.pixels, rng(seed, "site", client, "views")
        rows = [self._encode(images, pixels.normalize)]
        for _ in range(1, views):
            rows.append(self._encode(images, lambda some: pixels.augment(some, draw)))
        return torch.stack(rows, 1)

    def _encode(self, images: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
        """Features [N, D] of transformed images, on the experiment's device."""
        net, device = self.site.net.eval(), torch.device(self.experiment.device)
        empty = torch.zeros(0, net.width)
        with torch_threads(self.experiment.threads):
            found = (net.encode(transform(some).to(device)).cpu() for some in _batches(images))
            return torch.cat([empty, *found])


def _batches(images: Tensor) -> Iterator[Tensor]:
    return (some for some in images.split(AT_ONCE) if len(some))


def embed_data(experiment: Experiment, folder: Path) -> ArrayPack:
    """Write the features of all images of an experiment's data to a folder of arrays.

    That folder is data in its own right: rows of numbers, with the same domains, classes and test
    parts. Nothing in it tells which image a row came from.
    """
    entry, benchmark = experiment_images(experiment)
    classes, first = benchmark.classes, benchmark.domains[0].train
    (net,) = build_nets(experiment, len(classes))
    pixels = image_transform(experiment, entry.channel_statistics)
    encoder = FrozenEncoder(
        experiment, server_site(experiment, pixels, len(classes), first, net, {})
    )

    def rows(data: ArrayDataset) -> LabelledArrays:
        names = [classes[label] for label in data.labels.tolist()]
        return encoder.features(data.images, 1, 0)[:, 0].numpy(), names

    train = {domain.name: rows(domain.train) for domain in benchmark.domains}
    test = {domain.name: rows(domain.test) for domain in benchmark.domains if len(domain.test)}
    return store_arrays(check_arrays(train, test, classes), folder)
