"""Small grids of real runs, made once for all tests that read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protofed.analysis.parallel_runs import run_all
from protofed.analysis.sweep import GridCell, grid_cells, named_variants

SHARED: dict[str, Any] = {
    "data": {"name": "digits-mini", "domains": ["optical", "print"]},
    "partition": {"kind": "shares", "clients": 2, "samples": 9},
    "training": {"epochs": 1, "batch": 4},
    "net": "moon-mlp",
    "rounds": 3,
}


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> list[GridCell]:
    """FedAvg and FPL with two seeds, finished; not to be changed."""
    made = grid_cells(
        named_variants(["fedavg", "fpl"], SHARED), range(2), tmp_path_factory.mktemp("grid")
    )
    assert run_all(made, 0, lambda progress: None) == {}
    return made


@pytest.fixture
def copied(grid: list[GridCell], tmp_path: Path) -> list[GridCell]:
    """The same grid in folders that a test may spoil."""
    import shutil

    for cell in grid:
        shutil.copytree(cell.folder, tmp_path / cell.folder.name)
    return [cell._replace(folder=tmp_path / cell.folder.name) for cell in grid]
