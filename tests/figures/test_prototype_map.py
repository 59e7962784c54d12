"""Prototypes in a plane: what a server makes of them, and what is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protofed.core.prototypes import Prototypes
from protofed.errors import ProtofedError
from protofed.experiment.trained_run import open_trained_run
from protofed.figures import draw_figure
from protofed.figures.feature_maps import principal_axes
from protofed.figures.figure_data import client_prototypes
from protofed.figures.prototype_map import CLASSES, classes_to_show, summarize_prototypes
from protofed.figures.style import FigureOptions, save_figure
from tests.figures.played import played


@pytest.fixture
def fpl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory, "fpl")


def rows(*labels: int) -> Prototypes:
    each = torch.tensor(labels)
    return Prototypes(torch.zeros(len(labels), 2), each, torch.ones_like(each))


def test_the_unbiased_mean_counts_clusters_and_the_global_one_clients() -> None:
    first = [[1.0, 0.0], [2.0, 0.01], [3.0, 0.0]]
    second = [[0.0, 4.0], [0.01, 5.0]]
    made = summarize_prototypes(torch.tensor(first + second))
    means = [[2.0, 0.01 / 3], [0.005, 4.5]]
    assert sorted(made.clusters.tolist()) == [
        pytest.approx(mean, abs=1e-6) for mean in sorted(means)
    ]
    assert made.unbiased[0].tolist() == pytest.approx([2.005 / 2, (0.01 / 3 + 4.5) / 2])
    assert made.partition.tolist() == [0, 0, 0, 1, 1]
    assert made.mean[0].tolist() == pytest.approx([6.01 / 5, 9.01 / 5])


def test_one_client_is_its_own_summary() -> None:
    made = summarize_prototypes(torch.tensor([[1.0, 2.0]]))
    assert made.mean.tolist() == made.clusters.tolist() == made.unbiased.tolist() == [[1.0, 2.0]]


def test_classes_that_most_clients_hold_are_shown() -> None:
    run = {0: rows(0, 1, 4), 1: rows(1, 2, 4), 2: rows(1, 2, 3, 4)}
    assert classes_to_show([run]) == [1, 2, 4]
    assert classes_to_show([run, {0: rows(1, 2, 3)}]) == [1, 2, 3]  # 4 is not in both
    assert classes_to_show([{0: rows(5), 1: rows(2)}]) == [2, 5]


def test_a_panel_holds_every_client_and_every_summary(fpl: Path) -> None:
    panels = draw_figure("prototypes", [fpl], FigureOptions()).axes
    opened = open_trained_run(fpl)
    tables = client_prototypes(opened)
    shown = classes_to_show([tables])
    assert len(shown) == len(panels) == CLASSES
    for axes, label in zip(panels, shown, strict=True):
        held = {
            client: table.vectors[table.labels == label]
            for client, table in tables.items()
            if label in table.labels
        }
        rows = torch.cat(list(held.values()))
        plane, made = principal_axes(rows, 2), summarize_prototypes(rows)
        expected: dict[str, list[torch.Tensor]] = {}
        for client, vectors in held.items():
            name = f"client, {opened.federation.sites[client].domain}"
            expected.setdefault(name, []).append(vectors)
        expected["cluster"], expected["unbiased mean"] = [made.clusters], [made.unbiased]
        expected["global mean"] = [made.mean]
        drawn = {str(dots.get_label()): dots.get_offsets() for dots in axes.collections}
        assert drawn.keys() == expected.keys()
        for name, offsets in drawn.items():
            points = torch.tensor(offsets).double()
            assert torch.allclose(points, plane.place(torch.cat(expected[name])), atol=1e-6)
        assert len(axes.lines) == len(rows)  # each leads to its cluster
        for line, row, cluster in zip(axes.lines, rows, made.partition, strict=True):
            ends = plane.place(torch.stack([row, made.clusters[cluster]]))
            assert torch.allclose(torch.tensor(line.get_xydata()).double(), ends, atol=1e-6)


def test_runs_without_a_common_class_are_refused() -> None:
    with pytest.raises(ProtofedError, match="no class is held in all of these runs"):
        classes_to_show([{0: rows(1)}, {0: rows(2)}])


def test_a_method_without_prototypes_is_refused(
    fpl: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fedavg = played(tmp_path_factory, "fedavg")
    with pytest.raises(
        ProtofedError, match=r"clients of FedAvg send no prototypes\n.*of a method that does"
    ):
        draw_figure("prototypes", [fpl, fedavg], FigureOptions())


def test_the_same_run_gives_the_same_bytes(fpl: Path, tmp_path: Path) -> None:
    once = save_figure(draw_figure("prototypes", [fpl], FigureOptions()), tmp_path / "once")
    twice = save_figure(draw_figure("prototypes", [fpl], FigureOptions()), tmp_path / "twice")
    assert [file.read_bytes() for file in once] == [file.read_bytes() for file in twice]
