"""FedBN: batch normalisation stays at home (Li et al., ICLR 2021, Algorithm 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, ServerState
from protofed.core.model import Model, Net
from protofed.core.site import RoundContext, Site


@dataclass(frozen=True)
class FedBN(Method[ServerState, Model]):
    """Federated averaging of all but the batch-norm layers, which each client keeps."""

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedBN",
        title="FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
        venue="ICLR",
        year=2021,
        link="arXiv:2102.07623",
    )

    @property
    def personal(self) -> bool:
        return True

    def warning(self, net: Net) -> str:
        return (
            ""
            if batch_norm_names(net)
            else "the net has no batch norm to keep: FedBN is FedAvg here"
        )

    def init_server(self, site: Site) -> ServerState:
        return ServerState(site.initial_model().without(*batch_norm_names(site.net)))

    def init_client(self, site: Site) -> Model:
        return site.initial_model().only(*batch_norm_names(site.net))

    def train(
        self, site: Site, received: Message, state: Model, context: RoundContext
    ) -> tuple[Message, Model]:
        mine = replace(received, model=received.model | state)
        reply, _ = super().train(site, mine, state, context)
        private = batch_norm_names(site.net)
        return replace(reply, model=reply.model.without(*private)), reply.model.only(*private)

    def predict(self, site: Site, received: Message, state: Model, x: Tensor) -> Tensor:
        return site.forward_eval(received.model | state, x).logits


def batch_norm_names(net: Net) -> list[str]:
    """The module paths of a net's batch-norm layers."""
    return [path for path, module in net.named_modules() if isinstance(module, _BatchNorm)]
