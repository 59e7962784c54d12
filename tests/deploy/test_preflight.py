"""`join --check` against a real guarded server, and against servers that should not be joined."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest
import typer
from PIL import Image

pytest.importorskip("flwr", reason="needs the flower extra")

from protofed.cli.federation import run_join_check
from protofed.deploy.keys import make_keys
from protofed.deploy.preflight import CheckLine, JoiningSite, format_check_lines
from protofed.deploy.preflight import run_preflight as look
from tests.deploy.answering import answering
from tests.deploy.flower import Guarded, free_port


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for label, number in (("cat", 6), ("dog", 5)):
        (tmp_path / "images" / label).mkdir(parents=True)
        for each in range(number):
            Image.new("RGB", (8, 8)).save(tmp_path / "images" / label / f"{each}.png")
    return tmp_path / "images"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", "localhost", ["north"])
    return tmp_path / "keys" / "north"


def check(address: str, keys: Path | None, data: Path, home: Path) -> list[CheckLine]:
    """What a site called north finds."""
    return look(JoiningSite(address, "north", data, home, keys))


def by_name(lines: list[CheckLine]) -> dict[str, bool | None]:
    """The worst that is said of each thing."""
    found: dict[str, bool | None] = {}
    for line in lines:
        found[line.name] = min((found.get(line.name, True), line.ok), key=[False, None, True].index)
    return found


def test_all_is_well_at_a_registered_site(
    federation: Guarded, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, address = federation.keys / "north", f"localhost:{federation.public}"
    lines = check(address, site, images, tmp_path / "home")
    assert [line for line in lines if line.ok is False] == []
    told = {line.name: line.text for line in lines if line.ok}
    assert told["certificate"].startswith("by our authority, for localhost, until 20")
    assert told["gate"] == "closed to all but sites"
    assert told["data"] == "11 images of 2 classes"
    assert "flwr 1.41." in told["versions"]
    assert {"address", "clock", "key", "disk", "memory", "write"} <= told.keys()
    assert not (tmp_path / "home").exists()
    with pytest.raises(typer.Exit) as ended:
        run_join_check(JoiningSite(address, "north", images, tmp_path / "home", site), as_json=True)
    assert ended.value.exit_code == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [line.name for line in lines]


def test_a_key_that_the_server_does_not_know_is_told(keys: Path, images: Path) -> None:
    with answering(keys) as address:
        assert by_name(check(address, keys, images, images))["registered"] is True
        (keys.parent / "server" / "sites" / "north.pub").unlink()
        (line,) = [e for e in check(address, keys, images, images) if e.name == "registered"]
    assert line.ok is False
    assert "server/sites" in line.fix


def test_an_open_flower_port_is_not_to_be_joined(federation: Guarded, images: Path) -> None:
    lines = check(f"localhost:{federation.inner}", federation.keys / "north", images, images)
    assert by_name(lines)["gate"] is False
    assert "all of Flower stands open" in format_check_lines(lines)


@pytest.mark.parametrize(
    ("ahead", "right"), [(0, True), (3, True), (30, False), (-200, True), (-330, False)]
)
def test_the_clock_is_held_against_the_servers(
    keys: Path, images: Path, ahead: float, right: bool
) -> None:
    with answering(keys, date=time.time() - ahead) as address:
        assert by_name(check(address, keys, images, images))["clock"] is right


def test_a_server_of_another_authority_is_told(keys: Path, images: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "foreign", "localhost", ["north"])
    with answering(tmp_path / "foreign" / "north") as address:
        lines = check(address, keys, images, images)
    assert by_name(lines)["certificate"] is False
    assert "clock" not in by_name(lines)


def test_a_certificate_that_ends_soon_is_told(images: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "short", "localhost", ["north"], days=3)
    site = tmp_path / "short" / "north"
    with answering(site) as address:
        assert by_name(check(address, site, images, images))["certificate"] is None


def test_without_keys_only_this_machine_will_do(images: Path) -> None:
    with answering(None) as address:
        found = by_name(check(address, None, images, images))
    assert (found["address"], found["certificate"], found["key"]) == (True, None, None)


def test_nobody_there_or_somebody_silent(keys: Path, images: Path) -> None:
    lines = check(f"localhost:{free_port()}", keys, images, images)
    assert by_name(lines)["address"] is False
    assert "FAIL  address" in format_check_lines(lines)
    assert "-> is the server running" in format_check_lines(lines)
    for address in ("no such host", "nowhere.invalid"):
        assert by_name(check(address, keys, images, images))["address"] is False
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        closing = threading.Thread(target=hang_up, args=(held,))
        closing.start()
        found = by_name(check(f"localhost:{port}", keys, images, images))
        closing.join()
    assert (found["address"], found["certificate"]) == (True, False)


def hang_up(held: socket.socket) -> None:
    for _ in range(2):
        held.accept()[0].close()


def test_a_key_that_others_can_read_fails(keys: Path, images: Path) -> None:
    (keys / "site.key").chmod(0o644)
    lines = check("localhost:1", keys, images, images)
    assert by_name(lines)["key"] is False
    assert f"-> chmod 600 {keys / 'site.key'}" in format_check_lines(lines)


@pytest.mark.parametrize("file", ["site.key", "site.pub", "site.json"])
@pytest.mark.parametrize("how", ["missing", "empty", "other"])
def test_a_folder_of_keys_that_is_not_whole_fails(
    keys: Path, images: Path, tmp_path: Path, file: str, how: str
) -> None:
    if how == "other" and file != "site.json":
        make_keys(tmp_path / "foreign", "localhost", ["north"])
        shutil.copy(tmp_path / "foreign" / "north" / file, keys / file)
    elif how == "missing":
        (keys / file).unlink()
    else:
        (keys / file).write_text("" if how == "empty" else "[]")
    assert by_name(check("localhost:1", keys, images, images))["key"] is False


def test_images_are_looked_at(keys: Path, images: Path) -> None:
    (images / "cat" / "notes.txt").write_text("?")
    (images / "owl").mkdir()
    Image.new("RGB", (8, 8)).save(images / "owl" / "1.png")
    lines = check("localhost:1", keys, images, images)
    assert by_name(lines)["data"] is None
    text = format_check_lines(lines)
    assert "12 images of 3 classes; not readable: cat/notes.txt" in text
    assert "fewer than 5 images of owl" in text
    assert by_name(check("localhost:1", keys, images / "none", images))["data"] is False
    assert by_name(check("localhost:1", keys, images / "owl", images))["data"] is False


def test_a_folder_with_all_sites_images_is_told_with_the_one_to_give(
    keys: Path, images: Path, tmp_path: Path
) -> None:
    every = tmp_path / "every"
    every.mkdir()
    (every / "north").symlink_to(images)
    text = format_check_lines(check("localhost:1", keys, every, tmp_path))
    assert f"-> it holds the images of several sites: use `data={every / 'north'}`" in text
    (every / "north").rename(every / "south")
    text = format_check_lines(check("localhost:1", keys, every, tmp_path))
    assert "-> write class/image" in text
    assert "domain/" not in text


def test_keys_of_another_site_fail(keys: Path, images: Path) -> None:
    lines = look(JoiningSite("localhost:1", "south", images, images, keys))
    assert by_name(lines)["key"] is False
    assert "are those of site north, not of south" in format_check_lines(lines)


def test_a_policy_is_read_and_told(keys: Path, images: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("min_examples = 6\n")
    text = format_check_lines(
        look(JoiningSite("localhost:1", "north", images, images, keys, policy))
    )
    assert "prototypes of 6 or more examples" in text
    assert "fewer than 6 images of dog" in text
    policy.write_text("min_example = 6\n")
    lines = look(JoiningSite("localhost:1", "north", images, images, keys, policy))
    assert by_name(lines)["policy"] is False


@pytest.mark.parametrize("split", [False, True])
def test_classes_that_are_too_small_to_be_scored_are_told(
    keys: Path, images: Path, tmp_path: Path, split: bool
) -> None:
    for number in range(24):  # a fifth is 5 with the 6 that are there
        Image.new("RGB", (8, 8)).save(images / "cat" / f"more-{number}.png")
    if split:
        (tmp_path / "own").mkdir()
        images = images.rename(tmp_path / "own" / "test").parent
        shutil.copytree(images / "test", images / "train")
    policy = tmp_path / "policy.toml"
    site = JoiningSite("localhost:1", "north", images, tmp_path, keys, policy)
    policy.write_text("send_counts = true")
    assert "scores" not in by_name(look(site))
    policy.write_text("send_counts = false")
    if split:
        assert "scores" not in by_name(look(site))  # its 5 dogs are all for tests
        policy.write_text("send_counts = false\nmin_examples = 6")
    (line,) = [line for line in look(site) if line.name == "scores"]
    assert line.ok is None
    assert line.text.startswith(f"fewer than {6 if split else 5} test images of dog: ")


def test_keys_for_another_server_are_told(keys: Path, images: Path) -> None:
    assert "was made for the server at localhost:8443, not for localhost:1" in format_check_lines(
        check("localhost:1", keys, images, images)
    )
    assert "was made for" not in format_check_lines(check("localhost", keys, images, images))


def test_a_failure_is_the_exit_code(keys: Path, images: Path) -> None:
    with pytest.raises(typer.Exit) as ended:
        run_join_check(JoiningSite(f"localhost:{free_port()}", "north", images, images, keys))
    assert ended.value.exit_code == 1
