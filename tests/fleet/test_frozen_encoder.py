"""A frozen, pre-trained encoder at three sites: each has its own copy, and none of it travels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protofed.core.serialization import unpack_tree
from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from protofed.federation.remote_sites import remote_experiment
from protofed.spec.spec_parser import parse_experiment
from tests.experiment.conftest import quick
from tests.fleet.desks import SPEC, Walking, desks, events, made

STATE = "checkpoints/round-00002/server.safetensors"
START = {"net": "efficientnet-lite0", "pretrained": "imagenet", "train": "head"}
HEAD = 4 * (1280 * 2 + 2)  # bytes, for two classes


def spec(**more: Any) -> dict[str, Any]:
    return {**SPEC, **START, "data": {"side": 32}, "method": quick("fpl"), **more}


@pytest.mark.parametrize("views", [0, 1, 3])
def test_three_sites_give_the_bits_of_the_local_engine_and_send_head_and_prototypes(
    views: int, images: Path, tmp_path: Path
) -> None:
    raw, fed = spec(feature_views=views), tmp_path / "fed"
    post = Walking(desks(images, tmp_path))
    made(raw, post, fed).run.play(lambda progress: None)
    whole = {**raw, "data": {**raw["data"], "name": str(images)}}
    alone = run(parse_experiment(whole), tmp_path / "local", workers=0).folder
    assert (fed / STATE).read_bytes() == (alone / STATE).read_bytes()
    assert (fed / "scores.jsonl").read_text() == (alone / "scores.jsonl").read_text()
    assert events(fed) == []
    for line in map(json.loads, (fed / "rounds.jsonl").read_text().splitlines()):
        assert line["parts"]["up"].keys() <= {"model", "protos"}
        assert line["parts"]["up"]["model"] == line["parts"]["down"]["model"] == 3 * HEAD
        assert 0 < line["parts"]["up"]["protos"] < 4 * HEAD
    sent = [ask.received.model for ask in post.carried if ask.what in ("train", "score")]
    assert all(sorted(model.weights) == ["head.bias", "head.weight"] for model in sent)
    assert not any(model.buffers for model in sent)
    state = unpack_tree((fed / STATE).read_bytes())
    assert sorted(state.model.weights) == ["head.bias", "head.weight"]


def test_files_of_weights_are_refused_and_not_opened(tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match="files of weights do not travel: only imagenet"):
        remote_experiment(spec(pretrained=str(tmp_path / "w.pth")))
    with pytest.raises(ProtofedError, match="files of weights do not travel"):
        remote_experiment(spec(pretrained="/etc/passwd", pretrained_sha256="0" * 64))


def test_a_site_with_other_weights_refuses(images: Path, tmp_path: Path) -> None:
    raw = spec(pretrained_sha256="0" * 64)
    with pytest.raises(ProtofedError, match="other weights than this run is about"):
        made(raw, Walking(desks(images, tmp_path)), tmp_path / "fed")
