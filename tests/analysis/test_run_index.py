"""The list of runs: found, read whatever their state, told apart, filtered and chosen."""

from __future__ import annotations

import json
import os
import shutil
import statistics
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofed.analysis.finished_runs import read_record
from protofed.analysis.run_index import (
    RunEntry,
    choose_runs,
    differing_settings,
    filter_runs,
    find_runs,
    format_differing,
    parse_condition,
    read_entry,
)
from protofed.analysis.sweep import GridCell
from protofed.errors import ProtofedError
from protofed.experiment.result import read_result
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import MOST_FAILED
from protofed.runtime.atomic_io import file_lock
from tests.report.conftest import lines_of, unfinish


def edit_spec(folder: Path, **sections: Any) -> None:
    spec = json.loads((folder / "spec.json").read_text())
    (folder / "spec.json").write_text(json.dumps({**spec, **sections}))


def begun(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text("{}")
    return folder


def test_runs_are_found_one_level_down_and_once(tmp_path: Path) -> None:
    one, two = begun(tmp_path / "runs" / "b"), begun(tmp_path / "runs" / "sweep" / "a")
    begun(tmp_path / "runs" / "sweep" / "deep" / "c")
    begun(tmp_path / "runs" / ".hidden")
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("x")
    bare = tmp_path / "runs" / "without-spec"
    (bare / "checkpoints").mkdir(parents=True)
    (tmp_path / "runs" / "link").symlink_to(one, target_is_directory=True)
    assert find_runs([tmp_path / "runs"]) == [one, two, bare]
    assert find_runs([two, tmp_path / "runs", one]) == [two, one, bare]
    assert find_runs([tmp_path / "runs" / "sweep"])[0] == two
    other = [tmp_path / "runs" / "empty", tmp_path / "gone"]
    assert find_runs(other) == other


def test_a_finished_run_is_read_from_its_files(grid: list[GridCell]) -> None:
    for cell in grid:
        entry, result = read_entry(cell.folder), read_result(RunDir(cell.folder))
        scores = lines_of(cell.folder / "scores.jsonl")
        means = [statistics.fmean(line["domains"].values()) for line in scores]
        files = [file for file in cell.folder.rglob("*") if file.is_file()]
        assert entry.score == pytest.approx(statistics.fmean(means))  # of three evaluations
        assert entry.last == pytest.approx(means[-1])
        assert (entry.state, entry.fault, entry.rounds, entry.planned) == ("finished", "", 3, 3)
        assert entry.rule == result.rules["last_five"]
        assert entry.digest == cell.experiment.digest
        assert entry.method == cell.experiment.to_dict()["method"]["name"]
        assert entry.data == "digits-mini"
        assert entry.size == sum(file.stat().st_size for file in files)
        assert entry.changed == max(file.stat().st_mtime for file in files)


def test_an_interrupted_run_says_how_far_it_is(copied: list[GridCell]) -> None:
    folder = copied[0].folder
    unfinish(folder, 2)
    entry = read_entry(folder)
    assert entry.describe_state() == "interrupted at round 2"
    assert (entry.rounds, entry.planned) == (2, 3)
    assert entry.last == lines_of(folder / "scores.jsonl")[-1]["mean"]
    for name in ("rounds.jsonl", "scores.jsonl", "env.json", "partition.json"):
        (folder / name).unlink()  # as it is in a run's first moment
    entry = read_entry(folder)
    assert (entry.describe_state(), entry.score) == ("interrupted at round 0", None)


def test_a_locked_folder_is_a_running_one(copied: list[GridCell]) -> None:
    folder = copied[0].folder
    unfinish(folder, 1)
    with file_lock(folder, "busy"):
        assert read_entry(folder).describe_state() == "running"
        (folder / "scores.jsonl").write_text("nonsense\n")
        assert read_entry(folder).describe_state() == "running"
    assert read_entry(folder).state == "damaged"


def failed_rounds(folder: Path, rounds: range) -> None:
    lines = [
        {"round": n, "leg": 1, "client": client, "reason": f"reason {n}"}
        for n in rounds
        for client in (0, None)
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_that_gave_up_has_failed(copied: list[GridCell]) -> None:
    folder = copied[0].folder
    unfinish(folder, MOST_FAILED)
    edit_spec(folder, rounds=9)
    failed_rounds(folder, range(1, MOST_FAILED + 1))
    assert read_entry(folder).describe_state() == f"failed: round {MOST_FAILED}: reason 3"
    failed_rounds(folder, range(2, MOST_FAILED + 1))
    assert read_entry(folder).state == "interrupted"
    unfinish_again = lines_of(folder / "rounds.jsonl")[:1]
    (folder / "rounds.jsonl").write_text(json.dumps(unfinish_again[0]) + "\n")
    failed_rounds(folder, range(1, 2))
    assert read_entry(folder).state == "interrupted"  # it may go on after one failed round
    edit_spec(folder, rounds=1)
    assert read_entry(folder).state == "failed"  # all of its rounds


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("spec.json", "[", "spec.json: not JSON"),
        ("spec.json", '{"digest": 5}', "spec.json is damaged: digest"),
        ("spec.json", json.dumps({"digest": "0" * 64}), "method.name is missing"),
        (
            "spec.json",
            json.dumps({"digest": "0" * 64, "method": {"name": "fedavg"}, "rounds": True}),
            "rounds is missing or wrong",
        ),
        ("spec.json", None, "no spec.json"),
        ("done", "{}", "done is damaged: digest"),
        ("scores.jsonl", "", "scores.jsonl is not what this run wrote"),
        ("scores.jsonl", None, "marked done but has no scores"),
        ("rounds.jsonl", '{"round": 1}\n', "rounds.jsonl, line 1 is damaged"),
        ("env.json", "[1]", "env.json is damaged"),
    ],
)
def test_a_damaged_run_is_an_entry_with_its_fault(
    name: str, text: str | None, words: str, copied: list[GridCell]
) -> None:
    folder = copied[0].folder
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)
    entry = read_entry(folder)
    assert entry.state == "damaged"
    assert words in entry.fault
    assert str(folder) not in entry.fault
    assert "\n" not in entry.fault
    assert entry.size > 0


def test_infinity_in_a_spec_is_damage(copied: list[GridCell]) -> None:
    edit_spec(copied[0].folder, partition={"kind": "shares", "clients": {"a": float("nan")}})
    assert "NaN" in read_entry(copied[0].folder).fault


@pytest.mark.parametrize("name", ["/somewhere/gone/mine.py:Mine", "package.module.Mine"])
def test_a_method_that_is_gone_is_listed(name: str, copied: list[GridCell]) -> None:
    folder = copied[0].folder
    edit_spec(folder, method={"name": name, "strength": 2.0})
    entry = read_entry(folder)
    assert (entry.method, entry.state) == ("Mine", "finished")
    assert filter_runs([entry], ["method=mine", f"method={name}", "method.strength=2"]) == [entry]


def test_names_of_data_are_short() -> None:
    folder = RunEntry(Path("a"), "finished", fields={"data.name": "/home/me/my photos"})
    sites = RunEntry(Path("a"), "finished", fields={"data.at": "sites", "data.domains": ["x"]})
    assert (folder.data, sites.data) == ("my photos", "federation")


def test_the_fingerprint_of_the_code_is_read(copied: list[GridCell]) -> None:
    env = copied[0].folder / "env.json"
    plain = {k: v for k, v in json.loads(env.read_text()).items() if k != "fingerprint"}
    env.write_text(json.dumps(plain))
    assert read_entry(copied[0].folder).fingerprint == ""
    env.write_text(json.dumps({**plain, "fingerprint": "0123456789abcdef"}))
    assert read_entry(copied[0].folder).fingerprint == "0123456789abcdef"


def entry_of(**fields: object) -> RunEntry:
    plain = {path.replace("__", "."): value for path, value in fields.items()}
    return RunEntry(Path("a"), "finished", fields=plain)


def test_settings_are_those_in_which_comparable_runs_differ() -> None:
    entries = [
        entry_of(method__name="fpl", method__tau=0.05, seed=0, data__name="a", data__side=8),
        entry_of(method__name="fpl", method__tau=0.1, seed=0, data__name="a", data__side=8),
        entry_of(method__name="moon", method__tau=0.5, seed=0, data__name="b", data__side=32),
        entry_of(method__name="moon", method__tau=0.5, seed=1, data__name="b", leave_out="x"),
        RunEntry(Path("a"), "damaged"),
    ]
    assert [format_differing(settings) for settings in differing_settings(entries)] == [
        "tau=0.05, seed=0",
        "tau=0.1, seed=0",
        "seed=0, data.side=32",
        "seed=1, leave_out=x",
        "",
    ]
    assert differing_settings(entries[:1]) == [{}]


KINDS = {
    "method.tau": ["method.name"],
    "method.base.name": ["method.name"],
    "method.base.mu": ["method.name", "method.base.name"],
    "public.samples": ["method.name"],
    "data.side": ["data.name"],
    "partition.kind": ["data.name"],
    "partition.alpha": ["data.name", "partition.kind"],
    "training.lr": [],
    "seed": [],
}
ALL_PATHS = [*KINDS, "method.name", "data.name"]
some_fields = st.dictionaries(st.sampled_from(ALL_PATHS), st.sampled_from([0, 1, "a"]), max_size=9)


@given(tables=st.lists(some_fields, max_size=6))
def test_settings_follow_from_comparing_every_pair(tables: list[dict[str, object]]) -> None:
    entries = [RunEntry(Path("a"), "finished", fields=table) for table in tables]
    for mine, found in zip(tables, differing_settings(entries), strict=True):
        expected = {}
        for path, kinds in KINDS.items():
            like = [t for t in tables if t and all(t.get(k) == mine.get(k) for k in kinds)]
            if path in mine and any(t.get(path) != mine[path] for t in like):
                expected[path] = mine[path]
        assert found == expected


numbers = st.integers(-3, 3) | st.sampled_from([0.5, 1.0, 2.5, 1e3, -0.0, 2**53, 2**53 + 1])
words = st.sampled_from(["fpl", "FPL", "1", "1.0", "true", "a,b", "null"])
values = numbers | words | st.booleans() | st.lists(st.sampled_from(["a", "b"]), max_size=2)
typed = numbers.map(str) | words
operators = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
specs = st.dictionaries(st.sampled_from(["seed", "net", "training.lr"]), values)


ABSENT = object()


def slowly(value: object, operator: str, text: str) -> bool:
    """A condition as its description puts it, with exact fractions."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    left = Fraction(repr(value)) if is_number else None
    try:
        right = Fraction(text)
    except ValueError:
        right = None
    if left is not None and right is not None:
        sign = (left > right) - (left < right)
        signs = {"=": [0], "!=": [-1, 1], "<": [-1], "<=": [-1, 0], ">": [1], ">=": [0, 1]}
        return sign in signs[operator]
    shown = ",".join(value) if isinstance(value, list) else str(value)
    same = value is not ABSENT and shown.lower() == text.lower()
    return {"=": same, "!=": not same}.get(operator, False)


@given(
    tables=st.lists(specs, max_size=5),
    wanted=st.lists(st.tuples(st.sampled_from(["seed", "net"]), operators, typed), max_size=3),
)
def test_filters_choose_as_a_slow_evaluation_does(
    tables: list[dict[str, object]], wanted: list[tuple[str, str, str]]
) -> None:
    entries = [RunEntry(Path("a"), "finished", fields=table) for table in tables]
    texts = ["".join(parts) for parts in wanted]
    if any(op[0] in "<>" and not is_fraction(text) for _, op, text in wanted):
        with pytest.raises(ProtofedError, match="compares numbers only"):
            filter_runs(entries, texts)
        return
    chosen = [
        entry
        for entry, table in zip(entries, tables, strict=True)
        if all(slowly(table.get(path, ABSENT), op, text) for path, op, text in wanted)
    ]
    assert filter_runs(entries, texts) == chosen


def is_fraction(text: str) -> bool:
    try:
        return Fraction(text) is not None
    except ValueError:
        return False


def test_short_names_and_any_case() -> None:
    entry = entry_of(
        method__name="fpl", data__name="/home/me/photos", net=["moon-cnn", "lenet"], seed=2**62 + 1
    )
    for text in (
        "method=FPL",
        " method = fpl ",
        "method.name=fpl",
        "data=photos",
        "data=/home/me/photos",
        "net=moon-cnn,lenet",
        f"seed={2**62 + 1}",
        f"seed>{2**62}",
        "state=finished",
        "State!=damaged".lower(),
        "net!=lenet",
        f"seed<{10**400}",
    ):
        assert filter_runs([entry], [text]) == [entry], text
    for text in ("method=fpl2", "data=home", f"seed={2**62}", "net=lenet", "state=running"):
        assert filter_runs([entry], [text]) == [], text


def test_a_later_field_has_its_default_where_a_record_leaves_it_out() -> None:
    plain, pooled = entry_of(seed=0), entry_of(seed=1, pooled=True)
    both = [plain, pooled]
    assert filter_runs(both, ["pooled=false"]) == [plain]
    assert filter_runs(both, ["pooled=true"]) == [pooled]
    assert filter_runs(both, ["precision=float32"]) == both
    assert filter_runs([RunEntry(Path("b"), "damaged"), plain], ["pooled=false"]) == [plain]


def test_a_field_that_no_run_has_is_an_error() -> None:
    entries = [entry_of(training__epochs=5), RunEntry(Path("b"), "damaged")]
    with pytest.raises(ProtofedError, match=r"'training.epoch'; did you mean 'training.epochs'"):
        filter_runs(entries, ["training.epoch=5"])
    with pytest.raises(ProtofedError, match="unknown state 'done'"):
        filter_runs(entries, ["state=done"])
    assert filter_runs([], ["training.epoch=5"]) == []
    assert filter_runs(entries, ["training.epochs!=5"]) == entries[1:]


@pytest.mark.parametrize("text", ["", "fpl", "=5", "seed=", "seed==5", "seed ! 5", "a b=5"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ProtofedError, match="cannot read the condition"):
        parse_condition(text)


Break = Callable[[Path], object]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "spec.json").write_text("["), "spec.json: not JSON"),
        (lambda folder: unfinish(folder, 1), "holds no finished run"),
        (lambda folder: shutil.rmtree(folder), "no finished run"),
    ],
)
def test_one_bad_folder_is_left_out_with_the_reason(
    spoil: Break, words: str, copied: list[GridCell]
) -> None:
    folders = [cell.folder for cell in copied]
    spoil(folders[1])
    chosen = choose_runs(folders, [], read_record)
    assert chosen.folders == [folders[0], *folders[2:]]
    (line,) = chosen.left_out
    assert line.startswith(f"{folders[1]}: ")
    assert words in line
    with pytest.raises(ProtofedError) as caught:
        choose_runs([folders[1]], [], read_record)
    with pytest.raises(ProtofedError) as direct:
        read_record(folders[1])
    assert caught.value.args == direct.value.args  # alone, it is told as before


def test_nothing_left_is_an_error(copied: list[GridCell]) -> None:
    folders = [cell.folder for cell in copied]
    for folder in folders:
        unfinish(folder, 1)
    with pytest.raises(ProtofedError, match="none of these runs can be shown") as caught:
        choose_runs(folders, [], read_record)
    assert all(str(folder) in str(caught.value) for folder in folders)
    with pytest.raises(ProtofedError, match="none of 4 runs fulfils seed=9"):
        choose_runs([folders[0].parent], ["seed=9"], read_record)


def test_a_folder_of_runs_stands_for_them(grid: list[GridCell]) -> None:
    home = grid[0].folder.parent
    chosen = choose_runs([home], ["method=fpl", "seed>=1"], read_record)
    assert chosen.left_out == []
    assert chosen.folders == [grid[3].folder]
    every = choose_runs([home, *(cell.folder for cell in grid)], [], read_record).folders
    assert sorted(every) == sorted(cell.folder for cell in grid)
    assert len({os.path.realpath(folder) for folder in every}) == len(every)
