"""Bytes from anywhere: truncated, damaged, forged and hostile ones end in a ProtofedError."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.core import tree
from protofed.core.reply_validation import decode_reply, rejection_reason
from protofed.core.serialization import LAYOUT, MAGIC, SEAL, pack_tree, unpack_tree
from protofed.errors import ProtofedError
from tests.core.replies import NAMES, letters

PARTS = 64


def sealed(content: bytes) -> bytes:
    """Any content under a right seal, as a forger can make it."""
    return MAGIC + hashlib.sha256(content).digest() + content


def forged(layout: object, arrays: dict[str, np.ndarray[Any, Any]] | None = None) -> bytes:
    """A right file around any layout."""
    text = layout if isinstance(layout, bytes) else json.dumps(layout).encode()
    told = {LAYOUT: np.frombuffer(text, dtype=np.uint8)}
    return sealed(safetensors.numpy.save({**(arrays or {}), **told}))


def headed(header: object, body: bytes = b"") -> bytes:
    """A safetensors file with any header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@pytest.mark.parametrize("name", NAMES)
def test_honest_mail_comes_through_bit_for_bit_within_its_limit(name: str) -> None:
    for reply, held in letters(name):
        blob = pack_tree(reply)
        back = decode_reply(blob, held)
        assert tree.equal(reply, back)
        assert rejection_reason(back, held) == ""
        assert pack_tree(back) == blob
        with pytest.raises(ProtofedError, match="at most"):
            unpack_tree(blob, most=len(blob) - 1)


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.canary}",)


def test_no_payload_is_run_and_none_is_read_in_part(tmp_path: Path) -> None:
    """Three kinds, cut at every 64th: pickles with a canary, garbage, and honest mail."""
    canary = tmp_path / "canary"
    bomb = pickle.dumps(Bomb(canary))
    pickle.loads(bomb)
    assert canary.exists(), "else the bomb proves nothing"
    canary.unlink()
    honest, dice = pack_tree(letters("fpl")[0].reply), random.Random(0)
    kinds = {
        "pickle": bomb + pickle.dumps(list(range(1000))),
        "garbage": dice.randbytes(5000),
        "honest": honest,
    }
    refused = 0
    for content in kinds.values():
        for part in range(PARTS):
            cut = content[: len(content) * part // PARTS]
            for blob in (cut, sealed(cut)) if content is not honest else (cut,):
                with pytest.raises(ProtofedError, match="not a packed tree"):
                    unpack_tree(blob)
            refused += 1
    assert refused == 3 * PARTS
    with pytest.raises(ProtofedError):
        unpack_tree(forged(["value", 1], {"0": np.frombuffer(bomb, np.uint8)})[:-1])
    assert not canary.exists()


def test_a_seal_finds_every_flipped_bit() -> None:
    honest, dice = pack_tree(letters("fedavg")[0].reply), random.Random(1)
    for _ in range(1000):
        damaged, place = bytearray(honest), dice.randrange(len(honest))
        damaged[place] ^= 1 << dice.randrange(8)
        with pytest.raises(ProtofedError, match="not a packed tree"):
            unpack_tree(bytes(damaged))


def test_forged_files_under_a_right_seal_never_raise_anything_else() -> None:
    """One byte of the content changed, sealed anew: read as some tree, or refused."""
    (reply, held), dice = letters("fpl")[0], random.Random(2)
    content, outcomes = pack_tree(reply)[SEAL:], {"read": 0, "refused": 0}
    header = 8 + int.from_bytes(content[:8], "little")
    layout = content.index(b'["protofed')
    for number in range(600):
        damaged = bytearray(content)
        edges = [(0, header), (layout, len(content)), (0, len(content))][number % 3]
        damaged[dice.randrange(*edges)] = dice.randrange(256)
        try:
            rejection_reason(decode_reply(sealed(bytes(damaged)), held), held)
            outcomes["read"] += 1
        except ProtofedError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50


LAYOUTS: dict[str, object] = {
    "no list": 3,
    "too short": ["dict"],
    "unknown node": ["os.system", [["command", ["value", "true"]]]],
    "builtin": ["builtins.eval", [["source", ["value", "1"]]]],
    "no such tensor": ["tensor", "7"],
    "list for a tensor": ["tensor", ["0"]],
    "unhashable name": ["dict", [[["a"], ["value", 1]]]],
    "table as a value": ["value", {"a": 1}],
    "wrong field": ["protofed.core.message.Message", [["evil", ["value", 1]]]],
    "field missing": ["protofed.core.prototypes.Prototypes", []],
    "number as a name": ["protofed.core.message.Message", [[1, ["value", 1]]]],
    "content is a number": ["dict", 5],
    "deep": b'["list", [[0, ' * 3000 + b'["value", 1]' + b"]]]" * 3000,
    "deep and open": b"[" * 1_000_000,
    "not text": b"\xff\xfe",
    "long number": b'["value", ' + b"9" * 100_000 + b"]",
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_forged_layout_is_refused(case: str) -> None:
    with pytest.raises(ProtofedError, match="not a packed tree"):
        unpack_tree(forged(LAYOUTS[case], {"0": np.zeros(3)}))


HEADERS: dict[str, bytes] = {
    "nothing": b"",
    "longer than the file": struct.pack("<Q", 10**12) + b"{}",
    "longer than any number": b"\xff" * 8 + b"{}",
    "no tensors": headed({}),
    "no layout": safetensors.numpy.save({"0": np.zeros(3)}),
    "no JSON": struct.pack("<Q", 4) + b"{{{{",
    "deep": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "not an object": headed([1, 2]),
    "beyond the end": headed({LAYOUT: {"dtype": "U8", "shape": [99], "data_offsets": [0, 99]}}),
    "overflow": headed({"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}),
    "negative": headed({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
    "unknown type": headed({"a": {"dtype": "EVIL", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    "overlap": headed(
        {n: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for n in ("a", LAYOUT)}, b"1234"
    ),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_forged_header_is_refused(case: str) -> None:
    for blob in (sealed(HEADERS[case]), HEADERS[case]):
        with pytest.raises(ProtofedError, match="not a packed tree"):
            unpack_tree(blob)


CLAIMS = """
import resource, struct, json, hashlib
from protofed.errors import ProtofedError
from protofed.core.serialization import MAGIC, pack_tree, unpack_tree
import torch
unpack_tree(pack_tree({"warm": torch.zeros(3)}))
large = pack_tree({"large": torch.zeros(2_000_000)})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
refused = 0
for dtype, width in (("F32", 4), ("F64", 8), ("U8", 1), ("I64", 8)):
    for shape in ([10**12], [10**6, 10**6], [1, 10**12, 1]):
        for end in (10**12 * width, 4):
            entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}
            text = json.dumps({"0": entry, "layout": entry}).encode()
            for length in (len(text), 10**12):
                content = struct.pack("<Q", length) + text + b"1234"
                try:
                    unpack_tree(MAGIC + hashlib.sha256(content).digest() + content)
                except ProtofedError:
                    refused += 1
try:
    unpack_tree(large, most=1000)
except ProtofedError:
    refused += 1
print(refused, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_claim_of_a_million_million_numbers_takes_no_memory() -> None:
    done = subprocess.run([sys.executable, "-c", CLAIMS], capture_output=True, text=True)
    refused, grown = map(int, done.stdout.split())
    assert refused == 4 * 3 * 2 * 2 + 1
    assert grown < 50 * 1024, f"{grown} KiB"


def test_what_has_no_seal_or_that_of_another_version_is_refused() -> None:
    reply = letters("fpl")[0].reply
    with pytest.raises(ProtofedError, match="does not begin"):
        unpack_tree(pack_tree(reply)[SEAL:])
    newer = MAGIC[:-1] + b"\x02" + pack_tree(reply)[len(MAGIC) :]
    with pytest.raises(ProtofedError, match="newer version"):
        unpack_tree(newer)


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_refused(content: bytes, seal: bool) -> None:
    with pytest.raises(ProtofedError):
        unpack_tree(sealed(content) if seal else content)


def test_no_dtype_or_shape_loses_a_bit() -> None:
    things = {
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 4),
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "whole": torch.tensor([2**62, -1]),
        "double": torch.tensor(0.1, dtype=torch.float64),
        "truth": torch.tensor([True, False]),
    }
    back = unpack_tree(pack_tree(things))
    for name, thing in things.items():
        assert back[name].dtype == thing.dtype
        assert back[name].shape == thing.shape
        assert back[name].contiguous().numpy().tobytes() == thing.contiguous().numpy().tobytes()


def test_a_tensor_that_is_named_twice_is_refused() -> None:
    """One of four megabytes, named four hundred times, would be copied as often."""
    part = torch.zeros(1000)
    arrays: dict[str, Any] = {"0": part.numpy()}
    names = [[str(n), ["tensor", "0"]] for n in range(2)]
    layout = json.dumps(["dict", names]).encode()
    arrays["layout"] = np.frombuffer(layout, dtype=np.uint8)
    content = safetensors.numpy.save(arrays)
    with pytest.raises(ProtofedError, match="not a packed tree"):
        unpack_tree(MAGIC + hashlib.sha256(content).digest() + content)


def test_a_long_arrangement_is_refused_of_strangers() -> None:
    blob = pack_tree({str(n): n for n in range(300_000)})
    assert len(unpack_tree(blob)) == 300_000
    with pytest.raises(ProtofedError, match="an arrangement of"):
        unpack_tree(blob, most=1 << 30)
