"""Every method by its name on the command line: one file a paper, alphabetical."""

from __future__ import annotations

from protofed.core.method import AnyMethod
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedbn import FedBN
from protofed.methods.fedprox import FedProx
from protofed.methods.local import Local

METHODS: dict[str, type[AnyMethod]] = {
    "fedavg": FedAvg,
    "fedbn": FedBN,
    "fedprox": FedProx,
    "local": Local,
}
