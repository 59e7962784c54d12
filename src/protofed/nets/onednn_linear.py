"""Wide linear layers by oneDNN, whose matrix products use all registers of every x86 CPU.

In float32 torch takes the products of linear layers from MKL, which leaves the widest registers of
CPUs by other makers idle; there oneDNN, which computes the convolutions anyway, is almost twice as
fast. It rounds differently.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEAST_WEIGHTS = 2**17  # below, bringing the input into oneDNN's form costs what its product saves


class OneDnnLinear(nn.Linear):
    """Replaces a linear layer, with its weight and bias under the same names.

    Its output can be differentiated once. Inputs that are no rows of float32 on the CPU, and what
    is exported, take torch's way.
    """

    def __init__(self, plain: nn.Linear):
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias

    def forward(self, x: Tensor) -> Tensor:
        if not _suits(x, self.weight):
            return super().forward(x)
        out: Tensor = torch.ops.aten.mkldnn_linear(x.to_mkldnn(), self.weight, self.bias)
        return out.to_dense()


def use_onednn_linear(net: nn.Module) -> int:
    """Replace, in place, the linear layers of a net that gain by it; returns how many.

    Weights are shared with the replaced layers, so no number changes but by rounding.
    """
    found = [
        (parent, name, part)
        for parent in net.modules()
        for name, part in parent.named_children()
        if type(part) is nn.Linear and part.weight.numel() >= LEAST_WEIGHTS
    ]
    for parent, name, part in found:
        setattr(parent, name, OneDnnLinear(part))
    return len(found)


def _suits(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN takes this input; not in bfloat16, where torch's way is oneDNN's."""
    if torch.compiler.is_compiling():
        return False  # before anything is asked of a batch whose length is left open
    rows = x.dim() == 2 and len(x) > 0 and x.device.type == "cpu"
    plain = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return rows and plain and torch.backends.mkldnn.is_available()
