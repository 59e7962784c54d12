"""A collapsed model is told of wherever its scores are shown, and other scores beside accuracy."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.analysis.comparison_table import compare_records, records_by_metric
from protofed.analysis.finished_runs import method_notes, read_record
from protofed.core.model import NetOutput
from protofed.errors import ProtofedError
from protofed.experiment.model_card import model_card
from protofed.experiment.result import read_result
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import run
from protofed.export.inference_module import load_trained_model
from protofed.federation.score_metrics import METRICS, metric_value
from protofed.methods.fedavg import FedAvg
from protofed.report.load_runs import read_runs
from protofed.report.page import render_report
from tests.cli.conftest import Cli
from tests.cli.conftest import _plain_surroundings as _plain_surroundings  # in an empty folder
from tests.cli.conftest import cli as cli
from tests.cli.conftest import tiny as tiny_file
from tests.experiment.conftest import Make

ONE = "answers one class for nearly everything: optical 100 % 2; print 100 % 2"

__all__ = ["cli", "tiny_file"]


@dataclass(frozen=True)
class Stuck(FedAvg):
    """A method that answers the third class whatever it sees."""

    def class_scores(self, out: NetOutput) -> Tensor:
        """The scores of the net, and much for one class."""
        scores = out.logits.clone()
        scores[:, 2] += 1e4
        return scores


@pytest.fixture
def stuck(tiny: Make, tmp_path: Path) -> Path:
    """A run whose model answers one class."""
    experiment = tiny(rounds=2).model_copy(update={"method": Stuck()})
    return run(experiment, tmp_path / "stuck", workers=0).folder


def test_a_collapse_is_told_in_run_table_report_card_and_export(stuck: Path) -> None:
    result = read_result(RunDir(stuck))
    told = [notice.text for notice in result.notices if notice.kind == "collapse"]
    assert told[0] == ONE
    assert told[1].startswith("no better than always answering the largest class: optical 10.")
    assert f"note: {ONE}" in " ".join(str(result).split())
    record = read_record(stuck, "Stuck")
    table = compare_records([record], notes=method_notes([record]))
    assert f"Stuck: {ONE}" in table.notes
    assert ONE in " ".join(str(table).split())
    assert ONE in render_report(read_runs([stuck]))
    card = model_card(RunDir(stuck))
    first, scores = card.index("Do not use it before"), card.index("| accuracy % on |")
    assert first < card.index("nearly everything") < scores
    assert card.count("nearly everything") == 1


def test_export_tells_of_a_collapse(cli: Cli, tiny_file: Path) -> None:
    # a learning rate of nothing leaves the model as it began, which knows no class
    assert cli("run", "--spec", tiny_file, "--set", "training.lr=1e-9", "--out", "run").code == 0
    told = [
        text
        for text in json.loads(
            cli(
                "run", "--spec", tiny_file, "--set", "training.lr=1e-9", "--out", "run", "--json"
            ).out
        )["notices"]
        if text["kind"] == "collapse"
    ]
    assert told
    ended = cli("export", "run", "--to", "safetensors", "-o", "m.safetensors")
    assert ended.code == 0
    assert f"note: {told[0]['text']}" in " ".join(ended.out.split())
    facts = load_trained_model(Path("run")).product.facts
    assert told[0]["text"] in facts.notices


def test_the_share_of_the_largest_class_stands_beside_the_scores(stuck: Path) -> None:
    result = read_result(RunDir(stuck))
    shares = result.largest_shares
    assert shares is not None
    counts = result.history[-1].counts
    assert shares.domains == {n: 100 * max(c.images) / c.total for n, c in counts.items()}
    rows = [line.split() for line in str(result).splitlines() if line.strip()]
    (optical,) = [row for row in rows if row[:1] == ["optical"] and len(row) == 4]
    assert optical[-1] == f"{shares.domains['optical']:.2f}"
    table = compare_records([read_record(stuck, "Stuck")])
    assert table.largest == {
        **shares.domains,
        "mean": shares.mean,
        "worst": shares.worst,
        "spread": pytest.approx(shares.spread),
    }
    assert "largest class" in table.to_markdown()
    assert "| largest class |" in model_card(RunDir(stuck)).replace("  ", " ")


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_is_tabled_from_the_counts(metric: str, tiny: Make, tmp_path: Path) -> None:
    record = read_record(run(tiny(rounds=3), tmp_path / "a", workers=0).folder, "FedAvg")
    (shown,) = records_by_metric([record], metric)  # type: ignore[arg-type]
    table = compare_records([shown], rule="last_five")
    wanted = [one.counts["print"] for one in record.result.history]
    values = [metric_value(metric, counts) or 0.0 for counts in wanted]  # type: ignore[arg-type]
    cell = table.rows[0].cells["print"]
    assert cell is not None
    assert cell.mean == pytest.approx(sum(values) / 3)
    worst = table.rows[0].cells["worst"]
    assert worst is not None
    scores = [table.rows[0].cells[name] for name in ("optical", "print")]
    found = [one.mean for one in scores if one]
    # of errors the largest is the worst; in each evaluation, so of means only roughly
    assert (worst.mean >= min(found)) if metric == "calibration_error" else True
    assert table.score in str(table)
    assert (table.largest is None) == (metric != "accuracy")


def test_of_errors_the_lowest_is_best(tiny: Make, tmp_path: Path) -> None:
    records = [
        read_record(run(tiny(method=name), tmp_path / name, workers=0).folder, name)
        for name in ("fedavg", "local")
    ]
    table = compare_records(records_by_metric(records, "calibration_error"))
    cells = {row.label: row.cells["mean"] for row in table.rows}
    means = {label: cell.mean for label, cell in cells.items() if cell}
    assert table.standing("mean", min(means, key=means.__getitem__)) == "best"


def test_runs_of_an_earlier_version_are_read_and_tabled_but_have_no_other_score(
    tiny: Make, tmp_path: Path
) -> None:
    folder = run(tiny(), tmp_path / "a", workers=0).folder
    new = read_result(RunDir(folder))
    lines = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("counts")
        line.pop("classes", None)
    text = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    (folder / "scores.jsonl").write_bytes(text)
    done = json.loads((folder / "done").read_text())
    done["scores"] = sha256(text).hexdigest()
    (folder / "done").write_text(json.dumps(done))
    old = read_result(RunDir(folder))
    assert old.last == new.last
    assert old.largest_shares is None
    assert "kappa" not in str(old)
    assert compare_records([read_record(folder, "FedAvg")]).largest is None
    with pytest.raises(ProtofedError, match="has no macro F1: its answers were not counted"):
        old.by_metric("macro_f1")
    assert render_report(read_runs([folder]))


def test_all_metrics_are_in_the_output_for_programs(tiny: Make, tmp_path: Path) -> None:
    result = run(tiny(), tmp_path / "a", workers=0)
    plain = json.loads(json.dumps(result.to_dict()))
    assert set(plain["metrics"]) == set(METRICS)
    for name, told in plain["metrics"].items():
        for domain, one in told["domains"].items():
            counts = result.history[-1].counts[domain]
            assert one["value"] == metric_value(name, counts)
            assert one["low"] <= one["value"] <= one["high"]
            assert one["n"] == counts.total
        assert told["worst"] in [one["value"] for one in told["domains"].values()]
    card = model_card(RunDir(result.folder))
    value = plain["metrics"]["auroc"]["domains"]["print"]
    told = f"{value['value']:.2f} \\[{value['low']:.2f}, {value['high']:.2f}\\]"
    assert told in card
    assert "| optical | 7 |" in card


def test_the_command_line_shows_another_score(cli: Cli, tiny_file: Path) -> None:
    words = ("compare", "fedavg", "local", "--spec", tiny_file, "--workers", "0")
    ended = cli(*words, "--metric", "balanced_accuracy", "--json")
    assert ended.code == 0, ended
    shown = json.loads(ended.out)
    assert shown["metric"] == "balanced_accuracy"
    assert cli("report", "runs", "--metric", "kappa", "--no-confusion", "-o", "r.html").code == 0
    page = Path("r.html").read_text()
    assert "Cohen&#39;s kappa over rounds" in page
    assert "More scores of the last round" in page
    assert cli("plot", "curves", "runs", "--metric", "macro_f1", "-o", "f").code == 0
    assert "macro F1" in Path("f.svg").read_text() or Path("f.png").exists()
    assert cli("compare", "fedavg", "--metric", "f2").code == 2
