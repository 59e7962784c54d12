from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from protofed.core import tree
from protofed.core.site import ArrayDataset, Site
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedga import split_site
from protofed.testing import toy_sites


def numbered(size: int, seed: int = 0, client: int = 0) -> Site:
    """A site whose images are told apart by their labels."""
    site = toy_sites(FedAvg(), seed)[1][client]
    images = torch.arange(size, dtype=torch.uint8)[:, None, None, None].expand(size, 8, 8, 3)
    return replace(site, train=ArrayDataset(images, torch.arange(size)))


def labels(data: ArrayDataset) -> list[int]:
    return data.labels.tolist()


@pytest.mark.parametrize(
    ("size", "share", "taken"),
    [(40, 0.1, 4), (40, 0.2, 8), (17, 0.1, 2), (4, 0.1, 1), (2, 0.1, 1), (2, 0.9, 1), (1, 0.9, 0)],
)
def test_a_share_is_taken_but_one_image_always_stays(size: int, share: float, taken: int) -> None:
    rest, held = split_site(numbered(size), share)
    assert (len(rest.train), len(held)) == (size - taken, taken)
    assert sorted(labels(rest.train) + labels(held)) == list(range(size))


def test_images_go_with_their_labels() -> None:
    rest, held = split_site(numbered(30), 0.3)
    for data in (rest.train, held):
        assert data.images[:, 0, 0, 0].tolist() == labels(data)


def test_the_same_images_are_held_out_every_time_and_others_elsewhere() -> None:
    site = numbered(60)
    mine = labels(split_site(site, 0.2)[1])
    assert mine == labels(split_site(site, 0.2)[1])
    assert mine != labels(split_site(numbered(60, client=1), 0.2)[1])
    assert mine != labels(split_site(numbered(60, seed=1), 0.2)[1])
    assert mine != list(range(12))


def test_the_rest_of_the_site_is_as_it_was_and_the_site_is_not_changed() -> None:
    site = numbered(20)
    rest, _ = split_site(site, 0.2)
    assert labels(site.train) == list(range(20))
    assert replace(rest, train=site.train) == site
    assert tree.equal(rest.initial_model(), site.initial_model())


def test_the_server_holds_nothing_and_holds_nothing_out() -> None:
    rest, held = split_site(toy_sites(FedAvg())[0], 0.5)
    assert (len(rest.train), len(held)) == (0, 0)
