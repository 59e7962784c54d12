"""The server's Flower: closed to who lacks the secret, runs nothing, and takes no more than asked.

Real processes: `protofed serve` with keys, and sites that are played by this test.
"""

from __future__ import annotations

import os
import shutil
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from faults_flower.fleet import Fleet, tree_of, wait_for
from flwr.app import Message
from flwr.proto.control_pb2 import StartRunRequest, StartRunResponse
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest, PushObjectResponse

from protofed.deploy import flower_server, serve
from protofed.deploy.flower_client import CallError
from protofed.deploy.flower_compat import bytes_to_record, split_message
from protofed.deploy.flower_server import OWN, limit_from, limit_text
from protofed.deploy.keys import make_keys
from protofed.deploy.run_channel import RunChannel
from protofed.deploy.site_link import FleetConnection
from protofed.engines.flower_engine import NoAnswer, OutgoingRequest, SiteMessenger
from protofed.errors import ProtofedError
from tests.deploy.test_gate import routes as routes
from tests.fleet.foreign import Foreign

pytestmark = pytest.mark.long

MB = 1 << 20


class Served(Fleet):
    """A server alone; its sites are played by the test."""

    def join(self, name: str) -> None:
        """Nobody joins by itself."""

    @property
    def found(self) -> serve.RunningServer:
        """The server as `submit` finds it."""
        return serve.find_server(self.folder / "home" / "server")

    def line(self) -> RunChannel:
        """A coordinator's line."""
        return RunChannel(self.found.url, self.found.secret, self.found.ca)

    @contextmanager
    def site(self, name: str) -> Iterator[FleetConnection]:
        """A site's line, through the gate."""
        assert self.keys
        with closing(FleetConnection(f"127.0.0.1:{self.port}", self.keys / name)) as line:
            yield line

    def memory(self) -> int:
        """Bytes in the memory of Flower's server."""
        pids = tree_of(self.running["serve"].pid)
        (pid,) = [p for p in pids if b"flower_server" in Path(f"/proc/{p}/cmdline").read_bytes()]
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("served")
    with Served(place / "fleet", place, ("north", "south")) as fleet:
        yield fleet
        assert fleet.running["serve"].poll() is None, fleet.said("serve")


def call(served: Served, path: str, secret: str = "") -> int:
    server = served.found
    headers = {flower_server.SECRET_HEADER: secret} if secret else {}
    trust = ssl.create_default_context(cafile=server.ca)
    with httpx.Client(verify=trust, trust_env=False, timeout=30) as client:
        return client.post(f"{server.url}{path}", headers=headers).status_code


def test_whoever_lacks_the_secret_gets_no_further_than_sites_do(
    served: Served, routes: list[tuple[str, str]]
) -> None:
    closed = {path for _, path in routes if path[:4] == "/v1/" and path[:10] != "/v1/fleet/"}
    assert len(closed) > 50
    assert closed >= OWN
    for path in closed:
        assert call(served, path) == 403, path
        assert call(served, path, "0" * 64) == 403, path
    others = sorted(closed - OWN)
    assert [call(served, path, served.found.secret) for path in others] == [403] * len(others)
    assert (served.folder / "home" / "server" / "secret").stat().st_mode & 0o077 == 0


def test_local_users_reach_flower_no_more_than_strangers_do(served: Served) -> None:
    assert call(served, "/v1/fleet/pull-messages") == 403
    assert call(served, "/v1/fleet/pull-messages", served.found.secret) != 403
    before = served.memory()
    trust = ssl.create_default_context(cafile=served.found.ca)
    with httpx.Client(verify=trust, trust_env=False, timeout=60) as client:
        for headers in ({}, {flower_server.SECRET_HEADER: served.found.secret}):
            with suppress(httpx.HTTPError):  # it hangs up
                url = f"{served.found.url}/v1/fleet/pull-messages"
                client.post(url, content=bytes(200 * MB), headers=headers)
    assert served.memory() - before < 60 * MB


def test_parts_of_an_answer_that_nobody_announced_are_not_kept(served: Served) -> None:
    with served.line(), served.site("north") as site:
        site.open()
        before = served.memory()
        for number in range(5):
            part = PushObjectRequest(node=site.calls.node, session_id=f"{number}" * MB)
            with pytest.raises(CallError) as fault:
                site.client.call("fleet/push-object", part, PushObjectResponse)
            assert fault.value.status == 413
        assert served.memory() - before < 30 * MB


def answers_health(served: Served) -> bool:
    """Whether Flower's server still answers, within five seconds."""
    return serve.is_healthy(served.found)


def test_a_tree_of_millions_of_parts_costs_nothing(served: Served) -> None:
    with served.line() as line, asking(served, line, "north", MB) as asked:
        split = split_message(Message(bytes_to_record(b"x"), reply_to=asked.letter.message))
        for count, status in ((100_000, 413), (7_000_000, 413)):
            tree = ObjectTree(object_id="a", children=[ObjectTree()] * count)
            pushed = PushMessagesRequest(
                node=asked.site.calls.node, messages_list=[split.head], message_object_trees=[tree]
            )
            with pytest.raises(CallError) as fault:
                asked.site.client.call("fleet/push-messages", pushed, PushMessagesResponse)
            assert fault.value.status == status
        assert answers_health(served)


def test_no_run_starts_under_another_app_even_for_who_has_the_secret(served: Served) -> None:
    content = Foreign("x").bundle(Path("/nowhere"), Path("/nowhere"))
    for asked in (
        StartRunRequest(fab=Fab(content=content)),
        StartRunRequest(app_spec="@stranger/app"),
    ):
        with served.line() as line, pytest.raises(CallError) as fault:
            line.client.call("control/start-run", asked, StartRunResponse)
        assert fault.value.status == 403
        assert "only protofed's own app" in str(fault.value)


def test_nothing_that_could_run_an_app_is_started(served: Served) -> None:
    words = [
        Path(f"/proc/{pid}/cmdline").read_bytes() for pid in tree_of(served.running["serve"].pid)
    ]
    assert len(words) == 2  # the gate, and Flower's server
    assert not any(b"superexec" in each or b"serverapp" in each for each in words)


class Asked(NamedTuple):
    """A site that is online and has been asked something."""

    site: FleetConnection
    number: str  # of the letter
    letter: Any


@contextmanager
def asking(served: Served, line: RunChannel, name: str, most: int) -> Iterator[Asked]:
    """A site that is asked something, to which it may answer with so many bytes."""
    with served.site(name) as site:
        node = site.open()
        wait_for(lambda: node in [each.node for each in line.online()], 30)
        number = line.send(node, b"how much?", 60.0, most)
        letter = site.next_request()
        assert letter is not None
        yield Asked(site, number, letter)


def answer(line: RunChannel, asked: Asked, most: int, seconds: float = 30.0) -> bytes | NoAnswer:
    """What the coordinator gets."""
    found: dict[str, bytes | NoAnswer] = {}

    def there() -> bool:
        found.update(line.answers({asked.number: most}))
        return asked.number in found

    wait_for(there, seconds)
    return found[asked.number]


def test_an_answer_of_just_what_is_allowed_arrives(served: Served) -> None:
    with served.line() as line, asking(served, line, "north", 12 * MB) as asked:
        assert asked.site.content(asked.letter, 1000) == b"how much?"
        asked.site.answer(asked.letter, b"x" * 12 * MB, 0.1)
        assert answer(line, asked, 12 * MB) == b"x" * 12 * MB


def test_an_answer_that_is_too_large_is_refused_before_it_is_in_memory(served: Served) -> None:
    """1.2 GB where 17 MB are allowed."""
    with served.line() as line, asking(served, line, "north", 17 * MB) as asked:
        before = served.memory()
        with pytest.raises(CallError) as fault:
            asked.site.answer(asked.letter, np.random.default_rng(0).bytes(1200 * MB), 0.1)
        assert fault.value.status == 413
        assert served.memory() - before < 40 * MB


def test_an_answer_that_grows_when_it_is_put_together_is_refused(served: Served) -> None:
    with served.line() as line, asking(served, line, "north", 17 * MB) as asked:
        asked.site.answer(asked.letter, bytes(1200 * MB), 0.1)  # the same chunk, 240 times
        found = answer(line, asked, 17 * MB)
        assert isinstance(found, NoAnswer)
        assert "more than" in found.reason


def test_parts_that_are_larger_than_announced_are_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 15 * MB)
    with served.line() as line, asking(served, line, "north", 17 * MB) as asked:
        before = served.memory()
        with pytest.raises(CallError) as fault:
            asked.site.answer(asked.letter, os.urandom(120 * MB), 0.1)
        assert fault.value.status == 413
        assert served.memory() - before < 80 * MB


def announced(asked: Asked, by: FleetConnection) -> None:
    """Announce an answer to what a site was asked, in its name; its parts are not sent."""
    split = split_message(Message(bytes_to_record(b"mine"), reply_to=asked.letter.message))
    pushed = PushMessagesRequest(
        node=by.calls.node, messages_list=[split.head], message_object_trees=[split.tree]
    )
    by.client.call("fleet/push-messages", pushed, PushMessagesResponse)


def test_a_site_cannot_answer_in_the_name_of_another(served: Served) -> None:
    with (
        served.line() as line,
        asking(served, line, "north", MB) as asked,
        served.site("south") as thief,
    ):
        thief.open()
        with pytest.raises(CallError) as fault:
            announced(asked, thief)
        assert fault.value.status == 403


def test_a_site_that_announces_an_answer_and_never_sends_it_holds_up_nobody(
    served: Served,
) -> None:
    with (
        served.line() as line,
        asking(served, line, "north", MB) as slow,
        asking(served, line, "south", MB) as quick,
    ):
        announced(slow, slow.site)
        quick.site.answer(quick.letter, b"here", 0.1)
        assert answer(line, quick, MB) == b"here"
        assert line.answers({slow.number: MB}) == {}
        line.forget([slow.number])
        assert (line.sent, line.arriving) == ({}, {})


def test_a_server_that_dies_while_an_answer_comes_in_is_no_fault_of_the_site(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the round would be scored without that site, and that would be on record."""
    with served.line() as line, asking(served, line, "north", MB) as asked:
        asked.site.answer(asked.letter, b"here", 0.1)
        call = line.client.call

        def dying(name: str, *rest: Any) -> Any:
            if name == "runtime/pull-object":
                raise CallError(0, "Connection refused")
            return call(name, *rest)

        monkeypatch.setattr("protofed.deploy.run_channel.PATIENCE", 0.1)
        monkeypatch.setattr(line.client, "call", dying)
        with pytest.raises(ProtofedError, match="the server on this machine has ended"):
            answer(line, asked, MB)
        monkeypatch.undo()


def test_a_site_waits_for_the_parts_of_a_letter_that_is_still_being_handed_in(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served.line() as line, served.site("north") as site:
        node = site.open()
        wait_for(lambda: node in [each.node for each in line.online()], 30)
        call, found = line.calls.call, list[bytes]()

        def slow(name: str, *rest: Any) -> Any:
            if name == "runtime/push-object" and not found:
                time.sleep(0.3)
            return call(name, *rest)

        def fetch() -> None:
            letter = None
            while letter is None:
                letter = site.next_request()
            found.append(site.content(letter, MB))

        monkeypatch.setattr(line.calls, "call", slow)
        reader = threading.Thread(target=fetch)
        reader.start()
        line.send(node, b"in parts", 60.0, MB)
        reader.join(30)
        assert found == [b"in parts"]


def test_a_site_that_leaves_is_told_of(served: Served) -> None:
    with served.line() as line, asking(served, line, "north", MB) as asked:
        asked.site.close()
        found = answer(line, asked, MB, 60)
        assert isinstance(found, NoAnswer)
        assert "offline" in found.reason


def test_a_site_that_was_killed_is_let_in_again_at_once_under_its_number(served: Served) -> None:
    with (
        served.site("north") as first,
        served.site("north") as second,
        served.site("north") as again,
    ):
        number = first.open()
        first.heartbeat.stop()  # as if killed: nothing is heard of it any more
        first.online = 0
        with pytest.raises(CallError, match="2004"):
            second.open()
        assert again.open(number) == number


def test_post_goes_over_the_channel(served: Served) -> None:
    with served.line() as line, served.site("south") as site:
        site.open()
        post = SiteMessenger(line)
        wait_for(lambda: "south" in post.online(), 30)
        answers = post.ask(
            {"south": OutgoingRequest(b"?", MB), "north": OutgoingRequest(b"?", MB)}, 1.0
        )
        assert answers["north"] == NoAnswer("is not online")
        assert answers["south"] == NoAnswer("no answer within 1 s")


def test_keys_that_come_and_go_count_without_a_restart(served: Served, tmp_path: Path) -> None:
    assert served.keys
    make_keys(served.keys, f"127.0.0.1:{served.port}", ["east"])
    odd = served.keys / "server" / "sites" / "aaa.pub"
    odd.write_text("ssh-ed25519 AAAA nonsense")

    def lets_in() -> bool:
        with served.site("east") as site, suppress(ProtofedError):
            return bool(site.open())
        return False

    wait_for(lets_in, 30, 0.5)
    assert "east" in served.found.sites
    assert "aaa.pub is no public key of a site" in served.said("serve")
    east = served.keys / "server" / "sites" / "east.pub"
    copy = east.with_name("zz-copy.pub")
    shutil.copy(east, copy)
    wait_for(lambda: "key of another site, too" in served.said("serve"), 30)
    shutil.move(east, tmp_path / "east.pub")
    copy.unlink()
    wait_for(lambda: not lets_in(), 30, 0.5)
    shutil.move(tmp_path / "east.pub", east)
    wait_for(lets_in, 30, 0.5)
    odd.unlink()
    east.unlink()


def test_limits_are_written_and_read() -> None:
    assert limit_from(limit_text(17 * MB)) == 17 * MB
    assert [limit_from(text) for text in ("", "at-most-x", "at-most-" + "9" * 40)] == [0, 0, 0]
