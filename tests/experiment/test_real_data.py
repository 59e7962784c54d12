"""The benchmark of the papers, end to end, where its images are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from protofed.experiment.runner import run
from protofed.spec.spec_parser import parse_experiment


@pytest.mark.usefixtures("real_data")
def test_office_caltech_runs_and_repeats_byte_for_byte(tmp_path: Path) -> None:
    raw = {"data": "office-caltech", "net": "lsa-cnn", "rounds": 2, "training": {"epochs": 1}}
    results = [run(parse_experiment(raw), tmp_path / name) for name in ("a", "b")]
    assert list(results[0].last.domains) == ["caltech", "amazon", "webcam", "dslr"]
    one, two = ((tmp_path / name / "scores.jsonl").read_bytes() for name in ("a", "b"))
    assert one == two
