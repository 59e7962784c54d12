"""Figures of clients' own models: panels, titles, and the models behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from protofed.errors import ProtofedError
from protofed.experiment.local_models import replay_round
from protofed.experiment.trained_run import open_trained_run
from protofed.figures import draw_figure, feature_maps, figure_data
from protofed.figures.style import FigureOptions
from tests.figures.played import played
from tests.figures.test_feature_maps import places

SHOWN = 40


@pytest.fixture(autouse=True)
def _few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_maps, "MOST_TSNE_IMAGES", SHOWN)


@pytest.fixture
def fedexg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory, "fedexg")


def test_words_name_clients_by_id_or_by_domain(fedavg: Path) -> None:
    run = open_trained_run(fedavg)
    homes = {client: site.domain for client, site in run.federation.sites.items()}
    first = {name: min(c for c in homes if homes[c] == name) for name in homes.values()}
    assert figure_data.find_clients(run, ["print", "1", "optical"]) == [
        first["print"],
        1,
        first["optical"],
    ]
    with pytest.raises(ProtofedError, match="unknown client or domain with clients '9'"):
        figure_data.find_clients(run, ["9"])


def test_one_round_has_a_column_for_each_client(fedavg: Path, fedexg: Path) -> None:
    figure = draw_figure("tsne", [fedavg, fedexg], FigureOptions(clients=("print", "0")))
    run = open_trained_run(fedavg)
    chosen = figure_data.find_clients(run, ["print", "0"])
    homes = [run.federation.sites[client].domain for client in chosen]
    titles = [f"round 3, client {c} ({home})" for c, home in zip(chosen, homes, strict=True)]
    assert [axes.get_title() for axes in figure.axes] == titles * 2
    assert [axes.get_ylabel() for axes in figure.axes] == ["FedAvg", "", "FedExg", ""]
    images = figure_data.sample_images(run.federation.tests, SHOWN, 0, "t-SNE")
    local = replay_round(fedavg, run).local(chosen[0])
    expected = feature_maps.tsne_map(figure_data.image_features(local, images), 0)
    assert set(map(tuple, places(figure.axes[0]).tolist())) == set(map(tuple, expected.tolist()))


def test_several_rounds_have_a_row_for_each_client(fedavg: Path) -> None:
    figure = draw_figure("tsne", [fedavg], FigureOptions(rounds=(1, 3), clients=("0", "3")))
    owners = [axes.get_title().split(" (")[0] for axes in figure.axes]
    assert owners == [f"round {n}, client {c}" for c in (0, 3) for n in (1, 3)]


def test_heat_maps_of_local_models_have_a_row_for_each_client(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run = played(tmp_path_factory, "fedavg", net="moon-cnn")
    figure = draw_figure("gradcam", [run], FigureOptions(clients=("0", "1"), images=2))
    labels = [axes.get_ylabel().splitlines() for axes in figure.axes if axes.get_ylabel()]
    rows = [label for label in labels if label[0] == "FedAvg"]
    assert [[*row[1:2], row[2].split(" (")[0]] for row in rows] == [
        ["round 3", "client 0"],
        ["round 3", "client 1"],
    ]
