"""FedBN: batch normalisation stays at its client (Li et al., ICLR 2021, Algorithm 1).

Which layers are private -> batch_norm_names; local training with them -> train; the mean of all
other layers -> merge, as in FedAvg.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch.nn.modules.batchnorm import _BatchNorm

from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, ServerState, reply_from_fit
from protofed.core.model import Model, Net
from protofed.core.site import RoundContext, Site


@dataclass(frozen=True)
class FedBN(Method[ServerState, Model]):
    """FedAvg of everything except the batch-norm layers, which each client keeps.

    Domains differ most in their feature statistics, so a client's own batch norm adapts the shared
    layers to its domain. All other weights travel up and down; weights and statistics of batch norm
    are client state. Each client is scored with its own layers in the shared model (`personal`).
    """

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
        start, private = received.model | state, batch_norm_names(site.net)
        fitted = self.local_fit(site, received, state, context, start=start)
        model, reply = fitted.trained, reply_from_fit(site, fitted)
        return replace(reply, model=model.without(*private)), model.only(*private)

    def inference_model(self, site: Site, received: Message, state: Model) -> Model:
        return received.model | state


def batch_norm_names(net: Net) -> list[str]:
    """The module paths of a net's batch-norm layers, for `Model.only` and `Model.without`.

    Empty if the net has none; then FedBN equals FedAvg.
    """
    return [path for path, module in net.named_modules() if isinstance(module, _BatchNorm)]
