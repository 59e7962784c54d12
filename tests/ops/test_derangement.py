from __future__ import annotations

import pytest
import torch

from protofed.ops.model_exchange import random_derangement


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("size", range(2, 8))
def test_everyone_gets_one_parcel_and_nobody_its_own(size: int) -> None:
    clients = [3 * number + 1 for number in range(size)]
    for seed in range(20):
        partner = random_derangement(clients, seeded(seed))
        assert list(partner) == clients
        assert sorted(partner.values()) == clients
        assert all(giver != taker for taker, giver in partner.items())


def test_a_client_alone_gets_its_own() -> None:
    assert random_derangement([7], seeded(0)) == {7: 7}


def test_every_partner_is_possible_and_the_stream_decides() -> None:
    found = {random_derangement([0, 1, 2, 3], seeded(seed))[0] for seed in range(50)}
    assert found == {1, 2, 3}
    assert random_derangement(range(9), seeded(4)) == random_derangement(range(9), seeded(4))
