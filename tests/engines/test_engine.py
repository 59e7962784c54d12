"""What an engine promises: a reply or a failure, and events that count from one."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Failure, Message
from protofed.core.method import Method, MethodInfo
from protofed.core.model import Model
from protofed.core.site import RoundContext, Site, TrainingBatch
from protofed.engines.engine import RoundEvent, expected_reply, require_replies, try_training
from protofed.errors import ProtofedError
from protofed.methods.fedavg import FedAvg
from protofed.methods.moon import MOON
from protofed.testing import toy_sites

NOW = RoundContext(4, 9, 1)


@dataclass(frozen=True)
class Diverging(Method[Any, Any]):
    info: ClassVar[MethodInfo] = MethodInfo("Diverging", "")

    def loss(
        self, site: Site, received: Message, state: Any, model: Model, batch: TrainingBatch
    ) -> Tensor:
        loss = super().loss(site, received, state, model, batch)
        return loss * torch.nan if batch.number == 2 else loss


def test_a_client_that_diverges_is_a_failure_and_keeps_its_state() -> None:
    _, sites = toy_sites(FedAvg())
    received, state = Message(sites[0].initial_model()), {"kept": torch.ones(2)}
    failure, after = try_training(Diverging(), sites[0], received, state, NOW)
    assert isinstance(failure, Failure)
    assert failure.diverged
    assert "in step 3" in failure.reason
    assert after is state
    reply, after = try_training(MOON(), sites[0], received, None, NOW)
    assert isinstance(reply, Message)
    assert tree.equal(reply.model, after)


def test_rounds_and_exchanges_count_from_one_for_people_and_files() -> None:
    event = RoundEvent(NOW, 3, "was lost")
    assert event.describe == "round 5, exchange 2: client 3: was lost"
    assert event.to_dict() == {"round": 5, "leg": 2, "client": 3, "reason": "was lost"}
    assert RoundEvent(NOW, None, "failed").describe == "round 5, exchange 2: failed"


def test_an_id_that_a_stranger_made_up_is_cut_and_escaped() -> None:
    event = RoundEvent(NOW, "x\n" * 99, "was not asked")  # type: ignore[arg-type]
    shown = event.to_dict()["client"]
    assert "\n" not in event.describe
    assert len(shown) <= 2 * 60 + len("...")
    assert json.loads(json.dumps(event.to_dict())) == event.to_dict()


def test_replies_are_required_of_all_or_the_first_failure_is_raised() -> None:
    whole = {0: Message(size=1), 1: Message(size=2)}
    assert require_replies(whole) == whole
    with pytest.raises(ProtofedError, match="client 1: was lost"):
        require_replies({**whole, 1: Failure("was lost"), 2: Failure("later")})


def test_a_reply_is_held_against_the_size_that_its_client_declared() -> None:
    server, sites = toy_sites(FedAvg())
    for client, site in sites.items():
        expected = expected_reply(FedAvg(), server, client, Message(server.initial_model()), NOW)
        assert expected.declared_size == len(site.train)
        assert expected.max_bytes > 4 * tree.nbytes(server.initial_model())
