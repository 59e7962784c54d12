"""Grad-CAM: against finite differences and loops, and the sheet of pictures."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from protofed.core.model import ImageShape, Net, model_from_net
from protofed.errors import ProtofedError
from protofed.experiment.trained_run import open_trained_run
from protofed.figures import draw_figure
from protofed.figures.figure_data import choose_test_images
from protofed.figures.gradcam import (
    explain_image,
    grad_cam,
    heat_from_gradients,
    last_convolution,
    sample_test_images,
)
from protofed.figures.style import FigureOptions, save_figure
from protofed.nets import NETS, build_net
from protofed.testing.method_checks import CLASSES, toy_data, toy_net
from tests.figures.played import Contrary, played


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory, "fedavg", net="moon-cnn")


def images(count: int) -> Tensor:
    return toy_data(0, count).images.permute(0, 3, 1, 2).float() / 127.5 - 1


def best(net: Net, x: Tensor) -> Tensor:
    """The classes [B] with the net's best scores."""
    said: Tensor = net.eval()(x).logits.argmax(1)
    return said


@torch.no_grad()
def slow_heat(net: Net, x: Tensor, label: int) -> list[list[float]]:
    """Grad-CAM of one image [1, channels, side, side] in doubles, with slopes by differences."""
    net = copy.deepcopy(net).double().eval()
    encoder = net.encoder
    assert isinstance(encoder, nn.Sequential)
    maps = encoder[0](x.double()).detach()

    def score(changed: Tensor) -> float:
        logits = net.head(net.neck(encoder[1:](changed)))
        return float(logits[0, label])

    _, layers, height, width = maps.shape
    small = [[0.0] * width for _ in range(height)]
    for k in range(layers):
        slopes = []
        for i in range(height):
            for j in range(width):
                up, down = maps.clone(), maps.clone()
                up[0, k, i, j] += 1e-6
                down[0, k, i, j] -= 1e-6
                slopes.append((score(up) - score(down)) / 2e-6)
        weight = sum(slopes) / len(slopes)
        for i in range(height):
            for j in range(width):
                small[i][j] += weight * float(maps[0, k, i, j])
    large = enlarged([[max(0.0, value) for value in row] for row in small], x.shape[-1])
    least, most = min(map(min, large)), max(map(max, large))
    return [[(value - least) / (most - least) for value in row] for row in large]


def enlarged(small: list[list[float]], side: int) -> list[list[float]]:
    """Bilinear between the middles of pixels, the border ones held."""
    size = len(small)

    def corners(at: int) -> tuple[int, int, float]:
        place = min(max((at + 0.5) * size / side - 0.5, 0.0), size - 1.0)
        low = math.floor(place)
        return low, min(low + 1, size - 1), place - low

    def value(row: int, column: int) -> float:
        top, bottom, down = corners(row)
        left, right, along = corners(column)
        upper = (1 - along) * small[top][left] + along * small[top][right]
        lower = (1 - along) * small[bottom][left] + along * small[bottom][right]
        return (1 - down) * upper + down * lower

    return [[value(row, column) for column in range(side)] for row in range(side)]


@pytest.mark.parametrize("beside", [0, 1])  # the heat of the best class, and of another one
def test_heat_is_that_of_differences_and_loops(beside: int) -> None:
    net, x = toy_net(), images(6)
    labels = (best(net, x) + beside) % CLASSES
    found = grad_cam(net, model_from_net(net), x, labels)
    for one, heat, label in zip(x, found, labels.tolist(), strict=True):
        assert torch.allclose(heat, torch.tensor(slow_heat(net, one[None], label)), atol=1e-4)


def test_the_net_is_left_as_it_was() -> None:
    net, x = toy_net(), images(2)
    model = model_from_net(net)
    before = copy.deepcopy(net.state_dict())
    first = grad_cam(net, model, x, best(net, x))
    assert all(torch.equal(leaf, before[name]) for name, leaf in net.state_dict().items())
    assert all(leaf.grad is None for leaf in net.parameters())
    assert not last_convolution(net)._forward_hooks
    assert torch.equal(grad_cam(net, model, x, best(net, x)), first)


def test_the_models_weights_count_and_not_those_of_the_net() -> None:
    net, other, x = toy_net(), toy_net(seed=1), images(2)
    said = best(other, x)
    assert torch.equal(
        grad_cam(net, model_from_net(other), x, said),
        grad_cam(other, model_from_net(other), x, said),
    )


def test_what_speaks_against_the_class_leaves_no_heat() -> None:
    maps, slopes = torch.ones(1, 2, 3, 3), -torch.ones(1, 2, 3, 3)
    assert torch.equal(heat_from_gradients(maps, slopes, 6), torch.zeros(1, 6, 6))


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("moon-cnn", "encoder.conv2"),
        ("seproto-cnn", "encoder.conv3"),
        ("resnet10", "encoder.layer4.0.conv2"),  # a shortcut of single pixels comes after it
        ("resnet18", "encoder.layer4.1.conv2"),
    ],
)
def test_the_last_convolution_is_found(name: str, layer: str) -> None:
    assert name in NETS
    net = build_net(name, 10, ImageShape(3, 32), seed=0)
    assert last_convolution(net) is net.get_submodule(layer)


def test_a_net_without_convolutions_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    flat = played(tmp_path_factory, "fedavg")  # a perceptron
    with pytest.raises(ProtofedError, match=r"needs a net with convolutions.*\n.*moon-cnn"):
        draw_figure("gradcam", [flat], FigureOptions())


def test_images_come_from_each_domain_in_turn() -> None:
    tests = {"a": toy_data(0, 2), "b": toy_data(1, 9)}
    pictures = sample_test_images(tests, 6, seed=0)
    assert [picture.domain for picture in pictures] == ["a", "b", "a", "b", "b", "b"]
    assert len({tuple(p.data.images.flatten().tolist()) for p in pictures}) == 6
    again = sample_test_images(tests, 3, seed=0)
    for one, same in zip(again, pictures, strict=False):
        assert torch.equal(one.data.images, same.data.images)
    assert len(sample_test_images(tests, 100, seed=0)) == 11
    with pytest.raises(ProtofedError, match="images is 0, but must be 1 or more"):
        sample_test_images(tests, 0, seed=0)


def test_rounding_noise_is_no_heat() -> None:
    chance = torch.Generator().manual_seed(0)
    flat = torch.full((1, 7, 5, 5), 0.1) * torch.rand(1, 7, 1, 1, generator=chance)
    slopes = torch.randn(1, 7, 5, 5, generator=chance)
    slopes *= (slopes.mean((2, 3)) * flat.mean((2, 3))).sum().sign()  # all of it spoke, alike
    assert not heat_from_gradients(flat, slopes, 17).any()
    maps = torch.rand(1, 8, 5, 5, generator=chance)
    level = torch.rand(1, 8, 1, 1, generator=chance)
    twins = torch.cat([maps, maps], 1)  # what speaks for the class speaks against it as much
    against = torch.cat([level, -level * (1 + 1e-7)], 1).expand(-1, -1, 5, 5)
    assert not heat_from_gradients(twins, against, 17).any()
    little = torch.cat([level, -level * (1 - 1e-2)], 1).expand(-1, -1, 5, 5)
    assert heat_from_gradients(twins, little, 17).max() == 1.0


def test_the_sheet_tells_what_each_run_predicts(run: Path) -> None:
    figure = draw_figure("gradcam", [run, run], FigureOptions(images=3, rounds=(2,)))
    opened = open_trained_run(run, 2)
    pictures = sample_test_images(choose_test_images("gradcam", opened, None), 3, seed=0)
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert len(panels) == 9
    for row in (panels[3:6], panels[6:9]):
        for axes, picture in zip(row, pictures, strict=True):
            predicted = int(opened.predictions(picture.data))
            seen = explain_image(opened, picture)
            sign = "✓" if predicted == picture.label else "✗"
            chance = float(opened.scores(picture.data).softmax(1)[0, predicted])
            assert axes.get_xlabel() == f"{predicted}: {chance:.0%} {sign}"
            assert torch.equal(torch.tensor(axes.images[-1].get_array()), seen.heat)
            told = [text.get_text() for text in axes.texts]
            assert told == ([] if float(seen.heat.max()) > 0 else ["nothing spoke\nfor it"])


def test_the_sheet_follows_the_method_where_the_net_says_something_else(run: Path) -> None:
    opened = open_trained_run(run)
    contrary = opened.experiment.model_copy(update={"method": Contrary()})
    (picture,) = sample_test_images(opened.federation.tests, 1, seed=0)
    seen = explain_image(replace(opened, experiment=contrary), picture)
    site, model = opened.model()
    x = site.pixels.normalize(picture.data.images)
    logits = site.forward_eval(model, x).logits
    assert torch.equal(seen.chances, (-logits[0]).softmax(0))
    assert torch.equal(seen.heat, grad_cam(site.net, model, x, logits.argmin(1))[0])
    assert not torch.equal(seen.heat, grad_cam(site.net, model, x, logits.argmax(1))[0])


def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    once = save_figure(draw_figure("gradcam", [run], FigureOptions(images=2)), tmp_path / "once")
    twice = save_figure(draw_figure("gradcam", [run], FigureOptions(images=2)), tmp_path / "twice")
    assert [file.read_bytes() for file in once] == [file.read_bytes() for file in twice]
