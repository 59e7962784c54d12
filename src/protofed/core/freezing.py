"""Which parts of a net are trained; all others are constants that no model and no message holds."""

from __future__ import annotations

import copy
import re

import torch
from torch import Tensor, nn

from protofed.core.model import Net
from protofed.errors import ProtofedError

ALL, HEAD, NECK = "all", "head", "neck"
AT_ONCE = 64  # inputs; a large net's maps of a whole scoring batch would not fit into memory
LAST = re.compile(r"last:([1-9]\d{0,3})")


class FrozenPart(nn.Module):
    """Stands in a net for a part that is not trained; computes what the part computes.

    The part is no submodule, so its weights and statistics are in no `Model`: they are neither
    trained nor averaged, and do not travel. It stays in evaluation mode, so batch norm keeps its
    statistics and normalises with them also while the rest is trained.
    """

    part: nn.Module

    def __init__(self, part: nn.Module):
        super().__init__()
        part.requires_grad_(False).eval()
        object.__setattr__(self, "part", part)  # nn.Module would make it a submodule

    def forward(self, x: Tensor) -> Tensor:
        weight = next(self.part.parameters(), x)
        if weight.device != x.device:  # a net's other weights move with the model
            self.part.to(x.device)
        parts = [self.part(some) for some in x.split(AT_ONCE)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def is_train_rule(text: str) -> bool:
    """Whether a text says what is trained: all, head, neck, or last: and a number."""
    return text in (ALL, HEAD, NECK) or bool(LAST.fullmatch(text))


def freezes_encoder(rule: str) -> bool:
    """Whether nothing of the encoder is trained."""
    return rule in (HEAD, NECK)


def freeze(net: Net, rule: str) -> None:
    """Freeze, in place, what a rule leaves out of training.

    "neck" trains neck and head, "head" the head alone; "last:N" trains also the last N blocks of
    the encoder. What a method adds to the net later is always trained.
    """
    if rule == ALL:
        return
    if last := LAST.fullmatch(rule):
        _freeze_all_but(net.encoder, int(last[1]))
        return
    net.encoder = FrozenPart(net.encoder)
    if rule == HEAD and not isinstance(net.neck, nn.Identity):
        net.neck = FrozenPart(net.neck)


def features_are_fixed(net: Net) -> bool:
    """Whether nothing is trained before the features z, so that no loss can move them."""
    before = (*net.encoder.parameters(), *net.neck.parameters())
    return isinstance(net.encoder, FrozenPart) and not before


def _freeze_all_but(encoder: nn.Module, last: int) -> None:
    """Freeze all blocks of an encoder but the last ones, in the order in which it names them."""
    blocks = [place for place in _blocks(encoder) if any(True for _ in _module(place).parameters())]
    if last >= len(blocks):
        raise ProtofedError(
            f"train: the encoder has only {len(blocks)} blocks, so last:{last} freezes nothing\n"
            "name fewer, or train all"
        )
    for parent, name in blocks[:-last]:
        setattr(parent, name, FrozenPart(parent.get_submodule(name)))


def _module(place: tuple[nn.Module, str]) -> nn.Module:
    return place[0].get_submodule(place[1])


def _blocks(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """The children of a module, and the children of plain lists among them, with their parents."""
    found = []
    for name, child in module.named_children():
        stage = type(child) in (nn.Sequential, nn.ModuleList)
        found += _blocks(child) if stage else [(module, name)]
    return found


def whole_net(net: Net) -> Net:
    """A copy of a net in which the frozen parts are submodules again, for export and explanation.

    Its parts have the names that they have in a net that is trained as a whole.
    """
    made = copy.deepcopy(net)
    for parent in list(made.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, FrozenPart):
                setattr(parent, name, child.part)
    return made.train(net.training)


def frozen_weights(net: Net) -> dict[str, Tensor]:
    """The weights and statistics of a net's frozen parts, by the names that they have in it."""
    frozen = {n: part.part for n, part in net.named_modules() if isinstance(part, FrozenPart)}
    return {
        f"{place}.{name}": one
        for place, part in frozen.items()
        for name, one in part.state_dict().items()
    }
