"""The one public port of a federation."""

from __future__ import annotations

from pathlib import Path


def serve(
    listen: tuple[str, int],
    upstream: str,
    cert: Path,
    key: Path,
    ca: Path | None = None,
    sites: Path | None = None,
) -> None:
    """Stand at a public address until stopped."""
    raise NotImplementedError
