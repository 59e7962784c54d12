"""The limit of this machine: the fastest convolution, on one core and on all cores at once.

python -m benchmarks.peak SECONDS PRECISION measures one core, after a line on its standard input.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import ROOT
from benchmarks.workloads import CHANNELS, SIDE, Workload, make_net

BATCH = 64
PRECISIONS = ("float32", "bfloat16")


class Shape(NamedTuple):
    """A convolution that keeps the side of its images."""

    inward: int
    outward: int
    side: int
    kernel: int

    @property
    def flops(self) -> int:
        """Of one call; a multiplication and an addition count as two."""
        return 2 * BATCH * self.inward * self.outward * (self.kernel * self.side) ** 2


SHAPES = (
    Shape(64, 64, 32, 3),
    Shape(128, 128, 16, 3),
    Shape(256, 256, 8, 3),
    Shape(512, 512, 4, 3),
    Shape(32, 64, 16, 5),
)


def one_core(seconds: float, precision: str) -> list[float]:
    """GFLOP/s of each shape in both memory layouts, `seconds` each, by the median call."""
    torch.set_num_threads(1)
    layouts, dtype = (torch.contiguous_format, torch.channels_last), getattr(torch, precision)
    return [gigaflops(shape, layout, dtype, seconds) for shape in SHAPES for layout in layouts]


@torch.no_grad()
def gigaflops(
    shape: Shape, layout: torch.memory_format, dtype: torch.dtype, seconds: float
) -> float:
    """The speed of one convolution, by CPU time, which other work hardly moves."""
    x = torch.randn(BATCH, shape.inward, shape.side, shape.side).to(dtype, memory_format=layout)
    weight = torch.randn(shape.outward, shape.inward, shape.kernel, shape.kernel)
    weight = weight.to(dtype, memory_format=layout)
    calls = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        began = time.process_time()
        F.conv2d(x, weight, padding=shape.kernel // 2)
        calls.append(time.process_time() - began)
    return shape.flops / median(calls) / 1e9


def measure(cores: int, seconds: float, precision: str = PRECISIONS[0]) -> float:
    """The best sum of GFLOP/s over so many processes that do the same at once."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peak", str(seconds), precision],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        for _ in range(cores)
    ]
    for worker in workers:
        assert worker.stdout
        worker.stdout.readline()  # it has imported torch
    for worker in workers:
        assert worker.stdin
        print("go", file=worker.stdin, flush=True)
    found = [json.loads(worker.communicate()[0]) for worker in workers]
    return float(max(sum(speeds) for speeds in zip(*found, strict=True)))


def flops_of_sample(work: Workload) -> float:
    """Floating-point operations of training on one image, forward and backward."""
    net = make_net(work)
    with FlopCounterMode(display=False) as counter:
        x = torch.randn(BATCH, CHANNELS, SIDE, SIDE)
        net(x).logits.sum().backward()
    return float(counter.get_total_flops() / BATCH)


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(one_core(float(sys.argv[1]), sys.argv[2])))
