"""Margins between classes: against slow loops, and which vectors each method is judged by."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.errors import ProtofedError
from protofed.experiment.trained_run import open_trained_run
from protofed.figures import draw_figure
from protofed.figures.figure_data import client_prototypes
from protofed.figures.prototype_map import MarginSeries, margin_series, margins_by_class, unit_rows
from protofed.figures.style import FigureOptions, save_figure
from tests.figures.played import played

CLASSES = 5


def table(labels: list[int], seed: int = 0) -> Prototypes:
    vectors = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(seed))
    each = torch.tensor(labels)
    return Prototypes(vectors, each, torch.ones_like(each))


def slow_margins(rows: Prototypes) -> list[float]:
    """For each class the least distance of any of its rows to any row of another class."""
    found = [math.nan] * CLASSES
    for i in range(len(rows)):
        for j in range(len(rows)):
            mine, other = int(rows.labels[i]), int(rows.labels[j])
            if mine != other:
                pairs = zip(rows.vectors[i].tolist(), rows.vectors[j].tolist(), strict=True)
                distance = math.sqrt(sum((a - b) ** 2 for a, b in pairs))
                known = not math.isnan(found[mine])
                found[mine] = min(found[mine], distance) if known else distance
    return found


def slow_unit(rows: Prototypes) -> Prototypes:
    lengths = [math.sqrt(sum(v * v for v in row.tolist())) for row in rows.vectors]
    vectors = torch.stack([r / n for r, n in zip(rows.vectors, lengths, strict=True)])
    return Prototypes(vectors, rows.labels, rows.counts)


@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 4], [0, 0, 2, 2, 2, 4], [1, 3], [2, 2], [3]])
def test_margins_are_those_of_a_double_loop(labels: list[int]) -> None:
    rows = table(labels)
    expected = pytest.approx(slow_margins(rows), nan_ok=True, rel=1e-5)
    assert margins_by_class(rows, CLASSES).tolist() == expected
    unit = pytest.approx(slow_margins(slow_unit(rows)), nan_ok=True, rel=1e-5)
    assert margins_by_class(unit_rows(rows), CLASSES).tolist() == unit


@pytest.mark.parametrize("unit", [False, True])
def test_of_several_clients_the_largest_margin_counts(unit: bool) -> None:
    tables = (table([0, 1, 2], 1), table([0, 1], 2), table([4], 3))
    found = MarginSeries("clients", tables).margins(CLASSES, unit).tolist()
    each = [slow_margins(slow_unit(rows) if unit else rows) for rows in tables]
    for label in range(CLASSES):
        known = [m[label] for m in each if not math.isnan(m[label])]
        assert found[label] == pytest.approx(max(known, default=math.nan), nan_ok=True)
    assert math.isnan(found[4])  # its client has nothing to tell it from


def test_a_scale_changes_margins_but_not_normalised_ones() -> None:
    rows = table([0, 1, 2, 3, 4])
    large = Prototypes(10 * rows.vectors, rows.labels, rows.counts)
    one, other = MarginSeries("one", (rows,)), MarginSeries("other", (large,))
    assert torch.allclose(other.margins(CLASSES, False), 10 * one.margins(CLASSES, False))
    assert torch.allclose(other.margins(CLASSES, True), one.margins(CLASSES, True))


def test_each_method_is_judged_by_what_it_shares(tmp_path_factory: pytest.TempPathFactory) -> None:
    shared = open_trained_run(played(tmp_path_factory, "fedproto"))
    assert margin_series(shared, "A") == MarginSeries(
        "A, shared prototypes", (shared.server.protos,)
    )
    anchored = margin_series(open_trained_run(played(tmp_path_factory, "fedlsa")), "B")
    assert anchored.label == "B, anchors"
    assert torch.allclose(anchored.tables[0].vectors.norm(dim=1), torch.ones(10))
    assert anchored.tables[0].labels.tolist() == list(range(10))
    plain = margin_series(open_trained_run(played(tmp_path_factory, "fedavg")), "C")
    assert plain.label == "C, largest of clients"
    assert len(plain.tables) == 4


@pytest.mark.parametrize("method", ["fedavg", "moon", "local"])
def test_local_prototypes_are_means_by_the_model_a_client_has(
    tmp_path_factory: pytest.TempPathFactory, method: str
) -> None:
    run = open_trained_run(played(tmp_path_factory, method))
    for client, rows in client_prototypes(run).items():
        site = run.federation.sites[client]
        model: Model = run.engine.state(client) if method == "local" else run.server.model
        for label, vector in zip(rows.labels.tolist(), rows.vectors, strict=True):
            mine = [i for i in range(len(site.train)) if site.train.labels[i] == label]
            images = [site.pixels.normalize(site.train.images[i : i + 1]) for i in mine]
            seen: list[Tensor] = [site.forward_eval(model, x).z[0] for x in images]
            assert torch.allclose(vector, sum(seen, torch.zeros(())) / len(seen), atol=1e-5)
        assert rows.labels.tolist() == sorted(set(site.train.labels.tolist()))


def test_bars_stand_for_margins(tmp_path_factory: pytest.TempPathFactory) -> None:
    folders = [played(tmp_path_factory, method) for method in ("fedproto", "fedlsa")]
    figure = draw_figure("margins", folders, FigureOptions(rounds=(2,)))
    for axes, unit in zip(figure.axes, (False, True), strict=True):
        heights = [bar.get_height() for bar in axes.patches]  # type: ignore[attr-defined]
        expected = [
            margin
            for folder in folders
            for margin in margin_series(open_trained_run(folder, 2), "").margins(10, unit).tolist()
        ]
        assert heights == pytest.approx(expected)


def test_the_same_run_gives_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    runs = [played(tmp_path_factory, "fedavg")]
    once = save_figure(draw_figure("margins", runs, FigureOptions()), tmp_path / "once")
    twice = save_figure(draw_figure("margins", runs, FigureOptions()), tmp_path / "twice")
    assert [file.read_bytes() for file in once] == [file.read_bytes() for file in twice]


def test_options_without_a_use_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    runs = [played(tmp_path_factory, "fedavg")]
    with pytest.raises(ProtofedError, match="margins does not use the option 'domain'"):
        draw_figure("margins", runs, FigureOptions(domain="print"))
