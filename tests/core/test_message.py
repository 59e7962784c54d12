"""What a message weighs is what its tensors weigh, part by part."""

from __future__ import annotations

import pytest
import torch

from protofed.core import tree
from protofed.core.message import Failure, Message
from protofed.core.method import AnyMethod
from protofed.core.prototypes import class_means
from protofed.core.serialization import pack_tree, unpack_tree
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedproto import FedProto
from protofed.methods.scaffold import SCAFFOLD
from tests.methods.playing import play


@pytest.mark.parametrize("method", [FedAvg(), FedProto(), SCAFFOLD()])
def test_the_parts_of_a_reply_add_up_to_its_tensors(method: AnyMethod) -> None:
    for sent, received in play(method, 2).exchanges:
        for message in (*sent.values(), *received.values()):
            total = 0
            for leaf in tree.leaves(message):
                total += leaf.numel() * leaf.element_size()
            assert sum(message.parts.values()) == total
            assert total < len(pack_tree(message)) < total + 20_000  # names and structure


def test_what_is_not_there_is_no_part() -> None:
    assert Message().parts == {}
    assert Message(size=9, metrics={"loss": 1.0}).parts == {}
    protos = class_means(torch.ones(4, 3), torch.tensor([0, 0, 1, 1]))
    both = Message(protos=protos, extras={"gap": torch.ones((), dtype=torch.float64)})
    assert both.parts == {"protos": 2 * 3 * 4 + 2 * 8 + 2 * 8, "gap": 8}


@pytest.mark.parametrize("name", ["model", "protos"])
def test_an_extra_cannot_hide_behind_the_name_of_a_part(name: str) -> None:
    with pytest.raises(ValueError, match="must not be named model or protos"):
        _ = Message(extras={name: torch.ones(1)}).parts


def test_a_failure_survives_the_wire() -> None:
    failure = Failure("was lost", diverged=True)
    assert unpack_tree(pack_tree(failure)) == failure
