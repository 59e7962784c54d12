"""What the commands of a federation say when something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from protofed.deploy import coordinator as submitting
from protofed.deploy.coordinator import SubmittedJob
from protofed.deploy.join import join_federation
from protofed.deploy.preflight import JoiningSite
from protofed.deploy.serve import RunningServer, find_server
from protofed.errors import ProtofedError
from tests.cli.conftest import Cli
from tests.fleet.desks import Heard


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOFED_HOME", str(tmp_path / "home"))


def test_serving_wants_keys_or_a_word_that_it_shall_be_insecure(cli: Cli) -> None:
    ended = cli("serve")
    assert ended.code == 2
    assert "--insecure" in ended.err


def test_joining_another_machine_wants_keys(tmp_path: Path) -> None:
    with pytest.raises(
        ProtofedError, match=r"another machine, which takes no site without keys\ngive `keys`"
    ):
        join_federation(JoiningSite("fed.example.org:8443", "north", tmp_path, tmp_path / "home"))
    with pytest.raises(ProtofedError, match="HOST:PORT"):
        join_federation(JoiningSite("fed.example.org", "north", tmp_path, tmp_path / "home"))


def test_a_site_cannot_choose_where_its_files_go_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match="letters, digits"):
        join_federation(JoiningSite("127.0.0.1:1", "../north", tmp_path, tmp_path / "home"))


def test_joining_wants_a_folder_of_images(tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match="class/image"):
        join_federation(
            JoiningSite("127.0.0.1:1", "north", tmp_path / "nowhere", tmp_path / "home")
        )


def test_submitting_wants_a_server_on_this_machine(tmp_path: Path, cli: Cli) -> None:
    with pytest.raises(ProtofedError, match="protofed serve"):
        find_server(tmp_path)
    (tmp_path / "spec.toml").write_text("rounds = 2\n")
    ended = cli("submit", str(tmp_path / "spec.toml"))
    assert ended.code == 2
    assert "no server runs here" in ended.err


def test_a_fault_of_the_spec_is_told_before_anybody_is_asked(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "spec.toml").write_text('rounds = 2\n[data]\nname = "digits"\n')
    ended = cli("submit", str(tmp_path / "spec.toml"))
    assert ended.code == 2
    assert "the sites bring the images" in ended.err


def test_a_site_without_a_key_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        submitting, "find_server", lambda home: RunningServer(1, "ca", ("north", "south"))
    )
    job = SubmittedJob({}, str(tmp_path), "", ("north", "east"), 0, 9.0, 9.0, False)
    with pytest.raises(ProtofedError, match="no key of east; it has those of north, south"):
        submitting.submit_job(job, tmp_path, Heard())
