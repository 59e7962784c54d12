from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from protofed.core.answer_counts import AnswerCounts
from protofed.engines.local_engine import LocalEngine
from protofed.experiment.runner import run
from protofed.federation.build import build_federation
from protofed.federation.evaluation import (
    DomainScores,
    Evaluation,
    evaluate_round,
    last_5_mean,
    scores_by_round,
)
from protofed.methods.fedavg import FedAvg
from protofed.spec.experiment_spec import Experiment

Make = Callable[..., Experiment]


def test_mean_worst_and_spread_by_hand() -> None:
    scores = DomainScores({"a": 90.0, "b": 60.0, "c": 30.0})
    assert (scores.mean, scores.worst) == (60.0, 30.0)
    assert scores.spread == pytest.approx((2 * 30**2 / 3) ** 0.5)


def test_a_domain_without_test_images_has_no_score_and_spoils_none() -> None:
    scores = DomainScores({"a": 90.0, "b": None})
    assert (scores.mean, scores.worst, scores.spread) == (90.0, 90.0, 0.0)
    nothing = DomainScores({"a": None})
    assert (nothing.mean, nothing.worst, nothing.spread) == (None, None, None)


def test_last_five_averages_the_last_five_evaluations_only() -> None:
    history = [DomainScores({"a": float(value)}) for value in (0, 1, 2, 3, 4, 5, 6)]
    assert last_5_mean(history).domains == {"a": statistics.fmean([2, 3, 4, 5, 6])}
    assert last_5_mean(history[:2]).domains == {"a": 0.5}


def test_an_evaluation_reads_back_from_its_line() -> None:
    plain = Evaluation(
        3,
        DomainScores({"a": 1.0}),
        {"other": DomainScores({"a": 3.0})},
        DomainScores({"a": 2.0}),
        {"0": {"a": 2.0}},
    )
    assert Evaluation.from_dict(plain.to_dict()) == plain
    assert Evaluation.from_dict(Evaluation(1, DomainScores({"a": 1.0})).to_dict()).own is None


def test_accuracy_is_counted_image_by_image(tiny: Make) -> None:
    federation = build_federation(tiny())
    method = FedAvg()
    server = method.init_server(federation.server)
    scored = evaluate_round(
        0, method, server, federation, LocalEngine(method, federation.everyone, federation.tests)
    )
    for name, test in federation.tests.items():
        right = 0
        for image, label in zip(test.images, test.labels, strict=True):
            x = federation.server.pixels.normalize(image[None])
            right += int(federation.server.forward_eval(server.model, x).logits.argmax() == label)
        # single images take another kernel than batches do: a tie may fall the other way
        accuracy = scored.scores.domains[name]
        assert accuracy == pytest.approx(100 * right / len(test), abs=100 / len(test))


def test_personal_methods_are_scored_client_by_client(tiny: Make, tmp_path: Path) -> None:
    result = run(tiny(method="local"), tmp_path / "a")
    assert result.clients is not None
    assert result.own is not None
    table = result.clients  # clients 0 and 1 hold optical, client 2 print
    for domain in ("optical", "print"):
        column = [row[domain] or 0.0 for row in table.values()]
        assert result.last.domains[domain] == pytest.approx(statistics.fmean(column))
    at_home = [table[client]["optical"] or 0.0 for client in ("0", "1")]
    assert result.own.domains["optical"] == pytest.approx(statistics.fmean(at_home))
    assert result.own.domains["print"] == table["2"]["print"]


def test_test_images_never_reach_a_site(tiny: Make) -> None:
    federation = build_federation(tiny())
    held = {
        image.numpy().tobytes()
        for site in (federation.server, *federation.sites.values())
        for image in site.train.images
    }
    tests = {i.numpy().tobytes() for test in federation.tests.values() for i in test.images}
    assert held
    assert not held & tests
    assert torch.equal(
        torch.tensor([len(site.train) for site in federation.sites.values()]),
        torch.tensor(list(federation.server.sizes.values())),
    )


def test_counts_of_answers_are_kept_for_every_evaluation_and_more_of_the_last(
    tiny: Make, tmp_path: Path
) -> None:
    result = run(tiny(rounds=8), tmp_path / "a")
    lines = [json.loads(line) for line in (tmp_path / "a/scores.jsonl").read_text().splitlines()]
    fields = [set(line["counts"]["optical"]) for line in lines]
    marginal = {"images", "hits", "answers"}
    assert fields == [marginal] * 3 + [marginal | {"wins", "sure"}] * 4 + [
        marginal | {"wins", "sure", "cells", "features"}
    ]
    assert ["classes" in line for line in lines] == [False] * 7 + [True]
    for line, one in zip(lines, result.history, strict=True):
        assert Evaluation.from_dict(line) == one
        for name, counts in one.counts.items():
            accuracy = 100 * sum(counts.hits) / counts.total
            assert one.scores.domains[name] == pytest.approx(accuracy)
    last = result.history[-1]
    assert last.classes == tuple("0123456789")
    assert np.trace(last.counts["print"].matrix()) == sum(last.counts["print"].hits)


def test_a_personal_method_adds_up_the_answers_of_all_clients(tiny: Make, tmp_path: Path) -> None:
    result = run(tiny(method="local", rounds=1), tmp_path / "a")
    counts = result.history[-1].counts["optical"]
    assert counts.models == 3
    assert 100 * sum(counts.hits) / counts.total == pytest.approx(result.last.domains["optical"])


def test_counts_that_cannot_be_are_told() -> None:
    counts = AnswerCounts((3, 2), (1, 2), (1, 4), cells=(0, 1, 1, 2, 3, 2))
    scores = DomainScores({"a": 60.0})
    assert Evaluation(1, scores, counts={"a": counts}).counts_fault() == ""
    for odd in (
        {"hits": (1, 3)},
        {"hits": (1,)},
        {"answers": (2, 4)},
        {"cells": (0, 2, 1, 1, 3, 2)},
        {"cells": (0, 1, 1, 2, 4, 2)},
        {"cells": (1, 2, 0, 1, 3, 2)},
        {"wins": (13, 0)},
        {"wins": (1,)},
        {"sure": (5, 3, 5001, *[0] * 27)},
        {"sure": (5, 2, 10, *[0] * 27)},
        {"sure": (5, 3)},
        {"features": (4, 5, 2, 2)},
    ):
        bad = counts._replace(**odd)
        assert Evaluation(1, scores, counts={"a": bad}).counts_fault(), odd
    assert "no domain" in Evaluation(1, scores, counts={"b": counts}).counts_fault()
    other = Evaluation(1, scores, counts={"a": counts}, classes=("one",))
    assert "other classes" in other.counts_fault()


def test_a_curve_has_no_score_where_a_site_was_away() -> None:
    rows: list[tuple[float | None, float | None]] = [(1.0, 2.0), (3.0, None), (5.0, 6.0)]
    history = [
        Evaluation(n, DomainScores({"a": a, "b": b}), missing=() if b else ("b",))
        for n, (a, b) in enumerate(rows, start=1)
    ]
    assert scores_by_round(history) == {1: 1.5, 2: None, 3: 5.5}
    assert scores_by_round(history, "a") == {1: 1.0, 2: 3.0, 3: 5.0}
    assert scores_by_round(history, "b") == {1: 2.0, 2: None, 3: 6.0}
    never = [replace(history[1], round=n) for n in (1, 2)]
    assert scores_by_round(never) == {1: 3.0, 2: 3.0}  # the mean of all that ever answered
