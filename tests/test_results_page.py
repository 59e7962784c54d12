"""The pages with results are what the kept runs say, and every kept run is whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.build_results import BLOCK, GROUPS, PAGES, RUNS, build_page

from protofed.analysis.finished_runs import read_record


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_built_from_the_kept_runs(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert build_page(text) == text, "bring it in line with python docs/build_results.py"


def test_blocks_are_there_and_a_wrong_number_is_noticed() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    blocks = [found for text in texts for found in BLOCK.finditer(text)]
    assert blocks
    shown = blocks[0][0]
    wrong = shown.replace("%", "per cent").replace("|", "¦", 1)
    assert build_page(wrong) == build_page(shown)


def test_every_kept_run_is_whole_and_small() -> None:
    kept = sorted(folder for folder in RUNS.iterdir() if folder.is_dir())
    assert kept
    for folder in kept:
        record = read_record(folder)
        assert record.experiment.digest[:8] == folder.name.rsplit("-", 1)[1]
        assert record.fingerprint
        assert sum(file.stat().st_size for file in folder.rglob("*")) < 100_000, folder


def test_groups_name_only_kept_runs() -> None:
    text = GROUPS.read_text(encoding="utf-8")
    assert text.count("[") > 1
