"""Pieces of a run by themselves: averaging, FINCH, scoring, start-up."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import ROOT, ratios
from benchmarks.ours import make_sites
from benchmarks.plain_loop import State, average
from benchmarks.workloads import WORKLOADS, draw_images, make_net
from protofed.core import tree
from protofed.core.message import Message
from protofed.core.metrics import count_correct
from protofed.core.model import Model
from protofed.core.rng import rng
from protofed.core.site import ArrayDataset
from protofed.core.training import torch_threads
from protofed.methods.fedavg import FedAvg
from protofed.ops.finch import finch_clusters


def alternate(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Any]:
    """Seconds of some calls in turn, one thread, after one of each to warm up; ratios to ours."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with torch_threads(1):
        for number in range(1 + repeats):
            for name, call in calls.items():
                began = time.perf_counter()
                call()
                if number:
                    seconds[name].append(round(time.perf_counter() - began, 6))
    systems = {name: {"seconds": values} for name, values in seconds.items()}
    return {"systems": systems, "skipped": {}, "ratios": ratios(systems, next(iter(calls)))}


def aggregation(repeats: int, models: int = 50, net: str = "w2") -> dict[str, Any]:
    """The mean of 50 ResNet-10: ours in float64 against a loop over state dicts in float32."""
    one = make_net(WORKLOADS[net])
    draw = rng("aggregation")
    sizes = list(range(1, models + 1))
    states: list[State] = [
        {
            name: torch.randn(v.shape, generator=draw) if v.is_floating_point() else v.clone()
            for name, v in one.state_dict().items()
        }
        for _ in sizes
    ]
    names = dict(one.named_parameters())
    trees = [  # the same tensors, not copies
        Model(
            {name: value for name, value in state.items() if name in names},
            {name: value for name, value in state.items() if name not in names},
        )
        for state in states
    ]
    calls = {"ours": lambda: tree.mean(trees, sizes), "plain": lambda: average(states, sizes)}
    work = f"{models} models of {sum(v.numel() for v in one.state_dict().values()):,} numbers"
    return {"work": work, **alternate(calls, repeats)}


def clusters(repeats: int, count: int, width: int = 512) -> dict[str, Any]:
    """FINCH on random points, ours against finch-clust."""
    points = torch.randn(count, width, generator=rng("finch", count))
    array = points.numpy()
    calls: dict[str, Callable[[], object]] = {"ours": lambda: finch_clusters(points)}
    skipped = {}
    if find_spec("finch") is None:
        skipped["finch-clust"] = "not installed: pip install 'protofed[bench]'"
    else:
        theirs = importlib.import_module("finch").FINCH
        calls["finch-clust"] = lambda: theirs(array, verbose=False)
    work = f"{count} points of {width} numbers"
    return {"work": work, **alternate(calls, repeats), "skipped": skipped}


def scoring(repeats: int, images: int) -> dict[str, Any]:
    """Samples a second of scoring a CNN on one core, ours against batches of 64 as trained."""
    site, _ = make_sites(WORKLOADS["w1"].small())
    test = ArrayDataset(*draw_images(images, rng("scoring")))
    method, message = FedAvg(), Message(model=site.initial_model())
    ready = TensorDataset(site.pixels.normalize(test.images).contiguous(), test.labels)
    loader = DataLoader(ready, batch_size=64)
    calls = {
        "ours": lambda: count_correct(method, site, message, None, test),
        "plain": lambda: plain_scores(site.net, loader),
    }
    return {"work": f"{images} images, lsa-cnn", "samples": images, **alternate(calls, repeats)}


@torch.no_grad()
def plain_scores(net: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]]) -> int:
    """Right answers, counted as people do."""
    net.eval()
    return sum(int((net(x).logits.argmax(1) == y).sum()) for x, y in loader)


def share_of_scoring(rounds: int | None) -> dict[str, Any]:
    """What a real run with default settings spends on scores and checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        _protofed("run", "--rounds", "1", "--out", f"{folder}/first")  # renders the digits
        out = Path(folder) / "run"
        began = time.perf_counter()
        _protofed("run", "--out", str(out), *(["--rounds", str(rounds)] if rounds else []))
        wall = time.perf_counter() - began
        lines = (out / "rounds.jsonl").read_text().splitlines()
        trained = sum(json.loads(line)["seconds"] for line in lines)
        # partition.json is written right before the first round, `done` right after the last
        looped = os.path.getmtime(out / "done") - os.path.getmtime(out / "partition.json")
        digest = json.loads((out / "spec.json").read_text())["digest"]
    return {
        "work": f"protofed run, {len(lines)} rounds, digest {digest[:12]}",
        "wall": round(wall, 3),
        "training": round(trained, 3),
        "share": round((looped - trained) / wall, 4),
    }


def _protofed(*words: str) -> None:
    command = [sys.executable, "-m", "protofed", *words]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def startup(repeats: int) -> dict[str, Any]:
    """Seconds until `protofed --help` has answered, and until protofed is imported."""
    commands = {
        "--help": ["-m", "protofed", "--help"],
        "import": ["-c", "import protofed"],
        "python alone": ["-c", "pass"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(1 + repeats):
        for name, words in commands.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True)
            if number:
                seconds[name].append(round(time.perf_counter() - began, 4))
    return {"seconds": seconds, "median": {k: round(median(v), 4) for k, v in seconds.items()}}
