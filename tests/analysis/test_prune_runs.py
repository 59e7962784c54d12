"""Checkpoints of finished runs are removed, and nothing else, even if the removal is killed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from protofed.analysis.comparison_table import compare_records
from protofed.analysis.finished_runs import check_comparable, read_record
from protofed.analysis.prune_runs import plan_pruning, prune_run
from protofed.analysis.run_index import read_entry
from protofed.analysis.sweep import GridCell
from protofed.errors import BusyError, ProtofedError
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import run
from protofed.experiment.trained_run import find_checkpoint
from protofed.runtime.atomic_io import file_lock
from protofed.runtime.json_files import read_json_file

ROOT = Path(__file__).parent.parent.parent


def files_of(folder: Path) -> dict[str, str]:
    """The digest of each file, by its path in the folder."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file()
    }


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def prune(folder: Path, everything: bool = False) -> int:
    """Prune one run; the bytes that were announced."""
    plans, spared = plan_pruning([read_entry(folder)], everything)
    assert spared == []
    for plan in plans:
        prune_run(plan)
    return sum(plan.size for plan in plans)


def test_the_newest_checkpoint_stays(copied: list[GridCell]) -> None:
    folder = copied[0].folder
    before, age = files_of(folder), read_entry(folder).changed
    assert RunDir(folder).rounds_on_disk() == [2, 3]
    gone = bytes_of(folder / "checkpoints" / "round-00002")
    assert prune(folder) == gone > 0
    assert RunDir(folder).rounds_on_disk() == [3]
    after = files_of(folder)
    assert after.pop("checkpoints/pruned.json")
    assert after == {k: v for k, v in before.items() if "round-00002" not in k}
    assert find_checkpoint(folder).round == 3
    assert read_entry(folder).changed == age  # it did not become a newer run
    assert prune(folder) == 0


def test_rounds_to_keep_stay_unless_all_go(grid: list[GridCell], tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    run(grid[0].experiment, folder, keep=(1,), workers=0)
    place = RunDir(folder)
    assert place.rounds_on_disk() == [1, 2, 3]
    prune(folder)
    assert place.rounds_on_disk() == [1, 3]
    with pytest.raises(ProtofedError, match="the checkpoint of round 2 was pruned"):
        find_checkpoint(folder, 2)
    assert find_checkpoint(folder, 1).round == 1
    prune(folder, everything=True)
    assert place.rounds_on_disk() == []
    assert read_json_file(place.pruned) == {"rounds": [1, 2, 3]}
    with pytest.raises(ProtofedError, match="the checkpoint of round 3 was pruned") as caught:
        find_checkpoint(folder)
    assert "again" in caught.value.hint
    with pytest.raises(ProtofedError, match="no checkpoint of round 7; there are: none"):
        find_checkpoint(folder, 7)


def test_a_pruned_run_is_read_and_can_be_repeated(
    grid: list[GridCell], copied: list[GridCell]
) -> None:
    for cell in copied:
        prune(cell.folder, everything=True)
    before, after = ([read_record(c.folder, c.label) for c in cells] for cells in (grid, copied))
    assert compare_records(before, notes=check_comparable(before)) == compare_records(
        after, notes=check_comparable(after)
    )
    cell = copied[0]
    scores = (cell.folder / "scores.jsonl").read_bytes()
    assert run(cell.experiment, cell.folder).last.mean == read_entry(grid[0].folder).last
    run(cell.experiment, cell.folder, again=True, workers=0)
    assert (cell.folder / "scores.jsonl").read_bytes() == scores
    assert not RunDir(cell.folder).pruned.exists()
    assert find_checkpoint(cell.folder).round == 3


def test_only_finished_runs_are_touched(copied: list[GridCell], tmp_path: Path) -> None:
    interrupted, damaged, running, other = (cell.folder for cell in copied)
    (interrupted / "done").unlink()
    (damaged / "spec.json").unlink()
    (other / "keep.json").write_text("[")
    stranger = tmp_path / "stranger"
    shutil.copytree(other / "checkpoints", stranger / "checkpoints")
    folders = [interrupted, damaged, running, other, stranger]
    before = [files_of(folder) for folder in folders]
    with file_lock(running, "busy"):
        plans, spared = plan_pruning([read_entry(folder) for folder in folders], everything=False)
    assert plans == []
    assert [line.partition(": ")[2].partition(":")[0] for line in spared] == [
        "interrupted at round 3",
        "damaged",
        "running",
        "keep.json",
        "damaged",
    ]
    assert [files_of(folder) for folder in folders] == before


def test_a_run_that_changed_since_is_refused(copied: list[GridCell]) -> None:
    first, second, third, _ = (cell.folder for cell in copied)
    plans, _ = plan_pruning([read_entry(folder) for folder in (first, second, third)])
    (first / "done").unlink()
    before = files_of(first), files_of(second)
    with pytest.raises(ProtofedError, match="no longer finished"):
        prune_run(plans[0])
    with file_lock(second, "busy"), pytest.raises(BusyError):
        prune_run(plans[1])
    assert (files_of(first), files_of(second)) == before
    shutil.rmtree(third)
    with pytest.raises(ProtofedError, match="is gone"):
        prune_run(plans[2])
    assert not third.exists()


def test_links_lead_nowhere(copied: list[GridCell], tmp_path: Path) -> None:
    """Neither checkpoints that are a link, nor what a linked checkpoint points to, are removed."""
    first, second, *_ = (cell.folder for cell in copied)
    away = tmp_path / "away"
    (first / "checkpoints").rename(away)
    (first / "checkpoints").symlink_to(away, target_is_directory=True)
    held = tmp_path / "held"
    (second / "checkpoints" / "round-00002").rename(held)
    (second / "checkpoints" / "round-00002").symlink_to(held, target_is_directory=True)
    before = files_of(away), files_of(held)
    plans, spared = plan_pruning([read_entry(first), read_entry(second)], everything=True)
    assert [line.rpartition(": ")[2] for line in spared] == ["its checkpoints are in another place"]
    for plan in plans:
        prune_run(plan)
    assert (files_of(away), files_of(held)) == before


KILLED = """
import json, os, shutil, signal, sys
from pathlib import Path
from protofed.analysis.prune_runs import plan_pruning, prune_run
from protofed.analysis.run_index import read_entry

CHANGES = ("os.rename", "os.remove", "os.rmdir")

def prune_until(left, folder):
    def step(event, arguments):
        nonlocal left
        if event in CHANGES or (event == "open" and arguments[1] == "wb"):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    (plan,), _ = plan_pruning([read_entry(folder)], everything=True)
    sys.addaudithook(step)
    prune_run(plan)

ends = [-1]
while ends[-1]:
    folder = Path(sys.argv[2], str(len(ends)))
    shutil.copytree(sys.argv[1], folder)
    child = os.fork()
    if not child:
        prune_until(len(ends) - 1, folder)
        os._exit(0)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(ends[1:]))
"""


def test_a_kill_at_any_step_leaves_a_readable_run(grid: list[GridCell], tmp_path: Path) -> None:
    source, score = grid[0].folder, read_entry(grid[0].folder).score
    told = subprocess.run(
        [sys.executable, "-c", KILLED, str(source), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=240,
        check=True,
        capture_output=True,
    )
    ends = json.loads(told.stdout)
    assert ends == [-signal.SIGKILL] * (len(ends) - 1) + [0]
    assert len(ends) > 8
    for number in range(1, len(ends) + 1):
        folder = tmp_path / str(number)
        entry, place = read_entry(folder), RunDir(folder)
        assert (entry.state, entry.score) == ("finished", score)
        assert read_record(folder).result.digest == grid[0].experiment.digest
        on_disk = place.rounds_on_disk()
        assert on_disk == [2, 3][2 - len(on_disk) :]  # the newest goes last
        if on_disk:
            assert find_checkpoint(folder).round == 3
        else:
            with pytest.raises(ProtofedError, match="was pruned"):
                find_checkpoint(folder)
        prune(folder, everything=True)  # finishes what the other began
        assert [path.name for path in place.checkpoints.iterdir()] == ["pruned.json"]
