"""Random streams named by meaning, never by "the next number"."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch


def stream_seed(*key: int | str) -> int:
    """A 63-bit seed for the stream with this meaning, e.g. ``stream(seed, "swap", round)``."""
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def rng(*key: int | str) -> torch.Generator:
    """The torch generator of a named stream."""
    return torch.Generator().manual_seed(stream_seed(*key))


def numpy_rng(*key: int | str) -> np.random.Generator:
    """The numpy generator of a named stream, for what torch cannot draw (Dirichlet)."""
    return np.random.default_rng(stream_seed(*key))
