"""Flower's register of site keys, filled at each start."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from protofed.core.errors import ProtofedError
from protofed.deploy.life import flower_environment

CONNECTION = "protofed"


def register(home: Path, keys: Mapping[str, Path]) -> None:
    """Let only sites with these public keys in, under these names."""
    for name, key in keys.items():
        command = ["flwr", "supernode", "register", str(key), CONNECTION, "--name", name]
        env = flower_environment(home)
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ProtofedError(f"the key of {name} was not taken: {done.stderr or done.stdout}")
