"""Each place alone and all places pooled, beside the methods of a comparison."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from protofed.analysis.compare_methods import compare
from protofed.analysis.references import ALONE, POOLED, reference_variants
from protofed.experiment.result import read_result
from protofed.experiment.run_folder import RunDir
from protofed.methods.fedavg import FedAvg
from protofed.spec.spec_parser import parse_experiment

SETTINGS = {
    "net": "moon-mlp",
    "data.domains": ["optical", "print"],
    "partition.kind": "shares",
    "partition.clients": 3,
    "partition.samples": 12,
    "training.epochs": 1,
}


def test_the_references_share_all_but_the_method() -> None:
    alone, pooled = reference_variants({"rounds": 3, "method": "fpl", "weights": "sqrt"})
    assert (alone.label, pooled.label) == (ALONE, POOLED)
    one, other = parse_experiment(alone.raw), parse_experiment(pooled.raw)
    assert (one.method.info.label, one.pooled) == ("Local", False)
    assert (other.method, other.pooled) == (FedAvg(), True)
    assert {one.rounds, other.rounds} == {3}
    assert {one.weights, other.weights} == {"sqrt"}


def test_references_stand_below_the_methods_and_are_not_tested(tmp_path: Path) -> None:
    run = {"seeds": 2, "rounds": 2, "settings": SETTINGS, "runs": tmp_path, "workers": 0}
    plain = compare(["fedavg", "fedprox"], progress=False, **run)  # type: ignore[arg-type]
    table = compare(["fedavg", "fedprox"], progress=False, references=True, **run)  # type: ignore[arg-type]
    assert table.rows == plain.rows
    assert table.tested == plain.tested
    assert [row.label for row in table.references] == [ALONE, POOLED]
    assert [row.difference for row in table.references] == [None, None]
    text = table.to_text()
    assert text.index("FedProx") < text.index(ALONE) < text.index(POOLED)
    gains = [note for note in table.notes if note.startswith(f"FedAvg against {ALONE}: ")]
    assert len(gains) == 1
    alone = table.references[0].cells["optical"]
    joined = table.rows[0].cells["optical"]
    assert alone
    assert joined
    assert f"optical {joined.mean - alone.mean:+.2f}" in gains[0]
    assert {row["label"] for row in json.loads(table.to_text("json"))["references"]} == {
        *(ALONE, POOLED)
    }
    assert f"{POOLED},optical," in table.to_text("csv")


def test_alone_is_scored_at_home_by_seed(tmp_path: Path) -> None:
    table = compare(
        *(["fedavg"], "digits-mini"),
        seeds=1,
        rounds=2,
        settings=SETTINGS,
        runs=tmp_path,
        workers=0,
        progress=False,
        references=True,
        score="last",
    )
    (folder,) = tmp_path.glob("local-*")
    clients = read_result(RunDir(folder)).clients
    assert clients is not None
    homes = json.loads((folder / "partition.json").read_text())
    for name in ("optical", "print"):
        ids = [str(part["client"]) for part in homes if part["domain"] == name]
        known = [score for c in ids if (score := clients[c][name]) is not None]
        cell = table.references[0].cells[name]
        assert cell
        assert cell.mean == pytest.approx(statistics.fmean(known))
