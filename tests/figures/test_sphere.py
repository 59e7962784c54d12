"""The sphere: principal axes about a point, and what is drawn of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA

from protofed.errors import ProtofedError
from protofed.experiment.trained_run import open_trained_run
from protofed.figures import draw_figure
from protofed.figures.feature_maps import principal_axes
from protofed.figures.style import FigureOptions, save_figure
from tests.figures.played import played


@pytest.fixture
def points() -> torch.Tensor:
    """Points [30, 6] that differ in some directions more than in others, far from the origin."""
    draws = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    return draws * torch.tensor([5.0, 4, 3, 2, 1, 0.5]) + 7


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [played(tmp_path_factory, method) for method in ("fedproto", "fedlsa")]


def test_centred_axes_are_those_of_sklearn(points: torch.Tensor) -> None:
    found, oracle = principal_axes(points, 2), PCA(2).fit(points.double().numpy())
    theirs = torch.from_numpy(oracle.components_)
    agreement = (found.axes * theirs).sum(1).abs()  # signs are a convention
    assert torch.allclose(agreement, torch.ones(2, dtype=torch.float64))
    assert found.kept == pytest.approx(oracle.explained_variance_ratio_.sum())
    assert torch.allclose(found.place(points).mean(0), torch.zeros(2, dtype=torch.float64))
    largest = found.axes.gather(1, found.axes.abs().argmax(1, keepdim=True))
    assert (largest > 0).all()


def test_axes_about_the_origin_are_eigenvectors_of_the_second_moment(points: torch.Tensor) -> None:
    wide = points.double()
    values, vectors = torch.linalg.eigh(wide.T @ wide)
    found = principal_axes(points, 3, centred=False)
    agreement = (found.axes * vectors.flip(1)[:, :3].T).sum(1).abs()
    assert torch.allclose(agreement, torch.ones(3, dtype=torch.float64))
    assert found.kept == pytest.approx(float(values[-3:].sum() / values.sum()))
    assert torch.allclose(found.place(torch.zeros(1, 6)), torch.zeros(1, 3, dtype=torch.float64))


def test_unit_vectors_stay_in_the_ball_and_on_the_sphere_if_nothing_is_lost(
    points: torch.Tensor,
) -> None:
    unit = F.normalize(points - 7)
    assert (principal_axes(unit, 3, centred=False).place(unit).norm(dim=1) <= 1 + 1e-6).all()
    flat = F.normalize(points[:, :3] - 7)
    placed = principal_axes(flat, 3, centred=False).place(flat)
    assert torch.allclose(placed.norm(dim=1), torch.ones(30, dtype=torch.float64))


def test_missing_dimensions_are_zero() -> None:
    line = torch.tensor([[1.0, 0], [2, 0], [4, 0]])
    found = principal_axes(line, 3)
    assert found.place(line).shape == (3, 3)
    assert torch.allclose(found.place(line)[:, 1:], torch.zeros(3, 2, dtype=torch.float64))
    assert found.kept == pytest.approx(1)
    assert principal_axes(torch.ones(3, 2), 2).kept == 0  # points that do not differ


def test_only_unit_features_lie_in_the_ball(pair: list[Path]) -> None:
    figure = draw_figure("sphere", pair, FigureOptions(domain="print"))
    reaches = []
    for axes, folder in zip(figure.axes, pair, strict=True):
        dots = axes.collections[1:]  # the first is the sphere
        x, y, z = (torch.cat([torch.tensor(d._offsets3d[i]) for d in dots]) for i in range(3))  # type: ignore[attr-defined]
        assert len(x) == len(open_trained_run(folder).federation.tests["print"])
        reaches.append(float(torch.stack([x, y, z]).norm(dim=0).max()))
    assert reaches[0] > 1.1
    assert reaches[1] <= 1 + 1e-6
    assert figure.axes[0].get_title().startswith("FedProto, round 3\nlengths of 256-D features")
    assert "lengths of 128-D features 1 to 1\n" in figure.axes[1].get_title()


def test_the_first_domain_is_shown_unless_another_is_named(pair: list[Path]) -> None:
    assert "optical" in draw_figure("sphere", pair[:1], FigureOptions()).get_supxlabel()
    with pytest.raises(ProtofedError, match=r"unknown domain 'prnt'; did you mean 'print'"):
        draw_figure("sphere", pair, FigureOptions(domain="prnt"))


def test_more_than_one_round_is_refused(pair: list[Path]) -> None:
    with pytest.raises(ProtofedError, match="sphere shows one round, got 1, 3"):
        draw_figure("sphere", pair, FigureOptions(rounds=(1, 3)))


def test_the_same_run_gives_the_same_bytes(pair: list[Path], tmp_path: Path) -> None:
    once = save_figure(draw_figure("sphere", pair, FigureOptions()), tmp_path / "once")
    twice = save_figure(draw_figure("sphere", pair, FigureOptions()), tmp_path / "twice")
    assert [file.read_bytes() for file in once] == [file.read_bytes() for file in twice]
