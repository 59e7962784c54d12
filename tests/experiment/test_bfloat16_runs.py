"""A run in bfloat16: the same bits for any number of workers, after a kill, and said everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from protofed.core.model import supports_bfloat16
from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from protofed.export.inference_module import load_trained_model
from protofed.spec.experiment_spec import Experiment

Make = Callable[..., Experiment]
needs_bfloat16 = pytest.mark.skipif(
    not supports_bfloat16("cpu"), reason="needs a CPU with bfloat16 arithmetic"
)


def scores(folder: Path) -> bytes:
    return (folder / "scores.jsonl").read_bytes()


def losses(folder: Path) -> list[object]:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line)["legs"] for line in lines]


@needs_bfloat16
@pytest.mark.parametrize(
    "method", ["fedavg", *(pytest.param(m, marks=pytest.mark.long) for m in ("fpl", "fedseproto"))]
)
def test_workers_and_pauses_change_no_bit(method: str, tiny: Make, tmp_path: Path) -> None:
    made = tiny(net="lsa-cnn", method=method, precision="bfloat16")
    run(made, tmp_path / "whole", workers=0)
    run(made, tmp_path / "two", workers=2)
    run(made, tmp_path / "paused", workers=0, stop_after=1)
    run(made, tmp_path / "paused", workers=0)
    assert scores(tmp_path / "two") == scores(tmp_path / "paused") == scores(tmp_path / "whole")
    run(tiny(net="lsa-cnn", method=method), tmp_path / "float32", workers=0)
    assert losses(tmp_path / "whole") != losses(tmp_path / "float32")  # so it did something
    assert json.loads((tmp_path / "whole" / "spec.json").read_text())["precision"] == "bfloat16"


@needs_bfloat16
def test_a_model_is_exported_in_float32(tiny: Make, tmp_path: Path) -> None:
    run(tiny(net="lsa-cnn", precision="bfloat16"), tmp_path / "a", workers=0)
    loaded = load_trained_model(tmp_path / "a")
    module = loaded.portable
    assert torch.equal(module(loaded.images)[0], loaded.logits)
    assert module.net.precision == "float32"
    assert {leaf.dtype for leaf in module.net.parameters()} == {torch.float32}


def test_a_processor_that_would_emulate_it_is_refused_before_the_run(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    able: dict[str, Any] = {"avx2": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    with pytest.raises(ProtofedError, match="precision: this CPU has no bfloat16 arithmetic"):
        run(tiny(precision="bfloat16"), tmp_path / "a")
    assert not (tmp_path / "a").exists()
