"""`protofed.compare`: the table of the command line from Python, in every form."""

from __future__ import annotations

import html.parser
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import protofed
from protofed.analysis.finished_runs import read_record
from protofed.errors import ProtofedError
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedprox import FedProx
from protofed.runtime.text_tables import TextTable, html_table
from protofed.spec.spec_parser import parse_experiment
from tests.analysis.conftest import SHARED

SETTINGS = {name: value for name, value in SHARED.items() if name not in ("data", "rounds", "net")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compared")


@pytest.fixture(scope="module")
def table(runs: Path) -> protofed.ComparisonTable:
    return protofed.compare(
        [FedAvg(), FedProx(mu=0.5), "fedprox:mu=2.0"],
        protofed.Data(name="digits-mini", domains=("optical", "print")),
        rounds=2,
        net="moon-mlp",
        settings=SETTINGS,
        seeds=2,
        runs=runs,
        workers=0,
        progress=False,
    )


def test_rows_are_labelled_by_what_differs_and_paired_by_seed(
    table: protofed.ComparisonTable, runs: Path
) -> None:
    assert [row.label for row in table.rows] == ["FedAvg", "FedProx (mu=0.5)", "FedProx (mu=2)"]
    assert all(row.seeds == (0, 1) for row in table.rows)
    assert table.baseline == "FedAvg"
    raw = {**SHARED, "rounds": 2, "method": {"name": "fedprox", "mu": 2.0}, "seed": 1}
    assert parse_experiment(raw).digest[:12] == table.rows[2].digests[1]
    assert len(list(runs.iterdir())) == 6


class Cells(html.parser.HTMLParser):
    """The texts of the cells of a table, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells and data.strip():
            self.cells[-1] += data


def test_every_form_shows_the_same_numbers(table: protofed.ComparisonTable) -> None:
    frame = table.to_frame()
    assert list(frame.index) == [row.label for row in table.rows]
    for row in table.rows:
        for name, cell in row.cells.items():
            assert cell is not None
            assert frame.loc[row.label, name] == cell.mean
            assert f"{cell.mean:.2f}" in table.to_latex()
    read = Cells()
    read.feed(table._repr_html_())
    markdown = [cell.strip(" *") for cell in table.to_markdown().splitlines()[2].split("|")[1:-1]]
    width = len(markdown)
    assert read.cells[width : 2 * width] == markdown
    assert "FedAvg" in str(table)
    assert str(table).splitlines()[0].startswith("method")


def test_html_escapes_what_others_have_named() -> None:
    evil = '<img src=x onerror="alert(1)">'
    read = Cells()
    text = html_table(TextTable([evil], [[evil]]))
    read.feed(text)
    assert "<img" not in text
    assert read.cells == [evil, evil]


def test_a_result_has_its_whole_history(table: protofed.ComparisonTable, runs: Path) -> None:
    (folder,) = [f for f in runs.iterdir() if table.rows[0].digests[0].startswith(f.name[-8:])]
    result = read_record(folder).result
    assert [one.round for one in result.history] == [1, 2]
    frame = result.to_frame()
    assert list(frame["mean"]) == [one.scores.mean for one in result.history]
    assert repr(result).startswith("RunResult(folder=")
    assert "<table>" in result._repr_html_()
    assert "last round" in str(result)


def test_faults_are_as_friendly_as_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match="name at least one"):
        protofed.compare([], runs=tmp_path)
    with pytest.raises(ProtofedError, match="did you mean 'fedavg'"):
        protofed.compare(["fedagv"], runs=tmp_path)
    with pytest.raises(ProtofedError, match="named twice: FedAvg"):
        protofed.compare([FedAvg(), "fedavg"], runs=tmp_path)
    with pytest.raises(ProtofedError, match=r"training.lr: input should be"):
        protofed.compare(["fedavg"], settings={"training.lr": -1}, runs=tmp_path)
    with pytest.raises(ProtofedError, match=r"give a list of methods, as \['fpl'\]"):
        protofed.compare("fpl", runs=tmp_path)
    with pytest.raises(ProtofedError, match="no seeds to run\ngive one or more, as `seeds=3`"):
        protofed.compare(["fedavg"], seeds=0, runs=tmp_path)
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
from typing import ClassVar
import protofed
from protofed.api import Method, MethodInfo, Training, dataclass


@dataclass(frozen=True)
class Mine(Method):
    info: ClassVar[MethodInfo] = MethodInfo(label="Mine", title="A test")


print("top level")
table = protofed.compare(
    ["fedavg", Mine()], rounds=1, net="moon-mlp", training=Training(epochs=1),
    settings={"partition": {"kind": "shares", "samples": 9}}, workers=2,
)
print([row.label for row in table.rows], table.identical)
"""


def test_a_script_without_a_guard_is_not_run_twice(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("top level") == 1
    assert "['FedAvg', 'Mine'] (('FedAvg', 'Mine'),)" in done.stdout


def test_it_may_be_called_in_a_thread(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(
            protofed.compare,
            ["fedavg"],
            protofed.Data(name="digits-mini", domains=("optical", "print")),
            rounds=1,
            net="moon-mlp",
            settings=SETTINGS,
            runs=tmp_path,
            workers=0,
            progress=False,
        )
        assert len(found.result().rows) == 1
