"""What methods against client drift share: arithmetic on weights, control variates, mean drift.

Trees here hold weights alone: buffers are averaged as in FedAvg and never corrected.
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
VARIATE = "variate"  # an extra: the change of a client's variate (up), the server's variate (down)


@tree.node
class DriftServer(ServerState):
    """Server state: the mean of the returned models, and the mean drift of all N clients.

    A client's drift is the sum of its moves theta_n - theta^t over the rounds that it took part in.
    `drift` has one tensor per weight.
    """

    drift: Weights

    def client_start(self) -> Model:
        """Where clients start: mean model + mean drift, with the buffers of the mean model."""
        return Model(add_weights(self.model.weights, self.drift), self.model.buffers)


def zero_weights(model: Model) -> Weights:
    """A zero tensor for each weight of `model`: the first value of variates and drifts.

    Names, shapes and dtypes are those of ``model.weights``; buffers have none.
    """
    return tree.map(torch.zeros_like, model.weights)


def add_weights(one: Weights, other: Weights, factor: float = 1.0) -> Weights:
    """The sum one + factor * other, weight by weight.

    Both need the same names and shapes; ``add_weights(a, b, -1)`` is the difference a - b.
    """
    return tree.map(lambda a, b: a + factor * b, one, other)


def inner_product(weights: Weights, constant: Weights) -> Tensor:
    """<weights, constant> = sum over all weights of sum(w * c): a scalar.

    Its gradient with respect to `weights` is `constant`, so adding it to a loss adds the constant
    to every gradient.
    """
    return torch.stack([(leaf * constant[name]).sum() for name, leaf in weights.items()]).sum()


def relative_size(site: Site, client: ClientId) -> float:
    """N * omega_n: a client's weight divided by the mean over all N clients.

    omega_n = weight_n / sum_m weight_m, where a weight is the number of examples unless the run's
    `weights` say otherwise; it is 1 if all clients weigh the same.
    """
    weights = {other: site.weight(size) for other, size in site.sizes.items()}
    return weights[client] * len(weights) / sum(weights.values())


def unweighted_mean(replies: Mapping[ClientId, Message]) -> Model:
    """The mean model in which every reply counts the same: sum_n model_n / replies.

    Buffers are averaged by number of examples, as in FedAvg.
    """
    sizes = [reply.size for reply in replies.values()]
    weights = tree.mean((r.model.weights for r in replies.values()), [1.0] * len(replies))
    return Model(weights, tree.mean((r.model.buffers for r in replies.values()), sizes))


def mean_drift(site: Site, drift: Weights, start: Model, end: Model, replies: int) -> Weights:
    """The mean drift over all N clients after this round's replies.

    drift + (replies / N) * (end - start), where `end` is the mean of the models that came back and
    `start` the model that was sent. Clients without a reply count as not having moved.
    """
    move = add_weights(end.weights, start.weights, -1)
    return add_weights(drift, move, replies / len(site.sizes))


def mean_variate_change(site: Site, replies: Mapping[ClientId, Message], sized: bool) -> Weights:
    """The mean change of the variates over all N clients: sum_n share_n * change_n / N.

    share_n is 1, or N * omega_n if `sized`. Clients without a reply count as unchanged.
    """
    changes = (cast(Weights, reply.extras[VARIATE]) for reply in replies.values())
    shares = [relative_size(site, client) if sized else 1.0 for client in replies]
    whole = sum(shares) / len(site.sizes)
    return tree.map(lambda leaf: whole * leaf, tree.mean(changes, shares))


def clip_gradients(largest: float) -> Callable[[Model], None]:
    """An `on_gradients` hook for `Method.local_fit` that limits the norm of the whole gradient.

    Gradients are scaled down together if their joint Euclidean norm exceeds `largest`; 0 means no
    limit.
    """

    def clip(model: Model) -> None:
        if largest:
            torch.nn.utils.clip_grad_norm_(model.weights.values(), largest)

    return clip


def effective_steps(steps: int, momentum: float) -> float:
    """How many plain SGD steps go as far as `steps` with momentum do, under a constant gradient.

    In step k the velocity is (1 - m^k) / (1 - m) gradients; this is the sum over k = 1..steps.
    Without momentum it is `steps`.
    """
    return sum(1 - momentum**k for k in range(1, steps + 1)) / (1 - momentum)


def updated_variate(
    own: Weights, shared: Weights, start: Model, end: Model, sgd: SGD, steps: int
) -> Weights:
    """A client's new control variate: own - shared + (start - end) / (lr * effective steps).

    The last term is the mean gradient that led from `start` to `end`. As `shared - own` was added
    to every gradient, the result is the client's own mean gradient. A client that took no step, or
    steps of length 0, keeps its variate.
    """
    reach = sgd.lr * effective_steps(steps, sgd.momentum)
    if reach == 0:
        return own
    towards = add_weights(start.weights, end.weights, -1)
    return add_weights(add_weights(own, shared, -1), towards, 1 / reach)
