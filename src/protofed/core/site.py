"""A site: what a client, or the server, can see and do. Test data is never part of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import functional_call

from protofed.core.model import Model, Net, Out, initial
from protofed.core.rng import rng
from protofed.core.training import Training

ClientId = int
SERVER: ClientId = -1
SCAN_BATCH = 512
NO_IMAGES = torch.zeros(0, 1, 1, 1, dtype=torch.uint8)


class Step(NamedTuple):
    """Where a run stands: round and leg count from 0; `rounds` is the whole run's number."""

    round: int
    rounds: int
    leg: int = 0


class Batch(NamedTuple):
    """Images ready for a net, with their classes and when they are trained on."""

    x: Tensor  # [B, channels, side, side] float
    y: Tensor  # [B]
    step: Step
    epoch: int  # of this leg's local training
    number: int  # of the batch, counted through all epochs: for named random streams


@dataclass(frozen=True)
class Dataset:
    """Images as they lie in memory; they become floats batch by batch."""

    images: Tensor  # [N, side, side, 1 or 3] uint8
    labels: Tensor  # [N] int64

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, chosen: Tensor) -> Dataset:
        """The examples with the chosen row numbers [n] int64, copied."""
        chosen = chosen.to(self.labels.device)
        return Dataset(self.images.index_select(0, chosen), self.labels.index_select(0, chosen))

    def to(self, device: torch.device) -> Dataset:
        """The same examples in a device's memory."""
        return Dataset(self.images.to(device), self.labels.to(device))

    def slice(self, first: int, last: int) -> Dataset:
        """The examples from row `first` up to `last`, not copied."""
        return Dataset(self.images[first:last], self.labels[first:last])


def to_hold_out(size: int, share: float) -> int:
    """How many of `size` images a share is: one at least, but never the last one left."""
    return max(0, min(max(1, round(share * size)), size - 1))


class Pixels(Protocol):
    """How stored images [B, side, side, 1 or 3] uint8 become a net's input."""

    def train(self, images: Tensor, draw: torch.Generator) -> Tensor:
        """With random augmentation drawn from `draw`."""

    def test(self, images: Tensor) -> Tensor:
        """Without any randomness."""


@dataclass(frozen=True)
class Site:
    """A client, or the server (which holds no training data); read-only to methods."""

    id: ClientId
    domain: str
    classes: int
    net: Net
    pixels: Pixels
    train: Dataset
    training: Training
    seed: int
    sizes: Mapping[ClientId, int]  # public fact: who holds how many examples
    public: Tensor = NO_IMAGES  # [N, side, side, 1 or 3] uint8, nobody's: the same at every site

    def on(self, device: torch.device) -> Site:
        """This site with its images in a device's memory, where all it computes then happens."""
        return replace(self, train=self.train.to(device), public=self.public.to(device))

    def rng(self, *key: int | str) -> torch.Generator:
        """This site's own random stream with the given meaning."""
        return rng(self.seed, "site", self.id, *key)

    def normal(self, shape: tuple[int, ...], *key: int | str) -> Tensor:
        """Normal numbers from the stream with the given meaning: the same at every call."""
        return torch.randn(shape, generator=self.rng(*key))

    def fresh(self) -> Model:
        """The initial model of this site's architecture."""
        return initial(self.net)

    def run(self, model: Model, x: Tensor, *more: object) -> Out:
        """Forward in training mode; moves `model.buffers`, so only for the model being trained.

        A batch of one has no batch statistics: there the running ones are used instead. What
        comes after `x` goes to the net's forward as it is (a method's own net may take more).
        """
        return self._call(len(x) > 1, model, x, *more)

    @torch.no_grad()
    def look(self, model: Model, x: Tensor, *more: object) -> Out:
        """Forward in evaluation mode without gradients; changes nothing."""
        return self._call(False, model, x, *more)

    def _call(self, training: bool, model: Model, *inputs: object) -> Out:
        self.net.train(training)
        state = {**model.weights, **model.buffers}
        out: Out = functional_call(self.net, state, inputs, strict=True)
        return out

    def batches(self, step: Step, phase: str = "", epochs: int | None = None) -> Iterator[Batch]:
        """Shuffled, augmented batches of the training data, the same for the same arguments."""
        number = 0
        for epoch in range(self.training.epochs if epochs is None else epochs):
            draw = self.rng("batches", phase, step.round, step.leg, epoch)
            order = torch.randperm(len(self.train), generator=draw)
            for rows in self.training.cut(order):
                chosen = self.train.rows(rows)
                x = self.pixels.train(chosen.images, draw)
                yield Batch(x, chosen.labels, step, epoch, number)
                number += 1

    def scan(self, data: Dataset) -> Iterator[tuple[Tensor, Tensor]]:
        """All images x and classes y of `data` once, in order and without augmentation."""
        for start in range(0, len(data), SCAN_BATCH):
            chosen = data.slice(start, start + SCAN_BATCH)
            yield self.pixels.test(chosen.images), chosen.labels
