"""What a run stood on: the images, the versions and the machine."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path

from protofed.data.benchmark_info import Benchmark
from protofed.errors import ProtofedError
from protofed.experiment.run_records import WORLD, World, read_record_file


def data_fingerprints(benchmark: Benchmark) -> dict[str, str]:
    """SHA-256 of each domain's images and labels, as the nets of a run saw them."""
    sums = {}
    for domain in benchmark.domains:
        digest = hashlib.sha256()
        for part in (domain.train, domain.test):
            digest.update(part.images.numpy().data)
            digest.update(part.labels.numpy().data)
        sums[domain.name] = digest.hexdigest()
    return sums


def describe_environment() -> dict[str, str]:
    """The versions and the machine behind a run."""
    packages = {name: version(name) for name in ("protofed", "torch", "numpy", "pillow")}
    return {"python": platform.python_version(), **packages, "platform": platform.platform()}


def check_same_environment(folder: Path, world: World) -> None:
    """Refuse to go on with a run that stood on something else."""
    env = folder / "env.json"
    before = read_record_file(WORLD, env) if env.exists() else world
    for what in ("torch", "data"):
        if before.get(what) != world[what]:
            raise ProtofedError(
                f"{folder} was begun with other {what}: {before.get(what)}, now {world[what]}\n"
                f"`protofed run` starts over with --again, or elsewhere with another --out"
            )
