"""Files of one run in the folder of another: nothing is resumed, shown or taken along from them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from protofed.errors import ProtofedError
from protofed.experiment.result import read_result
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import run
from protofed.experiment.trained_run import open_trained_run
from protofed.export.inference_module import load_trained_model
from protofed.figures import draw_figure
from protofed.figures.style import FigureOptions
from protofed.spec.experiment_spec import Experiment
from tests.faults.mutations import reseal

Make = Callable[..., Experiment]


@pytest.fixture
def scaffold(tiny: Make) -> Experiment:
    return tiny(method="scaffold")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs that are copied lie, each made when it is first needed."""
    return tmp_path_factory.mktemp("swapped")


def copied(experiment: Experiment, home: Path, folder: Path) -> RunDir:
    """A finished run with all its checkpoints, which a test may spoil."""
    run(experiment, home / folder.name, keep=(1, 2, 3), workers=0)  # once finished, it is only read
    shutil.copytree(home / folder.name, folder)
    return RunDir(folder)


@pytest.fixture
def own(scaffold: Experiment, home: Path, tmp_path: Path) -> RunDir:
    return copied(scaffold, home, tmp_path / "own")


@pytest.fixture
def other(tiny: Make, home: Path, tmp_path: Path) -> RunDir:
    """FedDC, whose states have the same form."""
    return copied(tiny(method="feddc"), home, tmp_path / "other")


def put(there: RunDir, *names: str, into: RunDir) -> None:
    """Copy files and folders of one run over those of another."""
    for name in names:
        source, target = there.path / name, into.path / name
        if source.is_dir():
            shutil.rmtree(target)
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)


def test_a_checkpoint_of_another_experiment_is_not_gone_on_from(
    scaffold: Experiment, own: RunDir, other: RunDir
) -> None:
    whole = own.scores.read_bytes()
    assert other.scores.read_bytes() != whole
    own.done.unlink()
    put(other, "checkpoints", "scores.jsonl", "rounds.jsonl", into=own)
    told: list[str] = []
    run(scaffold, own.path, lambda now: told.extend(now.notices), workers=0)
    bad = [line for line in told if f"it is of another experiment, {other.digest()[:12]}" in line]
    assert len(bad) == 3
    assert all(line.endswith("; starting over") for line in bad)
    assert own.scores.read_bytes() == whole
    assert "3 checkpoints were damaged" in read_result(own).notices[-1].text


READERS: dict[str, Callable[[Path], object]] = {
    "open": open_trained_run,
    "kept round": lambda folder: open_trained_run(folder, 2),
    "export and predict": load_trained_model,
    "plot": lambda folder: draw_figure("tsne", [folder], FigureOptions()),
    "plot a kept round": lambda folder: draw_figure("tsne", [folder], FigureOptions(rounds=(2,))),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_nobody_reads_a_model_of_another_experiment(
    reader: Callable[[Path], object], own: RunDir, other: RunDir
) -> None:
    put(other, "checkpoints", into=own)
    with pytest.raises(ProtofedError, match="of another experiment"):
        reader(own.path)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_nobody_reads_a_model_beside_scores_that_were_edited(
    reader: Callable[[Path], object], own: RunDir, other: RunDir
) -> None:
    put(other, "checkpoints", "scores.jsonl", "rounds.jsonl", into=own)
    with pytest.raises(ProtofedError, match="swapped or edited"):
        reader(own.path)


def test_a_finished_run_of_another_spec_is_told(
    scaffold: Experiment, own: RunDir, other: RunDir
) -> None:
    put(other, "checkpoints", "scores.jsonl", "rounds.jsonl", "done", into=own)
    with pytest.raises(ProtofedError, match=r"spec\.json is not the spec"):
        run(scaffold, own.path)


def test_states_of_clients_do_not_stand_in_for_the_servers(
    scaffold: Experiment, own: RunDir
) -> None:
    """Not even where a forger has made all digests right."""
    own.done.unlink()
    newest = own.checkpoints / "round-00003"
    for here, there in (("server", "clients-0"), ("clients-0", "server")):
        whole = (newest / f"{here}.safetensors").read_bytes()
        shutil.copy(newest / f"{there}.safetensors", newest / f"{here}.safetensors")
        reseal(own.path)
        with pytest.raises(ProtofedError, match=f"{here}.safetensors does not hold the state"):
            run(scaffold, own.path, workers=0)
        (newest / f"{here}.safetensors").write_bytes(whole)


def test_rounds_that_are_not_on_record_are_played_again(scaffold: Experiment, own: RunDir) -> None:
    own.done.unlink()
    whole, lines = own.scores.read_bytes(), own.rounds.read_bytes().splitlines(keepends=True)
    own.rounds.write_bytes(lines[0] + lines[2])
    told: list[str] = []
    run(scaffold, own.path, lambda now: told.extend(now.notices), workers=0)
    assert sum("rounds.jsonl does not have every round up to it" in line for line in told) == 2
    assert [line["round"] for line in own.lines(own.rounds)] == [1, 2, 3]
    assert own.scores.read_bytes() == whole


def test_damaged_lines_of_events_are_dropped_and_told(scaffold: Experiment, own: RunDir) -> None:
    own.done.unlink()
    own.events.write_bytes(
        b'{"round": 1, "leg": 1, "client": 0, "reason": "late"}\n{"round": 2}\n'
        b'{"round": 2, "leg": 1, "client": 1, "reason": "late"}\n{"rou'
    )
    told: list[str] = []
    run(scaffold, own.path, lambda now: told.extend(now.notices), workers=0)
    assert "events.jsonl had 1 damaged line, now gone" in told
    assert [line["reason"] for line in own.lines(own.events)][:2] == ["late", "late"]
    assert "2 replies were refused" in read_result(own).notices[-1].text
    assert "as far as events.jsonl was not damaged" in read_result(own).notices[-1].text
