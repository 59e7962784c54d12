"""The first peer: federated averaging as people write it with PyTorch alone, on two threads."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.serve import Order, Round, Tell
from benchmarks.workloads import MEAN, PAD, SIDE, STD, Workload, make_images, make_net

THREADS = 2
State = dict[str, Tensor]


class Images(Dataset[tuple[Tensor, Tensor]]):
    """A client's images, each cropped, mirrored and normalised when it is asked for."""

    def __init__(self, images: Tensor, labels: Tensor):
        self.images = images.permute(0, 3, 1, 2).contiguous()  # [N, 3, side, side] uint8
        self.labels = labels
        self.mean, self.std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        padded = F.pad(self.images[index], (PAD, PAD, PAD, PAD))
        top, left = torch.randint(0, 2 * PAD + 1, (2,)).tolist()
        image = padded[:, top : top + SIDE, left : left + SIDE]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image.float() / 255 - self.mean) / self.std, self.labels[index]


class Trained(NamedTuple):
    """How much a client trained, and its mean loss."""

    steps: int
    samples: int
    loss: float


def make_optimizer(net: nn.Module, work: Workload) -> torch.optim.SGD:
    """A client's optimiser, new in each round."""
    given = work.training
    return torch.optim.SGD(
        net.parameters(), given.lr, momentum=given.momentum, weight_decay=given.weight_decay
    )


def train(net: nn.Module, data: Images, work: Workload) -> Trained:
    """A client's local training, in place."""
    training = work.training
    loader = DataLoader(data, batch_size=training.batch, shuffle=True)
    optimizer = make_optimizer(net, work)
    net.train()
    steps, samples, total = 0, 0, 0.0
    for _ in range(training.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x).logits, y)
            loss.backward()
            optimizer.step()
            steps, samples, total = steps + 1, samples + len(y), total + loss.item()
    return Trained(steps, samples, total / steps)


def average(states: Sequence[State], sizes: Sequence[int]) -> State:
    """The mean of some state dicts, weighted by the examples behind each."""
    total = sum(sizes)
    mean = {name: torch.zeros_like(value, dtype=torch.float) for name, value in states[0].items()}
    for state, size in zip(states, sizes, strict=True):
        for name in mean:
            mean[name] += state[name] * (size / total)
    return {name: value.to(states[0][name].dtype) for name, value in mean.items()}


@torch.no_grad()
def distance(one: nn.Module, state: State) -> float:
    """How far the weights of a net lie from those in a state dict."""
    terms = [(weight - state[name]).square().sum() for name, weight in one.named_parameters()]
    return float(torch.stack(terms).sum().sqrt())


def summed(done: Sequence[Trained], seconds: float, moved: float, about: str = "") -> Round:
    """The round of some clients."""
    steps = sum(d.steps for d in done)
    loss = sum(d.loss * d.steps for d in done) / steps
    return Round(seconds, steps, sum(d.samples for d in done), loss, moved, about)


def serve(order: Order, rounds: Iterator[int], tell: Tell) -> None:
    """Play the rounds that are asked for."""
    torch.set_num_threads(THREADS)
    work = order.work
    clients = [Images(*make_images(work, client)) for client in range(len(work.sizes))]
    model: nn.Module = make_net(work)
    for number in rounds:
        began = time.perf_counter()
        states: list[dict[str, Any]] = []
        done: list[Trained] = []
        who = work.chosen(number)
        for client in who:
            local = copy.deepcopy(model)
            done.append(train(local, clients[client], work))
            states.append(local.state_dict())
        mean = average(states, [len(clients[client]) for client in who])
        seconds = time.perf_counter() - began
        moved = distance(model, mean)
        model.load_state_dict(mean)
        tell(summed(done, seconds, moved))
