"""``data doctor --trial``: the suggestion is tried, and dropped if plain averaging did better."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protofed.core.method import Condition
from protofed.data import diagnostics
from tests.analysis.test_suggestion_trial import trial
from tests.cli.conftest import Cli

PLAIN = 'rounds = 1\n[data]\nname = "digits-mini"\n'
FOUND = diagnostics.Diagnosis("x", {}, [], None, 'weights = "sqrt"\n' + PLAIN, "images", PLAIN)


@pytest.mark.parametrize("refuted", [False, True])
def test_the_doctor_suggests_what_did_better(
    refuted: bool, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "diagnose_benchmark", lambda name: FOUND)
    monkeypatch.setattr(
        "protofed.analysis.suggestion_trial.try_suggestion",
        lambda *given: trial(80.0, 60.0) if refuted else trial(60.0, 80.0),
    )
    ended = cli("data", "doctor", "digits-mini", "--trial", "-o", tmp_path / "spec.toml")
    assert ended.code == 0
    assert ("the suggestion is worse" in ended.out) == refuted
    assert ("weights" in (tmp_path / "spec.toml").read_text()) == (not refuted)
    as_json = cli("data", "doctor", "digits-mini", "--trial", "--json")
    told = json.loads(as_json.out)
    assert told["trial"]["difference"] == (-20 if refuted else 20)
    assert ("weights" in told["spec"]) == (not refuted)


def test_the_doctor_names_the_methods_that_were_made_for_such_data(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases: list[tuple[tuple[Condition, ...], str | None]] = [
        ((), None),
        (("domain shift",), "fedavg fedlsa fpl"),
        (("domain shift", "unequal sizes"), "fedavg fedga fedlsa fpl"),
    ]
    for conditions, names in cases:
        found = FOUND._replace(conditions=conditions)
        monkeypatch.setattr(diagnostics, "diagnose_benchmark", lambda name, found=found: found)
        ended = cli("data", "doctor", "digits-mini")
        assert (f"protofed compare {names} --seeds 3 --spec FILE" in ended.out) == bool(names)
