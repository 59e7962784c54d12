"""All that `make faults` tries, in short: real processes, killed, starved and damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from faults.__main__ import PARTS, parser
from faults.work import Work, differences

from faults import disks, memory, report, steps

ROOT = Path(__file__).parents[2]


def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report.RESULTS.read_text())
    return found


@pytest.mark.long
def test_every_promise_holds_in_short(tmp_path: Path) -> None:
    """Among them: runs of six methods killed in a round and gone on with, equal in every byte."""
    out = tmp_path / "results.json"
    command = [sys.executable, "-m", "faults", "--quick", "--out", str(out)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    parts = json.loads(out.read_text())["parts"]
    failures = {name: part["failures"] for name, part in parts.items() if part["failures"]}
    assert failures == {}
    assert ended.returncode == 0, ended.stderr
    assert parts.keys() == PARTS.keys() == report.PROMISES.keys()
    untried = {name for name, part in parts.items() if not part["tried"]}
    assert untried <= {"readonly"}  # where root may neither be stopped by a mode nor mount
    assert all(part["held"] == part["tried"] for part in parts.values())
    recorded = kept()["parts"]["steps"]["steps"]
    assert parts["steps"]["steps"] == recorded, "stale: run python -m faults --only steps"
    assert f"| {parts['kills']['held']} of {parts['kills']['tried']}" in ended.stdout


LEAK = """
from typing import ClassVar
import torch
from protofed.api import Method, MethodInfo, dataclass

KEPT = []


@dataclass(frozen=True)
class Leak(Method):
    info: ClassVar[MethodInfo] = MethodInfo(label="Leak", title="A test")

    def loss(self, site, received, state, model, batch):
        KEPT.append(torch.ones(10_000))
        return super().loss(site, received, state, model, batch)
"""


@pytest.mark.long
def test_growth_of_a_method_that_keeps_something_is_found(tmp_path: Path) -> None:
    (tmp_path / "leak.py").write_text(LEAK)
    work = Work(f"{tmp_path / 'leak.py'}:Leak", rounds=65)
    early, late = memory.one_growth(25, work, tmp_path)
    assert late / early - 1 > memory.MOST_GROWTH


def test_the_docs_show_the_results() -> None:
    text = report.SPAN.file.read_text()
    assert text.count(report.SPAN.begin) == text.count(report.SPAN.end) == 1
    assert report.SPAN.within(text, report.markdown(kept())) == text, "run python -m faults --docs"


def test_the_results_on_record_are_whole_and_lose_nothing() -> None:
    results = kept()
    assert not results["quick"]
    assert results["parts"].keys() == PARTS.keys()
    broken = {name for name, part in results["parts"].items() if part["failures"]}
    assert broken == set()
    assert results["parts"]["kills"]["tried"] >= 200
    assert results["parts"]["flips"]["tried"] >= 1000


def test_a_failure_is_told_and_counted() -> None:
    results = kept()
    results["parts"]["kills"] |= {"held": 199, "failures": ["fedavg: other\nscores.jsonl"]}
    told = report.markdown(results)
    assert "199 of 200" in told
    assert "- **failed** kills: fedavg: other scores.jsonl" in told


def test_flips_that_were_found_are_not_lessened_by_a_run_that_went_wrong() -> None:
    found = disks.flipped(100, ["bit 3"], [[], ["other done", "not told"]])
    assert (found["held"], found["tried"]) == (99, 100)
    assert (found["resumed_held"], found["resumed"]) == (1, 2)
    assert found["failures"] == ["bit 3", "other done", "not told"]


def test_the_last_steps_are_always_tried() -> None:
    assert steps.chosen(30, quick=False) == list(range(1, 31))
    assert steps.chosen(30, quick=True) == [1, 14, *range(23, 31)]


def test_a_run_without_a_card_is_not_equal(tmp_path: Path) -> None:
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        for name in ("done", "card.md", "scores.jsonl"):
            (tmp_path / run / name).touch()
    assert differences(tmp_path / "one", tmp_path / "two", 1) == []
    (tmp_path / "one" / "card.md").unlink()
    assert "lacks card.md" in differences(tmp_path / "one", tmp_path / "two", 1)


def test_a_wrong_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--only", "kills,floods"])
    assert "no part floods; there are kills" in capsys.readouterr().err
