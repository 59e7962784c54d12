"""Cross-training in figures: the two models of a row, regions of a plane, cases of images."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from protofed.core.tree import equal
from protofed.errors import ProtofedError
from protofed.experiment.local_models import replay_round
from protofed.experiment.trained_run import open_trained_run
from protofed.figures import cross_training, draw_figure
from protofed.figures.cross_training import (
    Opinions,
    decision_regions,
    find_cases,
    open_cross_trained,
    plane_extent,
)
from protofed.figures.feature_maps import principal_axes
from protofed.figures.style import FigureOptions, save_figure
from tests.figures.played import played


@pytest.fixture
def fedexg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory, "fedexg", net="moon-cnn")


@pytest.fixture
def pgct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory, "pgct", net="moon-cnn")


def test_a_row_follows_one_model_from_client_to_client(pgct: Path) -> None:
    (model,) = open_cross_trained("boundaries", [pgct], FigureOptions(clients=("2",)))
    replayed = replay_round(pgct, open_trained_run(pgct))
    assert model.partner == replayed.trained_further_by(2) != 2
    assert equal(model.before.model()[1], replayed.exchanges[0].replies[2].model)
    assert equal(model.after.model()[1], replayed.exchanges[1].replies[model.partner].model)
    assert model.titles == ("PGCT: client 2", f"then client {model.partner}")


def test_a_cell_has_the_class_of_the_head_at_its_place(fedexg: Path) -> None:
    (model,) = open_cross_trained("boundaries", [fedexg], FigureOptions())
    images = model.before.federation.tests["optical"]
    plane = principal_axes(model.before.features(images), 2)
    reach = plane_extent(plane.place(model.before.features(images)))
    regions = decision_regions(model.after, plane, reach)
    site, weights = model.after.model()
    left, right, bottom, top = reach
    size = cross_training.CELLS
    for row, column in ((0, 0), (3, size - 1), (size - 1, 7), (size // 2, size // 3)):
        x = left + (column + 0.5) * (right - left) / size
        y = bottom + (row + 0.5) * (top - bottom) / size
        z = (plane.origin + x * plane.axes[0] + y * plane.axes[1]).float()
        logits = weights.weights["head.weight"] @ z + weights.weights["head.bias"]
        assert int(regions[row, column]) == int(logits.argmax())
    assert site.net.features == len(plane.origin)


def test_the_plane_holds_all_points_with_room() -> None:
    points = torch.tensor([[0.0, -2.0], [4.0, 6.0], [1.0, 1.0]])
    left, right, bottom, top = plane_extent(points)
    m = cross_training.MARGIN
    assert (left, right) == pytest.approx((-4 * m, 4 + 4 * m))
    assert (bottom, top) == pytest.approx((-2 - 8 * m, 6 + 8 * m))


def test_titles_tell_what_is_right_and_what_changed(
    fedexg: Path, pgct: Path, tmp_path: Path
) -> None:
    figure = draw_figure("boundaries", [fedexg, pgct], FigureOptions(domain="print"))
    models = open_cross_trained("boundaries", [fedexg, pgct], FigureOptions())
    for row, model in enumerate(models):
        images = model.before.federation.tests["print"]
        told = [run.predictions(images) for run in (model.before, model.after)]
        right = [round(100 * float((p == images.labels).double().mean())) for p in told]
        changed = round(100 * float((told[0] != told[1]).double().mean()))
        before, after = (axes.get_title() for axes in figure.axes[2 * row : 2 * row + 2])
        assert before == f"{model.titles[0]}\n{right[0]}% right"
        assert after == f"{model.titles[1]}\n{right[1]}% right, {changed}% of predictions changed"
    assert all(file.stat().st_size for file in save_figure(figure, tmp_path / "boundaries"))


def test_cases_are_those_of_a_loop_over_images() -> None:
    draw = torch.Generator().manual_seed(0)
    said = [torch.randn(300, 3, generator=draw).softmax(1) for _ in range(4)]
    labels = torch.randint(3, (300,), generator=draw)
    one, other = Opinions(said[0], said[1]), Opinions(said[2], said[3])
    masks = find_cases(one, other, labels)
    for row, true in enumerate(labels.tolist()):
        was, now, other_was, other_now = (int(p[row].argmax()) == true for p in said)
        behind = [float(p[row].max() - p[row][true]) for p in (said[1], said[3])]
        expected = [
            not was and not other_was and now and other_now,
            was and other_was and not now and other_now,
            not was and not other_was and now and not other_now,
            not now and not other_now and behind[1] < behind[0],
        ]
        assert [bool(mask[row]) for mask in masks] == expected
    assert all(mask.any() for mask in masks)


def test_each_row_of_cases_tells_how_many_there_are(
    fedexg: Path, pgct: Path, tmp_path: Path
) -> None:
    figure = draw_figure("cases", [fedexg, pgct], FigureOptions(domain="optical"))
    one, other = open_cross_trained("cases", [fedexg, pgct], FigureOptions())
    tests = {"optical": one.before.federation.tests["optical"]}
    labels = tests["optical"].labels
    said = [
        Opinions(
            m.before.scores(tests["optical"]).softmax(1),
            m.after.scores(tests["optical"]).softmax(1),
        )
        for m in (one, other)
    ]
    counts = [int(mask.sum()) for mask in find_cases(said[0], said[1], labels)]
    rows = [axes.get_ylabel() for axes in figure.axes if "images" in axes.get_ylabel()]
    assert [int(re.findall(r"(\d+) of 300 images", row)[0]) for row in rows] == counts
    for number, count in enumerate(counts):
        shown = [axes for axes in figure.axes[5 * number : 5 * number + 5] if axes.images]
        assert len(shown) == (5 if count else 0)
    assert all(file.stat().st_size for file in save_figure(figure, tmp_path / "cases"))


def test_what_cannot_be_shown_is_refused(fedavg: Path, fedexg: Path) -> None:
    with pytest.raises(ProtofedError, match="in FedAvg, no client trains the model of another"):
        draw_figure("boundaries", [fedavg], FigureOptions())
    with pytest.raises(ProtofedError, match="boundaries shows one client, got 0, 1"):
        draw_figure("boundaries", [fedexg], FigureOptions(clients=("0", "1")))
    with pytest.raises(ProtofedError, match="compares two runs, 1 were given"):
        draw_figure("cases", [fedexg], FigureOptions())
