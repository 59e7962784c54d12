"""A fingerprint is a digest of what the nets see, and moves with every byte of it."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import replace

import torch

from protofed import __version__
from protofed.core.site import ArrayDataset
from protofed.data.benchmark_info import Benchmark, Domain
from protofed.federation.build import data_fingerprints, describe_environment


def images(seed: int, size: int) -> ArrayDataset:
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (size, 2, 2, 1), generator=draw, dtype=torch.uint8)
    return ArrayDataset(pixels, torch.arange(size) % 3)


def benchmark(*domains: Domain) -> Benchmark:
    return Benchmark("toy", ("a", "b", "c"), domains)


def test_a_fingerprint_is_the_digest_of_all_bytes_in_a_row() -> None:
    domain = Domain("one", images(0, 5), images(1, 3))
    content = b""
    for part in (domain.train, domain.test):
        for image in part.images:
            content += bytes(image.flatten().tolist())
        for label in part.labels.tolist():
            content += int(label).to_bytes(8, "little")
    assert data_fingerprints(benchmark(domain)) == {"one": hashlib.sha256(content).hexdigest()}


def test_one_pixel_or_one_label_moves_the_fingerprint_of_its_domain_alone() -> None:
    first, second = Domain("a", images(0, 4), images(1, 4)), Domain("b", images(2, 4), images(3, 4))
    before = data_fingerprints(benchmark(first, second))
    pixels, labels = second.test.images.clone(), second.test.labels.clone()
    pixels[3, 1, 1, 0] ^= 1
    labels[0] += 1
    for test in (replace(second.test, images=pixels), replace(second.test, labels=labels)):
        after = data_fingerprints(benchmark(first, second._replace(test=test)))
        assert after["a"] == before["a"]
        assert after["b"] != before["b"]


def test_the_environment_names_what_decides_bits() -> None:
    found = describe_environment()
    assert (found["protofed"], found["torch"]) == (__version__, torch.__version__)
    assert found["python"] == platform.python_version()
    assert all(isinstance(value, str) and value for value in found.values())
