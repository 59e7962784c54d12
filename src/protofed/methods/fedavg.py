"""FedAvg: average what the clients trained (McMahan et al., AISTATS 2017).

All of it is in the defaults of `Method`: local SGD -> loss, train; the weighted mean -> merge.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from protofed.core.method import Method, MethodInfo


@dataclass(frozen=True)
class FedAvg(Method):
    """Train locally and average the models by number of examples, batch-norm buffers included.

    Each round the server sends the global model, every chosen client trains it on its own images,
    and the server replaces it with the mean of what comes back. The model travels in both
    directions; clients keep no state. Every other method here is FedAvg with some hooks overridden.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedAvg",
        title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
        venue="AISTATS",
        year=2017,
        link="arXiv:1602.05629",
    )
