from __future__ import annotations

from collections.abc import Iterator

import pytest

from protofed.deploy.keys import make_keys
from tests.deploy.flower import Guarded, called, guarded


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A guarded server that knows the site north; south has a key that was never registered."""
    pytest.importorskip("flwr", reason="needs the flower extra")
    home = tmp_path_factory.mktemp("federation")
    make_keys(home / "keys", "localhost", ["north", "south"])
    with guarded(home / "keys", home / "run") as made:
        public = home / "keys" / "server" / "sites" / "north.pub"
        words = ["flwr", "supernode", "register", str(public), "here", "--name", "north"]
        called(words, made.home / "server")
        yield made
