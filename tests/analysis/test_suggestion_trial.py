"""The doctor's trial of its own suggestion, on held-out training images."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from protofed.analysis.suggestion_trial import HELD_OUT, SuggestionTrial, try_suggestion
from protofed.federation.evaluation import DomainScores

SPEC: dict[str, Any] = {
    "rounds": 3,
    "partition": {"kind": "shares", "clients": 4, "samples": 40},
    "training": {"epochs": 1, "batch": 16},
}


def trial(plain: float, suggested: float, examples: int = 400) -> SuggestionTrial:
    names = ("a", "b")
    return SuggestionTrial(
        5,
        dict.fromkeys(names, examples),
        DomainScores(dict.fromkeys(names, plain)),
        DomainScores(dict.fromkeys(names, suggested)),
    )


def test_both_are_scored_after_the_same_rounds_on_held_out_examples(tmp_path: Path) -> None:
    found = try_suggestion({**SPEC, "weights": "sqrt"}, SPEC, tmp_path, seconds=1000)
    assert found.rounds == SPEC["rounds"]
    assert sum(found.examples.values()) == 4 * 40 * HELD_OUT
    specs = [json.loads((tmp_path / n / "spec.json").read_text()) for n in ("plain", "suggested")]
    assert [spec["validation"] for spec in specs] == [HELD_OUT, HELD_OUT]
    assert ["weights" in spec for spec in specs] == [False, True]
    # Equal clients: the weights change nothing, so neither do the scores.
    assert found.plain == found.suggested
    assert found.verdict.startswith("too few rounds to tell")


def test_little_time_is_one_round(tmp_path: Path) -> None:
    assert try_suggestion(SPEC, SPEC, tmp_path, seconds=0).rounds == 1


def test_a_difference_counts_beyond_two_standard_errors() -> None:
    found = trial(60.0, 66.0)
    error = math.sqrt(2 * (60 * 40 + 66 * 34) / 400) / 2
    assert found.error == pytest.approx(error)
    assert (found.difference, found.verdict) == (6.0, "the suggestion is better")
    assert trial(66.0, 60.0).refuted
    assert not trial(60.0, 66.0).refuted
    assert trial(60.0, 62.0).verdict == "no difference beyond noise"
    assert not trial(62.0, 60.0).refuted
    early = trial(80.0, 40.0)._replace(rounds=4)
    assert (early.refuted, trial(80.0, 40.0).refuted) == (False, True)
    assert "+6.0" in found.summary()
    assert "800 training examples" in found.summary()
