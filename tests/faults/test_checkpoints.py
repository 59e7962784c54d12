"""A checkpoint that cannot be used is passed over with a notice; the run ends as it would have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from protofed.errors import ProtofedError
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import run
from protofed.spec.experiment_spec import Experiment

Make = Callable[..., Experiment]
Broken = tuple[Experiment, RunDir, bytes]


@pytest.fixture
def broken(tiny: Make, tmp_path: Path) -> Broken:
    """A run of three rounds that was killed before it was done, and its scores."""
    experiment, place = tiny(rounds=3), RunDir(tmp_path / "a")
    run(experiment, place.path, workers=0)
    place.done.unlink()
    return experiment, place, place.scores.read_bytes()


def notices(experiment: Experiment, place: RunDir) -> list[str]:
    """Go on with a run; what is told of its checkpoints."""
    told: list[str] = []
    run(experiment, place.path, lambda now: told.extend(now.notices), workers=0)
    return [line for line in told if "checkpoint" in line]


def test_the_one_before_is_used_and_told_and_on_record(broken: Broken) -> None:
    experiment, place, scores = broken
    (place.checkpoints / "round-00003" / "server.safetensors").write_bytes(b"damaged")
    told = notices(experiment, place)
    words = "the checkpoint of round 3 cannot be used: server.safetensors is not as it was written"
    assert told == [f"{words}; resuming after round 2"]
    line = {"round": 2, "checkpoint": 3, "reason": told[0]}
    assert place.lines(place.events) == [line]
    assert "1 checkpoint was damaged" in json.loads(place.done.read_text())["notices"][-1]["text"]
    assert place.scores.read_bytes() == scores
    assert place.rounds_on_disk() == [2, 3]


def test_when_all_are_damaged_the_run_starts_over_and_says_so(broken: Broken) -> None:
    experiment, place, scores = broken
    for folder in place.checkpoints.iterdir():
        (folder / "manifest.json").write_text("{}")
    told = notices(experiment, place)
    assert len(told) == 2
    assert all(line.endswith("starting over") for line in told)
    assert place.scores.read_bytes() == scores


def test_lost_checkpoints_are_told_and_a_kill_before_the_first_is_not(broken: Broken) -> None:
    experiment, place, scores = broken
    for number in (2, 3):
        (place.checkpoints / f"round-0000{number}").rename(place.path / str(number))
    assert "it is gone; starting over" in notices(experiment, place)[0]
    place.done.unlink()
    place.clear()
    place.scores.write_bytes(scores.splitlines(keepends=True)[0])
    assert notices(experiment, place) == []


def test_damaged_checkpoints_do_not_push_out_good_ones(broken: Broken) -> None:
    experiment, place, _ = broken
    for folder in place.checkpoints.iterdir():
        (folder / "server.safetensors").unlink()

    class KilledError(Exception):
        pass

    def stop(now: object) -> None:
        if place.rounds_on_disk()[-1:] == [1]:
            raise KilledError

    with pytest.raises(KilledError):
        run(experiment, place.path, stop, workers=0)
    assert place.find().round == 1


@pytest.mark.parametrize("old", [b'"round": 3', b'"scores"', b'"sha256"', b'"server.safetensors"'])
def test_no_letter_of_a_manifest_may_change(old: bytes, broken: Broken) -> None:
    _, place, _ = broken
    manifest = place.checkpoints / "round-00003" / "manifest.json"
    whole = manifest.read_bytes()
    assert place.find().round == 3
    for position in range(whole.index(old), whole.index(old) + len(old)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[position] ^= 1 << bit
            manifest.write_bytes(changed)
            assert place.find().round == 2, bytes(changed)


def test_scores_that_were_changed_are_made_again(broken: Broken) -> None:
    experiment, place, scores = broken
    first, second, third = scores.splitlines(keepends=True)
    content = json.loads(second)
    wrong = json.dumps({**content, "mean": content["mean"] + 1}).encode() + b"\n"
    place.scores.write_bytes(first + wrong + third)
    assert len(place.lines(place.scores)) == 3
    told = notices(experiment, place)
    assert "scores.jsonl is not as it was then" in told[0]
    assert place.scores.read_bytes() == scores


@pytest.mark.parametrize(
    "rubbish", [b"\x80", b"[]", b"3", b'{"roune": 3}', b'{"round": "3"}', b"{"]
)
def test_a_record_may_hold_rubbish(rubbish: bytes, broken: Broken) -> None:
    experiment, place, scores = broken
    for file in (place.scores, place.rounds, place.events):
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        file.write_bytes(b"".join([*lines[:1], rubbish + b"\n", *lines[2:]]))
    assert len(notices(experiment, place)) == 2
    assert place.scores.read_bytes() == scores


def test_rounds_to_keep_are_on_record(tiny: Make, tmp_path: Path) -> None:
    experiment, place = tiny(rounds=4), RunDir(tmp_path / "a")

    class KilledError(Exception):
        pass

    def stop(now: object) -> None:
        if place.rounds_on_disk()[-1:] == [1]:
            raise KilledError

    with pytest.raises(KilledError):
        run(experiment, place.path, stop, keep=(1, 2), workers=0)
    run(experiment, place.path, workers=0)
    assert place.rounds_on_disk() == [1, 2, 3, 4]
    run(experiment, place.path, again=True, workers=0)
    assert place.rounds_on_disk() == [3, 4]


def test_a_kill_before_the_spec_was_written_bars_nobody(tiny: Make, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".spec.json.123.tmp").write_text('{"digest"')
    run(tiny(rounds=1), tmp_path / "a", workers=0)
    assert not (tmp_path / "a" / ".spec.json.123.tmp").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "letter.txt").write_text("mine")
    with pytest.raises(ProtofedError, match="not an empty folder"):
        run(tiny(rounds=1), tmp_path / "b", workers=0)
