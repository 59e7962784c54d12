"""What a training step costs, through the real path, and what other ways of taking it would save.

python benchmarks/step.py [net] [repeats] [batch]

One thread, CPU time of the process (so that other work on the machine hardly moves it), all
variants in turn, again and again; each figure is a median. The allocator's settings cannot be
taken back, so everything is measured in processes with and without them, in turn.
"""

from __future__ import annotations

import copy
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model, Net, NetOutput
from protofed.core.site import RoundContext, Site
from protofed.core.training import torch_threads
from protofed.federation.build import build_federation
from protofed.methods.fedavg import FedAvg
from protofed.runtime.resources import tune_malloc
from protofed.spec.spec_parser import parse_experiment

STEPS = {"lsa-cnn": 8, "resnet10": 1}  # in one sample
Optimiser = Callable[[list[Tensor]], torch.optim.Optimizer]


def sgd(**options: bool) -> Optimiser:
    return lambda free: torch.optim.SGD(free, lr=0.01, momentum=0.9, weight_decay=1e-5, **options)


def relu_in_place() -> AbstractContextManager[object]:
    """Every ReLU, also those of layers, without a second tensor."""
    return patch.object(F, "relu", lambda x, inplace=False: torch.relu_(x))


@contextmanager
def no_denormals() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def without_onednn() -> Iterator[None]:
    with warnings.catch_warnings():  # about GPUs, each time
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False):
            yield


@dataclass(frozen=True)
class Way:
    """A way to take the steps of a fit; the defaults are those of `core.fit` and `Site.run`."""

    optimiser: Optimiser = field(default_factory=sgd)
    weights: Callable[[Tensor], Tensor] = lambda leaf: leaf
    inputs: Callable[[Tensor], Tensor] = lambda x: x
    own: bool = False  # call the module with parameters of its own, not `functional_call`
    flat: bool = False  # one vector of all weights and one of all gradients
    to_none: bool = True
    around: Callable[[], AbstractContextManager[object]] = nullcontext


def channels_last(leaf: Tensor) -> Tensor:
    return leaf.contiguous(memory_format=torch.channels_last) if leaf.dim() == 4 else leaf


def flattened(model: Model) -> tuple[Model, Tensor]:
    """The same weights as views of one vector, whose gradient's views are their gradients."""
    vector = torch.cat([leaf.flatten() for leaf in model.weights.values()])
    vector.grad = torch.zeros_like(vector)
    views, at = {}, 0
    for name, leaf in model.weights.items():
        views[name] = vector[at : at + leaf.numel()].view(leaf.shape)
        views[name].grad = vector.grad[at : at + leaf.numel()].view(leaf.shape)
        at += leaf.numel()
    return Model(views, model.buffers), vector


class OwnSite:
    """A site whose net holds the model's own tensors, put there once."""

    def __init__(self, net: Net, model: Model):
        self.net = copy.deepcopy(net).train()
        for name, leaf in model.weights.items():
            owner, _, part = name.rpartition(".")
            self.net.get_submodule(owner)._parameters[part] = nn.Parameter(leaf)

    def forward_train(self, model: Model, x: Tensor) -> NetOutput:
        out: NetOutput = self.net(x)
        return out


def fit_in(way: Way, site: Site, start: Model) -> Model:
    """`Method.train` with the changes of a way."""
    model = tree.map(way.weights, tree.clone(start))
    model, vector = flattened(model) if way.flat else (model, torch.empty(0))
    caller = OwnSite(site.net, model) if way.own else site
    free = [leaf.requires_grad_() for leaf in model.weights.values()]
    if isinstance(caller, OwnSite):
        free = list(caller.net.parameters())
    optimiser = way.optimiser([vector] if way.flat else free)
    total = torch.zeros(())
    with way.around():
        for batch in site.batches(RoundContext(0, 1)):
            optimiser.zero_grad(set_to_none=way.to_none)
            value = F.cross_entropy(
                caller.forward_train(model, way.inputs(batch.x)).logits, batch.y
            )
            value.backward()
            optimiser.step()
            total += value.detach()
    return tree.clone(model)


WAYS = {
    "the same again (noise)": Way(),
    "weights channels last": Way(weights=channels_last),
    "inputs channels first": Way(inputs=Tensor.contiguous),
    "SGD foreach": Way(sgd(foreach=True)),
    "SGD fused": Way(sgd(fused=True)),
    "one flat vector, SGD fused": Way(sgd(fused=True), flat=True, to_none=False),
    "module's own parameters": Way(own=True),
    "ReLU in place": Way(around=relu_in_place),
    "gradients zeroed, not dropped": Way(to_none=False),
    "denormals flushed": Way(around=no_denormals),
    "oneDNN off": Way(around=without_onednn),
    "last + fused + in place": Way(sgd(fused=True), channels_last, around=relu_in_place),
}


def flops(net: Net, x: Tensor) -> float:
    """Of a step, for one image: forward, both gradients, but not that of the first input."""
    counts: list[int] = []

    def count(part: nn.Module, _: object, out: Tensor) -> None:
        weight = part.get_parameter("weight")
        counts.append(2 * weight.numel() * (out[0, 0].numel() if weight.dim() == 4 else 1))

    net = copy.deepcopy(net).eval()
    for part in net.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            part.register_forward_hook(count)
    net(x)
    return 3 * sum(counts) - counts[0]


def best_convolution() -> Callable[[], float]:
    """A 3x3 convolution forward that oneDNN does best here; gives its GFLOP."""
    x = torch.randn(64, 256, 16, 16).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(256, 256, 3, 3).contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def once() -> float:
        for _ in range(4):
            F.conv2d(x, weight, padding=1)
        return 4 * 2 * x.numel() * 256 * 9 / 1e9

    return once


def measure(net: str, repeats: int, batch: int) -> dict[str, list[float]]:
    """CPU seconds a step of every way, GF/s of the best convolution, seconds of the batches."""
    steps = STEPS.get(net, 1)
    raw = {
        "data": {"name": "digits-mini", "side": 32, "channels": 3},
        "net": net,
        "partition": {"kind": "shares", "clients": 4, "samples": 512},
        "training": {"epochs": 1, "batch": batch},
    }
    site = build_federation(parse_experiment(raw)).sites[3]
    rows = torch.arange(steps * batch) % len(site.train)
    site = replace(site, train=site.train.take(rows))
    start, convolve = site.initial_model(), best_convolution()
    works: dict[str, Callable[[], object]] = {
        "today": lambda: FedAvg().train(site, Message(model=start), None, RoundContext(0, 1)),
        **{name: partial(fit_in, way, site, start) for name, way in WAYS.items()},
        "batches alone": lambda: list(site.batches(RoundContext(0, 1))),
        "convolution": convolve,
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(1 + repeats):
        for name, work in works.items():
            began = time.process_time()
            work()
            if number:
                seconds[name].append(time.process_time() - began)
    gflop = convolve()
    found = {name: [s / steps for s in values] for name, values in seconds.items()}
    found["convolution"] = [gflop / s for s in seconds["convolution"]]
    found["flops"] = [flops(site.net, torch.zeros(1, 3, 32, 32))]
    return found


def main(net: str, repeats: int, batch: int) -> None:
    """Two processes of each kind in turn, then the table."""
    kinds: dict[str, list[dict[str, list[float]]]] = {"as it is": [], "kept": []}
    for kind in [*kinds] * 2:
        command = [sys.executable, __file__, net, str(repeats), str(batch), kind]
        kinds[kind].append(json.loads(subprocess.check_output(command)))
    merged = {
        kind: {name: [value for run in runs for value in run[name]] for name in runs[0]}
        for kind, runs in kinds.items()
    }
    base = statistics.median(merged["as it is"]["today"])
    peak = max(statistics.median(found["convolution"]) for found in merged.values())
    work = merged["kept"]["flops"][0]
    print(f"{net}, batch {batch}: {work / 1e6:.1f} MFLOP an image, peak {peak:.1f} GF/s\n")
    print("| way | memory as it is: ms | ratio | of peak | memory kept: ms | ratio | of peak |")
    print("|---|---|---|---|---|---|---|")
    for name in ["today", *WAYS]:
        row = [name]
        for found in merged.values():
            ms = 1e3 * statistics.median(found[name])
            share = work * batch / ms / 1e6 / peak
            row += [f"{ms:.1f}", f"{ms / 1e3 / base:.3f}", f"{share:.0%}"]
        print("| " + " | ".join(row) + " |")
    batches = statistics.median(merged["as it is"]["batches alone"])
    print(f"\nshuffling, augmenting and normalising: {batches / base:.1%} of a step")


if __name__ == "__main__":
    given = sys.argv[1:]
    chosen = (given or ["lsa-cnn"])[0], int((given[1:] or ["5"])[0]), int((given[2:] or ["64"])[0])
    if len(given) < 4:
        main(*chosen)
    else:
        if given[3] == "kept":
            tune_malloc()
        with torch_threads(1):
            print(json.dumps(measure(*chosen)))
