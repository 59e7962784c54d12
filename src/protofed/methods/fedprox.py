"""FedProx: keep local training near the global model (Li et al., MLSys 2020, Eq. 2).

The proximal term -> loss; everything else is FedAvg.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, TunedFields
from protofed.core.model import Model
from protofed.core.site import Site, TrainingBatch
from protofed.ops.losses import proximal_term

RETHINK_FACTOR = 0.01  # RethinkFL's code multiplies mu by this without mentioning it


@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg with (mu / 2) ||w - w_global||^2 added to each client's loss.

    The term limits how far a client moves from the model that it received, so clients with unusual
    data disagree less. Only the model travels, and nothing is kept beside the global model.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedProx",
        title="Federated Optimization in Heterogeneous Networks",
        venue="MLSys",
        year=2020,
        link="arXiv:1812.06127",
    )
    tuned: ClassVar[TunedFields] = {"mu": "log:0.001..1"}

    mu: float = Field(default=0.01, ge=0, description="mu: weight of the proximal term")
    rethink_factor: bool = Field(
        default=False, description="use mu / 100, as the code behind FPL's tables does"
    )

    def loss(
        self, site: Site, received: Message, state: None, model: Model, batch: TrainingBatch
    ) -> Tensor:
        mu = self.mu * RETHINK_FACTOR if self.rethink_factor else self.mu
        task = super().loss(site, received, state, model, batch)
        return task + mu * proximal_term(model, received.model)
