"""One client with the images of all: what a federation is measured against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from protofed.federation.build import POOLED, build_federation
from protofed.spec.spec_parser import parse_experiment

FEW: dict[str, Any] = {"kind": "shares", "clients": 4, "samples": 30}


def test_one_client_holds_the_images_of_all_in_their_order() -> None:
    apart = build_federation(parse_experiment({"partition": FEW}))
    pooled = build_federation(parse_experiment({"partition": FEW, "pooled": True}))
    (client,) = pooled.sites.values()
    assert (client.id, client.domain, pooled.server.sizes) == (0, POOLED, {0: 120})
    held = [site.train for site in apart.sites.values()]
    assert torch.equal(client.train.labels, torch.cat([data.labels for data in held]))
    channels = client.train.images.shape[-1]
    wide = [data.images.expand(-1, -1, -1, channels) for data in held]
    assert torch.equal(client.train.images, torch.cat(wide))
    assert pooled.held() == apart.held()  # the record still says which place has what
    assert pooled.tests.keys() == apart.tests.keys()
    assert [str(note) for note in pooled.notices] == [str(note) for note in apart.notices]


def test_pooling_a_single_client_changes_no_bit(tmp_path: Path) -> None:
    spec = {
        "data": {"name": "digits-mini", "domains": ["optical"]},
        "partition": {"kind": "shares", "clients": 1, "samples": 60},
        "rounds": 2,
    }
    for pooled in (False, True):
        run(parse_experiment({**spec, "pooled": pooled}), tmp_path / str(pooled))
    first, second = (tmp_path / str(pooled) / "scores.jsonl" for pooled in (False, True))
    assert first.read_bytes() == second.read_bytes()


def test_held_out_images_stay_out_of_the_pool() -> None:
    made = parse_experiment({"partition": FEW, "pooled": True, "validation": 0.2})
    pooled = build_federation(made)
    assert len(pooled.sites[0].train) == 4 * 24
    assert sum(map(len, pooled.tests.values())) == 4 * 6


def test_several_nets_cannot_be_pooled() -> None:
    with pytest.raises(ProtofedError, match="pooled: one client has one net"):
        parse_experiment({"net": ["moon-cnn", "lsa-cnn"], "method": "local", "pooled": True})
