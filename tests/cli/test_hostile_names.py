"""Names of domains and classes may come from folders of strangers: none steers a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protofed.cli.output import print_result, print_table
from protofed.core.site import ArrayDataset
from protofed.data.benchmark_info import Benchmark, BenchmarkInfo, Domain
from protofed.errors import ProtofedError
from protofed.experiment.result import RunResult
from protofed.experiment.round_report import RoundReport
from protofed.experiment.run_followers import RunWatcher
from protofed.federation.evaluation import DomainScores, score_rules
from protofed.federation.notices import Notice
from tests.cli.conftest import Cli

STEERING = "\x1b[2J\x1b]0;taken\x07"  # clears the screen, sets the window's title
HOSTILE = f"{STEERING}[bold]../../x\r\n<script>"
SHOWN = r"\x1b[2J\x1b]0;taken\x07[bold]../../x\r\n<script>"


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_a_result_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    scores = DomainScores({HOSTILE: 50.0, "print": None})
    print_result(
        RunResult(
            folder=Path(f"runs/{HOSTILE}"),
            digest="0" * 64,
            rules=score_rules(1),
            last=scores,
            last_five=scores,
            opinions={HOSTILE: scores},
            own=scores,
            clients={HOSTILE: {HOSTILE: 1.0, "print": None}},
            notices=(Notice("data", HOSTILE),),
            seconds=1.0,
        )
    )
    out = capsys.readouterr().out
    assert harmless(out)
    assert f"note: {SHOWN}\n" in out
    assert out.count(r"\x1b[2J") >= 4


def test_progress_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    from protofed.spec.experiment_spec import Experiment

    with RunWatcher(Experiment(), Path(HOSTILE)) as watch:
        watch(RoundReport(1, 2, 50.0, 1.0, (HOSTILE,)))
    err = capsys.readouterr().err
    assert harmless(err)
    assert f"note: {SHOWN}" in err


def test_cells_and_heads_of_tables_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([HOSTILE, "b"], [[HOSTILE, "1"]])
    out = capsys.readouterr().out
    assert harmless(out)
    assert "[bold]" in out


def test_an_error_with_a_strangers_name_is_text(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: object) -> None:
        raise ProtofedError(f"{HOSTILE}: no such class\nsecond line")

    monkeypatch.setattr("protofed.spec.spec_parser.parse_experiment", fail)
    ended = cli("run")
    assert ended.code == 2
    assert harmless(ended.err)
    assert ended.err.splitlines()[-1] == "second line"


def test_a_benchmark_of_hostile_names_is_listed_as_text(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ArrayDataset(torch.zeros(2, 8, 8, 1, dtype=torch.uint8), torch.tensor([0, 1]))
    domain = Domain(HOSTILE, data, data, note=HOSTILE)
    made = Benchmark("digits-mini", (HOSTILE, "b"), (domain,))
    monkeypatch.setattr(BenchmarkInfo, "load", lambda *_: made)
    out = cli("data", "show", "digits-mini").out
    assert harmless(out)
    assert f"classes: {SHOWN}, b\n" in out
