"""Who gets whose parcel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from protofed.core.site import ClientId


def random_derangement(
    clients: Sequence[ClientId], draw: torch.Generator
) -> dict[ClientId, ClientId]:
    """A random partner for each client, every one once and nobody itself; alone, itself.

    Clients stand in a random circle and each gets its neighbour's parcel.
    """
    order = [clients[i] for i in torch.randperm(len(clients), generator=draw).tolist()]
    return dict(sorted(zip(order, [*order[1:], order[0]], strict=True)))
