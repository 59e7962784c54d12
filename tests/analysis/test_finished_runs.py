from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from protofed.analysis.finished_runs import (
    RunRecord,
    check_comparable,
    describe_identical,
    identical_rows,
    method_notes,
    read_record,
)
from protofed.analysis.sweep import GridCell, grid_cells, named_variants
from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from protofed.federation.notices import Notice
from tests.analysis.conftest import SHARED


def test_a_record_says_what_its_folder_says(grid: list[GridCell]) -> None:
    for cell in grid:
        record = read_record(cell.folder)
        assert (record.label, record.seed) == (cell.label, cell.seed)
        assert record.experiment == cell.experiment
    assert check_comparable([read_record(cell.folder) for cell in grid]) == []


def test_swapped_scores_are_noticed(copied: list[GridCell]) -> None:
    one, other = copied[0].folder / "scores.jsonl", copied[2].folder / "scores.jsonl"
    mine, theirs = one.read_bytes(), other.read_bytes()
    assert mine != theirs
    one.write_bytes(theirs)
    other.write_bytes(mine)
    for cell in (copied[0], copied[2]):
        with pytest.raises(ProtofedError, match="swapped or edited"):
            read_record(cell.folder)


def test_a_swapped_spec_is_noticed(copied: list[GridCell]) -> None:
    shutil.copy(copied[2].folder / "spec.json", copied[0].folder / "spec.json")
    with pytest.raises(ProtofedError, match=r"spec\.json is not"):
        read_record(copied[0].folder)


def test_swapped_folders_keep_the_names_of_their_contents(copied: list[GridCell]) -> None:
    one, other = copied[0].folder, copied[2].folder
    one.rename(one.parent / "aside")
    other.rename(one)
    assert read_record(one).label == "FPL"


def test_an_unfinished_run_is_refused(copied: list[GridCell]) -> None:
    (copied[0].folder / "done").unlink()
    with pytest.raises(ProtofedError, match="no finished run"):
        read_record(copied[0].folder)


def test_a_missing_seed_is_said(grid: list[GridCell]) -> None:
    records = [read_record(cell.folder) for cell in grid[:3]]
    assert check_comparable(records) == [
        "FPL lacks seed 1: differences use the seeds that both have"
    ]


def test_another_partition_with_the_same_seed_is_refused(copied: list[GridCell]) -> None:
    file = copied[2].folder / "partition.json"
    parts = json.loads(file.read_text())
    parts[0]["rows"][0] += 1
    file.write_text(json.dumps(parts))
    with pytest.raises(ProtofedError, match="other images at their clients"):
        check_comparable([read_record(cell.folder) for cell in copied])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rounds": 2}, "rounds"),
        ({"partition": {**SHARED["partition"], "samples": 8}}, "partition"),
    ],
    ids=str,
)
def test_runs_of_different_experiments_are_refused(
    change: dict[str, object], word: str, grid: list[GridCell], tmp_path: Path
) -> None:
    (other,) = grid_cells(named_variants(["fpl"], {**SHARED, **change}), range(1), tmp_path)
    run(other.experiment, other.folder)
    with pytest.raises(ProtofedError, match=f"differ in {word}\nchoose .* as with `where={word}"):
        check_comparable([read_record(grid[0].folder), read_record(other.folder)])


def test_other_images_are_refused_and_other_versions_are_said(copied: list[GridCell]) -> None:
    env = copied[1].folder / "env.json"
    world = json.loads(env.read_text())
    env.write_text(json.dumps({**world, "torch": "0.1"}))
    assert (
        "different versions of torch"
        in check_comparable([read_record(cell.folder) for cell in copied]).pop()
    )
    env.write_text(json.dumps({**world, "data": {"optical": "0" * 64}}))
    with pytest.raises(ProtofedError, match="different images"):
        check_comparable([read_record(cell.folder) for cell in copied])


def test_warnings_of_a_method_are_told_with_their_row_and_seeds(grid: list[GridCell]) -> None:
    records = [read_record(cell.folder) for cell in grid]
    warned = Notice("method", "it became simpler")
    other = Notice("data", "few images")

    def told(*seeds: int) -> list[str]:
        some = [
            r._replace(result=replace(r.result, notices=(other, warned)))
            if r.label == "FPL" and r.seed in seeds
            else r._replace(result=replace(r.result, notices=(other,)))
            for r in records
        ]
        return method_notes(some)

    assert told() == []
    assert told(0, 1) == ["FPL: it became simpler"]
    assert told(1) == ["FPL, seed 1: it became simpler"]


def test_runs_are_compared_by_what_was_left_out_too(grid: list[GridCell]) -> None:
    first = read_record(grid[0].folder)

    def run_without(label: str, domain: str | None) -> RunRecord:
        return first._replace(label=label, result=replace(first.result, unseen=domain))

    both = [run_without("a", "optical"), run_without("a", "print")]
    twin = [run_without("b", "print"), run_without("b", "optical")]
    assert identical_rows([*both, *twin]) == (("a", "b"),)
    assert identical_rows([*both, twin[0]]) == ()
    assert describe_identical([("a", "b")]) == ["a and b are identical in every score"]
