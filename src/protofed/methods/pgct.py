"""PGCT: prototype-guided cross-training on any base method (Liu et al., ICME 2023).

Eq. 1-2 prototypes -> train; the exchange -> send; Eq. 3 L_PCL, Eq. 4-7 L_Aug, Eq. 8 sum -> loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from protofed.core.message import Message
from protofed.core.method import Ablations, Method, MethodInfo, Need, Payload
from protofed.core.model import ImageShape, Model, Net
from protofed.core.prototypes import Prototypes
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.core.training import Training
from protofed.ops import exchange, guide
from protofed.ops.losses import prototype_contrastive


@dataclass(frozen=True)
class PGCT(Method[exchange.WrappingServer, Any]):
    """Models trained on at another client, held to the prototypes of the one they come from."""

    info: ClassVar[MethodInfo] = MethodInfo(
        label="PGCT",
        title="Cross-Training with Prototypical Distillation for improving the generalization "
        "of Federated Learning",
        venue="ICME",
        year=2023,
        family="prototype",
    )

    ablations: ClassVar[Ablations] = {
        "+Exg": {"alpha": 0.0, "lam": 0.0},
        "+Exg+PFA": {"alpha": 0.0},
        "+Exg+PGRL": {"lam": 0.0},
    }

    base: exchange.Base = Method()
    alpha: float = Field(default=0.5, ge=0, description="alpha: weight of the contrast L_PCL")
    lam: float = Field(default=0.1, ge=0, description="lambda: weight of L_Aug")
    tau: float = Field(default=0.5, gt=0, description="tau: temperature of the contrast")
    eps: float = Field(default=0.1, ge=0, description="epsilon: noise on prototypes in L_Aug")
    n_aug: int = Field(default=5, ge=1, description="noisy copies of a prototype in L_Aug")
    pfa_scope: guide.Scope = Field(default="own", description="copies of the own class, or of all")
    proto_mode: guide.Mode = Field(default="weighted", description="weighted: class means, Eq. 2")
    clusters: int = Field(default=3, ge=1, description="of each class, in uniform and multi")
    phase_epochs: exchange.PhaseEpochs = "half"

    def epochs_per_round(self, training: Training) -> int:
        return exchange.phase_total(training, self.phase_epochs)

    @property
    def exchanges(self) -> int:
        return 2

    @property
    def needs(self) -> tuple[Need, ...]:
        return self.base.needs

    @property
    def payload(self) -> Payload:
        up, down, maybe = self.base.payload
        return Payload((*up, guide.GUIDE), (*down, guide.GUIDE), maybe)

    def warning(self, net: Net) -> str:
        return self.base.warning(net)

    def adapt(self, net: Net, image: ImageShape) -> Net:
        return self.base.adapt(net, image)

    def init_server(self, site: Site) -> exchange.WrappingServer:
        return exchange.wrap_state(self.base.init_server(site))

    def init_client(self, site: Site) -> Any:
        return self.base.init_client(site)

    def publish(self, server: exchange.WrappingServer) -> Message:
        return self.base.publish(exchange.unwrap_state(server))

    def send(
        self,
        site: Site,
        server: exchange.WrappingServer,
        to: Sequence[ClientId],
        step: RoundContext,
    ) -> dict[ClientId, Message]:
        if step.exchange == 0:
            return self.base.send(site, exchange.unwrap_state(server), to, step)
        return exchange.exchange_models(site, server.pending_replies, to, step, (guide.GUIDE,))

    def train(
        self, site: Site, inbox: Message, state: Any, step: RoundContext
    ) -> tuple[Message, Any]:
        now = exchange.phase_site(site, step, self.phase_epochs)
        if step.exchange == 1:
            return super().train(now, inbox, state, step)
        reply, state = self.base.train(now, inbox, state, step)
        exchange.check_complete_model(site, reply.model)
        protos = guide.pgct_prototypes(self.proto_mode, self.clusters, site, reply.model, step)
        return replace(reply, extras={**reply.extras, guide.GUIDE: protos}), state

    def reply_schema(self, site: Site, inbox: Message, step: RoundContext) -> Message:
        table = guide.pgct_prototype_template(self.proto_mode, self.clusters, site)
        return exchange.exchange_reply_schema(self.base, site, inbox, step, {guide.GUIDE: table})

    def loss(
        self, site: Site, inbox: Message, state: Any, model: Model, batch: TrainingBatch
    ) -> Tensor:
        out, protos = (
            site.forward_train(model, batch.x),
            cast(Prototypes, inbox.extras[guide.GUIDE]),
        )
        total = nn.functional.cross_entropy(out.logits, batch.y)
        if self.alpha:
            total = total + self.alpha * prototype_contrastive(out.z, batch.y, protos, self.tau)
        if self.lam:
            near = guide.repeat_class_rows(
                batch.y, protos, site.classes, self.pfa_scope, self.n_aug
            )
            near = guide.add_noise(near, self.eps, site, batch)
            total = total + self.lam * guide.augmented_loss(model, out.z, batch.y, near, protos)
        return total

    def merge(
        self,
        site: Site,
        server: exchange.WrappingServer,
        replies: Mapping[ClientId, Message],
        step: RoundContext,
    ) -> exchange.WrappingServer:
        if step.exchange == 0:
            return replace(server, pending_replies=dict(replies))
        state, told = (
            exchange.unwrap_state(server),
            exchange.with_retrained_models(server.pending_replies, replies),
        )
        return exchange.wrap_state(self.base.merge(site, state, told, step._replace(exchange=0)))

    def predict(self, site: Site, inbox: Message, state: Any, x: Tensor) -> Tensor:
        return self.base.predict(site, inbox, state, x)

    def auxiliary_predictions(
        self, site: Site, inbox: Message, state: Any, x: Tensor
    ) -> dict[str, Tensor]:
        return self.base.auxiliary_predictions(site, inbox, state, x)
