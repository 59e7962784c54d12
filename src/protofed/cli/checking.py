"""``protofed join --check``: look at everything, join nothing."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn


def run_check(
    address: str, keys: Path | None, data: Path, home: Path, as_json: bool = False
) -> NoReturn:
    """Print what was found, a line each; the exit code is 1 if anything failed."""
    raise NotImplementedError
