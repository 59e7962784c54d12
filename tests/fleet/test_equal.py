"""A federation gives the bits of the local engine, for every method that needs no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from protofed.federation.remote_sites import remote_experiment
from protofed.methods import METHODS
from protofed.spec.spec_parser import parse_experiment
from tests.experiment.conftest import quick
from tests.fleet.desks import SPEC, Walking, desks, events, made

STATE = "checkpoints/round-00002/server.safetensors"


def spec(name: str, **more: Any) -> dict[str, Any]:
    return {**SPEC, "method": quick(name), **more}


def local(raw: dict[str, Any], images: Path, out: Path) -> Path:
    """The same experiment with all images in one place."""
    whole = {**raw, "data": {**raw["data"], "name": str(images)}}
    return run(parse_experiment(whole), out, workers=0).folder


def model(folder: Path) -> bytes:
    return (folder / STATE).read_bytes()


def own_part(line: dict[str, Any]) -> dict[str, Any]:
    """Of a personal method's scores, those that a site can take by itself."""
    at_home = zip(line["clients"].items(), line["domains"], strict=True)
    return {"own": line["own"], "clients": {c: row[name] for (c, row), name in at_home}}


@pytest.mark.parametrize(
    "name", [n for n, m in METHODS.items() if "public images" not in m().needs]
)
def test_same_scores_and_same_model_as_locally(name: str, images: Path, tmp_path: Path) -> None:
    fed = tmp_path / "fed"
    made(spec(name), Walking(desks(images, tmp_path)), fed).run.play(lambda progress: None)
    alone = local(spec(name), images, tmp_path / "local")
    assert model(fed) == model(alone)
    here, there = ((f / "scores.jsonl").read_text() for f in (fed, alone))
    if METHODS[name]().personal:
        lines = [[own_part(json.loads(line)) for line in t.splitlines()] for t in (here, there)]
        assert lines[0] == lines[1]
        row = json.loads(here.splitlines()[-1])["clients"]["0"]
        assert [score is None for score in row.values()] == [False, True, True]
    else:
        assert here == there
    assert events(fed) == []


@pytest.mark.parametrize(
    "more",
    [
        {"validation": 0.3},
        {"leave_out": "site-b"},
        {"participation": 0.6},
        {"training": {**SPEC["training"], "optimizer": "adam", "clip_norm": 1.0, "warmup": 1}},
        {"training": {**SPEC["training"], "schedule": "cosine"}},
    ],
)
def test_same_with_another_split_and_another_training(
    more: dict[str, Any], images: Path, tmp_path: Path
) -> None:
    raw, fed = spec("fedavg", **more), tmp_path / "fed"
    made(raw, Walking(desks(images, tmp_path)), fed).run.play(lambda progress: None)
    alone = local(raw, images, tmp_path / "local")
    assert model(fed) == model(alone)
    assert (fed / "scores.jsonl").read_text() == (alone / "scores.jsonl").read_text()


def test_what_a_federation_cannot_do_is_said_before_it_starts() -> None:
    for raw, words in (
        (spec("fedmd"), "public images"),
        ({**SPEC, "partition": {"clients": 5}}, "a site is a client"),
        ({**SPEC, "data": {"name": "digits-mini"}}, "the sites bring the images"),
    ):
        with pytest.raises(ProtofedError, match=words):
            remote_experiment(raw)
