from __future__ import annotations

import errno

import pytest
import torch
from torch import Tensor

from protofed.core.message import Message
from protofed.core.metrics import count_correct
from protofed.core.site import Site
from protofed.errors import ProtofedError
from protofed.methods.fedavg import FedAvg
from protofed.runtime.resources import explain_oom
from protofed.testing.method_checks import toy_data, toy_sites


def take_all() -> None:
    torch.empty(2**60, dtype=torch.uint8)


def no_memory() -> None:
    raise MemoryError


def no_map() -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


@pytest.mark.parametrize("shortage", [take_all, no_memory, no_map])
def test_whose_memory_ran_out_is_told(shortage: object) -> None:
    assert callable(shortage)
    with pytest.raises(ProtofedError) as caught, explain_oom("client 3, in round 2,"):
        shortage()
    first, advice = str(caught.value).splitlines()
    assert first.startswith("client 3, in round 2, ran out of memory")
    assert "training.batch" in advice


def test_who_asks_says_what_helps() -> None:
    with pytest.raises(ProtofedError) as caught, explain_oom("it", "use less"):
        no_memory()
    assert str(caught.value) == "it ran out of memory\nuse less"


class Greedy(FedAvg):
    def predict(self, site: Site, received: Message, state: None, x: Tensor) -> Tensor:
        raise MemoryError


def test_scoring_whose_batches_are_its_own_does_not_advise_smaller_ones() -> None:
    site, _ = toy_sites(Greedy())
    with pytest.raises(ProtofedError, match="scoring ran out of memory\nuse a smaller net") as told:
        count_correct(Greedy(), site, Message(), None, toy_data(0, 4))
    assert "batch" not in str(told.value)


def test_how_much_was_asked_for_is_told() -> None:
    with (
        pytest.raises(ProtofedError, match=r"when 1,152,921,504,606\.8 MB more"),
        explain_oom("it"),
    ):
        take_all()


@pytest.mark.parametrize("other", [RuntimeError("shapes differ"), OSError(errno.EIO, "no")])
def test_other_faults_pass(other: Exception) -> None:
    with pytest.raises(type(other)) as caught, explain_oom("it"):
        raise other
    assert caught.value is other
