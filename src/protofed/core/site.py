"""A site: what a client, or the server, can see and do. Test data is never part of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from protofed.core.model import Model, Net, NetOutput, model_from_net
from protofed.core.rng import rng
from protofed.core.training import Training

ClientId = int
SERVER: ClientId = -1
ClientWeights: TypeAlias = Literal["size", "equal", "sqrt"]
SCAN_BATCH = 512
NO_IMAGES = torch.zeros(0, 1, 1, 1, dtype=torch.uint8)


class RoundContext(NamedTuple):
    """Where a run is: the round and the exchange within it, both counted from 0.

    `rounds` is how many rounds the whole run has. Pass the first and the last to `site.rng` so that
    each round and exchange draws other numbers.
    """

    round: int
    rounds: int
    exchange: int = 0


class TrainingBatch(NamedTuple):
    """Augmented images (or rows) ready for a net, their classes, and when they are trained on.

    `context`, `epoch` and `number` tell batches apart; pass `number` to `site.rng` for noise that
    differs from batch to batch.
    """

    x: Tensor  # [B, channels, side, side] float; [B, *shape] for rows
    y: Tensor  # [B]
    context: RoundContext
    epoch: int  # of this exchange's local training
    number: int  # of the batch, counted over all epochs


@dataclass(frozen=True)
class ArrayDataset:
    """Images and labels in memory, indexed by row.

    Images stay uint8 to save memory; a site's `pixels` makes floats of them batch by batch. Data
    that are no images lie here as rows of floats.
    """

    images: Tensor  # [N, side, side, 1 or 3] uint8; or rows [N, *shape] float32
    labels: Tensor  # [N] int64

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: Tensor) -> ArrayDataset:
        """A copy of the examples with the row numbers `chosen` [n] int64."""
        chosen = chosen.to(self.labels.device)
        return ArrayDataset(
            self.images.index_select(0, chosen), self.labels.index_select(0, chosen)
        )

    def to(self, device: torch.device) -> ArrayDataset:
        """The same examples in a device's memory."""
        return ArrayDataset(self.images.to(device), self.labels.to(device))

    def slice(self, first: int, last: int) -> ArrayDataset:
        """A view of the examples from row `first` up to `last`, without a copy."""
        return ArrayDataset(self.images[first:last], self.labels[first:last])


def holdout_size(size: int, share: float) -> int:
    """How many of `size` images make up a share: at least one, but always leaving one.

    round(share * size), kept within 1 and size - 1; 0 if there is only one image.
    """
    return max(0, min(max(1, round(share * size)), size - 1))


class PixelTransform(Protocol):
    """How stored images become a net's input.

    Images [B, side, side, 1 or 3] uint8 go in, floats [B, channels, side, side] come out. Rows
    [B, *shape] of floats keep their shape.
    """

    def augment(self, images: Tensor, draw: torch.Generator) -> Tensor:
        """With random augmentation, drawn from `draw`; for training."""

    def normalize(self, images: Tensor) -> Tensor:
        """Without randomness; for evaluation, prototypes and teachers."""


@dataclass(frozen=True)
class Site:
    """A client, or the server (which holds no training data); read-only to methods.

    Hooks get the site at which they run: `send` and `merge` the server's, `loss` and `train` the
    client's. It holds the site's images (`train`), its net, how it trains (`training`), the
    sizes of all clients, and the run's seed. To run a model, choose the right forward pass::

        out = site.forward_train(model, batch.x)  # the model being trained; with gradients
        teacher = site.forward_eval(received.model, batch.x)  # any other model; a constant
    """

    id: ClientId
    domain: str
    classes: int
    net: Net
    pixels: PixelTransform
    train: ArrayDataset
    training: Training
    seed: int
    sizes: Mapping[ClientId, int]  # examples per client: known to all sites
    public: Tensor = NO_IMAGES  # as `train.images`; the same at every site
    weights: ClientWeights = "size"  # by what a mean over clients weights them

    def to_device(self, device: torch.device) -> Site:
        """This site with its images in a device's memory, where it then computes."""
        return replace(self, train=self.train.to(device), public=self.public.to(device))

    def at_round(self, context: RoundContext) -> Site:
        """This site with the learning rate that the schedule gives for a round."""
        training = self.training.at_round(context.round, context.rounds)
        return self if training is self.training else replace(self, training=training)

    def rng(self, *key: int | str) -> torch.Generator:
        """A new generator for one of this site's streams, e.g. ``site.rng("sample", round)``.

        The run's seed and the site's id are part of the key. The same key gives the same numbers at
        every call, so put the round, exchange and batch into it if draws are to differ.
        """
        return rng(self.seed, "site", self.id, *key)

    def randn(self, shape: tuple[int, ...], *key: int | str) -> Tensor:
        """Standard normal numbers from the stream with this key: the same at every call."""
        return torch.randn(shape, generator=self.rng(*key))

    def initial_model(self) -> Model:
        """A copy of the initial model of this site's net."""
        return model_from_net(self.net)

    def forward_train(self, model: Model, x: Tensor, *more: object) -> NetOutput:
        """Forward pass in training mode, with gradients; only for the model that is being trained.

        Batch norm uses the batch's statistics and updates `model.buffers` in place. A batch of one
        has no statistics, so the running ones are used instead. Arguments after `x` go to the net's
        forward unchanged (a net from `Method.adapt` may take more inputs).
        """
        return self._call(len(x) > 1, model, x, *more)

    @torch.no_grad()
    def forward_eval(self, model: Model, x: Tensor, *more: object) -> NetOutput:
        """Forward pass in evaluation mode, without gradients; changes nothing.

        For teachers, prototypes and predictions: any model except the one that is being trained.
        """
        return self._call(False, model, x, *more)

    def _call(self, training: bool, model: Model, *inputs: object) -> NetOutput:
        self.net.train(training)
        state = {**model.weights, **model.buffers}
        out: NetOutput = functional_call(self.net, state, inputs, strict=True)
        return out

    def task_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Cross entropy of class scores [B, C], with the class weights that the training asks for.

        Use it for the client's own task, so that `training.class_weights` holds for a method. With
        "balanced", a class weighs one over its number of images here; the loss is the weighted
        mean, so its scale stays.
        """
        weights = None
        if self.training.class_weights == "balanced":
            counts = torch.bincount(self.train.labels, minlength=self.classes)
            weights = 1 / counts.clamp(min=1).to(logits.dtype)
        return F.cross_entropy(logits, y, weight=weights)

    def weight(self, size: int) -> int:
        """The weight in means over clients of one with `size` examples, as a whole number.

        The size itself, 1 for all, or the square root in thousandths.
        """
        if self.weights == "size":
            return size
        return 1 if self.weights == "equal" else math.isqrt(size * 10**6)

    def batches(
        self, context: RoundContext, phase: str = "", epochs: int | None = None
    ) -> Iterator[TrainingBatch]:
        """Shuffled, augmented batches of the training data.

        `epochs` defaults to `training.epochs`. The same arguments give the same batches. A method
        that goes through the data twice in one exchange gives each pass its own `phase`.
        """
        number = 0
        for epoch in range(self.training.epochs if epochs is None else epochs):
            draw = self.rng("batches", phase, context.round, context.exchange, epoch)
            order = self.training.epoch_order(self.train.labels, draw)
            for rows in self.training.batch_indices(order):
                chosen = self.train.take(rows)
                x = self.pixels.augment(chosen.images, draw)
                yield TrainingBatch(x, chosen.labels, context, epoch, number)
                number += 1

    def eval_batches(self, data: ArrayDataset) -> Iterator[tuple[Tensor, Tensor]]:
        """Images x and classes y of `data` in batches: each once, in order, not augmented."""
        for start in range(0, len(data), SCAN_BATCH):
            chosen = data.slice(start, start + SCAN_BATCH)
            yield self.pixels.normalize(chosen.images), chosen.labels
