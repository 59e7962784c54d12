"""The work that every system gets: who holds how many images, which net, how it is trained."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from protofed.core.model import ImageShape, Net
from protofed.core.rng import rng, stream_seed
from protofed.core.training import Training
from protofed.nets import build_net

CLASSES, SIDE, CHANNELS, PAD = 10, 32, 3, 4
SMALL_CNN = "small-cnn"  # two 5x5 convolutions without padding, three linear layers, 1.14 M weights
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Workload:
    """A federation of made-up images; equal numbers make equal work in every system."""

    name: str
    net: str
    sizes: tuple[int, ...]  # images of each client
    epochs: int
    batch: int
    share: float = 1.0  # of the clients, in each round

    @property
    def training(self) -> Training:
        """The optimiser's numbers, the same for all systems."""
        return Training(epochs=self.epochs, batch=self.batch, lr=0.01)

    @property
    def participants(self) -> int:
        """How many clients train in a round."""
        return max(1, round(self.share * len(self.sizes)))

    def chosen(self, number: int) -> list[int]:
        """Who trains in a round."""
        draw = random.Random(stream_seed("benchmark", self.name, number))
        return sorted(draw.sample(range(len(self.sizes)), self.participants))

    def expected(self) -> tuple[int, int]:
        """Steps and samples of a round; with a share, all clients must be of one size."""
        if self.share < 1 and len(set(self.sizes)) > 1:
            raise ValueError(f"{self.name}: unequal clients make rounds of unequal work")
        sizes = self.sizes[: self.participants]
        steps = sum(math.ceil(size / self.batch) for size in sizes)
        return self.epochs * steps, self.epochs * sum(sizes)

    def small(self) -> Workload:
        """The same in little, to see that everything runs."""
        sizes = tuple(max(16, size // 8) for size in self.sizes[:8])
        share = max(self.share, 0.5)  # a single client of few images need not lower the loss
        return replace(self, sizes=sizes, epochs=1, batch=16, share=share)

    def words(self) -> str:
        """The sizes, for people."""
        least, most = min(self.sizes), max(self.sizes)
        each = f"{least}" if least == most else f"{least} to {most}"
        return (
            f"{len(self.sizes)} clients of {each} images, {self.participants} in a round, "
            f"{self.net}, {self.epochs} local epochs, batches of {self.batch}"
        )


UNEQUAL = (64, 128, 165, 201, 256, 300, 358, 440, 540, 700)
WORKLOADS = {
    work.name: work
    for work in (
        Workload("w1", SMALL_CNN, UNEQUAL, 5, 64),
        Workload("w1-lsa", "lsa-cnn", UNEQUAL, 5, 64),  # more than twice the arithmetic
        Workload("w1-long", SMALL_CNN, UNEQUAL, 10, 64),  # as FPL's paper trains
        Workload("w2", "resnet10", (32, 64) * 10, 1, 64),
        Workload("w3", SMALL_CNN, (50,) * 200, 5, 50, share=0.1),
        Workload("many", SMALL_CNN, (50,) * 1000, 1, 50, share=0.1),
    )
}


def make_net(work: Workload) -> Net:
    """The net that every system begins with."""
    if work.net != SMALL_CNN:
        return build_net(work.net, CLASSES, ImageShape(CHANNELS, SIDE), seed=0)
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed("benchmark", SMALL_CNN))
        encoder = nn.Sequential(
            *(nn.Conv2d(CHANNELS, 32, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(64 * 5 * 5, 512), nn.ReLU()),
        )
        neck = nn.Sequential(nn.Linear(512, 512), nn.ReLU())
        return Net(encoder, neck, nn.Linear(512, CLASSES), 512)


def make_images(work: Workload, client: int) -> tuple[Tensor, Tensor]:
    """A client's images [N, side, side, 3] uint8, noise in the colour of their classes [N]."""
    return draw_images(work.sizes[client], rng("benchmark", work.name, client))


def draw_images(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images [count, side, side, 3] uint8 of random classes [count]."""
    labels = torch.randint(0, CLASSES, (count,), generator=draw)
    colours = torch.randint(0, 192, (CLASSES, 1, 1, CHANNELS), generator=rng("class colours"))
    noise = torch.randint(0, 64, (count, SIDE, SIDE, CHANNELS), generator=draw, dtype=torch.uint8)
    return noise.add_(colours.to(torch.uint8)[labels]), labels
