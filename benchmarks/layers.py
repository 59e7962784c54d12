"""The layers of a net one by one: python -m benchmarks.layers [net ...] [--precision bfloat16]

Each convolution and linear layer is timed forward, for the gradient of its input and for that of
its weights, in one thread, on the inputs and in the memory layouts that it meets in a real step
(batch 64, 32 pixels, channels last). CPU time, and shares of the fastest convolution's speed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from benchmarks import peak
from benchmarks.report import table
from benchmarks.workloads import CHANNELS, CLASSES, SIDE, SMALL_CNN, Workload, make_net
from protofed.core.training import torch_threads
from protofed.runtime.resources import tune_malloc

NETS = ("lsa-cnn", SMALL_CNN, "resnet10")
BATCH = 64
PASSES = ("forward", "input", "weight")  # the last two: whose gradient


@dataclass
class Layer:
    """A layer, what goes into it in a step, and the gradient that comes back."""

    name: str
    module: nn.Conv2d | nn.Linear
    x: Tensor
    upstream: Tensor
    first: bool  # its input is the images, which need no gradient

    @property
    def flops(self) -> int:
        """Of each pass; a multiplication and an addition count as two."""
        places = self.upstream.numel() // self.module.weight.shape[0]
        return 2 * places * self.module.weight.numel()

    def shape(self) -> str:
        """The sizes, for people."""
        if isinstance(self.module, nn.Linear):
            return f"{self.module.in_features} to {self.module.out_features}"
        conv, side = self.module, self.x.shape[-1]
        stride = f", stride {conv.stride[0]}" if conv.stride[0] > 1 else ""
        kernel = f"{conv.kernel_size[0]}x{conv.kernel_size[1]}"
        return f"{kernel}, {conv.in_channels} to {conv.out_channels}, {side} pixels{stride}"


def layers_of(name: str) -> list[Layer]:
    """The layers of a net in the order of a step, with the tensors of one step on noise."""
    net = make_net(Workload(name, name, (BATCH,), epochs=1, batch=BATCH)).train()
    found: list[Layer] = []

    def watch(path: str, module: nn.Conv2d | nn.Linear) -> RemovableHandle:
        def keep(_: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
            x = given[0]
            layer = Layer(path, module, x.detach(), torch.empty(0), not x.requires_grad)
            found.append(layer)
            out.register_hook(lambda gradient: setattr(layer, "upstream", gradient))

        return module.register_forward_hook(keep)

    watched = [
        watch(path, module)
        for path, module in net.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    images = torch.randn(BATCH, CHANNELS, SIDE, SIDE).to(memory_format=torch.channels_last)
    F.cross_entropy(net(images).logits, torch.arange(BATCH) % CLASSES).backward()
    for handle in watched:
        handle.remove()
    return found


def passes(layer: Layer, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """The passes of a layer by name."""
    x, upstream, weight, bias = (
        None if value is None else value.detach().to(dtype)
        for value in (layer.x, layer.upstream, layer.module.weight, layer.module.bias)
    )
    assert x is not None
    assert upstream is not None
    assert weight is not None
    if isinstance(layer.module, nn.Linear):
        return {
            "forward": lambda: F.linear(x, weight, bias),
            "input": lambda: upstream @ weight,
            "weight": lambda: upstream.t() @ x,
        }
    conv = layer.module
    place = (conv.stride, conv.padding, conv.dilation, False, [0, 0], conv.groups)

    def backward(*wanted: bool) -> object:
        return torch.ops.aten.convolution_backward(
            upstream, x, weight, None, *place, [*wanted, False]
        )

    return {
        "forward": lambda: torch.ops.aten.convolution(x, weight, bias, *place),
        "input": lambda: backward(True, False),
        "weight": lambda: backward(False, True),
    }


def seconds_of(call: Callable[[], object], budget: float) -> float:
    """The CPU time of the median call in so many seconds, after one to warm up."""
    call()
    calls: list[float] = []
    ends = time.perf_counter() + budget
    while time.perf_counter() < ends or not calls:
        began = time.process_time()
        call()
        calls.append(time.process_time() - began)
    return median(calls)


@torch.no_grad()
def rows(
    layers: list[Layer], dtype: torch.dtype, best: float, budget: float
) -> Iterator[list[str]]:
    """A line for each layer and one for their sum: ms, GFLOP/s and share of the best, by pass."""
    spent, flops = 0.0, 0.0
    for layer in layers:
        line = [layer.name, layer.shape()]
        for name, call in passes(layer, dtype).items():
            if name == "input" and layer.first:
                line += ["", "", ""]
                continue
            seconds = seconds_of(call, budget)
            spent, flops = spent + seconds, flops + layer.flops
            line += _cells(seconds, layer.flops, best)
        yield line
    yield ["all layers, all passes", "", *_cells(spent, flops, best), *[""] * 6]


def _cells(seconds: float, flops: float, best: float) -> list[str]:
    speed = flops / seconds / 1e9
    return [f"{1e3 * seconds:.2f}", f"{speed:.0f}", f"{speed / best:.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.layers", description=__doc__)
    parser.add_argument("net", nargs="*", help=f"of {', '.join(NETS)} (all)")
    parser.add_argument("--precision", choices=peak.PRECISIONS, default="float32")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each pass of a layer (0.5)")
    args = parser.parse_args()
    if wrong := [name for name in args.net if name not in NETS]:
        parser.error(f"no net {', '.join(wrong)}; there are {', '.join(NETS)}")
    tune_malloc()
    best = peak.measure(1, args.seconds, args.precision)
    head = ("layer", "shape", *(f"{p} {u}" for p in PASSES for u in ("ms", "GFLOP/s", "of peak")))
    with torch_threads(1):
        for name in args.net or NETS:
            found = rows(layers_of(name), getattr(torch, args.precision), best, args.seconds)
            print(f"{name}, {args.precision}, batch {BATCH}; the fastest convolution: {best:.0f}\n")
            print(table([head, *(tuple(line) for line in found)]), end="\n\n")


if __name__ == "__main__":
    main()
