"""What goes wrong in whole runs: on record, on the terminal, and borne only for so long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from protofed.core import tree
from protofed.core.message import Failure, Message
from protofed.core.site import ClientId, RoundContext
from protofed.engines.engine import Engine, require_replies
from protofed.engines.local_engine import LocalEngine
from protofed.errors import ProtofedError
from protofed.experiment import runner
from protofed.experiment.checkpoint import load_server_state
from protofed.experiment.round_report import RoundReport
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import MOST_FAILED, run
from protofed.federation.build import Federation, build_federation
from protofed.spec.experiment_spec import Experiment

Make = Callable[..., Experiment]
WILD = {"lr": 1e30, "epochs": 2, "batch": 4}
Bad = Callable[[ClientId, RoundContext], bool]


def lying(monkeypatch: pytest.MonkeyPatch, bad: Bad) -> None:
    """Let some clients send NaN in some rounds."""

    class Lying(LocalEngine[Any, Any]):
        def exchange(
            self, messages: Mapping[int, Message], context: RoundContext
        ) -> dict[int, Message | Failure]:
            replies = require_replies(super().exchange(messages, context))
            return {c: nonsense(m) if bad(c, context) else m for c, m in replies.items()}

    def engine(experiment: Experiment, federation: Federation, *more: object) -> Engine:
        return Lying(experiment.method, federation.everyone, federation.tests)

    monkeypatch.setattr(runner, "create_local_engine", engine)


def nonsense(reply: Message) -> Message:
    return replace(reply, model=tree.map(lambda w: w * torch.nan, reply.model))


def events(folder: Path) -> list[dict[str, Any]]:
    return RunDir(folder).lines(folder / "events.jsonl")


def test_a_refused_reply_is_on_record_and_the_run_goes_on(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, lambda client, step: client == 1 and step.round != 1)
    told: list[str] = []
    result = run(tiny(), tmp_path / "a", lambda p: told.extend(p.notices if p.round else ()))
    lines = events(tmp_path / "a")
    assert [(e["round"], e["leg"], e["client"]) for e in lines] == [(1, 1, 1), (3, 1, 1)]
    assert all("model.weights" in e["reason"] and "NaN" in e["reason"] for e in lines)
    assert told == [f"round {e['round']}, exchange 1: client 1: {e['reason']}" for e in lines]
    assert "2 replies were refused and 0 rounds failed: see events.jsonl" in map(
        str, result.notices
    )
    rounds = RunDir(tmp_path / "a").lines(tmp_path / "a" / "rounds.jsonl")
    assert [sorted(line["legs"][0]) for line in rounds] == [["0", "2"], ["0", "1", "2"], ["0", "2"]]
    newest = RunDir(tmp_path / "a").newest()
    assert newest is not None
    assert tree.finite(load_server_state(newest))


def test_a_failed_round_keeps_the_state_and_is_said(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, lambda client, step: client == 0 and step.round == 1)
    result = run(tiny(min_clients=3), tmp_path / "a", keep=(1,))
    assert [e["client"] for e in events(tmp_path / "a")] == [0, None]
    assert "1 reply was refused and 1 round failed: see events.jsonl" in map(str, result.notices)
    folder = RunDir(tmp_path / "a")
    one, two = (folder.kept(number) for number in (1, 2))
    assert one is not None
    assert two is not None
    assert tree.equal(load_server_state(one), load_server_state(two))
    scores = [line["domains"] for line in folder.lines(folder.scores)]
    assert scores[0] == scores[1] != scores[2]
    assert "same bits" not in folder.card.read_text()
    assert "a repetition may give other scores" in folder.card.read_text()


def test_failed_rounds_in_a_row_stop_the_run_which_can_go_on(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        lying(patched, lambda client, step: step.round >= 1)
        with pytest.raises(
            ProtofedError, match=f"stopped after {MOST_FAILED} consecutive failed rounds"
        ) as caught:
            run(tiny(rounds=5), tmp_path / "a")
    assert "events.jsonl" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 5
    seen: list[int] = []
    result = run(tiny(rounds=5), tmp_path / "a", lambda p: seen.append(p.round))
    assert seen[0] == 1 + MOST_FAILED
    assert f"{MOST_FAILED} rounds failed" in result.notices[-1].text


def test_a_run_of_failed_rounds_alone_is_never_called_finished(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, lambda client, step: True)
    for words in ("consecutive failed rounds", "nothing was trained"):
        with pytest.raises(ProtofedError, match=words):
            run(tiny(rounds=MOST_FAILED), tmp_path / "a")
    assert not RunDir(tmp_path / "a").done.exists()


def test_failed_rounds_that_are_not_in_a_row_are_borne(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, lambda client, step: step.round % 3 != 2)
    result = run(tiny(rounds=6), tmp_path / "a")
    assert "12 replies were refused and 4 rounds failed" in result.notices[-1].text


def test_events_beyond_the_checkpoint_are_dropped_on_resuming(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, lambda client, step: client == 1)
    experiment = tiny(rounds=4, evaluate_every=2)
    run(experiment, tmp_path / "whole")

    def stop(report: RoundReport) -> None:
        if report.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "broken", stop)
    assert [e["round"] for e in events(tmp_path / "broken")] == [1, 2, 3]
    run(experiment, tmp_path / "broken")
    whole, broken = (tmp_path / name / "events.jsonl" for name in ("whole", "broken"))
    assert whole.read_bytes() == broken.read_bytes()
    run(experiment, tmp_path / "broken", again=True)
    assert whole.read_bytes() == broken.read_bytes()


def test_training_that_diverges_stops_with_where_and_what_to_do(tiny: Make, tmp_path: Path) -> None:
    with pytest.raises(ProtofedError) as caught:
        run(tiny(training=WILD), tmp_path / "a")
    told = str(caught.value)
    for part in (
        "round 1, exchange 1: client 0: ",
        " in step ",
        "training.lr",
        'on_nonfinite = "skip"',
    ):
        assert part in told
    assert len(told.splitlines()) <= 5
    assert not (tmp_path / "a" / "events.jsonl").exists()
    folder = RunDir(tmp_path / "a")
    assert folder.newest() is None
    assert (folder.rounds.read_bytes(), folder.scores.read_bytes()) == (b"", b"")
    assert not folder.done.exists()


def test_a_diverged_client_can_be_skipped(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def one_wild(experiment: Experiment) -> Any:
        made = build_federation(experiment)
        wild = replace(made.sites[1], training=replace(experiment.training, lr=1e30))
        return made._replace(sites={**made.sites, 1: wild})

    monkeypatch.setattr(runner, "build_federation", one_wild)
    for name in ("fedavg", "local"):
        experiment = tiny(method=name, on_nonfinite="skip", rounds=2)
        result = run(experiment, tmp_path / name)
        assert [(e["round"], e["client"]) for e in events(tmp_path / name)] == [(1, 1), (2, 1)]
        assert "2 replies were refused" in result.notices[-1].text
        assert result.last.mean is not None


def test_if_all_diverge_skipping_ends_too_and_tells_of_some(tiny: Make, tmp_path: Path) -> None:
    many = {"kind": "shares", "clients": 5, "samples": 5}
    experiment = tiny(training=WILD, on_nonfinite="skip", rounds=5, partition=many)
    told: list[str] = []
    with pytest.raises(ProtofedError, match="consecutive failed rounds"):
        run(experiment, tmp_path / "a", lambda p: told.extend(p.notices if p.round == 1 else ()))
    assert len(events(tmp_path / "a")) == MOST_FAILED * 6
    assert [line.split(":")[1].strip() for line in told[:3]] == ["client 0", "client 1", "client 2"]
    assert told[3] == "and 2 more in this round, see events.jsonl"
    assert "0 of 5 replies are left" in told[4]


def test_more_clients_than_a_round_asks_are_refused_before_it_starts(
    tiny: Make, tmp_path: Path
) -> None:
    for wrong in ({"min_clients": 4}, {"min_clients": 2, "participation": 0.34}):
        with pytest.raises(ProtofedError, match="min_clients: "):
            run(tiny(**wrong), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_settings_for_what_goes_wrong_are_part_of_the_digest(tiny: Make) -> None:
    usual = tiny()
    assert usual.digest == tiny(min_clients=1, on_nonfinite="stop").digest
    assert len({usual.digest, tiny(min_clients=2).digest, tiny(on_nonfinite="skip").digest}) == 3
    assert usual.to_dict()["min_clients"] == 1
    assert tiny(min_clients=2).to_dict()["min_clients"] == 2
