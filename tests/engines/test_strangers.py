"""A method that no worker can import: one process does it all, and says why."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from pydantic.dataclasses import dataclass

from protofed.core import tree
from protofed.engines.local_engine import LocalEngine
from protofed.engines.multiprocess import WorkerEngine
from protofed.methods.fedavg import FedAvg
from tests.engines.test_multiprocess import federation, played


@dataclass(frozen=True)
class TypedIn(FedAvg):
    """As if typed in at a prompt, or defined in the script that was started."""


def test_a_method_that_workers_cannot_import_is_played_in_one_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    prompt = ModuleType("the_prompt")
    prompt.TypedIn = TypedIn  # type: ignore[attr-defined]  # a module is what is put into it
    monkeypatch.setitem(sys.modules, "the_prompt", prompt)
    monkeypatch.setattr(TypedIn, "__module__", "the_prompt")
    server, sites, tests = federation(TypedIn())
    engine = WorkerEngine(TypedIn(), sites, tests, workers=1)
    engine.patience = 0
    state, _ = played(engine, server)
    assert tree.equal(state, played(LocalEngine(FedAvg(), sites, tests), server)[0])
    assert engine.news == [
        "workers cannot be used here, so one process does it all: No module named 'the_prompt'"
    ]
    assert capfd.readouterr().err == ""
