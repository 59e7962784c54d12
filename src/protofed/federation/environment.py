"""What a run depends on: the images, the versions and the machine."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version

from protofed.data.benchmark import Benchmark


def data_fingerprints(benchmark: Benchmark) -> dict[str, str]:
    """SHA-256 of each domain's training and test images with their labels, by domain.

    Of the arrays as the nets see them, so a change of decoding or resizing shows as well.
    """
    sums = {}
    for domain in benchmark.domains:
        digest = hashlib.sha256()
        for part in (domain.train, domain.test):
            digest.update(part.images.numpy().data)
            digest.update(part.labels.numpy().data)
        sums[domain.name] = digest.hexdigest()
    return sums


def describe_environment() -> dict[str, str]:
    """The versions of Python, protofed, torch, numpy and pillow, and the platform.

    Recorded in every run folder, as other versions may give other bits.
    """
    packages = {name: version(name) for name in ("protofed", "torch", "numpy", "pillow")}
    return {"python": platform.python_version(), **packages, "platform": platform.platform()}
