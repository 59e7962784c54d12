"""Registers the keys of all sites in one process: Flower's own command takes seconds for each."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from flwr.cli.app import app

from protofed.deploy.known import look
from protofed.deploy.serve import CONNECTION


def main() -> None:
    """``register FILES...``: each named as its site."""
    for file in sys.argv[1:]:  # Flower names no file, takes certificates, and waits for pipes
        if fault := look(file).fault:
            sys.exit(f"{file} is no public key of a site: {fault}\nremove it from there")
    for key in map(Path, sys.argv[1:]):
        try:
            app(
                ["supernode", "register", str(key), CONNECTION, "--name", key.stem],
                standalone_mode=False,
            )
        except click.ClickException as fault:
            sys.exit(f"{key}: {fault.format_message()}")


if __name__ == "__main__":
    main()
