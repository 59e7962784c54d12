"""A random stream is named by its key alone: no order of draws and no other stream moves it."""

from __future__ import annotations

import hashlib

import torch

from protofed.core.rng import numpy_rng, rng, stream_seed


def test_streams_are_named_by_meaning() -> None:
    assert stream_seed(1, "a") == stream_seed(1, "a")
    keys: list[tuple[int | str, ...]] = [
        (1, "a"),
        (1, "b"),
        (2, "a"),
        ("1", "a"),
        (1,),
        (1, "a", 0),
    ]
    assert len({stream_seed(*key) for key in keys}) == len(keys)
    assert torch.equal(torch.rand(3, generator=rng(5)), torch.rand(3, generator=rng(5)))
    assert numpy_rng(5).random() == numpy_rng(5).random()


def test_a_seed_is_the_digest_of_its_key_as_json() -> None:
    digest = hashlib.blake2b(b'[7, "shuffle", 0]', digest_size=8).digest()
    number = 0
    for byte in digest:
        number = number * 256 + byte
    assert stream_seed(7, "shuffle", 0) == number // 2
    assert all(0 <= stream_seed(n) < 2**63 for n in range(100))


def test_a_key_is_not_the_text_of_its_parts() -> None:
    assert stream_seed("a", "b") != stream_seed("ab")
    assert stream_seed("a", 1) != stream_seed("a1")
    assert stream_seed("a", 11) != stream_seed("a", 1, 1)


def test_draws_from_other_streams_between_change_nothing() -> None:
    alone = torch.rand(4, generator=rng(3, "noise"))
    torch.rand(100, generator=rng(3, "shuffle"))
    torch.manual_seed(0)
    global_state = torch.get_rng_state()
    assert torch.equal(alone, torch.rand(4, generator=rng(3, "noise")))
    assert torch.equal(global_state, torch.get_rng_state())


def test_streams_of_neighbouring_keys_are_uncorrelated() -> None:
    draws = torch.stack([torch.randn(2000, generator=rng(0, n)) for n in range(8)])
    correlations = torch.corrcoef(draws) - torch.eye(8)
    assert correlations.abs().max() < 4 / 2000**0.5  # four standard deviations
