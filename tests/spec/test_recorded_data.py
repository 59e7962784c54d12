"""Specs on record: what they say of their data holds, whatever became of the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from protofed.datasets import from_arrays
from protofed.runtime.code_reference import ANY_CODE, NO_CODE, CodeAccess
from protofed.spec.experiment_spec import Experiment
from protofed.spec.spec_parser import parse_experiment
from tests.data.tables import images, vectors


@pytest.mark.parametrize("access", [ANY_CODE, NO_CODE])
def test_a_recorded_section_is_read_without_its_folder(
    access: CodeAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [
        Experiment(data=from_arrays(given, folder=tmp_path / kind))
        for kind, given in (("vectors", vectors()), ("images", images()))
    ]

    def refuse(root: Path) -> None:
        raise AssertionError(f"{root} was opened")

    for opener in ("is_array_folder", "array_info"):
        monkeypatch.setattr(f"protofed.spec.experiment_spec.{opener}", refuse)
        monkeypatch.setattr(f"protofed.data.benchmarks.{opener}", refuse)
    for experiment in made:
        again = parse_experiment(experiment.to_dict(), access=access)
        assert (again, again.digest) == (experiment, experiment.digest)
