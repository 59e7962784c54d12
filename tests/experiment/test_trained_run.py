"""A run that is opened is the one its scores speak of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from protofed.errors import ProtofedError
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import run
from protofed.experiment.trained_run import open_trained_run
from protofed.spec.experiment_spec import Experiment


def test_an_older_state_never_stands_in_for_the_last_one_of_a_finished_run(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    run(tiny(rounds=3), tmp_path, workers=0)
    assert open_trained_run(tmp_path).round == 3
    place = RunDir(tmp_path)
    newest = place.newest()
    assert newest is not None
    (newest.folder / "server.safetensors").write_bytes(b"damaged")
    with pytest.raises(ProtofedError, match="the checkpoint of round 3, its last, cannot be used"):
        open_trained_run(tmp_path)
    place.done.unlink()  # now it is a run to go on with
    assert open_trained_run(tmp_path).round == 2
