"""FedSeProto: semantic prototypes, told apart from what is the domain's (Lai et al., ECAI 2024).

Eq. 10 L_MI, Eq. 11 L_KD (the printed sign would drive semantic features from the teacher), Eq. 13
L_Proto, Eq. 14 L_CE, Eq. 15 sum -> phase_loss; Eq. 12 prototypes -> train; Eq. 3, 16 -> merge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, cast

import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.fit import fit_model
from protofed.core.message import Message
from protofed.core.method import Ablations, Method, MethodInfo, Need, Payload, average_models
from protofed.core.model import ImageShape, Model, Net
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.core.training import Training
from protofed.ops import disentangle as parts
from protofed.ops.losses import Reduction, balanced_prototype_mse, prototype_mse
from protofed.ops.prototypes import PrototypeServer, local_prototypes, stack_client_prototypes

PRIVATE = ("domain", "decoder")  # never leave the client


@dataclass(frozen=True)
class FedSeProto(Method[PrototypeServer, Model]):
    """Semantic features, parted from the domain's by distillation and mutual information."""

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedSeProto",
        title="FedSeProto: Learning Semantic Prototype in Federated Learning",
        venue="ECAI",
        year=2024,
        family="prototype",
    )

    ablations: ClassVar[Ablations] = {
        "only L_CE": {
            "schedule": "joint",
            "posterior": "unit",
            "alpha": 0.0,
            "beta": 0.0,
            "lam": 0.0,
        },
        "without L_MI": {"beta": 0.0, "posterior": "unit"},
        "without L_KD": {"alpha": 0.0},
        "without L_Proto": {"lam": 0.0},
    }

    alpha: float = Field(default=0.1, ge=0, description="alpha: weight of L_KD")
    beta: float = Field(default=0.01, ge=0, description="beta: weight of L_MI")
    lam: float = Field(default=1.0, ge=0, description="lambda: weight of L_Proto")
    param_avg: bool = Field(default=True, description="false: only prototypes travel, any nets")
    schedule: parts.Schedule = Field(default="sequential", description="of the two phases")
    posterior: parts.Posterior = Field(default="gaussian", description="p(z|x) in Eq. 10")
    kd_form: Literal["corrected", "printed"] = Field(default="corrected", description="Eq. 11")
    mi_reduction: Reduction = Field(default="mean", description="of Eq. 10: dimensions, pixels")
    proto_dims: Reduction = Field(default="mean", description="of Eq. 13 over dimensions")
    balanced: bool = Field(default=True, description="Eq. 13: classes count alike; or images do")

    def epochs_per_round(self, training: Training) -> int:
        return training.epochs if self.schedule == "joint" else max(2, training.epochs)

    @property
    def personal(self) -> bool:
        return not self.param_avg

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("equal nets",) if self.param_avg else ("equal features",)

    @property
    def payload(self) -> Payload:
        both = ("model", "protos") if self.param_avg else ("protos",)
        return Payload(up=both, down=both)

    def adapt(self, net: Net, image: ImageShape) -> Net:
        return parts.DisentangledNet(net, image, self.posterior)

    def init_server(self, site: Site) -> PrototypeServer:
        return PrototypeServer(
            site.initial_model().without(*PRIVATE) if self.param_avg else Model()
        )

    def init_client(self, site: Site) -> Model:
        return site.initial_model().only(*PRIVATE) if self.param_avg else site.initial_model()

    def publish(self, server: PrototypeServer) -> Message:
        return Message(model=server.model, protos=server.protos)

    def train(
        self, site: Site, inbox: Message, state: Model, step: RoundContext
    ) -> tuple[Message, Model]:
        def loss(model: Model, work: parts.Work) -> Tensor:
            return self.phase_loss(site, inbox, model, *work)

        batches = parts.phase_batches(self.schedule, site, step)
        model, _, mean = fit_model(inbox.model | state, batches, loss, site.training)
        protos = local_prototypes(site, model)
        reply = Message(protos=protos, size=len(site.train), metrics={"loss": mean})
        if not self.param_avg:
            return reply, model
        return replace(reply, model=model.without(*PRIVATE)), model.only(*PRIVATE)

    def phase_loss(
        self, site: Site, inbox: Message, model: Model, phase: parts.Phase, batch: TrainingBatch
    ) -> Tensor:
        """Basic: cross entropy. Split: Eq. 15, head frozen. Joint: Eq. 15; + basic if alpha > 0."""
        x, y, protos = batch.x, batch.y, inbox.protos
        if phase == "basic":
            return F.cross_entropy(site.forward_train(model, x, "basic").logits, y)
        if phase == "split":
            model = model | tree.clone(model.only("head"))
        draw = site.rng("posterior", batch.context.round, batch.context.exchange, batch.number)
        out = site.forward_train(model, x, "split", draw, self.beta)
        loss, split = F.cross_entropy(out.logits, y), cast(parts.SplitOutput, out.more)
        if self.alpha:
            loss = loss + (F.cross_entropy(split.basic, y) if phase == "joint" else 0)
            loss = loss + self.alpha * parts.distillation_loss(split, self.kd_form == "printed")
        if self.beta:
            loss = loss + parts.mutual_information_loss(split, x, self.mi_reduction, self.beta)
        if self.lam and protos is not None:
            near = balanced_prototype_mse if self.balanced else prototype_mse
            loss = loss + self.lam * near(out.z, y, protos, site.classes, self.proto_dims)
        return loss

    def merge(
        self,
        site: Site,
        server: PrototypeServer,
        replies: Mapping[ClientId, Message],
        step: RoundContext,
    ) -> PrototypeServer:
        model = average_models(replies) if self.param_avg else server.model
        return PrototypeServer(model, stack_client_prototypes(replies).uniform_mean())

    def predict(self, site: Site, inbox: Message, state: Model, x: Tensor) -> Tensor:
        return site.forward_eval(inbox.model | state, x).logits
