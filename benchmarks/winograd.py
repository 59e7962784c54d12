"""What Winograd's convolutions save, in single layers and whole steps, and how they round.

python benchmarks/winograd.py [repeats] [net] [side] [batch]

One thread, CPU time of the process, in turn with direct convolutions; medians of the ratios of
neighbours. Rounding is the distance of a step's gradient from that in double precision.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core.model import ImageShape
from protofed.core.training import torch_threads
from protofed.nets import Convolution, build_net
from protofed.nets.winograd import winograd_conv2d

LAYERS = ((64, 32), (128, 16), (256, 8), (512, 4), (128, 14), (256, 7))  # channels, side
LAST = torch.channels_last


def step(conv: Convolution, name: str, side: int, batch: int) -> Callable[[], None]:
    """Forward, backward and SGD of a net on one batch of noise."""
    net = build_net(name, 10, ImageShape(3, side), seed=0, conv=conv)
    x = torch.randn(batch, 3, side, side).contiguous(memory_format=LAST)
    y = torch.arange(batch) % 10
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def once() -> None:
        optimiser.zero_grad()
        F.cross_entropy(net(x).logits, y).backward()
        optimiser.step()

    return once


def layer(
    call: Callable[[Tensor, Tensor], Tensor], channels: int, side: int, batch: int
) -> Callable[[], None]:
    """Forward and both gradients of one convolution."""
    x = torch.randn(batch, channels, side, side).contiguous(memory_format=LAST).requires_grad_()
    weight = torch.randn(channels, channels, 3, 3).requires_grad_()
    upstream = torch.randn(batch, channels, side, side).contiguous(memory_format=LAST)
    return lambda: call(x, weight).backward(upstream)


def compare(title: str, repeats: int, one: Callable[[], None], other: Callable[[], None]) -> None:
    """Both in turn, after one of each to warm up."""
    seconds: list[tuple[float, ...]] = []
    for _ in range(1 + repeats):
        spent = []
        for work in (one, other):
            began = time.process_time()
            work()
            spent.append(time.process_time() - began)
        seconds.append(tuple(spent))
    a, b = (statistics.median(column) for column in zip(*seconds[1:], strict=True))
    ratios = sorted(first / second for first, second in seconds[1:])
    print(
        f"{title}: direct {a * 1e3:.1f} ms, winograd {b * 1e3:.1f} ms, faster by "
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )


def gradient(conv: Convolution, last: bool, dtype: torch.dtype, seed: int) -> Tensor:
    """Of all weights of a new resnet10 on 16 images of noise, in one vector."""
    net = build_net("resnet10", 10, ImageShape(3, 32), seed=seed, conv=conv).to(dtype)
    x = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(seed)).to(dtype)
    x = x.contiguous(memory_format=LAST) if last else x
    loss = F.cross_entropy(net(x).logits, torch.arange(16) % 10)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    return torch.cat([grad.flatten().double() for grad in grads])


def rounding(seeds: int) -> None:
    """The relative distance of gradients from double precision, over seeds."""
    ways: list[tuple[Convolution, bool]] = [("direct", False), ("direct", True), ("winograd", True)]
    errors: dict[tuple[Convolution, bool], list[float]] = {way: [] for way in ways}
    for seed in range(seeds):
        exact = gradient("direct", False, torch.float64, seed)
        for way in ways:
            off = gradient(*way, torch.float32, seed) - exact
            errors[way].append(float(off.norm() / exact.norm()))
    for (conv, last), found in errors.items():
        print(
            f"gradient, {conv}, channels {'last' if last else 'first'}: off by "
            f"{statistics.median(found):.1e} ({min(found):.1e} to {max(found):.1e})"
        )


def main(repeats: int, name: str, side: int, batch: int) -> None:
    """The layers of residual nets, a whole step, then rounding."""
    for channels, size in LAYERS:
        ways = [
            layer(lambda x, w: F.conv2d(x, w, padding=1), channels, size, batch),
            layer(winograd_conv2d, channels, size, batch),
        ]
        compare(f"{channels} channels at {size} x {size}", repeats, *ways)
    steps = [step("direct", name, side, batch), step("winograd", name, side, batch)]
    compare(f"{name}, side {side}, batch {batch}", repeats, *steps)
    rounding(seeds=12)


if __name__ == "__main__":
    given = sys.argv[1:] + ["11", "resnet10", "32", "64"][len(sys.argv) - 1 :]
    with torch_threads(1):
        main(int(given[0]), given[1], int(given[2]), int(given[3]))
