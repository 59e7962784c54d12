"""What a machine has to give is read from the system, and a container's limit counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protofed.runtime.resources import free_memory, usable_cores


def test_cores_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 5, 9}, raising=False)
    assert usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # not Linux
    assert usable_cores() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


def test_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = free_memory()
    assert 0 < everything <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, used = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr("protofed.runtime.resources.MEMORY_OF_GROUP", ((str(limit), str(used)),))
    limit.write_text("5000000\n")
    used.write_text("2000000\n")
    assert free_memory() == 3_000_000
    used.write_text("6000000\n")
    assert free_memory() == 0
    limit.write_text("max\n")
    assert free_memory() > 6_000_000
