"""bfloat16 is the arithmetic of encoders alone: all that is kept, averaged or sent is float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.model import ImageShape, Net, NetOutput, model_from_net, supports_bfloat16
from protofed.core.rng import rng
from protofed.core.site import RoundContext
from protofed.engines.local_engine import LocalEngine
from protofed.errors import ProtofedError
from protofed.federation.round import run_round
from protofed.methods import METHODS
from protofed.methods.fpl import FPL
from protofed.nets import build_net
from protofed.testing.method_checks import toy_net, toy_sites

IMAGE = ImageShape(3, 16)
ROUNDS = 2


def bfloat16_net(name: str) -> Net:
    net = build_net(name, 4, IMAGE, seed=0)
    net.precision = "bfloat16"
    return net


@pytest.mark.parametrize("name", ["lsa-cnn", "resnet10", "moon-cnn", "moon-mlp"])
def test_only_the_encoder_is_rounded(name: str) -> None:
    net, x = bfloat16_net(name).eval(), torch.randn(6, *IMAGE.sizes, generator=rng("images"))
    with torch.no_grad():
        encoded, out = net.encode(x), net(x)
        net.precision = "float32"
        exact = net.encode(x)
        assert torch.equal(net.head(net.neck(encoded)), out.logits)  # which are float32 sums
    assert encoded.dtype == out.z.dtype == out.logits.dtype == torch.float32
    assert torch.equal(encoded, encoded.bfloat16().float()) or name == "resnet10"  # a mean ends it
    assert not torch.equal(encoded, exact)
    assert (encoded - exact).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize("name", ["lsa-cnn", "resnet10"])
def test_gradients_are_float32_and_point_the_same_way(name: str) -> None:
    net, x = bfloat16_net(name), torch.randn(32, *IMAGE.sizes, generator=rng("images"))
    y = torch.arange(32) % 4

    def gradient() -> Tensor:
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(x).logits, y).backward()
        grads = [leaf.grad for leaf in net.parameters() if leaf.grad is not None]
        assert {grad.dtype for grad in grads} == {torch.float32}
        return torch.cat([grad.flatten() for grad in grads])

    rounded = gradient()
    assert torch.equal(rounded, gradient())  # the same bits each time
    net.precision = "float32"
    exact = gradient()
    assert torch.cosine_similarity(rounded, exact, dim=0) > 0.95


def played(method: AnyMethod) -> tuple[object, list[Message]]:
    """The server's state after some rounds in bfloat16, and all replies."""
    server, sites = toy_sites(method)
    for site in (server, *sites.values()):
        site.net.precision = "bfloat16"
    seen: list[Message] = []

    class Listening(LocalEngine[object, object]):  # type: ignore[type-var]
        def exchange(self, messages, context):  # type: ignore[no-untyped-def]
            replies = super().exchange(messages, context)
            seen.extend(reply for reply in replies.values() if isinstance(reply, Message))
            return replies

    engine = Listening(method, sites)
    state = method.init_server(server)
    for number in range(ROUNDS):
        context = RoundContext(number, ROUNDS)
        state = run_round(method, server, state, engine, sorted(sites), context)
    return state, seen


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_and_sends_float32(name: str) -> None:
    method = METHODS[name]()
    state, replies = played(method)
    assert replies
    for kept in (state, *replies):
        floats = [leaf for leaf in tree.leaves(kept) if leaf.is_floating_point()]
        assert {leaf.dtype for leaf in floats} <= {torch.float32, torch.float64}
        assert all(leaf.isfinite().all() for leaf in floats)
    assert tree.equal(state, played(method)[0])


def test_prototypes_of_both_kinds_are_means_in_float32() -> None:
    for collect in ("post", "online"):
        _, replies = played(FPL(collect=collect))
        tables = [reply.protos for reply in replies if reply.protos]
        assert tables
        assert all(table.vectors.dtype == torch.float32 for table in tables)


class Bypassing(Net):
    """A net whose forward pass does not go through `encode`."""

    def forward(self, x: Tensor) -> NetOutput:
        z = self.neck(self.encoder(x))
        return NetOutput(z, self.head(z))


def test_a_net_that_would_ignore_the_precision_is_refused() -> None:
    plain = toy_net()
    net = Bypassing(plain.encoder, plain.neck, plain.head, plain.width)
    before = model_from_net(net)
    net.set_precision("float32", ImageShape(3, 8))
    with pytest.raises(
        ProtofedError, match=r"Bypassing computes its encoder in float32\ncall self"
    ):
        net.set_precision("bfloat16", ImageShape(3, 8))
    assert tree.equal(model_from_net(net), before)


def test_what_a_processor_can_is_read_off_its_instruction_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for able, expected in (
        ({"avx2": True, "avx512_bf16": False, "amx_bf16": False}, False),
        ({"avx2": True, "avx512_bf16": True}, True),
        ({"cpu_name": "EPYC", "amx_bf16": True}, True),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda able=able: able)
        assert supports_bfloat16("cpu") is expected
    assert not supports_bfloat16("mps")
