"""The device is part of the spec: resolved, and refused where the machine does not have it."""

from __future__ import annotations

import pytest

from protofed.errors import ProtofedError
from protofed.spec.experiment_spec import Experiment
from protofed.spec.spec_parser import parse_experiment


def test_a_device_is_resolved_and_part_of_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    plain = Experiment()
    assert plain.device == "cpu"
    assert plain.to_dict()["device"] == "cpu"
    assert Experiment(device="cpu").digest == plain.digest
    with pytest.raises(ProtofedError, match="no cuda: use auto or cpu"):
        parse_experiment({"device": "cuda"})
    with pytest.raises(ProtofedError, match="did you mean 'cuda'"):
        parse_experiment({"device": "cuds"})
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    card = Experiment()
    assert card.to_dict()["device"] == "cuda"
    assert card.digest != plain.digest
