"""All recipes at scale smoke, run once; a process for each run would cost more than the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from protofed.data.benchmarks import BENCHMARKS
from protofed.experiment.runner import run
from protofed.paper_tables.recipe import read_recipe, recipe_names
from protofed.paper_tables.run_recipe import prepare_recipe
from tests.conftest import Once


@pytest.fixture(scope="session")
def smoked(once: Once) -> Path:
    """A folder with every smoke run of every recipe, finished."""
    return once("smoked", smoke_all)


@pytest.fixture
def without_vlcs() -> Iterator[None]:
    """A protofed that does not know the benchmark; afterwards all are there, in their order."""
    kept = dict(BENCHMARKS)
    del BENCHMARKS["vlcs"]
    yield
    BENCHMARKS.clear()
    BENCHMARKS.update(kept)


def smoke_all(runs: Path) -> None:
    ready = [prepare_recipe(read_recipe(name), "smoke", [], None, runs) for name in recipe_names()]
    for cell in {cell.folder: cell for one in ready for cell in one.cells}.values():
        run(cell.experiment, cell.folder)
