from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.core import tree
from protofed.core.model import ArrayShape, ImageShape, Net, model_from_net
from protofed.errors import ProtofedError
from protofed.nets import NETS, SMALLEST_SIDE, build_net

CIFAR = ImageShape(3, 32)
RESNET_BLOCKS = {
    "resnet10": (1, 1, 1, 1),
    "resnet12": (2, 1, 1, 1),
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
}
WITH_LITE0 = ("efficientnet-lite0", "efficientnet-lite0-neck")
LARGE = ("resnet18-224", "resnet34-224")
WIDTHS = {  # of the encoder's output and of z
    "efficientnet-lite0": (1280, 1280),
    "efficientnet-lite0-neck": (1280, 256),
    "lsa-cnn": (512, 128),
    "mlp": (256, 128),
    "moon-cnn": (84, 256),
    "moon-mlp": (512, 256),
    "moon-resnet18": (512, 256),
    **dict.fromkeys(RESNET_BLOCKS, (512, 512)),
    **dict.fromkeys(LARGE, (512, 512)),
    "seproto-cnn": (512, 512),
    "seproto-cnn2": (512, 512),
}


def images(image: ImageShape, count: int) -> Tensor:
    draw = torch.Generator().manual_seed(5)
    return torch.randn(count, image.channels, image.side, image.side, generator=draw)


def size(net: nn.Module) -> int:
    return sum(weight.numel() for weight in net.parameters())


def test_names_are_alphabetical() -> None:
    assert list(NETS) == sorted(WIDTHS)


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("resnet10", CIFAR, 4_903_242),
        ("moon-mlp", ImageShape(1, 28), 1_061_130),
        ("moon-cnn", CIFAR, 92_626),
        ("mlp", ImageShape(1, 28), 785 * 256 + 257 * 256 + 257 * 128 + 129 * 10),
        # convolutions, fc, neck, head
        ("lsa-cnn", CIFAR, 2_432 + 51_264 + 4096 * 512 + 512 + 512 * 128 + 128 + 1_290),
        ("seproto-cnn", CIFAR, 896 + 18_496 + 73_856 + 2048 * 512 + 512 + 512 * 513 + 5_130),
        ("seproto-cnn2", CIFAR, 896 + 18_496 + 1024 * 512 + 512 + 512 * 513 + 5_130),
    ],
)
def test_parameter_counts(name: str, image: ImageShape, expected: int) -> None:
    assert size(build_net(name, 10, image, seed=0)) == expected


@pytest.mark.parametrize("name", ["resnet18", "moon-resnet18"])
def test_resnet18_encoder_count(name: str) -> None:
    assert size(build_net(name, 100, CIFAR, seed=0).encoder) == 11_168_832


def norm_keys(name: str) -> list[str]:
    parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    return [f"{name}.{part}" for part in parts]


def torchvision_keys(blocks: tuple[int, ...]) -> list[str]:
    """The entries of torchvision's basic-block resnets without ``fc``, by rule."""
    keys = ["conv1.weight", *norm_keys("bn1")]
    for stage, count in enumerate(blocks, start=1):
        for number in range(count):
            block = f"layer{stage}.{number}"
            keys += [f"{block}.conv1.weight", *norm_keys(f"{block}.bn1")]
            keys += [f"{block}.conv2.weight", *norm_keys(f"{block}.bn2")]
            if stage > 1 and number == 0:
                keys += [f"{block}.downsample.0.weight", *norm_keys(f"{block}.downsample.1")]
    return keys


@pytest.mark.parametrize("name", RESNET_BLOCKS)
def test_resnets_are_named_as_in_torchvision(name: str) -> None:
    net = build_net(name, 10, CIFAR, seed=0)
    assert list(net.encoder.state_dict()) == torchvision_keys(RESNET_BLOCKS[name])
    assert not list(net.neck.parameters())


def test_resnet_maps_halve_three_times() -> None:
    encoder = build_net("resnet10", 10, CIFAR, seed=0).encoder
    shapes = []
    x = images(CIFAR, 2)
    for name in ("conv1", "layer1", "layer2", "layer3", "layer4"):
        x = encoder.get_submodule(name)(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(64, 32, 32), (64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]


def test_resnet_convolutions_start_with_fan_out_variance() -> None:
    encoder = build_net("resnet10", 10, CIFAR, seed=0).encoder
    for name, weight in encoder.named_parameters():
        if weight.dim() == 4:
            fan_out = weight.shape[0] * weight.shape[2] * weight.shape[3]
            ratio = float(weight.detach().square().mean()) * fan_out / 2
            assert ratio == pytest.approx(1, abs=0.1), name


def test_resnet_convolutions_start_as_torchs_layers_do_where_asked() -> None:
    encoder = build_net("resnet10", 10, CIFAR, seed=0, initial_weights="torch").encoder
    for name, weight in encoder.named_parameters():
        if weight.dim() == 4:  # uniform between -1 / sqrt(fan_in) and its opposite
            fan_in = weight[0].numel()
            assert float(weight.detach().abs().max()) * fan_in**0.5 == pytest.approx(1, abs=0.01), (
                name
            )
            ratio = float(weight.detach().square().mean()) * fan_in * 3
            assert ratio == pytest.approx(1, abs=0.1), name


@pytest.mark.parametrize("name", NETS)
def test_torchs_weights_are_those_of_nets_without_a_rule_of_their_own(name: str) -> None:
    own = model_from_net(build_net(name, 10, CIFAR, seed=1))
    torchs, same = (
        model_from_net(build_net(name, 10, CIFAR, seed=1, initial_weights="torch"))
        for _ in range(2)
    )
    assert tree.equal(torchs, same)
    assert tree.equal(own, torchs) == ("resnet" not in name)
    assert tree.equal(own.only("head"), torchs.only("head")) == ("resnet" not in name)


@pytest.mark.parametrize("name", RESNET_BLOCKS)
def test_resnet_features_are_not_negative(name: str) -> None:
    z = build_net(name, 10, CIFAR, seed=0)(images(CIFAR, 4)).z.detach()
    assert z.min() >= 0
    assert z.max() > 0


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 28), (1, 32), (3, 32), (3, 64)])
@pytest.mark.parametrize("name", NETS)
def test_every_size_gives_finite_outputs_and_gradients(name: str, channels: int, side: int) -> None:
    image = ImageShape(channels, side)
    net = build_net(name, 7, image, seed=3)
    # Maps of large nets shrink to one pixel here: batch norm of two numbers gives 1 and -1 always.
    count = 8 if name in (*LARGE, *WITH_LITE0) else 2
    out = net(images(image, count))
    assert out.z.shape == (count, WIDTHS[name][1])
    assert out.logits.shape == (count, 7)
    assert out.z.isfinite().all()
    assert out.logits.isfinite().all()
    F.cross_entropy(out.logits, torch.arange(count) % 7).backward()
    for key, weight in net.named_parameters():
        assert weight.grad is not None, key
        assert weight.grad.isfinite().all(), key
        assert weight.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", NETS)
def test_declared_widths_are_the_true_ones(name: str) -> None:
    net = build_net(name, 7, CIFAR, seed=0)
    hidden = net.encoder(images(CIFAR, 2))
    assert (net.width, net.features, net.classes) == (*WIDTHS[name], 7)
    assert hidden.shape == (2, net.width)
    assert net.neck(hidden).shape == (2, net.features)


@pytest.mark.parametrize("name", NETS)
def test_seed_alone_decides_the_weights(name: str) -> None:
    one = model_from_net(build_net(name, 10, CIFAR, seed=1))
    torch.rand(3)  # where torch's own generator stands must not matter
    before = torch.get_rng_state()
    same, other = (model_from_net(build_net(name, 10, CIFAR, seed=seed)) for seed in (1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert tree.equal(one, same)
    for key, weight in one.weights.items():
        is_norm = bool((weight == weight.flatten()[0]).all())  # batch norms start at one and zero
        assert torch.equal(weight, other.weights[key]) == is_norm, key


def relu_before_pool(net: Net) -> Net:
    """The same weights with every pooling step behind the ReLU that followed it."""
    layers = list(net.encoder.children())
    for at, layer in enumerate(layers[:-1]):
        if isinstance(layer, nn.MaxPool2d):
            layers[at], layers[at + 1] = layers[at + 1], layer
    return Net(nn.Sequential(*layers), net.neck, net.head, net.width)


@pytest.mark.parametrize("side", [28, 32])
@pytest.mark.parametrize("name", ["lsa-cnn", "moon-cnn", "seproto-cnn", "seproto-cnn2"])
def test_pool_and_relu_commute_bit_for_bit(name: str, side: int) -> None:
    image = ImageShape(3, side)
    net = build_net(name, 10, image, seed=0)
    swapped = relu_before_pool(net)
    assert isinstance(list(swapped.encoder.children())[2], nn.MaxPool2d)
    results = []
    for one in (net, swapped):
        one.zero_grad()
        x = images(image, 16)
        x[:, :, : side // 2] = 0  # flat areas make ties between pixels
        out = one(x)
        F.cross_entropy(out.logits, torch.arange(16) % 10).backward()
        grads = [weight.grad for weight in one.parameters()]
        results.append([out.z, out.logits, *grads])
    assert tree.equal(*results)


@pytest.mark.parametrize("name", NETS)
def test_smallest_side_works_and_the_next_smaller_is_refused(name: str) -> None:
    smallest = SMALLEST_SIDE.get(name, 1)
    image = ImageShape(3, smallest)
    assert build_net(name, 10, image, seed=0)(images(image, 4)).logits.isfinite().all()
    with pytest.raises(ProtofedError, match=rf"'{name}'.* side {smallest - 1};.* is {smallest}\n"):
        build_net(name, 10, ImageShape(3, smallest - 1), seed=0)


@pytest.mark.parametrize("name", SMALLEST_SIDE)
def test_refused_side_would_not_run(name: str) -> None:
    image = ImageShape(3, SMALLEST_SIDE[name] - 1)
    with pytest.raises((RuntimeError, UserWarning)):  # an empty map, or an empty linear layer
        NETS[name](10, image)(images(image, 4))


@pytest.mark.parametrize(
    ("image", "flat"),
    [(ImageShape(1, 28), 256), (CIFAR, 400), (ImageShape(3, 64), 2704)],
)
def test_moon_cnn_grows_with_the_image(image: ImageShape, flat: int) -> None:
    fc1 = build_net("moon-cnn", 10, image, seed=0).encoder.get_submodule("fc1")
    assert isinstance(fc1, nn.Linear)
    assert fc1.in_features == flat


@pytest.mark.parametrize("name", ["lsa-cnn", "seproto-cnn"])
def test_small_cnns_resize_only_where_the_map_does_not_fit(name: str) -> None:
    def resized(side: int) -> bool:
        encoder = build_net(name, 10, ImageShape(3, side), seed=0).encoder
        return "resize" in dict(encoder.named_children())

    assert [resized(side) for side in (28, 32, 64)] == [True, False, True]


def test_unknown_net_names_the_known_ones() -> None:
    with pytest.raises(ProtofedError, match=r"unknown net 'resnet11'; did you mean(.|\n)*lsa-cnn"):
        build_net("resnet11", 10, CIFAR, seed=0)


@pytest.mark.parametrize("sizes", [(6,), (1, 9), (3, 4, 5), (2, 3, 4, 5)])
def test_the_perceptron_takes_rows_of_any_shape(sizes: tuple[int, ...]) -> None:
    net = build_net("mlp", 7, ArrayShape(sizes), seed=3)
    x = torch.randn(2, *sizes, generator=torch.Generator().manual_seed(5))
    hidden = x.flatten(1)
    for name in ("encoder.fc1", "encoder.fc2", "neck.0"):
        hidden = F.relu(
            F.linear(hidden, net.get_parameter(f"{name}.weight"), net.get_parameter(f"{name}.bias"))
        )
    assert torch.equal(net(x).z, hidden)
    assert net(x).logits.shape == (2, 7)


@pytest.mark.parametrize("name", sorted(set(NETS) - {"mlp"}))
def test_nets_of_images_refuse_rows(name: str) -> None:
    with pytest.raises(
        ProtofedError,
        match=r"takes images, and these data are rows of shape \[6\]\nchoose `net=mlp`",
    ):
        build_net(name, 7, ArrayShape((6,)), seed=0)


def test_both_kinds_of_shape_give_the_size_of_one_input() -> None:
    assert ImageShape(3, 32).sizes == (3, 32, 32)
    assert ArrayShape((4, 5)).sizes == (4, 5)
