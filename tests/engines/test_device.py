"""Nothing that a client computes stays behind on the CPU.

There is no other device here, so torch's `meta` stands for one: its tensors have no values, but an
operation that mixes them with the CPU's is refused as on a graphics card. What depends on values
(how many rows are nonzero) is answered with the largest shape it can have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from protofed.core import tree
from protofed.core.method import AnyMethod
from protofed.core.site import SERVER, RoundContext
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import run_round
from protofed.methods import METHODS
from protofed.testing.method_checks import toy_sites

META = torch.device("meta")
aten = torch.ops.aten


def _bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    return torch.empty(minlength, dtype=torch.int64, device=META)


def _unique(x: Tensor, *flags: bool, **more: bool) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)


def _a_number(x: Tensor) -> float | int | bool:
    return {torch.bool: True, torch.int64: 1}.get(x.dtype, 1.0)


ANSWERS: Mapping[Any, Callable[..., Any]] = {
    aten.bincount.default: _bincount,
    aten._unique2.default: _unique,
    aten._local_scalar_dense.default: _a_number,
    aten.equal.default: lambda one, other: False,
}


class Guessed(TorchDispatchMode):
    """Answers what `meta` cannot know."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0] if args else None
        if func in ANSWERS and isinstance(first, Tensor) and first.is_meta:
            return ANSWERS[func](*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextmanager
def _guessed() -> Iterator[None]:
    mode: Callable[[], Any] = Guessed
    config: Any = import_module("torch.fx.experimental._config")
    with config.patch(meta_nonzero_assume_all_nonzero=True), mode():
        yield


class Elsewhere(LocalEngine[Any, Any]):
    """Trains on `meta`, and brings home what a client on the CPU would have said."""

    def _train(self, client: int, received: Any, context: RoundContext) -> Any:
        with _guessed():
            at, here = self.sites[client].to_device(META), self.state(client)
            fitted = self.method.train(at, tree.to(received, META), tree.to(here, META), context)
        for leaf in tree.leaves(list(fitted)):
            assert leaf.is_meta or not leaf.dim(), (
                "a tensor of the reply or the state was made on the CPU"
            )
        return super()._train(client, received, context)


@pytest.mark.parametrize("name", METHODS)
def test_clients_compute_where_their_images_are(name: str) -> None:
    method: AnyMethod = METHODS[name]()
    server, sites = toy_sites(method)
    engine, state = Elsewhere(method, {SERVER: server, **sites}), method.init_server(server)
    for number in range(2):
        state = run_round(method, server, state, engine, sorted(sites), RoundContext(number, 2))
    received = tree.to(method.publish(state), META)
    for client in sites:
        with _guessed():
            site, own = sites[client].to_device(META), tree.to(engine.state(client), META)
            x, _ = next(site.eval_batches(site.train))
            assert method.predict(site, received, own, x).is_meta
            assert all(
                s.is_meta for s in method.auxiliary_predictions(site, received, own, x).values()
            )
