from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from protofed.core import tree
from protofed.core.model import ImageShape, model_from_net
from protofed.errors import ProtofedError
from protofed.nets import NETS, build_net
from protofed.nets.winograd import (
    INPUT,
    KERNEL,
    LEAST_CHANNELS,
    OUTPUT,
    WinogradConv2d,
    fits_winograd,
    winograd_conv2d,
)

CIFAR = ImageShape(3, 32)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7), dtype=dtype)


def through(
    call: object, x: Tensor, weight: Tensor, upstream: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, gradient of the input, gradient of the weight."""
    assert callable(call)
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = call(x, weight)
    return (y.detach(), *torch.autograd.grad(y, (x, weight), upstream))


def direct(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1)


def test_one_row_by_hand() -> None:
    signal, kernel = draw(6), draw(9)[6:]
    expected = [sum(signal[i + j] * kernel[j] for j in range(3)) for i in range(4)]
    found = OUTPUT @ ((KERNEL @ kernel) * (INPUT @ signal))
    torch.testing.assert_close(found, torch.stack([torch.as_tensor(e) for e in expected]))


def test_a_slow_loop_gives_the_same() -> None:
    x, weight = draw(2, 3, 5, 6), draw(4, 3, 3, 3)
    expected = torch.zeros(2, 4, 5, 6, dtype=torch.float64)
    for row, column, down, right in itertools.product(range(5), range(6), range(3), range(3)):
        at, to = row + down - 1, column + right - 1
        if 0 <= at < 5 and 0 <= to < 6:
            expected[:, :, row, column] += x[:, :, at, to] @ weight[:, :, down, right].T
    torch.testing.assert_close(winograd_conv2d(x, weight), expected, rtol=1e-10, atol=1e-10)


@given(
    count=st.integers(1, 3),
    inward=st.integers(1, 4),
    outward=st.integers(1, 4),
    height=st.integers(1, 13),
    width=st.integers(1, 13),
    last=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_equals_torch_in_double_precision(
    count: int, inward: int, outward: int, height: int, width: int, last: bool
) -> None:
    layout = torch.channels_last if last else torch.contiguous_format
    x = draw(count, inward, height, width).contiguous(memory_format=layout)
    weight = draw(outward, inward, 3, 3).contiguous(memory_format=layout)
    upstream = draw(count, outward, height, width).contiguous(memory_format=layout)
    found = through(winograd_conv2d, x, weight, upstream)
    expected = through(direct, x, weight, upstream)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("side", [4, 7])
def test_gradcheck(side: int) -> None:
    x, weight = draw(2, 2, side, side).requires_grad_(), draw(3, 2, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(winograd_conv2d, (x, weight))


@pytest.mark.parametrize(("channels", "side"), [(128, 16), (256, 8), (512, 4), (128, 7)])
def test_single_precision_is_off_by_rounding_only(channels: int, side: int) -> None:
    x = draw(8, channels, side, side)
    weight = draw(channels, channels, 3, 3) / channels
    upstream = draw(8, channels, side, side).flip(0)
    exact = through(direct, x, weight, upstream)
    found = through(winograd_conv2d, x.float(), weight.float(), upstream.float())
    for one, other in zip(found, exact, strict=True):
        error = (one.double() - other).norm() / other.norm()
        assert 0 < error < 1e-5


def test_only_the_gradient_that_is_asked_for() -> None:
    x, weight = draw(1, 2, 4, 4), draw(2, 2, 3, 3).requires_grad_()
    winograd_conv2d(x, weight).sum().backward()
    assert weight.grad is not None
    frozen = weight.detach()
    x.requires_grad_()
    winograd_conv2d(x, frozen).sum().backward()
    assert x.grad is not None
    assert frozen.grad is None


def test_output_lies_channels_last() -> None:
    y = winograd_conv2d(draw(2, 8, 8, 8), draw(8, 8, 3, 3))
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("conv", "expected"),
    [
        (nn.Conv2d(128, 128, 3, padding=1, bias=False), True),
        (nn.Conv2d(128, 256, 3, padding=1, bias=False), True),
        (nn.Conv2d(LEAST_CHANNELS - 1, 128, 3, padding=1, bias=False), False),
        (nn.Conv2d(128, LEAST_CHANNELS - 1, 3, padding=1, bias=False), False),
        (nn.Conv2d(128, 128, 3, padding=1), False),
        (nn.Conv2d(128, 128, 3, bias=False), False),
        (nn.Conv2d(128, 128, 3, stride=2, padding=1, bias=False), False),
        (nn.Conv2d(128, 128, 5, padding=1, bias=False), False),
        (nn.Conv2d(128, 128, 3, padding=1, dilation=2, bias=False), False),
        (nn.Conv2d(128, 128, 3, padding=1, groups=2, bias=False), False),
    ],
)
def test_which_convolutions_are_replaced(conv: nn.Conv2d, expected: bool) -> None:
    assert fits_winograd(conv) == expected


def replaced(net: nn.Module) -> list[str]:
    return [name for name, part in net.named_modules() if isinstance(part, WinogradConv2d)]


def test_resnet_keeps_its_names_and_weights() -> None:
    plain = build_net("resnet10", 10, CIFAR, seed=1)
    fast = build_net("resnet10", 10, CIFAR, seed=1, conv="winograd")
    assert replaced(plain) == []
    assert replaced(fast) == [f"encoder.layer{stage}.0.conv2" for stage in (2, 3, 4)]
    assert list(plain.state_dict()) == list(fast.state_dict())
    assert tree.equal(model_from_net(plain), model_from_net(fast))


@pytest.mark.parametrize(("side", "count"), [(32, 4), (28, 3), (20, 1)])
def test_resnet_computes_the_same(side: int, count: int) -> None:
    image = ImageShape(3, side)
    x = draw(count, 3, side, side).contiguous(memory_format=torch.channels_last)
    results = []
    for conv in ("direct", "winograd"):
        net = build_net("resnet10", 10, image, seed=1, conv=conv).double().train(count > 1)
        model = model_from_net(net)
        free = [leaf.requires_grad_() for leaf in model.weights.values()]
        out = functional_call(net, {**model.weights, **model.buffers}, (x,), strict=True)
        loss = F.cross_entropy(out.logits, torch.arange(count))
        results.append([out.logits, *torch.autograd.grad(loss, free)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", NETS)
def test_refused_where_it_does_nothing(name: str) -> None:
    if "resnet" in name:
        assert replaced(build_net(name, 10, CIFAR, seed=0, conv="winograd"))
    else:
        with pytest.raises(ProtofedError, match=rf"conv: .*'{name}' has none(.|\n)*resnet10"):
            build_net(name, 10, CIFAR, seed=0, conv="winograd")
