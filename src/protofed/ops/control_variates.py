"""What methods against client drift share: sums over weights, variates, the server's shift.

Trees here are weights alone: buffers are averaged as in FedAvg and never corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

import torch
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import ServerState
from protofed.core.model import Model
from protofed.core.site import ClientId, Site
from protofed.core.training import SGD

Weights: TypeAlias = dict[str, Tensor]
VARIATE = "variate"  # an extra: up the change of a client's variate, down the server's


@tree.node
class DriftServer(ServerState):
    """Server state: the mean of the models that came back, and the mean of all clients' drifts."""

    drift: Weights  # of a client: the sum of its moves theta_n - theta^t; here over all N clients

    def client_start(self) -> Model:
        """Where clients start: the mean model moved on by the mean drift."""
        return Model(add_weights(self.model.weights, self.drift), self.model.buffers)


def zero_weights(model: Model) -> Weights:
    """A zero for every weight."""
    return tree.map(torch.zeros_like, model.weights)


def add_weights(one: Weights, other: Weights, factor: float = 1.0) -> Weights:
    """One + factor * other."""
    return tree.map(lambda a, b: a + factor * b, one, other)


def inner_product(weights: Weights, constant: Weights) -> Tensor:
    """The inner product <weights, constant>, a scalar whose gradient is the constant."""
    return torch.stack([(leaf * constant[name]).sum() for name, leaf in weights.items()]).sum()


def relative_size(site: Site, client: ClientId) -> float:
    """N * omega_n: a client's number of examples over the mean of all clients."""
    return site.sizes[client] * len(site.sizes) / sum(site.sizes.values())


def unweighted_mean(replies: Mapping[ClientId, Message]) -> Model:
    """The mean model with one voice a client; buffers by the examples behind each, as FedAvg."""
    sizes = [reply.size for reply in replies.values()]
    weights = tree.mean((r.model.weights for r in replies.values()), [1.0] * len(replies))
    return Model(weights, tree.mean((r.model.buffers for r in replies.values()), sizes))


def mean_drift(site: Site, drift: Weights, start: Model, end: Model, replies: int) -> Weights:
    """The mean drift over all N clients after `replies` of them went from start to end on average.

    Whoever was not asked, or whose reply was lost, counts as not having moved.
    """
    move = add_weights(end.weights, start.weights, -1)
    return add_weights(drift, move, replies / len(site.sizes))


def mean_variate_change(site: Site, replies: Mapping[ClientId, Message], sized: bool) -> Weights:
    """The variates' changes that arrived, each times N * omega_n if `sized`: their sum / N."""
    changes = (cast(Weights, reply.extras[VARIATE]) for reply in replies.values())
    shares = [relative_size(site, client) if sized else 1.0 for client in replies]
    whole = sum(shares) / len(site.sizes)
    return tree.map(lambda leaf: whole * leaf, tree.mean(changes, shares))


def clip_gradients(largest: float) -> Callable[[Model], None]:
    """A hook for `Method.local_fit` that limits the norm of the whole gradient; 0: no limit."""

    def clip(model: Model) -> None:
        if largest:
            torch.nn.utils.clip_grad_norm_(model.weights.values(), largest)

    return clip


def effective_steps(steps: int, momentum: float) -> float:
    """How many plain steps go as far as `steps` with momentum do under a constant gradient.

    In step k the velocity is (1 - m^k) / (1 - m) gradients; this is the sum over k = 1..steps.
    """
    return sum(1 - momentum**k for k in range(1, steps + 1)) / (1 - momentum)


def updated_variate(
    own: Weights, shared: Weights, start: Model, end: Model, sgd: SGD, steps: int
) -> Weights:
    """A client's new variate: own - shared + the mean gradient that led from start to end.

    With `shared - own` added to every gradient, this is the client's own mean gradient. A client
    that took no step, or of length 0, has learnt nothing and keeps its variate.
    """
    reach = sgd.lr * effective_steps(steps, sgd.momentum)
    if reach == 0:
        return own
    towards = add_weights(start.weights, end.weights, -1)
    return add_weights(add_weights(own, shared, -1), towards, 1 / reach)
