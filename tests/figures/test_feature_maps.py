"""t-SNE: the images that are shown, the layout, the panels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matplotlib.axes import Axes

from protofed.core.site import ArrayDataset
from protofed.errors import ProtofedError
from protofed.experiment.trained_run import open_trained_run
from protofed.figures import draw_figure, feature_maps, figure_data
from protofed.figures.style import FigureOptions, save_figure
from tests.figures.played import played

SHOWN = 40


@pytest.fixture(autouse=True)
def _few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_maps, "MOST_TSNE_IMAGES", SHOWN)


@pytest.fixture
def fedproto(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory, "fedproto")


def numbered(size: int) -> ArrayDataset:
    return ArrayDataset(torch.zeros(size, 1, 1, 1, dtype=torch.uint8), torch.arange(size))


def places(axes: Axes) -> torch.Tensor:
    """All points [N, 2] of a panel, group after group."""
    return torch.cat([torch.tensor(dots.get_offsets()).double() for dots in axes.collections])


def test_a_panel_for_each_run_and_round_shows_every_image(fedavg: Path, fedproto: Path) -> None:
    figure = draw_figure("tsne", [fedavg, fedproto], FigureOptions(rounds=(1, 3)))
    assert [axes.get_title() for axes in figure.axes] == ["round 1", "round 3"] * 2
    assert [axes.get_ylabel() for axes in figure.axes] == ["FedAvg", "", "FedProto", ""]
    for axes in figure.axes:
        assert len(places(axes)) == SHOWN
    for left, right in (figure.axes[:2], figure.axes[2:]):
        assert left.get_xlim() == right.get_xlim()
        assert left.get_ylim() == right.get_ylim()


def test_rounds_show_the_model_of_their_time(fedavg: Path) -> None:
    run = open_trained_run(fedavg, 1)
    tests = figure_data.choose_test_images("tsne", run, None)
    chosen = figure_data.sample_images(tests, SHOWN, 0, "t-SNE")
    expected = feature_maps.tsne_map(figure_data.image_features(run, chosen), 0)
    numbers, _ = figure_data.image_groups(run, chosen, "class")
    first = draw_figure("tsne", [fedavg], FigureOptions(rounds=(1, 3))).axes[0]
    ordered = torch.cat([expected[numbers == label] for label in numbers.unique()])
    assert torch.equal(places(first), ordered.double())


def test_the_same_run_gives_the_same_bytes(fedavg: Path, tmp_path: Path) -> None:
    once = save_figure(draw_figure("tsne", [fedavg], FigureOptions()), tmp_path / "once")
    twice = save_figure(draw_figure("tsne", [fedavg], FigureOptions()), tmp_path / "twice")
    assert [file.read_bytes() for file in once] == [file.read_bytes() for file in twice]


def test_colours_may_tell_domains(fedavg: Path) -> None:
    axes = draw_figure("tsne", [fedavg], FigureOptions(by="domain")).axes[0]
    assert [dots.get_label() for dots in axes.collections] == ["optical", "print"]
    tests = figure_data.choose_test_images("tsne", open_trained_run(fedavg), None)
    chosen = figure_data.sample_images(tests, SHOWN, 0, "t-SNE")
    sizes = [len(data) for data in chosen.values()]
    assert [len(dots.get_offsets()) for dots in axes.collections] == sizes  # type: ignore[arg-type]


def test_images_are_drawn_from_all_domains_alike_and_by_seed() -> None:
    tests = {"a": numbered(100), "b": numbered(300)}
    chosen = figure_data.sample_images(tests, 200, 0)
    assert sum(map(len, chosen.values())) == 200
    assert 30 <= len(chosen["a"]) <= 70  # 50 are expected
    for name, data in chosen.items():
        assert data.labels.tolist() == sorted(set(data.labels.tolist())), name
    again, other = (
        figure_data.sample_images(tests, 200, 0),
        figure_data.sample_images(tests, 200, 1),
    )
    assert torch.equal(again["b"].labels, chosen["b"].labels)
    assert set(other["b"].labels.tolist()) != set(chosen["b"].labels.tolist())
    whole = figure_data.sample_images(tests, 1000, 0)
    assert all(torch.equal(whole[name].labels, tests[name].labels) for name in tests)


def test_neighbours_stay_neighbours() -> None:
    draws = torch.randn(24, 10, generator=torch.Generator().manual_seed(1))
    blobs = torch.arange(24) % 2
    placed = feature_maps.tsne_map(draws + 30 * blobs[:, None], seed=0).double()
    distances = torch.cdist(placed, placed).fill_diagonal_(torch.inf)
    assert torch.equal(blobs[distances.argmin(1)], blobs)


def test_three_images_are_too_few() -> None:
    with pytest.raises(ProtofedError, match="at least 4 images, there are 3"):
        feature_maps.tsne_map(torch.eye(3), seed=0)


def test_a_round_that_was_not_kept_is_told(fedavg: Path) -> None:
    with pytest.raises(ProtofedError, match=r"no checkpoint of round 7; there are: 1, 2, 3"):
        draw_figure("tsne", [fedavg], FigureOptions(rounds=(7,)))


def test_runs_on_other_data_are_refused(
    fedavg: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = played(
        tmp_path_factory, "fedavg", data={"name": "digits-mini", "domains": ["syn"]}, rounds=1
    )
    with pytest.raises(ProtofedError, match="their data differ"):
        draw_figure("tsne", [fedavg, other], FigureOptions())


def test_runs_of_one_method_are_told_apart_by_their_folders(fedavg: Path) -> None:
    figure = draw_figure("tsne", [fedavg, fedavg], FigureOptions())
    assert figure.axes[0].get_ylabel() == f"FedAvg ({fedavg.name})"


def test_a_personal_method_says_whose_features_are_shown(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    figure = draw_figure("tsne", [played(tmp_path_factory, "local")], FigureOptions())
    assert figure.axes[0].get_title() == "round 3, client 0"
