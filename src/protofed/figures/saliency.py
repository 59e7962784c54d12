"""Grad-CAM: where in an image a net saw what speaks for a class (Selvaraju et al., ICCV 2017)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from protofed.core.errors import ProtofedError
from protofed.core.model import Model, Net, NetOutput


def grad_cam(net: Net, model: Model, x: Tensor, labels: Tensor) -> Tensor:
    """The heat [B, side, side] from 0 to 1 of a class [B] each in images [B, channels, side, side].

    The classes are told, as a method's prediction need not be the net's own best score.
    """
    maps: list[Tensor] = []

    def cut(layer: nn.Module, given: object, out: Tensor) -> Tensor:
        maps.append(out.detach().requires_grad_())  # gradients are wanted from here on only
        return maps[-1]

    handle = last_convolution(net).register_forward_hook(cut)
    net.eval()
    try:
        state = {**model.weights, **model.buffers}
        out: NetOutput = functional_call(net, state, (x,), strict=True)
    finally:
        handle.remove()
    spoken = out.logits.gather(1, labels[:, None])
    (slopes,) = torch.autograd.grad(spoken.sum(), maps[-1])
    return heat_from_gradients(maps[-1].detach(), slopes, x.shape[-1])


def heat_from_gradients(maps: Tensor, slopes: Tensor, side: int) -> Tensor:
    """Maps [B, K, h, w] summed with their mean slopes as weights; what speaks for, scaled to 1."""
    weights = slopes.mean((2, 3), keepdim=True)
    small = F.relu((weights * maps).sum(1, keepdim=True))
    heat = F.interpolate(small, (side, side), mode="bilinear", align_corners=False)[:, 0]
    least, most = heat.amin((1, 2), keepdim=True), heat.amax((1, 2), keepdim=True)
    # A map that is flat says nothing: it becomes zero.
    return (heat - least) / torch.where(most > least, most - least, 1)


def last_convolution(net: Net) -> nn.Conv2d:
    """The convolution nearest to the features; not one of single pixels, as in a shortcut."""
    found = [layer for layer in net.encoder.modules() if isinstance(layer, nn.Conv2d)]
    if not found:
        raise ProtofedError(
            "Grad-CAM needs a net with convolutions; this one has none\n"
            "run the method with another --net, for example moon-cnn"
        )
    return next((layer for layer in reversed(found) if layer.kernel_size != (1, 1)), found[-1])
