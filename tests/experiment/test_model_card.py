"""The model card: true numbers, what travelled, and names that stay plain words."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import pytest
from pydantic.dataclasses import dataclass

from protofed.errors import ProtofedError
from protofed.experiment.model_card import model_card
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import run
from protofed.federation.remote_sites import KEPT_BACK
from protofed.methods.fedavg import FedAvg
from protofed.runtime import atomic_io
from protofed.runtime.text_tables import escape_markdown
from protofed.spec.spec_parser import parse_experiment
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.data.pictures import make
from tests.experiment.conftest import Make

HOSTILE = "<script>alert(1)<|script> [x](http:y) `a` *b*"


def play(root: Path, out: Path, method: str) -> RunDir:
    raw = {
        "method": method,
        "net": "moon-mlp",
        "data": {"name": str(root)},
        "rounds": 2,
        "training": {"epochs": 1},
    }
    run(parse_experiment(raw), out, workers=0)
    return RunDir(out)


def test_a_card_holds_the_runs_own_numbers(tmp_path: Path) -> None:
    folder = play(make(tmp_path / "photos"), tmp_path / "run", "fedproto")
    text = folder.card.read_text()
    folder.card.unlink()
    assert text == model_card(folder)  # from files alone, so that it can be made again
    first, last = folder.lines(folder.scores)
    for domain, score in last["domains"].items():
        five = (first["domains"][domain] + score) / 2
        assert f"| {domain} | {score:.2f} | {five:.2f} |" in text
    assert f"| worst | {last['worst']:.2f} |" in text
    assert "| 0 | neg | 16 | 2 | 8 to 8 |" in text
    sent = sum(line["parts"]["up"]["model"] for line in folder.lines(folder.rounds))
    told = re.search(r"clients to coordinator \| model \| ([\d.]+) MB", text)
    assert told is not None
    assert float(told[1]) == pytest.approx(sent / 1e6, abs=0.006)
    assert "| clients to coordinator | protos |" in text
    assert "the coordinator sees: model, protos;" in text
    spec = json.loads((folder.path / "spec.json").read_text())
    assert f"`{spec['digest']}`" in text
    assert f"protofed run --spec {folder.path}/spec.json --out {folder.path}-again\n" in text
    assert "give the same bits" in text
    assert "split by protofed" in text
    assert "no medical device" in text
    with pytest.raises(ProtofedError, match="no finished run"):
        model_card(RunDir(tmp_path))


def test_counts_that_a_site_keeps_back_are_not_taken_for_a_class(tmp_path: Path) -> None:
    folder = play(make(tmp_path / "photos"), tmp_path / "run", "fedavg")
    parts = json.loads((folder.path / "partition.json").read_text())
    parts[0]["held"] = {KEPT_BACK: 16}
    folder.write("partition.json", parts)
    folder.card.unlink()
    assert "| 0 | neg | 16 | kept back | kept back |" in model_card(folder)


def test_a_personal_methods_card_has_a_row_for_each_client(tmp_path: Path) -> None:
    folder = play(make(tmp_path / "photos"), tmp_path / "run", "local")
    (*_, last) = folder.lines(folder.scores)
    text = folder.card.read_text()
    for client, row in last["clients"].items():
        assert f"| client {client} | {row['neg']:.2f} | {row['photo']:.2f} |" in text
    assert "the coordinator sees: nothing;" in text


def test_names_of_strangers_are_plain_words(tmp_path: Path) -> None:
    folder = play(
        make(tmp_path / "photos", (HOSTILE.replace("/", ""), "b")), tmp_path / "run", "fedavg"
    )
    text = folder.card.read_text()
    assert "<" not in text
    assert "](" not in text
    assert text.count(escape_markdown(HOSTILE)) >= 3
    cells = {line.count(" | ") for line in text.splitlines() if line.startswith("| 0 |")}
    assert cells == {4}  # a bar in a name makes no column
    assert escape_markdown("a\n# b") == r"a \# b"


@dataclass(frozen=True)
class Mine(FedAvg):
    """A method that protofed does not know by name."""


def test_the_card_of_a_strangers_method_is_printed(tiny: Make, tmp_path: Path, cli: Cli) -> None:
    run(tiny(rounds=1).model_copy(update={"method": Mine()}), tmp_path / "run", workers=0)
    folder = RunDir(tmp_path / "run")
    assert f"protofed run --spec {folder.path}/spec.json" in model_card(folder)
    assert " in 1 round. The method: " in model_card(folder)
    assert cli("card", folder.path).out == folder.card.read_text()
    folder.card.write_text("\x1b[2J\n")  # whoever wrote it, it steers no terminal
    assert cli("card", folder.path).out == "\\x1b[2J\n"


def test_a_card_that_cannot_be_written_leaves_the_run_unfinished(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = RunDir(tmp_path / "run"), atomic_io.rename_over

    def broken(old: Path, new: Path) -> None:
        if new == folder.card:
            raise OSError(errno.EIO, "Input/output error")
        real(old, new)

    monkeypatch.setattr(atomic_io, "rename_over", broken)
    told = rf"cannot write to {folder.path}: Input/output error\nall rounds up to 1 are safe there"
    with pytest.raises(ProtofedError, match=told):
        run(tiny(rounds=1), folder.path, workers=0)
    with pytest.raises(ProtofedError, match="no finished run"):
        model_card(folder)
    monkeypatch.undo()
    run(tiny(rounds=1), folder.path, workers=0)
    assert folder.card.read_text() == model_card(folder)
