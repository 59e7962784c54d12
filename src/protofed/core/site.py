"""A site: what a client, or the server, can see and do. Test data is never part of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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


class Step(NamedTuple):
    """Where a run stands: round and leg count from 0; `rounds` is the whole run's number."""

    round: int
    rounds: int
    leg: int = 0


class Batch(NamedTuple):
    """Images ready for a net, with their classes and the local epoch they belong to."""

    x: Tensor  # [B, channels, side, side] float
    y: Tensor  # [B]
    epoch: int


@dataclass(frozen=True)
class Dataset:
    """Images as they lie in memory; they become floats batch by batch."""

    images: Tensor  # [N, side, side, 1 or 3] uint8
    labels: Tensor  # [N] int64

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, chosen: Tensor) -> Dataset:
        """The examples with the chosen row numbers [n] int64, copied."""
        return Dataset(self.images.index_select(0, chosen), self.labels.index_select(0, chosen))


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

    def rng(self, *key: int | str) -> torch.Generator:
        """This site's own random stream with the given meaning."""
        return rng(self.seed, "site", self.id, *key)

    def fresh(self) -> Model:
        """The initial model of this site's architecture."""
        return initial(self.net)

    def run(self, model: Model, x: Tensor) -> Out:
        """Forward in training mode; moves `model.buffers`, so only for the model being trained.

        A batch of one has no batch statistics: there the running ones are used instead.
        """
        return self._call(model, x, training=len(x) > 1)

    @torch.no_grad()
    def look(self, model: Model, x: Tensor) -> Out:
        """Forward in evaluation mode without gradients; changes nothing."""
        return self._call(model, x, training=False)

    def _call(self, model: Model, x: Tensor, training: bool) -> Out:
        self.net.train(training)
        out: Out = functional_call(self.net, {**model.weights, **model.buffers}, (x,), strict=True)
        return out

    def batches(self, step: Step, phase: str = "", epochs: int | None = None) -> Iterator[Batch]:
        """Shuffled, augmented batches of the training data, the same for the same arguments."""
        for epoch in range(self.training.epochs if epochs is None else epochs):
            draw = self.rng("batches", phase, step.round, step.leg, epoch)
            order = torch.randperm(len(self.train), generator=draw)
            for rows in self.training.cut(order):
                chosen = self.train.rows(rows)
                yield Batch(self.pixels.train(chosen.images, draw), chosen.labels, epoch)

    def scan(self, data: Dataset) -> Iterator[Batch]:
        """All of `data` once, in order and without augmentation."""
        for rows in torch.arange(len(data)).split(SCAN_BATCH):
            chosen = data.rows(rows)
            yield Batch(self.pixels.test(chosen.images), chosen.labels, 0)
