"""An author's slip in a hook ends in one sentence that names the hook and what it must return."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from pydantic.dataclasses import dataclass

from protofed.core.method import Method, MethodInfo, reply_from_fit
from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from protofed.testing import check_method
from tests.experiment.conftest import Make
from tests.experiment.conftest import tiny as tiny

ABOUT = MethodInfo(label="Slip", title="A method with a slip")


@dataclass(frozen=True)
class Slip(Method[Any, Any]):
    """Federated averaging with a slip of one kind."""

    info: ClassVar[MethodInfo] = ABOUT
    kind: str = ""

    def loss(self, site: Any, received: Any, state: Any, model: Any, batch: Any) -> Any:
        value = super().loss(site, received, state, model, batch)
        kinds = {"no loss": None, "a number": 1.0, "many losses": torch.stack([value, value])}
        return kinds.get(self.kind, value)

    def train(self, site: Any, received: Any, state: Any, context: Any) -> Any:
        if self.kind == "state on itself":
            self.count = 1
        reply = reply_from_fit(site, self.local_fit(site, received, state, context))
        kinds = {"no state": reply, "no reply": None, "turned round": (state, reply)}
        return kinds.get(self.kind, (reply, state))

    def send(self, site: Any, server: Any, to: Any, context: Any) -> Any:
        if self.kind == "one message for all":
            return self.publish(server)
        return super().send(site, server, to, context)

    def merge(self, site: Any, server: Any, replies: Any, context: Any) -> Any:
        merged = super().merge(site, server, replies, context)
        return {"a model": merged.model, "nothing merged": None}.get(self.kind, merged)

    def init_server(self, site: Any) -> Any:
        made = super().init_server(site)
        return made.model if self.kind == "a model at the start" else made


SLIPS = {
    "no loss": "a loss must be a tensor with one number, got nothing: return it from `loss`",
    "a number": "a loss must be a tensor with one number, got a float",
    "many losses": r"one number, got one of shape \[2\]: take its mean",
    "state on itself": "Slip.train: cannot assign to field 'count': a method holds no state",
    "no state": "Slip.train must return a message and .*; got a Message",
    "no reply": r"Slip.train must return a message and .*; got nothing \(None\)",
    "turned round": "Slip.train must return .*; got a tuple of NoneType, Message",
    "one message for all": "Slip.send must return a message for each client, .*; got a Message",
    "a model": "Slip.merge must return the server's state, .*; got a Model",
    "nothing merged": r"Slip.merge must return the server's state, .*; got nothing \(None\)",
    "a model at the start": "Slip.init_server must return the server's state, .*; got a Model",
}


@pytest.mark.parametrize("kind", SLIPS)
def test_a_slip_is_told_in_a_run_and_by_check_method(kind: str, tiny: Make, tmp_path: Any) -> None:
    experiment = tiny(rounds=1).model_copy(update={"method": Slip(kind=kind)})
    with pytest.raises(ProtofedError, match=SLIPS[kind]):
        run(experiment, tmp_path / "a", workers=0)
    with pytest.raises(ProtofedError, match=SLIPS[kind]):
        check_method(Slip(kind=kind))


def test_without_a_slip_it_is_federated_averaging(tiny: Make, tmp_path: Any) -> None:
    experiment = tiny(rounds=1)
    plain = run(experiment, tmp_path / "a", workers=0)
    same = run(experiment.model_copy(update={"method": Slip()}), tmp_path / "b", workers=0)
    assert same.history == plain.history
    check_method(Slip())
