"""FedOPT: the server takes a step of an optimiser (Reddi et al., ICLR 2021).

Algorithm 1: the mean of the clients' moves is a pseudo-gradient for a server optimiser -> merge.
Algorithm 2: its adaptive forms FedAdagrad, FedYogi and FedAdam -> _adaptive, _second_moment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, ServerState, TunedFields, average_models
from protofed.core.model import Model, Net
from protofed.core.site import ClientId, RoundContext, Site

LARGEST_FIRST_MOVE = 0.1  # of a weight in round 1 by an adaptive optimiser, without a warning


@tree.node
class FedOPTServer(ServerState):
    """Server state: the model and the optimiser's moments, for weights only.

    Buffers are averaged as in FedAvg.
    """

    m: dict[str, Tensor]  # the running mean move
    v: dict[str, Tensor]  # the running squared move; empty with sgd


@dataclass(frozen=True)
class FedOPT(Method[FedOPTServer, None]):
    """FedAvg whose mean move is the gradient of a server optimiser: SGD, Adam, Yogi or Adagrad.

    Clients train as in FedAvg. The server takes mean model - global model as a pseudo-gradient and
    makes a step of its optimiser, rather than jumping to the mean; SGD with lr = 1 and no momentum
    is FedAvg. Only the model travels. The server keeps the optimiser's moments m and v; clients
    keep nothing.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedOPT",
        title="Adaptive Federated Optimization",
        venue="ICLR",
        year=2021,
        link="arXiv:2003.00295",
        family="aggregation",
    )
    tuned: ClassVar[TunedFields] = {"lr": "log:0.1..1"}

    optimiser: Literal["sgd", "adam", "yogi", "adagrad"] = Field(
        default="sgd", description="the server's optimiser"
    )
    lr: float = Field(default=0.5, ge=0, description="eta: server's step; 0.1 if adaptive")
    momentum: float = Field(
        default=0.9, ge=0, lt=1, description="of sgd; beta1 of the adaptive optimisers"
    )
    beta2: float = Field(default=0.99, ge=0, lt=1, description="beta2: of adam and yogi")
    tau: float = Field(default=1e-3, gt=0, description="tau: adaptivity, added to sqrt(v)")
    mean: Literal["weighted", "uniform"] = Field(
        default="weighted", description="over clients: weighted by examples, or uniform"
    )

    def warning(self, net: Net) -> str:
        # The first m is (1 - beta1) move; its v is move^2, for adam and yogi (1 - beta2) of it.
        square = 1 if self.optimiser == "adagrad" else 1 - self.beta2
        furthest = self.lr * (1 - self.momentum) / math.sqrt(square)
        if self.optimiser == "sgd" or furthest <= LARGEST_FIRST_MOVE:
            return ""
        return (
            f"{self.optimiser} moves a weight by up to {furthest:.3g} in the first round, however "
            f"little the clients moved it; {LARGEST_FIRST_MOVE:g} or less is usual, which is "
            f"method.lr = {self.lr * LARGEST_FIRST_MOVE / furthest:.3g}"
        )

    def init_server(self, site: Site) -> FedOPTServer:
        model = site.initial_model()
        zeros = tree.map(torch.zeros_like, model.weights)
        return FedOPTServer(model, zeros, {} if self.optimiser == "sgd" else tree.clone(zeros))

    def merge(
        self,
        site: Site,
        server: FedOPTServer,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> FedOPTServer:
        models = (reply.model for reply in replies.values())
        uniform = self.mean == "uniform"
        mean = tree.mean(models, [1.0] * len(replies)) if uniform else average_models(replies)
        moves = tree.map(torch.sub, mean.weights, server.model.weights)
        if self.optimiser == "sgd":
            return self._sgd(server, mean, moves)
        return self._adaptive(server, mean, moves)

    def _sgd(self, server: FedOPTServer, mean: Model, moves: dict[str, Tensor]) -> FedOPTServer:
        def moved(w: Tensor, to: Tensor, m: Tensor) -> Tensor:
            # This is w + lr (momentum m + move), but exact where lr = 1: then lerp gives `to`.
            return torch.lerp(w, to, self.lr) + self.lr * self.momentum * m

        weights = tree.map(moved, server.model.weights, mean.weights, server.m)
        m = tree.map(lambda m, move: self.momentum * m + move, server.m, moves)
        return FedOPTServer(Model(weights, mean.buffers), m, server.v)

    def _adaptive(
        self, server: FedOPTServer, mean: Model, moves: dict[str, Tensor]
    ) -> FedOPTServer:
        beta1 = self.momentum
        m = tree.map(lambda m, move: beta1 * m + (1 - beta1) * move, server.m, moves)
        v = tree.map(self._second_moment, server.v, moves)
        weights = tree.map(
            lambda w, m, v: w + self.lr * m / (v.sqrt() + self.tau), server.model.weights, m, v
        )
        return FedOPTServer(Model(weights, mean.buffers), m, v)

    def _second_moment(self, v: Tensor, move: Tensor) -> Tensor:
        """The optimiser's own rule for the second moment."""
        square = move.square()
        if self.optimiser == "adagrad":
            return v + square
        if self.optimiser == "yogi":
            return v - (1 - self.beta2) * square * (v - square).sign()
        return self.beta2 * v + (1 - self.beta2) * square
