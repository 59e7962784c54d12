"""A site: what a client, or the server, can see and do. Test data is never part of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import functional_call

from protofed.core.model import Model, Net, NetOutput, model_from_net
from protofed.core.rng import rng
from protofed.core.training import Training

ClientId = int
SERVER: ClientId = -1
SCAN_BATCH = 512
NO_IMAGES = torch.zeros(0, 1, 1, 1, dtype=torch.uint8)


class RoundContext(NamedTuple):
    """Where a run stands: round and leg count from 0; `rounds` is the whole run's number."""

    round: int
    rounds: int
    exchange: int = 0


class TrainingBatch(NamedTuple):
    """Images ready for a net, with their classes and when they are trained on."""

    x: Tensor  # [B, channels, side, side] float
    y: Tensor  # [B]
    context: RoundContext
    epoch: int  # of this leg's local training
    number: int  # of the batch, counted through all epochs: for named random streams


@dataclass(frozen=True)
class ArrayDataset:
    """Images as they lie in memory; they become floats batch by batch."""

    images: Tensor  # [N, side, side, 1 or 3] uint8
    labels: Tensor  # [N] int64

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: Tensor) -> ArrayDataset:
        """The examples with the chosen row numbers [n] int64, copied."""
        chosen = chosen.to(self.labels.device)
        return ArrayDataset(
            self.images.index_select(0, chosen), self.labels.index_select(0, chosen)
        )

    def to(self, device: torch.device) -> ArrayDataset:
        """The same examples in a device's memory."""
        return ArrayDataset(self.images.to(device), self.labels.to(device))

    def slice(self, first: int, last: int) -> ArrayDataset:
        """The examples from row `first` up to `last`, not copied."""
        return ArrayDataset(self.images[first:last], self.labels[first:last])


def holdout_size(size: int, share: float) -> int:
    """How many of `size` images a share is: one at least, but never the last one left."""
    return max(0, min(max(1, round(share * size)), size - 1))


class PixelTransform(Protocol):
    """How stored images [B, side, side, 1 or 3] uint8 become a net's input."""

    def augment(self, images: Tensor, draw: torch.Generator) -> Tensor:
        """With random augmentation drawn from `draw`."""

    def normalize(self, images: Tensor) -> Tensor:
        """Without any randomness."""


@dataclass(frozen=True)
class Site:
    """A client, or the server (which holds no training data); read-only to methods."""

    id: ClientId
    domain: str
    classes: int
    net: Net
    pixels: PixelTransform
    train: ArrayDataset
    training: Training
    seed: int
    sizes: Mapping[ClientId, int]  # public fact: who holds how many examples
    public: Tensor = NO_IMAGES  # [N, side, side, 1 or 3] uint8, nobody's: the same at every site

    def to_device(self, device: torch.device) -> Site:
        """This site with its images in a device's memory, where all it computes then happens."""
        return replace(self, train=self.train.to(device), public=self.public.to(device))

    def rng(self, *key: int | str) -> torch.Generator:
        """This site's own random stream with the given meaning."""
        return rng(self.seed, "site", self.id, *key)

    def randn(self, shape: tuple[int, ...], *key: int | str) -> Tensor:
        """Normal numbers from the stream with the given meaning: the same at every call."""
        return torch.randn(shape, generator=self.rng(*key))

    def initial_model(self) -> Model:
        """The initial model of this site's architecture."""
        return model_from_net(self.net)

    def forward_train(self, model: Model, x: Tensor, *more: object) -> NetOutput:
        """Forward in training mode; moves `model.buffers`, so only for the model being trained.

        A batch of one has no batch statistics: there the running ones are used instead. What
        comes after `x` goes to the net's forward as it is (a method's own net may take more).
        """
        return self._call(len(x) > 1, model, x, *more)

    @torch.no_grad()
    def forward_eval(self, model: Model, x: Tensor, *more: object) -> NetOutput:
        """Forward in evaluation mode without gradients; changes nothing."""
        return self._call(False, model, x, *more)

    def _call(self, training: bool, model: Model, *inputs: object) -> NetOutput:
        self.net.train(training)
        state = {**model.weights, **model.buffers}
        out: NetOutput = functional_call(self.net, state, inputs, strict=True)
        return out

    def batches(
        self, context: RoundContext, phase: str = "", epochs: int | None = None
    ) -> Iterator[TrainingBatch]:
        """Shuffled, augmented batches of the training data, the same for the same arguments."""
        number = 0
        for epoch in range(self.training.epochs if epochs is None else epochs):
            draw = self.rng("batches", phase, context.round, context.exchange, epoch)
            order = torch.randperm(len(self.train), generator=draw)
            for rows in self.training.batch_indices(order):
                chosen = self.train.take(rows)
                x = self.pixels.augment(chosen.images, draw)
                yield TrainingBatch(x, chosen.labels, context, epoch, number)
                number += 1

    def eval_batches(self, data: ArrayDataset) -> Iterator[tuple[Tensor, Tensor]]:
        """All images x and classes y of `data` once, in order and without augmentation."""
        for start in range(0, len(data), SCAN_BATCH):
            chosen = data.slice(start, start + SCAN_BATCH)
            yield self.pixels.normalize(chosen.images), chosen.labels
