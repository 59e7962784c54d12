"""FedAvg: average what the clients trained. All of it stands in `Method`'s defaults."""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from protofed.core.method import Method, MethodInfo


@dataclass(frozen=True)
class FedAvg(Method):
    """Train locally, average weights and batch-norm buffers by number of examples."""

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedAvg",
        title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
        venue="AISTATS",
        year=2017,
        link="arXiv:1602.05629",
    )
