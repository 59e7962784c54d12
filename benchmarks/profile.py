"""Where a training step's time goes, by kernel: python -m benchmarks.profile [work] [method]

One client of a workload is trained through the real path, in one thread, under torch's profiler.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import peak
from benchmarks.ours import METHODS, make_sites
from benchmarks.workloads import WORKLOADS
from protofed.core.site import RoundContext, Site
from protofed.runtime.resources import tune_malloc

# what a kernel's name begins with -> the line of the table it counts in
PARTS = {
    "aten::mkldnn_convolution": "convolutions, forward",
    "aten::convolution_backward": "convolutions, backward",
    "aten::mkldnn_convolution_backward": "convolutions, backward",
    "aten::addmm": "linear layers",
    "aten::mm": "linear layers",
    "aten::max_pool2d": "pooling",
    "aten::threshold": "ReLU",
    "aten::clamp_min": "ReLU",
    "aten::relu": "ReLU",
    "aten::native_batch_norm": "batch norm",
    "aten::_native_batch_norm": "batch norm",
    "aten::cudnn_batch_norm": "batch norm",
}
REST = "all else: augmentation, loss, optimiser, Python"
PEAK_SECONDS = 0.3


def part_of(kernel: str) -> str:
    """The line of the table that a kernel counts in, by the longest beginning that fits."""
    fits = [start for start in PARTS if kernel.startswith(start)]
    return PARTS[max(fits, key=len)] if fits else REST


def seconds_of(site: Site, method: str) -> tuple[Counter[str], int]:
    """CPU seconds of one client's round by part, and the images it took."""
    chosen, images = METHODS[method](), site.training.epochs * len(site.train)
    server = chosen.init_server(site)
    reply, _ = chosen.train(
        site, chosen.publish(server), None, RoundContext(0, 2)
    )  # warm, and for a merge
    received = chosen.publish(chosen.merge(site, server, {site.id: reply}, RoundContext(0, 2)))
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        chosen.train(site, received, None, RoundContext(1, 2))
    found: Counter[str] = Counter()
    for event in watched.key_averages():
        found[part_of(event.key)] += event.self_cpu_time_total / 1e6
    return found, images


def main() -> None:
    name, method = [*sys.argv[1:], *("w1", "fedavg")[len(sys.argv) - 1 :]]
    work = WORKLOADS[name]
    torch.set_num_threads(1)
    tune_malloc()
    _, sites = make_sites(replace(work, sizes=work.sizes[-1:], share=1.0))
    seconds, images = seconds_of(sites[0], method)
    best, flops = peak.measure(1, PEAK_SECONDS), peak.flops_of_sample(work)
    whole = seconds.total()
    print(f"{work.net}, {method}, batches of {work.training.batch}, {images} images, one thread")
    print("| part | ms a batch | share |\n|---|---|---|")
    for part, spent in seconds.most_common():
        batch = 1e3 * spent * work.training.batch / images
        print(f"| {part} | {batch:.2f} | {spent / whole:.0%} |")
    speed = flops * images / whole / 1e9
    print(f"\n{speed:.0f} GFLOP/s; the fastest convolution: {best:.0f}, so {speed / best:.0%}")


if __name__ == "__main__":
    main()
