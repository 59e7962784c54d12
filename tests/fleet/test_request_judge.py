"""A site judges what it is asked, not what was announced: by spec, policy and its own record."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from protofed.core.message import Failure, Message
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.serialization import pack_tree, unpack_tree
from protofed.core.site import RoundContext
from protofed.deploy.policy import SitePolicy
from protofed.deploy.request_judge import AnswerLedger, LedgerLine
from protofed.deploy.site_worker import RequestHandler
from protofed.engines.site_protocol import SiteRequest, SiteResponse
from protofed.errors import ProtofedError
from protofed.federation.remote_sites import (
    SiteDescription,
    remote_experiment,
    remote_federation,
    run_description,
)
from tests.data.pictures import make
from tests.fleet.desks import INQUIRY, RUN, SITES, SPEC, desks, offers, told

SESSION = "cd" * 8


def protos_of(answer: SiteResponse) -> Prototypes | None:
    """The prototypes of a reply that is no failure."""
    assert isinstance(answer.reply, Message)
    return answer.reply.protos


class Server:
    """A hostile coordinator: it knows the sites' offers and makes questions of any kind."""

    def __init__(self, known: list[SiteDescription], **more: Any):
        self.known = known
        self.raw: dict[str, Any] = {**SPEC, "rounds": 4, **more}
        self.experiment = remote_experiment(self.raw, known)
        self.site = remote_federation(self.experiment, known).server
        self.brief = run_description(self.experiment, known)
        method, step = self.experiment.method, RoundContext(0, self.experiment.rounds)
        self.first = method.send(self.site, method.init_server(self.site), [0], step)[0]

    def received(self, shift: float = 0.0) -> Message:
        """An honest message, moved a little."""
        weights = {name: part + shift for name, part in self.first.model.weights.items()}
        return replace(self.first, model=replace(self.first.model, weights=weights))

    def train(self, **more: Any) -> SiteRequest:
        """A question to train the first round, or something else."""
        given = {"rounds": self.experiment.rounds, "received": self.received(), **more}
        return SiteRequest(
            **{"what": "train", "brief": self.brief, "run": RUN, "session": SESSION, **given}
        )

    def score(self, **more: Any) -> SiteRequest:
        """A question for the score after the first round."""
        return self.train(**{"what": "score", "round": 1, **more})


@pytest.fixture
def known(images: Path, tmp_path: Path) -> list[SiteDescription]:
    return offers(desks(images, tmp_path / "asked"))


def site(images: Path, home: Path, **rules: Any) -> RequestHandler:
    return RequestHandler(
        "site-a", images / "site-a", home, SitePolicy(**{"min_examples": 1, **rules})
    )


def test_a_round_beyond_the_policy_is_not_trained_whatever_was_announced(
    images: Path, tmp_path: Path, known: list[SiteDescription]
) -> None:
    desk = site(images, tmp_path / "home", max_rounds=10)
    long = Server(known, rounds=1_000_000)
    fault = told(desk, long.train(round=4999, start=4999)).fault
    assert "1000000 rounds, but this site's policy allows 10" in fault
    short = Server(known, rounds=10)
    for ask in (
        short.train(round=4999, rounds=1_000_000),
        short.train(round=10),
        short.train(rounds=11, round=10),
        short.train(exchange=1),
    ):
        assert told(desk, ask).fault
    assert told(desk, short.train(round=9)).fault == ""


def test_a_round_is_trained_with_another_message_only_so_often(
    images: Path, tmp_path: Path, known: list[SiteDescription]
) -> None:
    desk, server = site(images, tmp_path / "home", max_repeats=2), Server(known)
    faults = [
        told(
            desk, server.train(received=server.received(shift / 100), session=f"{shift:016x}")
        ).fault
        for shift in range(6)
    ]
    assert faults[:3] == [""] * 3
    assert all("allows 2 repeats" in fault for fault in faults[3:])
    # Neither a restart of the site nor another session makes it forget.
    fresh = site(images, tmp_path / "home", max_repeats=2)
    assert "allows 2 repeats" in told(fresh, server.train(received=server.received(0.5))).fault
    assert told(fresh, server.train(received=server.received(0.02))).fault == ""  # asked before
    assert told(fresh, server.train(received=server.received(0.5), round=1)).fault == ""


def test_two_messages_in_turn_are_trained_once_each(
    images: Path, tmp_path: Path, known: list[SiteDescription], capsys: pytest.CaptureFixture[str]
) -> None:
    desk, server = site(images, tmp_path / "home", max_repeats=2), Server(known)
    for turn in range(8):
        ask = server.train(received=server.received(turn % 2), session=f"{turn:016x}")
        assert told(desk, ask).fault == ""
    assert capsys.readouterr().out.count("trained in") == 2
    (tmp_path / "home" / "runs" / RUN / "lineage.json").write_text("[[")  # damage costs no more
    assert told(desk, server.train(received=server.received(0.0))).fault == ""


def test_scores_of_a_model_with_private_state_are_counted_by_that_state(
    images: Path, tmp_path: Path, known: list[SiteDescription]
) -> None:
    personal = {"name": "fedproto", "param_avg": False}
    server = Server(known, method=personal, rounds=4)
    desk = site(images, tmp_path / "home", max_scores=1, max_repeats=9)
    faults = []
    for shift in range(4):
        session = f"{shift:016x}"
        rows = torch.full((2, server.site.net.features), float(shift))
        protos = Prototypes(rows, torch.arange(2), torch.ones(2).long())
        received = replace(server.first, protos=protos)
        assert told(desk, server.train(received=received, session=session)).fault == ""
        faults.append(told(desk, server.score(session=session, received=server.first)).fault)
    assert faults[0] == ""
    assert sum("allows 1 scores" in fault for fault in faults) >= 2


def test_a_policy_that_was_tightened_holds_for_replies_that_were_given_before(
    images: Path, tmp_path: Path, known: list[SiteDescription]
) -> None:
    server = Server(known, method="fedproto")
    frank = protos_of(told(site(images, tmp_path / "home"), server.train()))
    assert frank is not None
    assert max(frank.counts.tolist()) > 1
    careful = site(images, tmp_path / "home", send_counts=False)
    again = protos_of(told(careful, server.train()))
    assert again is not None
    assert set(again.counts.tolist()) == {1}
    strict = site(images, tmp_path / "home", min_examples=999)
    assert protos_of(told(strict, server.train())) is None


def test_the_epochs_of_a_round_are_those_that_its_method_trains(
    images: Path, tmp_path: Path, known: list[SiteDescription]
) -> None:
    training = {"epochs": 2, "batch": 4}
    desk = site(images, tmp_path / "home", max_epochs=3)
    full = Server(known, method={"name": "fedexg", "phase_epochs": "full"}, training=training)
    assert "4 epochs" in told(desk, full.train()).fault
    half = Server(known, method="fedexg", training=training)
    assert told(desk, half.train(run="ef" * 8)).fault == ""


def test_a_net_that_is_named_often_is_built_once(
    images: Path, tmp_path: Path, known: list[SiteDescription]
) -> None:
    server = Server(known, net=["moon-mlp"] * 500)
    tracemalloc.start()
    assert told(site(images, tmp_path / "home"), server.train()).fault == ""
    tracemalloc.stop()
    from protofed.federation.build import build_nets

    assert len({id(net) for net in build_nets(server.experiment, 2)}) == 1


def test_a_server_cannot_have_images_packed_in_every_size(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = site(images, tmp_path / "home")
    faults = [
        told(desk, SiteRequest("describe", json.dumps({**INQUIRY, "side": side}))).fault
        for side in (16, 16, 17, 18, 19, 20, 21, 16)
    ]
    assert [bool(fault) for fault in faults] == [False] * 5 + [True] * 2 + [False]
    assert "more than 4 sizes in a day" in faults[5]
    again = site(images, tmp_path / "home")
    assert told(again, SiteRequest("describe", json.dumps({**INQUIRY, "side": 22}))).fault
    assert told(again, SiteRequest("describe", json.dumps({**INQUIRY, "side": 1024}))).fault


def test_a_run_stays_what_it_was_about(
    images: Path, tmp_path: Path, known: list[SiteDescription]
) -> None:
    desk = site(images, tmp_path / "home")
    assert told(desk, Server(known).train()).fault == ""
    other = Server(known, training={"epochs": 2, "batch": 4})
    assert "about something else" in told(desk, other.train()).fault


def test_runs_a_day_and_epochs_have_their_limits(
    images: Path, tmp_path: Path, known: list[SiteDescription]
) -> None:
    desk = site(images, tmp_path / "home", max_runs_per_day=2, max_epochs=3)
    server = Server(known)
    names = [f"{number:016x}" for number in range(3)]
    faults = [told(desk, server.train(run=name)).fault for name in names]
    assert faults[:2] == ["", ""]
    assert "allows 2 runs a day" in faults[2]
    assert "allows 2 runs a day" in told(desk, SiteRequest("describe", json.dumps(INQUIRY))).fault
    assert told(desk, server.train(run=names[0], round=1)).fault == ""
    many = Server(known, training={"epochs": 4, "batch": 4})
    assert "4 epochs" in told(site(images, tmp_path / "b", max_epochs=3), many.train()).fault


def test_scores_are_told_as_often_as_the_spec_and_the_policy_say(
    images: Path, tmp_path: Path, known: list[SiteDescription]
) -> None:
    server = Server(known, evaluate_every=2, rounds=5)
    desk = site(images, tmp_path / "home", max_scores=2)
    assert "no score is due after round 1" in told(desk, server.score(round=1)).fault
    assert "no score is due after round 0" in told(desk, server.score(round=0)).fault
    assert told(desk, server.score(round=2)).fault == ""
    assert told(desk, server.score(round=2)).fault == ""  # the same question, the same answer
    assert told(desk, server.score(round=4)).fault == ""
    assert "allows 2 scores" in told(desk, server.score(round=5)).fault
    never = site(images, tmp_path / "never", max_scores=0)
    assert "allows 0 scores" in told(never, server.score(round=2)).fault
    assert told(never, SiteRequest("describe", json.dumps({**INQUIRY, "scores": 9}))).fault == ""
    asked = SiteRequest("describe", json.dumps({**INQUIRY, "scores": 3}))
    assert "raise evaluate_every" in told(desk, asked).fault


def one_bias(server: Server, label: int, size: float = 1.0) -> Message:
    """A model that gives one answer: its score is the number of that class's test images."""
    received = server.received()
    weights = {name: torch.zeros_like(part) for name, part in received.model.weights.items()}
    bias = next(name for name in reversed(list(weights)) if name.endswith("bias"))
    weights[bias][label] = size
    return replace(received, model=replace(received.model, weights=weights))


def test_a_crafted_model_does_not_count_classes_where_counts_are_kept_back(
    images: Path, tmp_path: Path, known: list[SiteDescription]
) -> None:
    server = Server(known, rounds=2)
    frank = site(images, tmp_path / "frank", max_repeats=9)
    counted = [
        json.loads(told(frank, server.score(received=one_bias(server, label))).text)[""][0]
        for label in (0, 1)
    ]
    assert sum(counted) == known[0].test  # what send_counts = true lets out
    careful = site(images, tmp_path / "careful", send_counts=False, max_repeats=9)
    for label in (0, 1):
        answer = told(careful, server.score(received=one_bias(server, label)))
        assert "one answer for nearly every test image" in answer.fault
        assert answer.text == ""
    few = site(images, tmp_path / "few", send_counts=False, min_examples=5)
    assert "fewer than 5 test images" in told(few, server.score()).fault


def test_answers_counted_by_class_leave_only_where_the_policy_lets_them(
    images: Path, tmp_path: Path, known: list[SiteDescription]
) -> None:
    server = Server(known, rounds=2)
    open_site = site(images, tmp_path / "open")
    right, total, answers = json.loads(told(open_site, server.score()).text)[""]
    assert sum(answers["images"]) == total == known[0].test
    assert sum(answers["hits"]) == right
    closed = site(images, tmp_path / "closed", send_answers=False)
    assert json.loads(told(closed, server.score()).text)[""] == [right, total]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 1e5])
def test_models_that_nobody_can_have_trained_are_refused(
    value: float, images: Path, tmp_path: Path, known: list[SiteDescription]
) -> None:
    server, desk = Server(known), site(images, tmp_path / "home")
    forged = one_bias(server, 0, value)
    for ask in (server.train(received=forged), server.score(received=forged)):
        assert "holds NaN or a number beyond" in told(desk, ask).fault
    name, part = next(iter(server.received().model.weights.items()))
    for weights in ({name: part[:1]}, {name: part.double()}, {"other": part}, {name: "x"}):
        odd = Message(model=Model(weights=weights))  # type: ignore[arg-type]
        assert told(desk, server.train(received=odd)).fault


def test_a_spec_cannot_point_at_a_place_on_the_site(
    images: Path, tmp_path: Path, known: list[SiteDescription]
) -> None:
    server, desk = Server(known), site(images, tmp_path / "home")
    brief = json.loads(server.brief)
    for data in ({"name": "/etc"}, {"name": str(images)}, "digits-mini", None, 5):
        spec = {**brief["spec"], "data": data}
        forged = json.dumps({**brief, "spec": spec})
        assert "not those of the sites" in told(desk, server.train(brief=forged)).fault
    for lacking in ("revision", "domains"):
        part = {name: v for name, v in brief["spec"]["data"].items() if name != lacking}
        forged = json.dumps({**brief, "spec": {**brief["spec"], "data": part}})
        assert f"data.{lacking} must be" in told(desk, server.train(brief=forged)).fault


def test_what_is_refused_is_on_record_without_filling_the_disk(
    images: Path, tmp_path: Path, known: list[SiteDescription], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protofed.deploy.request_judge.MOST_REFUSED", 5_000)
    desk, ask = site(images, tmp_path / "home", methods=()), Server(known).train()
    for _ in range(200):
        told(desk, ask)
    files = sorted((tmp_path / "home").glob("refused*"))
    assert len(files) == 2
    assert sum(file.stat().st_size for file in files) < 11_000
    line = json.loads(files[0].read_text().splitlines()[-1])
    assert (line["run"], line["what"]) == (RUN, "train")
    assert "does not allow fedavg" in line["why"]


def test_a_line_that_a_crash_cut_short_is_cut_off_and_other_damage_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = AnswerLedger(tmp_path)
    for number in range(3):
        ledger.write(LedgerLine("train", RUN, "s", number + 1, 1, "m"))
    os.truncate(ledger.answered, ledger.answered.stat().st_size - 20)
    again = AnswerLedger(tmp_path)
    assert len(again.runs[RUN].trained) == 2
    again.write(LedgerLine("score", RUN, "s", 1, message="m"))
    last = AnswerLedger(tmp_path)
    assert last.runs[RUN].count_scores() == 1
    assert len(last.runs[RUN].trained) == 2

    def full(path: Path, content: bytes) -> None:
        with path.open("ab") as stream:
            stream.write(content[:10])
        raise OSError(28, "No space left on device")

    whole = last.answered.read_bytes()
    monkeypatch.setattr("protofed.runtime.atomic_io.append_durably", full)
    with pytest.raises(ProtofedError, match="cannot be written"):
        last.write(LedgerLine("train", RUN, "s", 6, 1, "m"))
    assert last.answered.read_bytes() == whole
    for damage in (b"[[[\n", b"{}\n", b'{"run": 5}\n', b"\xff\n", b"[" * 100_000 + b"\n"):
        last.answered.write_bytes(damage + whole)
        with pytest.raises(ProtofedError, match="does not know what it has answered"):
            AnswerLedger(tmp_path)


def test_the_record_counts_rounds_from_one_and_has_a_field_for_each_thing(
    known: list[SiteDescription], images: Path, tmp_path: Path
) -> None:
    server, desk = Server(known), site(images, tmp_path / "home")
    told(desk, SiteRequest("describe", json.dumps(INQUIRY)))
    for question in (server.train(), server.train(round=1), server.score(round=2)):
        assert told(desk, question).fault == ""
    record = (tmp_path / "home" / "answered.jsonl").read_text()
    lines = [json.loads(line) for line in record.splitlines()]
    fields = ("what", "run", "round", "leg", "side")
    assert [tuple(line[name] for name in fields) for line in lines] == [
        ("side", "", 0, 0, 16),
        ("begin", RUN, 0, 0, 0),
        ("train", RUN, 1, 1, 0),
        ("train", RUN, 2, 1, 0),
        ("score", RUN, 2, 0, 0),
    ]
    assert {*lines[0]} == {*LedgerLine._fields}


def test_a_refusal_is_printed_once_in_a_run_and_recorded_each_time(
    known: list[SiteDescription], images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, desk = Server(known), site(images, tmp_path / "home", max_scores=0)
    for number in (1, 2, 3):
        assert "allows 0 scores" in told(desk, server.score(round=number)).fault
    assert capsys.readouterr().out.count("refused") == 1
    assert len((tmp_path / "home" / "refused.jsonl").read_text().splitlines()) == 3


# --- two thousand questions ---------------------------------------------------------------------

STRICT: dict[str, Any] = {
    "methods": ("fedavg", "fpl"),
    "max_rounds": 5,
    "max_epochs": 1,
    "max_repeats": 1,
    "max_scores": 2,
    "max_runs_per_day": 4,
    "send_counts": False,
    "min_examples": 2,
}
NUMBERS = [0, 1, 2, 3, 4, 5, 6, 4999, -1, 10**400, True, 1.5, "1", None, float("nan")]
TEXTS = ["", "train", "score", "\x1b[31m", "[" * 100_000, "x" * 2_000_000, 5, None, "../../etc"]


class Crafty:
    """Makes questions: honest ones, honest ones with a field or two changed, and nonsense."""

    def __init__(self, known: list[SiteDescription], seed: int):
        self.draw = random.Random(seed)
        self.servers = [
            Server(known, method=method, rounds=rounds, evaluate_every=every)
            for method in ("fedavg", "fpl", "fedprox", "scaffold")
            for rounds, every in ((4, 2), (5, 1), (50, 1))
        ]

    def noisy(self, server: Server) -> Message:
        """A model whose answers differ from image to image."""
        received, noise = server.received(), torch.Generator().manual_seed(self.draw.randrange(3))
        weights = {
            name: part + torch.randn(part.shape, generator=noise)
            for name, part in received.model.weights.items()
        }
        return replace(received, model=replace(received.model, weights=weights))

    def question(self) -> Any:
        """One of them."""
        draw = self.draw
        place = draw.choice([*range(len(self.servers)), 0, 1, 3, 4])  # the latter may run
        server = self.servers[place]
        if draw.random() < 0.05:
            return draw.choice(
                [Message(), 7, "train", None, [1], Prototypes(*[torch.zeros(1)] * 3)]
            )
        shift = draw.choice([0.0, 0.0, 0.01, 0.02, 1e6, float("nan")])
        ask = server.train(
            what=draw.choice(["train", "train", "score", "score", "describe", "hello"]),
            run=f"{draw.choice([place, place, place, draw.randrange(9)]):016x}",
            round=draw.randrange(6),
            received=draw.choice(
                [
                    server.received(shift),
                    self.noisy(server),
                    self.noisy(server),
                    one_bias(server, 0),
                ]
            ),
        )
        if ask.what in ("describe", "hello"):
            about = {**INQUIRY, "method": {"name": draw.choice(["fedavg", "fpl", "moon"])}}
            about["rounds"] = draw.choice([1, 5, 6, 10**6])
            ask = SiteRequest(ask.what, json.dumps(about) if draw.random() < 0.8 else ask.brief)
        while draw.random() < 0.3:
            name = draw.choice(["what", "brief", "run", "session", "start", "floor", "rounds"])
            name = draw.choice([name, "round", "exchange"])
            value = draw.choice(TEXTS if name in ("what", "brief", "run", "session") else NUMBERS)
            changed: dict[str, Any] = {name: value}
            ask = replace(ask, **changed)
        return ask


class Watched(RequestHandler):
    """A desk whose answers are held against its policy by a reader of its own."""

    def __init__(self, images: Path, home: Path):
        super().__init__("site-a", images / "site-a", home, SitePolicy(**STRICT))
        self.exchanges: dict[tuple[str, int, int], set[bytes]] = {}
        self.scores: dict[str, set[tuple[int, bytes]]] = {}
        self.begun: set[str] = set()
        self.answered: Counter[str] = Counter()

    def watch(self, ask: Any) -> None:
        """Ask, and see that nothing beyond the policy is answered."""
        letter = b""
        with suppress(TypeError, ValueError):  # of what cannot even be packed
            letter = pack_tree(ask)
        try:
            answer = unpack_tree(self.answer(letter))
        except ProtofedError:
            return  # not even a question
        assert type(answer) is SiteResponse
        if answer.fault:
            assert answer.text == ""
            assert answer.reply == Message()
            self.answered["refused"] += 1
            return
        self.answered[ask.what] += 1
        getattr(self, f"see_{ask.what}")(ask, answer)

    def see_hello(self, ask: SiteRequest, answer: SiteResponse) -> None:
        """Only its name."""
        assert answer.text == "site-a"

    def see_describe(self, ask: SiteRequest, answer: SiteResponse) -> None:
        """No counts, and only of what may run."""
        about = json.loads(ask.brief)
        assert about["method"]["name"] in STRICT["methods"]
        assert about["rounds"] <= STRICT["max_rounds"]
        assert json.loads(answer.text)["held"] == {}

    def see_run(self, ask: SiteRequest) -> dict[str, Any]:
        """What holds for every question of a run."""
        spec: dict[str, Any] = json.loads(ask.brief)["spec"]
        assert spec["method"]["name"] in STRICT["methods"]
        assert ask.rounds == spec["rounds"] <= STRICT["max_rounds"]
        assert ask.exchange == 0
        self.begun.add(ask.run)
        assert len(self.begun) <= STRICT["max_runs_per_day"]
        return spec

    def see_train(self, ask: SiteRequest, answer: SiteResponse) -> None:
        """Not beyond the rounds, not again and again, and no counts."""
        self.see_run(ask)
        assert 0 <= ask.round < STRICT["max_rounds"]
        record = AnswerLedger(self.home).runs[ask.run]
        assert len(record.trained[ask.round + 1, ask.exchange + 1]) <= 1 + STRICT["max_repeats"]
        asked = self.exchanges.setdefault((ask.run, ask.round, ask.exchange), set())
        asked.add(pack_tree(ask.received))
        assert len(asked) <= 1 + STRICT["max_repeats"]
        assert all(bool((part.abs() < 1e5).all()) for part in ask.received.model.weights.values())
        if isinstance(answer.reply, Failure):  # a crafted model may diverge
            assert answer.reply.diverged
        elif answer.reply.protos is not None:
            assert set(answer.reply.protos.counts.tolist()) == {1}

    def see_score(self, ask: SiteRequest, answer: SiteResponse) -> None:
        """Only when one is due, so often, and never of a model with one answer."""
        spec = self.see_run(ask)
        every = spec.get("evaluate_every", 1)
        assert ask.round >= 1
        assert ask.round % every == 0 or ask.round == spec["rounds"]
        scores = self.scores.setdefault(ask.run, set())
        scores.add((ask.round, pack_tree(ask.received)))
        assert len(scores) <= STRICT["max_scores"]
        assert not all(
            bool((part == 0).all()) for part in _convolutions(ask.received.model.weights)
        )


def _convolutions(weights: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    return [part for name, part in weights.items() if not name.endswith("bias")]


@pytest.mark.parametrize("count", [400, pytest.param(2000, marks=pytest.mark.long)])
def test_nothing_beyond_a_strict_policy_is_answered_to_many_questions(
    count: int, tmp_path: Path
) -> None:
    images = make(tmp_path / "images", SITES, each=40)
    known = offers(desks(images, tmp_path / "asked"))
    desk, crafty = Watched(images, tmp_path / "home"), Crafty(known, 0)
    for number in range(count):
        if number == count // 2:  # started anew, as after a crash; the reader remembers all
            before, desk = desk, Watched(images, tmp_path / "home")
            desk.exchanges, desk.scores, desk.begun = before.exchanges, before.scores, before.begun
            desk.answered = before.answered
        desk.watch(crafty.question())
    found = [what for what in ("hello", "describe", "train", "score") if desk.answered[what]]
    assert found == ["hello", "describe", "train", "score"]
    assert desk.answered["refused"] > count // 2
