"""A tree comes back from its bytes bit for bit, and other bytes never become a tree."""

from __future__ import annotations

import hashlib
import json
import random

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.serialization import MAGIC, pack_tree, unpack_tree
from protofed.errors import ProtofedError

shapes = st.lists(st.integers(0, 4), max_size=3)
tensors = st.builds(
    lambda shape, dtype, seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(
        dtype
    ),
    shapes,
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]),
    st.integers(0, 99),
)
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
models = st.builds(Model, st.dictionaries(st.text(), tensors), st.dictionaries(st.text(), tensors))
trees = st.recursive(
    st.one_of(tensors, plain, models),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(), st.integers(-9, 9)), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(trees)
@settings(max_examples=200, deadline=None)
def test_pack_and_unpack_give_the_same_tree_bit_for_bit(thing: object) -> None:
    assert tree.equal(thing, unpack_tree(pack_tree(thing)))


def test_a_whole_message_survives_the_wire() -> None:
    protos = Prototypes(torch.randn(3, 4), torch.tensor([0, 2, 2]), torch.tensor([5, 1, 9]))
    model = Model({"head.weight": torch.randn(2, 4)}, {"n": torch.tensor(7)})
    sent = Message(model, protos, {"anchors": torch.randn(2, 4).T}, 15, {"loss": 0.25})
    received = unpack_tree(pack_tree(sent))
    assert tree.equal(sent, received)
    assert received.parts == {"model": 2 * 4 * 4 + 8, "protos": 3 * 4 * 4 + 48, "anchors": 32}


@pytest.mark.parametrize("blob", [b"", b"garbage" * 9, pack_tree({"a": torch.ones(9)})[:-3]])
def test_broken_bytes_are_refused(blob: bytes) -> None:
    with pytest.raises(ProtofedError, match="not a packed tree"):
        unpack_tree(blob)


def test_a_payload_cannot_name_a_class_of_its_own_choosing() -> None:
    blob = pack_tree({"a": 1})
    forged = blob.replace(b'["dict", [["a"', b'["evil", [["a"')
    assert forged != blob
    with pytest.raises(ProtofedError, match="not a packed tree"):
        unpack_tree(forged)


def test_an_unregistered_class_is_refused_before_it_is_sent() -> None:
    class Stray(dict[str, int]):
        pass

    with pytest.raises(TypeError, match=r"@tree\.node"):
        pack_tree(Stray(a=1))


def test_a_blob_is_magic_digest_and_a_plain_safetensors_file() -> None:
    blob = pack_tree({"a": torch.arange(3), "b": [1, None]})
    magic, digest, content = blob[:8], blob[8:40], blob[40:]
    assert (magic, digest) == (MAGIC, hashlib.sha256(content).digest())
    tensors = safetensors.torch.load(content)
    layout = json.loads(tensors.pop("layout").numpy().tobytes())
    numbers = ["list", [[0, ["value", 1]], [1, ["value", None]]]]
    assert layout == ["dict", [["a", ["tensor", "0"]], ["b", numbers]]]
    assert torch.equal(tensors["0"], torch.arange(3))


def test_no_flipped_bit_goes_unnoticed() -> None:
    blob, dice = pack_tree(Model({"w": torch.ones(5)})), random.Random(0)
    for place in dice.sample(range(len(blob)), 60):
        spoiled = bytearray(blob)
        spoiled[place] ^= 1 << dice.randrange(8)
        with pytest.raises(ProtofedError, match="not a packed tree"):
            unpack_tree(bytes(spoiled))


def test_more_bytes_than_allowed_are_refused_unread() -> None:
    blob = pack_tree({"w": torch.ones(9)})
    assert tree.equal(unpack_tree(blob, most=len(blob)), {"w": torch.ones(9)})
    with pytest.raises(ProtofedError, match=f"at most {len(blob) - 1} are allowed"):
        unpack_tree(blob, most=len(blob) - 1)
