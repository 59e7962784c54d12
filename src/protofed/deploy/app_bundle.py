"""The only app that a federation runs under: a constant without any code in it.

Flower starts no run without an app. A SuperNode would fetch that app and import what it names; a
site of ours never does, and takes letters only of runs that were started with this very bundle.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache

PROTOCOL = 2  # of the letters between coordinator and sites; both must speak the same
DATE = (2024, 1, 1, 0, 0, 0)
PROJECT = f"""\
[project]
name = "protofed-federation"
version = "{PROTOCOL}.0.0"
description = "Marks a run of protofed; holds no code"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "protofed"

[tool.flwr.app.components]
serverapp = "protofed:no_server_app"
clientapp = "protofed:no_client_app"

[tool.flwr.app.config]
"""


@cache
def app_bundle() -> bytes:
    """The bundle, the same bytes on every machine."""
    content = PROJECT.encode()
    listing = f"pyproject.toml,{hashlib.sha256(content).hexdigest()},{8 * len(content)}"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, text in (("pyproject.toml", content), (".info/CONTENT", listing.encode())):
            entry = zipfile.ZipInfo(name, DATE)
            entry.create_system = 3  # what zipfile says on Unix, everywhere
            archive.writestr(entry, text)
    return stream.getvalue()


@cache
def bundle_hash() -> str:
    """The name under which Flower knows the bundle: its SHA-256."""
    return hashlib.sha256(app_bundle()).hexdigest()
