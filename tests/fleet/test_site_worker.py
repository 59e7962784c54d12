"""A site's desk: repeated questions, other sessions, other classes, faults."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.serialization import pack_tree
from protofed.core.site import RoundContext
from protofed.deploy.policy import SitePolicy
from protofed.deploy.site_worker import ClientStateStore, KeptReply, RequestHandler
from protofed.engines.site_protocol import SiteRequest
from protofed.errors import ProtofedError
from protofed.federation.remote_sites import (
    agreed_classes,
    remote_experiment,
    remote_federation,
    run_description,
)
from tests.fleet.desks import ABOUT, RUN, SPEC, Walking, desks, events, made, offers, told

SESSION = "cd" * 8


def first_ask(images: Path, home: Path) -> SiteRequest:
    known = offers(desks(images, home))
    experiment = remote_experiment({**SPEC, "method": "scaffold"}, known)
    federation = remote_federation(experiment, known)
    method, site = experiment.method, federation.server
    received = method.send(site, method.init_server(site), [0], RoundContext(0, 2))[0]
    brief = run_description(experiment, known)
    return SiteRequest("train", brief, RUN, SESSION, rounds=2, received=received)


def test_a_repeated_question_gets_the_same_answer_and_moves_no_state(
    images: Path, tmp_path: Path
) -> None:
    ask, desk = first_ask(images, tmp_path), desks(images, tmp_path)["site-a"]
    first = told(desk, ask)
    assert first.fault == ""
    assert tree.equal(told(desk, ask), first)
    fresh = desks(images, tmp_path)["site-a"]  # as after a crash: all it knows is in files
    assert tree.equal(told(fresh, ask), first)


def test_a_round_begins_with_the_state_before_it_however_often(
    images: Path, tmp_path: Path
) -> None:
    ask, desk = first_ask(images, tmp_path), desks(images, tmp_path)["site-a"]
    told(desk, ask)
    second = replace(ask, round=1)
    once = told(desk, second)
    again = told(desk, replace(second, session="ef" * 8, start=1))  # the coordinator came back
    assert tree.equal(once.reply, again.reply)


def test_states_of_a_session_that_was_given_up_are_dropped(tmp_path: Path) -> None:
    ask = SiteRequest("train", run=RUN, session=SESSION)
    for number in range(4):
        now = replace(ask, round=number)
        ClientStateStore(tmp_path, now).keep(
            now, f"{number}", KeptReply(Message(), {"round": number})
        )
    back = replace(ask, session="ef" * 8, start=2, round=3)  # it missed round 2 of the new session
    last = ClientStateStore(tmp_path, back).before(back)
    assert last is not None
    assert last.state == {"round": 1}


def test_only_states_that_a_checkpoint_may_need_are_kept(tmp_path: Path) -> None:
    ask = SiteRequest("train", run=RUN, session=SESSION)
    for number in range(6):
        now = replace(ask, round=number, floor=max(0, number - 1))
        ClientStateStore(tmp_path, now).keep(now, "k", KeptReply(Message(), None))
    kept = sorted(file.name for file in (tmp_path / "runs" / RUN).glob("*.safetensors"))
    assert kept == ["3-0-k.safetensors", "4-0-k.safetensors", "5-0-k.safetensors"]


@pytest.mark.parametrize("name", ["../../etc", "", "a/b", "x" * 16])
def test_a_run_cannot_choose_where_a_site_writes(name: str, tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match="name of a run"):
        ClientStateStore(tmp_path, SiteRequest("train", run=name, session=SESSION))
    assert list(tmp_path.iterdir()) == []


def test_sites_that_disagree_about_classes_are_listed(images: Path, tmp_path: Path) -> None:
    known = offers(desks(images, tmp_path))
    other = known[1]._replace(classes=("bird", "cats"))
    with pytest.raises(ProtofedError) as fault:
        agreed_classes([known[0], other, known[2]])
    assert "site-a has no folder for class cats" in str(fault.value)
    assert "site-b has no folder for class cat" in str(fault.value)


def test_a_lost_answer_is_on_record_and_the_round_goes_on(images: Path, tmp_path: Path) -> None:
    post, out = Walking(desks(images, tmp_path)), tmp_path / "fed"
    post.lose = lambda name, ask: (
        "no answer within 9 s" if (name, ask.what, ask.round) == ("site-b", "train", 0) else ""
    )
    made({**SPEC, "min_clients": 2}, post, out).run.play(lambda progress: None)
    (event,) = events(out)
    assert event == {
        "round": 1,
        "leg": 1,
        "client": 1,
        "reason": "site-b: no answer within 9 s",
    }
    assert (out / "done").exists()


def test_a_fault_at_a_site_is_told_in_words(images: Path, tmp_path: Path) -> None:
    desk = desks(images, tmp_path)["site-a"]
    assert "unknown question" in told(desk, SiteRequest("dance")).fault
    assert told(desk, SiteRequest("describe", "{}")).fault == "method is missing"


def spoiled(name: str, images: Path, own: Path) -> RequestHandler:
    """The desk of a site with a file that is no image, whose name nobody else must learn."""
    shutil.copytree(images / "site-a", own)
    (own / "cat" / "jane-doe.png").write_text("no image")
    return RequestHandler(name, own, own.with_name("home"), SitePolicy(min_examples=1))


def test_no_name_of_a_file_leaves_a_site(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "private-place"
    desk = spoiled("site-a", images, own)
    described = told(desk, SiteRequest("describe", ABOUT))
    assert described.fault == ""
    shutil.rmtree(own / "cat")
    shutil.rmtree(own / "bird")
    failed = told(desk, SiteRequest("describe", ABOUT))
    assert failed.fault == "its images cannot be used, see worker.log at the site"
    assert "private-place" in capsys.readouterr().err
    for answer in (described, failed):
        assert b"jane" not in pack_tree(answer)
        assert b"private-place" not in pack_tree(answer)


def test_no_name_of_a_file_leaves_a_site_that_is_called_as_a_class(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own"
    desk = spoiled("cat", images, own)
    for _ in range(2):
        assert b"jane" not in pack_tree(told(desk, SiteRequest("describe", ABOUT)))
    (line,) = capsys.readouterr().out.splitlines()  # once
    assert line.startswith(f"skipping 1 file of {own}: cat/jane-doe.png (not an image")


def test_a_run_and_its_rounds_are_told_at_the_site(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask, desk = first_ask(images, tmp_path), desks(images, tmp_path)["site-a"]
    for number in (0, 0, 1):  # a repeated question is not trained for again
        told(desk, replace(ask, round=number))
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "run abababab: SCAFFOLD, 2 rounds"
    assert [line.split(" in ")[0] for line in said[1:]] == [
        "run abababab: round 1 of 2: trained",
        "run abababab: round 2 of 2: trained",
    ]


def test_a_refused_run_is_told_at_the_site_with_the_reason(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = RequestHandler("site-a", images / "site-a", tmp_path, SitePolicy(methods=("fpl",)))
    fault = told(desk, SiteRequest("describe", ABOUT)).fault
    assert "does not allow fedavg" in fault
    assert capsys.readouterr().out == f"a new run: refused: {fault}\n"


def test_a_site_works_on_where_nobody_reads_what_it_says(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, desk = first_ask(images, tmp_path), desks(images, tmp_path)["site-a"]
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        answer = told(desk, ask)
        monkeypatch.undo()
        with suppress(OSError):
            full.close()
    assert answer.fault == ""
