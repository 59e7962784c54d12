"""Leave-one-domain-out from the command line and in the federation behind it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import torch

from protofed.analysis.sweep import GridCell
from protofed.errors import ProtofedError
from protofed.federation.build import build_federation
from protofed.spec.spec_parser import parse_experiment
from tests.cli.conftest import Cli

DOMAINS = ["optical", "print", "syn"]
TINY = {
    "net": "moon-mlp",
    "rounds": 1,
    "data": {"name": "digits-mini", "domains": DOMAINS},
    "partition": {"kind": "shares", "clients": 3, "samples": 12},
    "training": {"epochs": 1},
}
FLAGS = [
    *("--net", "moon-mlp", "--rounds", "1", "--set", "training.epochs=1"),
    *("--set", 'data.domains=["optical", "print", "syn"]', "--set", "partition.kind=shares"),
    *("--set", "partition.samples=12"),
]
ALONE = [*FLAGS, "--workers", "0"]  # a process for each run would cost more than the run


def test_it_changes_the_digest_only_when_it_is_set() -> None:
    whole = parse_experiment(TINY)
    assert "leave_out" not in whole.to_dict()
    digests = {parse_experiment({**TINY, "leave_out": name}).digest for name in DOMAINS}
    assert len(digests | {whole.digest}) == 4


def test_the_others_hold_what_they_hold_without_it() -> None:
    whole = build_federation(parse_experiment(TINY))
    left = build_federation(parse_experiment({**TINY, "leave_out": "print"}))
    assert [part.domain for part in left.parts] == ["optical", "syn"]
    kept = [part for part in whole.parts if part.domain != "print"]
    for mine, theirs in zip(left.parts, kept, strict=True):
        assert torch.equal(mine.rows, theirs.rows)
    assert list(left.tests) == DOMAINS
    assert torch.equal(left.tests["print"].images, whole.tests["print"].images)
    assert any("print: left out of training" in str(notice) for notice in left.notices)


def test_fewer_clients_than_domains_are_enough_for_the_rest() -> None:
    two = {**TINY, "partition": {"kind": "equal", "clients": 2}}
    with pytest.raises(ProtofedError, match="2 clients cannot cover 3 domains"):
        build_federation(parse_experiment(two))
    left = build_federation(parse_experiment({**two, "leave_out": "optical"}))
    assert [part.domain for part in left.parts] == ["print", "syn"]
    only = {**TINY, "partition": {"kind": "equal", "clients": {"optical": 1, "print": 0, "syn": 0}}}
    with pytest.raises(ProtofedError, match="no clients"):
        build_federation(parse_experiment({**only, "leave_out": "optical"}))


def test_validation_scores_the_unseen_domain_on_images_that_are_nobodys() -> None:
    left = build_federation(parse_experiment({**TINY, "leave_out": "optical", "validation": 0.25}))
    assert {name: len(test) for name, test in left.tests.items()} == {
        "optical": 1200,
        "print": 3,
        "syn": 3,
    }
    assert list(left.tests) == DOMAINS
    train = next(d.train for d in left.benchmark.domains if d.name == "optical")
    assert torch.equal(left.tests["optical"].images, train.images)


def test_public_images_come_from_no_unseen_domain() -> None:
    raw = {**TINY, "method": "fedmd", "public": {"samples": 20}}
    left = build_federation(parse_experiment({**raw, "leave_out": "syn"}))
    assert {name: len(rows) for name, rows in left.public.items()} == {"optical": 10, "print": 10}


def test_a_wrong_domain_is_answered_with_a_hint() -> None:
    with pytest.raises(
        ProtofedError, match=r"leave_out: unknown name 'prnt'; did you mean 'print'"
    ):
        parse_experiment({**TINY, "leave_out": "prnt"})
    one = {"data": {"name": "digits-mini", "domains": ["syn"]}, "leave_out": "syn"}
    with pytest.raises(ProtofedError, match="the only domain"):
        parse_experiment(one)


def test_run_and_compare_mark_the_unseen_domain(cli: Cli) -> None:
    ended = cli("run", *ALONE, "--leave-out", "syn")
    assert ended.code == 0, ended.err
    assert "syn (unseen)" in ended.out
    assert json.loads(cli("run", *ALONE, "--leave-out", "syn", "--json").out)["unseen"] == "syn"
    table = cli("compare", "fedavg", "local", *ALONE, "--leave-out", "syn", "--format", "markdown")
    assert table.out.startswith("| method | optical | print | syn (unseen) | AVG |")


def test_each_makes_one_table_and_reads_it_the_second_time(cli: Cli) -> None:
    words = ["run", *FLAGS, "--leave-out", "each", "--workers", "2"]
    first = cli(*words)
    assert first.code == 0, first.err
    lines = [line.split() for line in first.out.splitlines()]
    assert lines[0][:6] == ["FedAvg,", "trained", "without", *DOMAINS]
    assert len(list(Path("runs").iterdir())) == 3
    assert cli(*words) == (0, first.out, "")
    (found,) = json.loads(cli(*words, "--json").out)
    own = []
    for left, row in found["left_out"].items():
        folder = next(f for f in Path("runs").iterdir() if _left_out(f) == left)
        scores = json.loads((folder / "scores.jsonl").read_text())["domains"]
        assert {name: value["mean"] for name, value in row.items()} == scores
        own.append(scores[left])
    assert found["unseen_mean"]["mean"] == pytest.approx(sum(own) / 3)
    assert f"{sum(own) / 3:.2f}" in first.out


def _left_out(folder: Path) -> str:
    return str(json.loads((folder / "spec.json").read_text())["leave_out"])


def _is_of(folder: Path, method: str, left: str) -> bool:
    spec = json.loads((folder / "spec.json").read_text())
    return bool(spec["method"]["name"] == method.lower() and spec["leave_out"] == left)


def test_workers_limit_how_many_runs_are_at_work(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def run_all(grid: list[GridCell], workers: int, watch: object, *_: object) -> dict[Path, str]:
        asked.append(workers)
        return {cell.folder: "not run" for cell in grid}

    monkeypatch.setattr("protofed.analysis.parallel_runs.run_all", run_all)
    monkeypatch.setattr("protofed.analysis.parallel_runs.usable_cores", lambda: 7)
    for words in ([], ["--workers", "2"], ["--workers", "0"], ["--workers", "many"]):
        assert cli("run", *FLAGS, "--leave-out", "each", *words).code == 2
    assert asked == [7, 2, 0]


def test_compare_each_sets_methods_side_by_side_over_seeds(cli: Cli) -> None:
    words = ["compare", "fedavg", "local", *ALONE, "--seeds", "2", "--leave-out", "each"]
    ended = cli(*words)
    assert ended.code == 0, ended.err
    assert "on the unseen domain" in ended.out
    assert "Local, trained without" in ended.out
    rows = list(csv.DictReader(io.StringIO(cli(*words, "--format", "csv").out)))
    assert len(rows) == 2 * 3 * 3
    assert {row["method"] for row in rows} == {"FedAvg", "Local"}
    for row in rows:  # over the two seeds
        folders = [f for f in Path("runs").iterdir() if _is_of(f, row["method"], row["left_out"])]
        scores = [json.loads((f / "scores.jsonl").read_text())["domains"] for f in folders]
        one, two = (float(of[row["tested_on"]]) for of in scores)
        assert float(row["mean"]) == pytest.approx((one + two) / 2)
        assert float(row["std"]) == pytest.approx(abs(one - two) / 2**0.5)
    tex = cli(*words, "--format", "latex").out
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 3
    refused = cli(*words, "--baseline", "FedAvg")
    assert (refused.code, "--baseline" in refused.err) == (2, True)
