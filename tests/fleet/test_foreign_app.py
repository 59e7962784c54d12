"""Whoever controls the server cannot run code at a site: twenty apps, and real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from faults_flower.fleet import wait_for

from protofed.core.reply_validation import FRAME
from protofed.core.serialization import pack_tree, unpack_tree
from protofed.deploy.flower_client import PROJECT, bundle_hash
from protofed.deploy.run_channel import RunChannel
from protofed.engines.site_protocol import SiteRequest
from tests.fleet.foreign import Foreign, HostileServer, hostile_server

pytestmark = pytest.mark.long

OWN_NAME: dict[str, Any] = {
    "name": "protofed-federation",
    "publisher": "protofed",
    "version": "2.0.0",
}
VARIANTS = [
    Foreign("plain"),
    Foreign("same name", **OWN_NAME),
    Foreign("same name, our components", **OWN_NAME, client="protofed:no_client_app"),
    Foreign("announced with our hash", claims=bundle_hash()),
    Foreign("our own pyproject with more files", more=(("pyproject.toml", PROJECT),)),
    Foreign("another dependency", dependencies='"protofed", "requests"'),
    Foreign("a dependency from a path", dependencies='"x @ file:///tmp/x"'),
    Foreign("a module of the standard library", client="os:system"),
    Foreign("a module of ours", client="protofed.deploy.site_worker:main"),
    Foreign("a package called protofed", more=(("protofed/__init__.py", "raise SystemExit"),)),
    Foreign("a symlink", links=(("foreign/data", "/"),)),
    Foreign("a symlink in place of a module", links=(("flwr", "/tmp"),)),
    Foreign("a path out of the bundle", more=(("../../../tmp/out.py", "x = 1"),)),
    Foreign("train", kinds=("train",)),
    Foreign("evaluate", kinds=("evaluate",)),
    Foreign("query with a name", kinds=("query.hello",)),
    Foreign("many kinds", kinds=("train", "evaluate", "query")),
    Foreign("delayed", seconds=1.5),
    Foreign("another version", version="99.0.0"),
    Foreign("a sitecustomize", more=(("sitecustomize.py", "import foreign.client"),)),
]
LOADABLE = {"plain", "same name", "announced with our hash", "train", "delayed", "evaluate"}


def hello(server: HostileServer, line: RunChannel) -> str:
    """What our site says to an honest question."""
    ours = [site.node for site in line.online()]
    for node in ours:
        line.send(node, pack_tree(SiteRequest("hello")), 60.0, FRAME)
    found: list[str] = []

    def answered() -> bool:
        answers = line.answers(dict.fromkeys(line.sent, FRAME)).values()
        found.extend(unpack_tree(answer).text for answer in answers if isinstance(answer, bytes))
        return bool(found)

    wait_for(answered, 60)
    return found[0]


@pytest.mark.timeout(600)
def test_none_of_twenty_foreign_apps_runs_at_a_site(images: Path, tmp_path: Path) -> None:
    assert len({app.variant for app in VARIANTS}) == 20
    policy, data = tmp_path / "policy.toml", images / "site-a"
    policy.write_text("methods = []\n")
    with hostile_server(tmp_path / "server") as server:
        server.our_site(data, tmp_path / "home", policy)
        wait_for(lambda: "joined" in server.said("ours"), 60)
        honest = server.line()
        assert hello(server, honest) == "north"
        server.plain_site()  # the control: there foreign code runs
        wait_for(lambda: len(honest.online()) == 2, 60)
        for app in VARIANTS:  # while a run of ours is on
            server.send(app, data)
        told = tmp_path / "home" / "link" / "foreign-apps.jsonl"
        wait_for(lambda: told.exists() and told.read_text().count("\n") == len(VARIANTS), 240)
        assert hello(server, honest) == "north"
        wait_for(lambda: server.ran_at("plain") >= LOADABLE, 240)
        assert server.ran_at("ours") == set()
        assert server.said("ours").count("REFUSED: the server asked this site to run") == 20
        recorded = [json.loads(line) for line in told.read_text().splitlines()]
        assert all(line["sha256"] != line["ours"] == bundle_hash() for line in recorded)
        assert not (tmp_path / "home" / "answered.jsonl").exists()


@pytest.mark.timeout(300)
def test_a_server_that_lies_about_the_app_gets_nothing_run_either(
    images: Path, tmp_path: Path
) -> None:
    policy, data = tmp_path / "policy.toml", images / "site-a"
    policy.write_text("methods = []\n")
    lies = [Foreign(f"lie {kind}", kinds=(kind,)) for kind in ("query", "train", "evaluate")]
    with hostile_server(tmp_path / "server", lies=True) as server:
        server.our_site(data, tmp_path / "home", policy)
        wait_for(lambda: "joined" in server.said("ours"), 60)
        for app in lies:
            server.send(app, data)
        wait_for(lambda: len(server.told()) == len(lies), 120)
        assert all("it refused the message" in str(answer) for answer in server.told())
        assert server.ran_at("ours") == set()
