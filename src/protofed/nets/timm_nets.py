"""The nets of the package timm, where it is installed, as ``timm:NAME``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import nn

from protofed.core.model import ImageShape, Net, net_from_module
from protofed.errors import ProtofedError

TIMM = "timm:"


def timm_builder(name: str) -> Callable[[int, ImageShape], Net]:
    """What builds a net of timm, without any weights; raises where timm cannot be imported.

    Its last linear layer becomes the head, everything before it the encoder. timm's own download of
    weights is not used: name a file of them as `pretrained`.
    """
    try:
        timm: Any = importlib.import_module("timm")
    except ImportError as fault:
        raise ProtofedError(
            f"net: {TIMM}{name} needs the package timm, which cannot be imported ({fault})\n"
            "to install: pip install timm; or choose a net of protofed's own"
        ) from fault
    if not timm.is_model(name):
        raise ProtofedError(f"net: timm knows no net '{name}'; timm.list_models() names them")

    def build(classes: int, image: ImageShape) -> Net:
        module: nn.Module = timm.create_model(name, num_classes=classes, in_chans=image.channels)
        head = module.get_classifier()  # type: ignore[operator]  # of timm's models alone
        places = [place for place, part in module.named_modules() if part is head]
        if not places:
            raise ProtofedError(f"net: {TIMM}{name} has no single layer that classifies")
        return net_from_module(module, head=places[0])

    return build
