"""Wide linear layers by oneDNN: torch's own numbers up to rounding, and torch's way elsewhere."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from protofed.core import tree
from protofed.core.model import ImageShape, model_from_net
from protofed.core.rng import rng
from protofed.nets import NETS, build_net
from protofed.nets.onednn_linear import LEAST_WEIGHTS, OneDnnLinear, use_onednn_linear

CIFAR = ImageShape(3, 32)


def pair(rows: int, columns: int, bias: bool = True) -> tuple[nn.Linear, OneDnnLinear]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = nn.Linear(rows, columns, bias=bias)
    return plain, OneDnnLinear(copy.deepcopy(plain))


def passes(layer: nn.Linear, x: Tensor, grad: Tensor) -> list[Tensor]:
    """The output of a layer, and the gradients of its input and of its weights."""
    x = x.clone().requires_grad_()
    out = layer(x)
    out.backward(grad)
    return [
        out.detach(),
        *(leaf.grad for leaf in (x, *layer.parameters()) if leaf.grad is not None),
    ]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("count", "rows", "columns"), [(64, 512, 512), (1, 700, 300), (7, 2048, 64)]
)
def test_outputs_and_gradients_are_torchs_up_to_rounding(
    count: int, rows: int, columns: int, bias: bool
) -> None:
    plain, fast = pair(rows, columns, bias)
    x, grad = (torch.randn(count, n, generator=rng("x", n)) for n in (rows, columns))
    exact = passes(copy.deepcopy(plain).double(), x.double(), grad.double())
    found = passes(fast, x, grad)
    assert len(found) == len(exact) == 3 + bias
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 1e-5 * other.norm()
    fast.zero_grad()
    assert all(map(torch.equal, found, passes(fast, x, grad)))  # the same bits each time


def test_the_same_input_gives_the_same_bits_in_any_memory_order() -> None:
    _, fast = pair(600, 400)
    x = torch.randn(600, 50, generator=rng("order"))
    assert torch.equal(fast(x.T), fast(x.T.contiguous()))


@pytest.mark.parametrize("x", [torch.zeros(0, 512), torch.ones(2, 3, 512), torch.ones(512)])
def test_other_inputs_take_torchs_way(x: Tensor) -> None:
    plain, fast = pair(512, 512)
    assert torch.equal(fast(x), plain(x))
    assert torch.equal(fast.double()(x.double()), plain.double()(x.double()))


@pytest.mark.parametrize("name", NETS)
def test_a_net_keeps_its_weights_and_their_names(name: str) -> None:
    plain, fast = (build_net(name, 10, CIFAR, seed=0) for _ in range(2))
    wide = [p for p in plain.modules() if isinstance(p, nn.Linear)]
    expected = sum(part.weight.numel() >= LEAST_WEIGHTS for part in wide)
    assert use_onednn_linear(fast) == expected
    assert use_onednn_linear(fast) == 0
    assert tree.equal(model_from_net(fast), model_from_net(plain))
    x = torch.randn(8, *CIFAR.sizes, generator=rng("images"))
    one, other = fast.eval()(x), plain.eval()(x)
    assert torch.allclose(one.logits, other.logits, rtol=1e-3, atol=1e-4)
    again = pickle.loads(pickle.dumps(fast))
    assert torch.equal(again(x).logits, one.logits)
