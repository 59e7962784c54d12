"""`protofed keys` as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

pytest.importorskip("cryptography", reason="keys need the flower extra")


def test_the_commands_to_type_are_told(cli: Cli) -> None:
    ended = cli("keys", "mine", "--server", "fl.example.org", "--sites", "north", "south")
    assert ended.code == 0
    for words in (
        "at the server        protofed serve --keys mine --port 8443",
        "at north             protofed join fl.example.org:8443 --name north --keys mine/north",
        "at south             protofed join fl.example.org:8443 --name south --keys mine/south",
        "protofed submit",
        "north: new key in mine/north",
    ):
        assert words in ended.out


def test_sites_are_added_wherever_the_words_stand(cli: Cli) -> None:
    cli("keys", "--sites", "north", "--server", "localhost", "mine")
    ended = cli("keys", "mine", "--sites", "north", "west", "--json", "--server", "localhost:1234")
    told = json.loads(ended.out)
    assert (told["new"], told["kept"], told["server"]) == (["west"], ["north"], "localhost:1234")
    assert Path("mine/west/site.key").exists()


def test_what_is_wrong_ends_in_a_line(cli: Cli) -> None:
    ended = cli("keys", "mine", "--server", "localhost", "--sites", "../north")
    assert ended.code == 2
    assert ended.err.startswith("error: '../north' cannot be a site's name")
    assert not Path("mine").exists()
    for words in (["--sites"], ["--json", "--sites"], []):
        ended = cli("keys", "mine", "--server", "localhost", *words)
        assert (ended.code, "--sites" in ended.err) == (2, True)
