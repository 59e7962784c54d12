from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from protofed.analysis.sweep import GridCell
from protofed.analysis.tensorboard import run_scalars, write_tensorboard
from protofed.errors import ProtofedError
from protofed.experiment.run_folder import RunDir


def test_tensorboard_reads_back_what_the_run_recorded(grid: list[GridCell], tmp_path: Path) -> None:
    folder = grid[0].folder
    assert write_tensorboard(folder, tmp_path) == len(run_scalars(folder))
    module = "tensorboard.backend.event_processing.event_accumulator"
    events = importlib.import_module(module).EventAccumulator(str(tmp_path / folder.name))
    events.Reload()
    place = RunDir(folder)
    means = [event.value for event in events.Scalars("accuracy/mean")]
    assert means == pytest.approx([line["mean"] for line in place.lines(place.scores)])
    sent = [event.value for event in events.Scalars("cost/bytes_up")]
    assert sent == [line["bytes_up"] for line in place.lines(place.rounds)]
    losses = [event.value for event in events.Scalars("leg 0/loss/client 1")]
    expected = [line["legs"][0]["1"]["loss"] for line in place.lines(place.rounds)]
    assert losses == pytest.approx(expected)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match=r"no rounds\.jsonl"):
        write_tensorboard(tmp_path, tmp_path)
