"""Every way in which a model collapses, made on purpose, is noticed; a good model is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protofed.core.answer_counts import AnswerCounts, reduce_tally, tally_answers
from protofed.core.method import ServerState
from protofed.engines.local_engine import LocalEngine
from protofed.federation.build import Federation, build_federation
from protofed.federation.collapse import collapse_notices
from protofed.federation.evaluation import DomainScores, Evaluation, evaluate_round
from protofed.methods.fedavg import FedAvg
from protofed.spec.experiment_spec import Experiment

Make = Callable[..., Experiment]


def notices(federation: Federation, server: ServerState) -> dict[str, str]:
    """What is said of a model after scoring it: by what collapsed, the rest of the line."""
    method = FedAvg()
    engine = LocalEngine(method, federation.everyone, federation.tests)
    found = collapse_notices([evaluate_round(1, method, server, federation, engine)])
    assert {notice.kind for notice in found} <= {"collapse"}
    return dict(notice.text.split(": ", 1) for notice in found)


@pytest.fixture
def federation(tiny: Make) -> Federation:
    return build_federation(tiny())


def oracle(federation: Federation, wrong: int = 0) -> ServerState:
    """A model with good features whose head is fitted to the test images, off by `wrong` classes.

    It cheats, to be as good (or as wrong) as a model can be.
    """
    site = federation.server
    model = site.initial_model()
    inputs = [site.pixels.normalize(test.images) for test in federation.tests.values()]
    z = site.forward_eval(model, torch.cat(inputs)).z.double()
    y = torch.cat([test.labels for test in federation.tests.values()])
    wanted = torch.eye(site.classes, dtype=torch.float64)[(y + wrong) % site.classes]
    square = z.T @ z + 1e-6 * torch.eye(z.shape[1], dtype=torch.float64)
    head = torch.linalg.solve(square, z.T @ wanted).T
    return ServerState(changed(model, head=head.float()))


def changed(model: Any, head: Tensor | None = None, bias: Tensor | None = None) -> Any:
    """A model with another head."""
    names = [name for name in model.weights if name.startswith("head")]
    (weight,) = [name for name in names if model.weights[name].ndim == 2]
    offset = [name for name in names if model.weights[name].ndim == 1]
    new = dict(model.weights)
    if head is not None:
        new[weight] = head
    for name in offset:
        new[name] = torch.zeros_like(new[name]) if bias is None else bias
    return replace(model, weights=new)


def test_of_a_good_model_nothing_is_said(federation: Federation) -> None:
    assert notices(federation, oracle(federation)) == {}


def test_one_answer_for_nearly_everything_is_noticed(federation: Federation) -> None:
    bias = torch.zeros(10)
    bias[3] = 1e4
    found = notices(federation, ServerState(changed(oracle(federation).model, bias=bias)))
    assert found["answers one class for nearly everything"] == "optical 100 % 3; print 100 % 3"
    assert "no better than always answering the largest class" in found
    assert len(found) == 2  # its features are as before


def test_a_model_no_better_than_the_constant_answer_is_noticed(federation: Federation) -> None:
    found = notices(federation, oracle(federation, wrong=1))
    (told,) = found.values()
    assert [*found] == ["no better than always answering the largest class"]
    assert "optical" in told
    assert "print" in told
    assert "the largest class has 10." in told


def test_dead_features_are_noticed(federation: Federation) -> None:
    model = federation.server.initial_model()
    dead = {name: torch.zeros_like(part) for name, part in model.weights.items()}
    found = notices(federation, ServerState(replace(model, weights=dead)))
    width = federation.server.net.features
    told = f"{width} of {width} never vary"
    assert found["features are dead"] == f"optical {told}; print {told}"
    assert "features are the same for many images" in found


class Steps(nn.Module):
    """A neck that leaves one bit of each feature, so that many images share theirs."""

    def forward(self, x: Tensor) -> Tensor:
        seen = (x.mean(1, keepdim=True) > x.mean()).float()
        return seen * torch.arange(1.0, 257.0)


def test_features_that_many_images_share_are_noticed(federation: Federation) -> None:
    net = federation.server.net
    net.neck = Steps()
    found = notices(federation, ServerState(federation.server.initial_model()))
    told = found["features are the same for many images"]
    assert told.startswith("optical ")
    assert "images have 2 different ones" in told
    assert "features are dead" not in found


def scored(number: int, **domains: float | None) -> Evaluation:
    away = tuple(name for name, score in domains.items() if score is None)
    return Evaluation(number, DomainScores(dict(domains)), missing=away)


def test_scores_that_jump_from_round_to_round_are_noticed() -> None:
    rising = [scored(n, a=10.0 * n, b=50.0) for n in range(1, 8)]
    assert collapse_notices(rising) == []
    jumping = [*rising[:-1], scored(7, a=40.0, b=45.0), scored(8, a=66.0, b=51.0)]
    (found,) = collapse_notices(jumping)
    assert found.text == (
        "scores jump from round to round: the mean fell from 55.00 to 42.50 % in round 7; "
        "a fell from 60.00 to 40.00 % in round 7"
    )
    settled = [*jumping, *(scored(n, a=66.0, b=51.0) for n in range(9, 13))]
    assert collapse_notices(settled) == []  # long ago
    few = [replace(one, counts={"a": answers(8), "b": answers(8)}) for one in jumping]
    assert "jump" not in str(collapse_notices(few))  # 8 images: chance


def test_a_site_that_was_away_is_no_jump() -> None:
    history = [scored(1, a=90.0, b=30.0), scored(2, a=None, b=30.0), scored(3, a=88.0, b=31.0)]
    assert collapse_notices(history) == []


def answers(images: int) -> AnswerCounts:
    """Right answers on images of two classes."""
    y = torch.arange(images) % 2
    return reduce_tally(tally_answers(torch.eye(2)[y], y))


def test_a_large_class_that_is_found_with_the_others_is_no_collapse() -> None:
    y = torch.tensor([0] * 97 + [1] * 3)
    right = reduce_tally(tally_answers(torch.eye(2)[y], y))
    good = Evaluation(1, DomainScores({"a": 100.0}), counts={"a": right})
    assert collapse_notices([good]) == []
    lost = reduce_tally(tally_answers(torch.eye(2)[torch.zeros_like(y)], y))
    bad = Evaluation(1, DomainScores({"a": 97.0}), counts={"a": lost}, classes=("no", "yes"))
    assert [notice.text for notice in collapse_notices([bad])] == [
        "answers one class for nearly everything: a 100 % no",
        "no better than always answering the largest class: "
        "a 97.00 %, the largest class has 97.00 %",
    ]


def test_runs_without_counts_are_only_looked_at_for_jumps() -> None:
    assert collapse_notices([]) == []
    assert collapse_notices([scored(1, a=3.0)]) == []
