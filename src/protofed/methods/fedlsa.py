"""FedLSA: learnable semantic anchors on a hypersphere (Fu et al., AAAI 2025).

Eq. 3 L_ACE, Eq. 4 L_SEP, Eq. 5 their sum, at the server with the averaged classifier frozen ->
_train_anchors; Eq. 6-8 L_COM, the contrast with the anchors on the sphere, Eq. 9 L_CE, Eq. 10 their
sum -> adapt, loss. Eq. 4 prints exp(a.a') / tau, where tau has no gradient; exp(a.a' / tau) is
meant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import (
    Ablations,
    Method,
    MethodInfo,
    Payload,
    ServerState,
    TunedFields,
    average_models,
)
from protofed.core.model import InputShape, Model, Net
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.ops.prototype_collection import generate_vectors, init_generator, train_generator


class UnitNorm(nn.Module):
    """Scales features [B, D] to length 1, so they lie on the unit hypersphere.

    A feature of zeros stays zero.
    """

    def forward(self, z: Tensor) -> Tensor:
        return F.normalize(z)


def anchor_separation(anchors: Tensor, tau: float) -> Tensor:
    """How close together anchors [C, D] are: L_SEP, smaller is better.

    mean_c log(mean_{c' != c} exp(a_c . a_c' / tau)). Orthogonal anchors give 0; the least possible
    value is -1 / ((C - 1) tau), for a simplex.
    """
    classes = len(anchors)
    similarities = anchors @ anchors.T / tau
    others = similarities[~torch.eye(classes, dtype=torch.bool, device=anchors.device)].view(
        classes, classes - 1
    )
    return (others.logsumexp(1) - math.log(classes - 1)).mean()


@tree.node
class FedLSAServer(ServerState):
    """Server state: the model, the generator of the anchors, and the anchors [C, D].

    Anchors are None only with ``anchors0 = "off"`` before the first round.
    """

    generator: dict[str, Tensor]
    anchors: Tensor | None = None  # [C, D]; None if they are off in round 0


@dataclass(frozen=True)
class FedLSA(Method[FedLSAServer, None]):
    """Features on a hypersphere, drawn to class anchors that the server learns to keep apart.

    The net gets a neck with normalised features. Beside cross entropy, clients minimise lambda
    times the cross entropy of softmax(z . anchors / tau). After averaging the models, the server
    trains the anchors so that the averaged head classifies them and they keep apart from one
    another. Models travel as in FedAvg; the anchors [C, D] travel down. The server keeps anchors
    and generator; clients keep nothing.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedLSA",
        title="Beyond Federated Prototype Learning: Learnable Semantic Anchors with "
        "Hyperspherical Contrast for Domain-Skewed Data",
        venue="AAAI",
        year=2025,
        family="prototype",
        suits=("domain shift",),
    )
    tuned: ClassVar[TunedFields] = {"lam": "0.1..1", "alpha": "0.1..1"}

    ablations: ClassVar[Ablations] = {
        "COM only": {"alpha": 0.0},
        "SEP only": {"compact": "distance"},
    }

    lam: float = Field(
        default=0.7, ge=0, description="lambda: weight of the attraction to the anchors"
    )
    alpha: float = Field(
        default=0.4, ge=0, description="alpha: weight of the separation of anchors"
    )
    tau: float = Field(
        default=0.1, gt=0, description="tau: temperature of attraction and separation"
    )
    features: int = Field(default=128, ge=2, description="L: dimensions of the hypersphere")
    server_epochs: int = Field(
        default=500, ge=0, description="E_s: training steps of the anchors per round"
    )
    server_lr: float = Field(default=0.01, gt=0, description="learning rate of the anchors")
    server_momentum: float = Field(
        default=0.9, ge=0, lt=1, description="momentum of the anchors' steps; Algorithm 1 has none"
    )
    compact: Literal["contrast", "distance"] = Field(
        default="contrast", description="distance: lambda ||h - a_y||^2, as the ablation has it"
    )
    sep_form: Literal["scaled", "printed"] = Field(
        default="scaled", description="printed: exp(a.a') / tau as in Eq. 4"
    )
    normalize_anchors: bool = Field(default=True, description="anchors of length 1")
    anchors0: Literal["init_classifier", "off"] = Field(
        default="init_classifier", description="anchors before round 0, or none in it"
    )

    @property
    def payload(self) -> Payload:
        return Payload(down=("model", "anchors"))

    def adapt(self, net: Net, image: InputShape) -> Net:
        neck = nn.Sequential(nn.Linear(net.width, self.features), UnitNorm())
        return Net(net.encoder, neck, nn.Linear(self.features, net.classes), net.width)

    def init_server(self, site: Site) -> FedLSAServer:
        draw = site.rng("anchors")
        generator = init_generator(site.classes, site.net.width, self.features, draw)
        start = FedLSAServer(site.initial_model(), generator)
        return start if self.anchors0 == "off" else self._train_anchors(start)

    def publish(self, server: FedLSAServer) -> Message:
        extras = {} if server.anchors is None else {"anchors": server.anchors}
        return Message(model=server.model, extras=extras)

    def loss(
        self, site: Site, received: Message, state: None, model: Model, batch: TrainingBatch
    ) -> Tensor:
        out, anchors = site.forward_train(model, batch.x), received.extras.get("anchors")
        task = site.task_loss(out.logits, batch.y)
        if not self.lam or not isinstance(anchors, Tensor):
            return task
        fixed = anchors.detach()
        if self.compact == "distance":
            return task + self.lam * (out.z - fixed[batch.y]).square().sum(1).mean()
        return task + self.lam * F.cross_entropy(out.z @ fixed.T / self.tau, batch.y)

    def merge(
        self,
        site: Site,
        server: FedLSAServer,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> FedLSAServer:
        return self._train_anchors(FedLSAServer(average_models(replies), server.generator))

    def result_warning(self, server: FedLSAServer) -> str:
        anchors = server.anchors
        same = anchors is not None and bool((anchors == anchors[0]).all())
        return "FedLSA ended with the same anchor for all classes" if same else ""

    def _train_anchors(self, server: FedLSAServer) -> FedLSAServer:
        """Train the anchors further; the model does not change."""
        head = server.model.only("head").weights
        classes = torch.arange(len(head["head.bias"]))
        # As printed, Eq. 4 has tau outside the exponential: a constant without a gradient.
        tau = self.tau if self.sep_form == "scaled" else 1.0

        def loss(generator: dict[str, Tensor], _: int) -> Tensor:
            anchors = self._anchors(generator)
            logits = F.linear(anchors, head["head.weight"], head["head.bias"])
            total = F.cross_entropy(logits, classes)
            return total + self.alpha * anchor_separation(anchors, tau) if self.alpha else total

        start, steps = server.generator, range(self.server_epochs)
        generator = train_generator(start, steps, loss, self.server_lr, self.server_momentum)
        return FedLSAServer(server.model, generator, self._anchors(generator))

    def _anchors(self, generator: dict[str, Tensor]) -> Tensor:
        return (
            F.normalize(generate_vectors(generator))
            if self.normalize_anchors
            else generate_vectors(generator)
        )
