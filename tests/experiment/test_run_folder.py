"""What a run folder survives: kills, damage, two processes, a changed world."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protofed.errors import ProtofedError
from protofed.experiment import runner
from protofed.experiment.result import read_result
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import run
from protofed.spec.experiment_spec import Experiment

Make = Callable[..., Experiment]


@pytest.fixture
def finished(tiny: Make, tmp_path: Path) -> tuple[Experiment, RunDir]:
    experiment = tiny(rounds=3)
    run(experiment, tmp_path / "a")
    return experiment, RunDir(tmp_path / "a")


def damage_sum(folder: Path) -> None:
    (folder / "server.safetensors").write_bytes(b"damaged")


def lose_file(folder: Path) -> None:
    (folder / "server.safetensors").unlink()


def break_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


def empty_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("[]")


@pytest.mark.parametrize("damage", [damage_sum, lose_file, break_manifest, empty_manifest])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    damage: Callable[[Path], None], finished: tuple[Experiment, RunDir]
) -> None:
    experiment, folder = finished
    before = folder.scores.read_bytes()
    folder.done.unlink()
    newest = folder.newest()
    assert newest is not None
    assert newest.round == 3
    damage(newest.folder)
    older = folder.newest()
    assert older is not None
    assert older.round == 2
    run(experiment, folder.path)
    assert folder.scores.read_bytes() == before


def test_a_torn_line_and_a_lost_line_are_made_again(finished: tuple[Experiment, RunDir]) -> None:
    experiment, folder = finished
    before = folder.scores.read_bytes()
    folder.done.unlink()
    folder.rounds.write_bytes(folder.rounds.read_bytes()[:-20])
    folder.scores.write_bytes(b"".join(before.splitlines(keepends=True)[:-1]))
    run(experiment, folder.path)
    assert folder.scores.read_bytes() == before
    assert [line["round"] for line in folder.lines(folder.rounds)] == [1, 2, 3]


def test_done_without_scores_is_told(finished: tuple[Experiment, RunDir]) -> None:
    _, folder = finished
    folder.scores.unlink()
    with pytest.raises(ProtofedError, match="no scores"):
        read_result(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "3"])
def test_a_damaged_spec_is_told(content: str, finished: tuple[Experiment, RunDir]) -> None:
    experiment, folder = finished
    (folder.path / "spec.json").write_text(content)
    with pytest.raises(ProtofedError, match=r"spec\.json"):
        run(experiment, folder.path)


@pytest.mark.parametrize("what", ["torch", "data"])
def test_a_run_does_not_go_on_in_another_world(
    what: str, finished: tuple[Experiment, RunDir]
) -> None:
    experiment, folder = finished
    folder.done.unlink()
    env = folder.path / "env.json"
    world: dict[str, Any] = json.loads(env.read_text())
    env.write_text(json.dumps({**world, what: "another"}))
    with pytest.raises(ProtofedError, match=f"begun with other {what}"):
        run(experiment, folder.path)
    run(experiment, folder.path, again=True)
    assert json.loads(env.read_text()) == world


def test_again_keeps_everything_if_the_run_cannot_be_repeated(
    finished: tuple[Experiment, RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, folder = finished

    def unreadable(experiment: Experiment) -> None:
        raise ProtofedError("the data is gone")

    monkeypatch.setattr(runner, "build_federation", unreadable)
    before = sorted(path.name for path in folder.path.rglob("*"))
    with pytest.raises(ProtofedError, match="gone"):
        run(experiment, folder.path, again=True)
    assert sorted(path.name for path in folder.path.rglob("*")) == before


def test_a_second_process_on_the_folder_is_refused(tiny: Make, tmp_path: Path) -> None:
    with (
        RunDir(tmp_path / "a").locked(),
        pytest.raises(ProtofedError, match="another process"),
    ):
        run(tiny(), tmp_path / "a")
    assert run(tiny(), tmp_path / "a").last.mean is not None
