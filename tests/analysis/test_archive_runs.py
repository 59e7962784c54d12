"""A copy of a run gives the same tables and reports as the run, in a fraction of its size."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from protofed.analysis.archive_runs import archive_run, archive_runs
from protofed.analysis.comparison_table import compare_records
from protofed.analysis.finished_runs import check_comparable, read_record
from protofed.analysis.run_index import measure_files, read_entry
from protofed.analysis.sweep import GridCell
from protofed.errors import ProtofedError
from protofed.experiment.run_folder import RunDir
from protofed.experiment.trained_run import find_checkpoint
from protofed.report.load_runs import read_runs
from protofed.report.page import render_report


def test_a_copy_has_the_scores_and_spec_of_the_run_and_is_small(
    copied: list[GridCell], tmp_path: Path
) -> None:
    for cell in copied:
        made = archive_run(cell.folder, tmp_path / "kept" / cell.folder.name)
        assert not made.known
        ours, copy = read_record(cell.folder), read_record(made.folder)
        assert copy.experiment == ours.experiment
        assert copy.result.history == ours.result.history
        assert copy.result.seconds == ours.result.seconds
        assert copy.fingerprint == ours.fingerprint
        assert made.size == measure_files(made.folder)[0] < 20_000
        entry = read_entry(made.folder)
        assert (entry.state, entry.rounds) == ("finished", cell.experiment.rounds)
        assert not list(made.folder.rglob("*.safetensors"))
        parts = json.loads((made.folder / "partition.json").read_text())
        assert [part["rows"] for part in parts] == [[] for _ in parts]
        assert all(part["held"] for part in parts)


def test_tables_and_reports_of_copies_are_those_of_the_runs(
    copied: list[GridCell], tmp_path: Path
) -> None:
    place = tmp_path / "kept"
    place.mkdir()
    made, left_out = archive_runs([cell.folder for cell in copied], place)
    assert left_out == []
    tables = []
    for folders in ([cell.folder for cell in copied], [one.folder for one in made]):
        records = [read_record(folder) for folder in folders]
        check_comparable(records)
        tables.append(compare_records(records, records[0].label, "last"))
    assert tables[0].rows == tables[1].rows
    page = render_report(read_runs([one.folder for one in made]))
    assert records[0].label in page


def test_it_can_be_repeated_while_more_runs_finish(copied: list[GridCell], tmp_path: Path) -> None:
    place = tmp_path / "kept"
    place.mkdir()
    first, second = (cell.folder for cell in copied[:2])
    done = RunDir(second).done.read_bytes()
    RunDir(second).done.unlink()
    made, left_out = archive_runs([first, second], place)
    assert [one.known for one in made] == [False]
    assert left_out == [f"{second}: holds no finished run"]
    RunDir(second).done.write_bytes(done)
    made, left_out = archive_runs([first, second], place)
    assert [one.known for one in made] == [True, False]
    assert left_out == []


def test_a_copy_of_other_scores_is_not_replaced(copied: list[GridCell], tmp_path: Path) -> None:
    folder, copy = copied[0].folder, tmp_path / "copy"
    archive_run(folder, copy)
    before = (copy / "scores.jsonl").read_bytes()
    shutil.rmtree(folder)
    shutil.copytree(copied[1].folder, folder)
    with pytest.raises(ProtofedError, match="is another run"):
        archive_run(folder, copy)
    assert (copy / "scores.jsonl").read_bytes() == before


def test_a_model_is_missed_with_its_reason(copied: list[GridCell], tmp_path: Path) -> None:
    archive_run(copied[0].folder, tmp_path / "copy")
    with pytest.raises(ProtofedError, match="pruned"):
        find_checkpoint(tmp_path / "copy")


def test_nothing_of_the_machine_is_copied(copied: list[GridCell], tmp_path: Path) -> None:
    archive_run(copied[0].folder, tmp_path / "copy")
    text = "".join(f.read_text() for f in (tmp_path / "copy").rglob("*") if f.is_file())
    assert str(tmp_path) not in text
    world = json.loads((tmp_path / "copy" / "env.json").read_text())
    assert world["platform"].isalpha()
