"""Random streams named by their purpose, never "the next number" of a shared generator."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch


def stream_seed(*key: int | str) -> int:
    """A 63-bit seed for the stream with this key, e.g. ``stream_seed(seed, "exchange", round)``.

    Different keys give independent streams; the same key always gives the same seed, on every
    machine.
    """
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def rng(*key: int | str) -> torch.Generator:
    """A new torch generator for the stream with this key, at its start.

    Draws depend on the key alone, so neither the order of clients nor a resumed run changes them.
    Name what the numbers are for and all that they should differ by::

        order = torch.randperm(n, generator=rng(seed, "shuffle", round, epoch))

    Inside a method use `site.rng`, which adds the run's seed and the site's id.
    """
    return torch.Generator().manual_seed(stream_seed(*key))


def numpy_rng(*key: int | str) -> np.random.Generator:
    """A new numpy generator for the stream with this key.

    For distributions that torch cannot draw from a generator, such as Dirichlet.
    """
    return np.random.default_rng(stream_seed(*key))
