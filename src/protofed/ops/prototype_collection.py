"""How clients compute prototypes, and how a server collects them or learns class vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.core.message import Message
from protofed.core.method import C, Method, S, reply_from_fit
from protofed.core.model import Model, NetOutput
from protofed.core.prototypes import Prototypes, class_means, stack_prototypes
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.core.training import SGD, fit_model
from protofed.errors import ProtofedError

Collect = Literal["post", "online"]


def stack_client_prototypes(replies: Mapping[ClientId, Message]) -> Prototypes:
    """All prototypes that the clients sent, in the order of client ids: one table [K, D].

    Rows are not merged: call `uniform_mean` or `weighted_mean` on the result. Clients whose
    features differ in width are an error.
    """
    tables = {client: r.protos for client, r in replies.items() if r.protos is not None}
    widths = {client: table.vectors.shape[1] for client, table in tables.items()}
    if len(set(widths.values())) > 1:
        found = ", ".join(f"client {client}: {width}" for client, width in widths.items())
        raise ProtofedError(
            f"prototypes of different widths cannot be merged ({found})\n"
            f"give every client a net whose features have the same width"
        )
    return stack_prototypes(tables.values())


def fit_with_prototypes(
    method: Method[S, C],
    collect: Collect,
    site: Site,
    received: Message,
    state: C,
    context: RoundContext,
    start: Model | None = None,
) -> Message:
    """Train by `Method.local_fit`; the reply holds the model and the client's class means.

    collect="post" computes them after training, over all images, unaugmented and in evaluation
    mode. collect="online" averages the features of the last epoch as they occur during training,
    which is what the code of FedProto and FPL does. `start` is where training begins, as in
    `local_fit`.
    """
    if collect == "post":
        fitted = method.local_fit(site, received, state, context, start=start)
        return replace(reply_from_fit(site, fitted), protos=local_prototypes(site, fitted.trained))
    with FeatureRecorder(site) as recorder:
        fitted = method.local_fit(
            site, received, state, context, start=start, on_batch=recorder.expect
        )
    return replace(reply_from_fit(site, fitted), protos=recorder.prototypes())


def local_prototypes(site: Site, model: Model) -> Prototypes:
    """The class means of a client's features under `model`: one row per class that it holds.

    Over all images, unaugmented and in evaluation mode.
    """
    return class_means(site_features(site, model), site.train.labels)


def site_features(site: Site, model: Model) -> Tensor:
    """The features [N, D] of all of a client's images, in order and without augmentation."""
    return site_outputs(site, model).z


def site_outputs(site: Site, model: Model) -> NetOutput:
    """Features z [N, D] and logits [N, C] of all of a client's images, in order, not augmented."""
    outs = [site.forward_eval(model, x) for x, _ in site.eval_batches(site.train)]
    return NetOutput(torch.cat([out.z for out in outs]), torch.cat([out.logits for out in outs]))


class FeatureRecorder:
    """Records the features that a site's net computes in the last epoch of training.

    They are those of training mode and augmented images, each batch before its step. Use it as a
    context manager around training and call `expect` before each batch::

        with FeatureRecorder(site) as recorder:
            method.local_fit(site, received, state, context, on_batch=recorder.expect)
        protos = recorder.prototypes()
    """

    def __init__(self, site: Site):
        self.site = site
        self.seen: list[tuple[Tensor, Tensor]] = []  # features, classes
        self.labels: Tensor | None = None  # of the current batch, if in the last epoch

    def __enter__(self) -> Self:
        self.hook = self.site.net.register_forward_hook(self._record)
        return self

    def __exit__(self, *fault: object) -> None:
        self.hook.remove()

    def expect(self, batch: TrainingBatch) -> None:
        """Announce the batch that comes next."""
        self.labels = batch.y if batch.epoch == self.site.training.epochs - 1 else None

    def _record(self, net: nn.Module, inputs: object, out: NetOutput) -> None:
        # Without gradients it is the evaluation of another model.
        if self.labels is not None and torch.is_grad_enabled():
            self.seen.append((out.z.detach(), self.labels))

    def prototypes(self) -> Prototypes:
        """The class means of the recorded features."""
        z, labels = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
        return class_means(z, labels)


def nearest_prototype_scores(
    site: Site, model: Model, protos: Prototypes | None, x: Tensor
) -> dict[str, Tensor]:
    """An auxiliary prediction by the nearest prototype: class scores [B, C] for images x.

    Empty while there are no prototypes, i.e. before the first round.
    """
    if protos is None:
        return {}
    return {"nearest prototype": protos.nearest_scores(site.forward_eval(model, x).z, site.classes)}


B = TypeVar("B")


def init_generator(
    classes: int, width: int, features: int, draw: torch.Generator
) -> dict[str, Tensor]:
    """The weights of a new generator: normal seeds [C, width] and a perceptron width -> features.

    The layers are uniform in +-1 / sqrt(width), as torch initialises linear layers. A dict of
    tensors, so it can be part of a server state.
    """
    bound = 1 / math.sqrt(width)  # as torch initialises linear layers

    def uniform(*shape: int) -> Tensor:
        return (2 * torch.rand(shape, generator=draw) - 1) * bound

    return {
        "seed": torch.randn(classes, width, generator=draw),
        "hidden.weight": uniform(width, width),
        "hidden.bias": uniform(width),
        "out.weight": uniform(features, width),
        "out.bias": uniform(features),
    }


def generate_vectors(generator: dict[str, Tensor]) -> Tensor:
    """Class vectors [C, features]: W_2 relu(W_1 seed_c + b_1) + b_2 for each class c.

    They are not normalised.
    """
    hidden = F.linear(generator["seed"], generator["hidden.weight"], generator["hidden.bias"])
    return F.linear(hidden.relu(), generator["out.weight"], generator["out.bias"])


def train_generator(
    generator: dict[str, Tensor],
    batches: Iterable[B],
    loss: Callable[[dict[str, Tensor], B], Tensor],
    lr: float,
    momentum: float = 0.0,
) -> dict[str, Tensor]:
    """The generator after one SGD step on `loss` per batch, without weight decay.

    ``loss(generator, batch)`` returns a scalar; usually it calls `generate_vectors`.
    """
    return fit_model(
        generator, batches, loss, SGD(lr=lr, momentum=momentum, weight_decay=0)
    ).trained
