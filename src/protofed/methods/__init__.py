"""Every method by its name on the command line: one file a paper, alphabetical."""

from __future__ import annotations

from protofed.core.method import AnyMethod
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedbn import FedBN
from protofed.methods.fedexg import FedExg
from protofed.methods.fedlsa import FedLSA
from protofed.methods.fedmlp import FedMLP
from protofed.methods.fedproc import FedProc
from protofed.methods.fedproto import FedProto
from protofed.methods.fedprox import FedProx
from protofed.methods.fedseproto import FedSeProto
from protofed.methods.fedtgp import FedTGP
from protofed.methods.fpl import FPL
from protofed.methods.local import Local
from protofed.methods.pgct import PGCT

METHODS: dict[str, type[AnyMethod]] = {
    "fedavg": FedAvg,
    "fedbn": FedBN,
    "fedexg": FedExg,
    "fedlsa": FedLSA,
    "fedmlp": FedMLP,
    "fedproc": FedProc,
    "fedproto": FedProto,
    "fedprox": FedProx,
    "fedseproto": FedSeProto,
    "fedtgp": FedTGP,
    "fpl": FPL,
    "local": Local,
    "pgct": PGCT,
}
