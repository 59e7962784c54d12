"""Every method by its name on the command line: one file per paper, in alphabetical order."""

from __future__ import annotations

from protofed.core.method import AnyMethod
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedbn import FedBN
from protofed.methods.feddc import FedDC
from protofed.methods.feddyn import FedDyn
from protofed.methods.fedexg import FedExg
from protofed.methods.fedga import FedGA
from protofed.methods.fedgh import FedGH
from protofed.methods.fedlsa import FedLSA
from protofed.methods.fedmd import FedMD
from protofed.methods.fedme import FedMe
from protofed.methods.fedmlp import FedMLP
from protofed.methods.fedopt import FedOPT
from protofed.methods.fedproc import FedProc
from protofed.methods.fedproto import FedProto
from protofed.methods.fedprox import FedProx
from protofed.methods.fedseproto import FedSeProto
from protofed.methods.fedsr import FedSR
from protofed.methods.fedtgp import FedTGP
from protofed.methods.fpl import FPL
from protofed.methods.local import Local
from protofed.methods.moon import MOON
from protofed.methods.pgct import PGCT
from protofed.methods.scaffold import SCAFFOLD

METHODS: dict[str, type[AnyMethod]] = {
    "fedavg": FedAvg,
    "fedbn": FedBN,
    "feddc": FedDC,
    "feddyn": FedDyn,
    "fedexg": FedExg,
    "fedga": FedGA,
    "fedgh": FedGH,
    "fedlsa": FedLSA,
    "fedmd": FedMD,
    "fedme": FedMe,
    "fedmlp": FedMLP,
    "fedopt": FedOPT,
    "fedproc": FedProc,
    "fedproto": FedProto,
    "fedprox": FedProx,
    "fedseproto": FedSeProto,
    "fedsr": FedSR,
    "fedtgp": FedTGP,
    "fpl": FPL,
    "local": Local,
    "moon": MOON,
    "pgct": PGCT,
    "scaffold": SCAFFOLD,
}
