"""Runs on a user's arrays: every method, the same bits for workers, and after a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from protofed.datasets import from_arrays
from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from protofed.export.inference_module import load_trained_model
from protofed.export.model_files import FORMATS, write_export
from protofed.federation.build import build_federation, data_fingerprints
from protofed.methods import METHODS
from protofed.spec.experiment_spec import ArrayData, Data, Experiment
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.data.tables import images, vectors

QUICK: dict[str, Any] = {"rounds": 2, "training": {"epochs": 1, "batch": 16}}
PUBLIC: dict[str, Any] = {
    "partition": {"kind": "shares", "share": 0.6},
    "public": {"samples": 12},
}


def section(kind: str) -> Data | ArrayData:
    return from_arrays(vectors() if kind == "vectors" else images(), name=kind)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_on_vectors_and_exports(name: str, tmp_path: Path) -> None:
    needs_public = "public images" in METHODS[name]().needs
    more = PUBLIC if needs_public else {}
    result = run(
        Experiment(data=section("vectors"), method=METHODS[name](), **QUICK, **more), tmp_path / "a"
    )
    assert set(result.last.domains) == {"north", "south"}
    personal = METHODS[name]().personal
    taken = load_trained_model(tmp_path / "a", 0 if personal else None)
    difference = write_export(taken, FORMATS["safetensors"], tmp_path / "a.safetensors")
    assert (difference.images, taken.kind) == (48, "test rows")


@pytest.mark.parametrize("kind", ["vectors", "images"])
def test_workers_and_one_process_give_the_same_bits(kind: str, tmp_path: Path) -> None:
    experiment = Experiment(data=section(kind), method=METHODS["fedproto"](), **QUICK)
    run(experiment, tmp_path / "alone", workers=0)
    run(experiment, tmp_path / "two", workers=2)
    for file in ("scores.jsonl", "checkpoints/round-00002/server.safetensors"):
        assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


KILLED = """
import json, os, signal
from pathlib import Path
from protofed.experiment.runner import run
from protofed.spec.spec_parser import parse_experiment

def stop(report):
    if report.round == 3:
        os.kill(os.getpid(), signal.SIGKILL)

run(parse_experiment(json.loads(Path("spec.json").read_text())), "a", stop, workers=0)
"""


@pytest.mark.parametrize(
    ("kind", "net", "epochs"), [("vectors", "mlp", 4), ("images", "moon-cnn", 1)]
)
def test_a_killed_run_resumes_to_the_same_bits(
    kind: str, net: str, epochs: int, tmp_path: Path, cli: Cli
) -> None:
    training = {"epochs": epochs, "batch": 4}
    spec = {"data": section(kind).name, "net": net, "rounds": 12, "training": training}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    killed = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "a" / "done").exists()
    again = cli("resume", tmp_path / "a", "--workers", "0")
    assert again.code == 0
    assert "resuming after round" in again.err
    run(Experiment.model_validate(spec), tmp_path / "b", workers=0)
    for file in ("scores.jsonl", "checkpoints/round-00012/server.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("kind", ["vectors", "images"])
def test_the_world_of_a_run_names_its_arrays(kind: str, tmp_path: Path) -> None:
    experiment = Experiment(data=section(kind), **QUICK)
    run(experiment, tmp_path / "a", workers=0)
    world = json.loads((tmp_path / "a" / "env.json").read_text())
    assert world["data"] == data_fingerprints(build_federation(experiment).benchmark)


def test_changed_or_missing_arrays_do_not_continue_a_run(tmp_path: Path) -> None:
    data = from_arrays(vectors(), folder=tmp_path / "mine")
    experiment = Experiment(data=data, **QUICK)
    (tmp_path / "mine").rename(tmp_path / "away")
    with pytest.raises(ProtofedError, match=r"the folder of arrays .* does not exist"):
        build_federation(experiment)
    from_arrays(vectors(each=30), folder=tmp_path / "mine")
    with pytest.raises(ProtofedError, match="holds other arrays than this run is about"):
        build_federation(experiment)


def test_rows_are_never_augmented() -> None:
    federation = build_federation(Experiment(data=section("vectors")))
    site = federation.sites[0]
    rows = site.train.images[:5]
    drawn = site.pixels.augment(rows, site.rng("test"))
    assert torch.equal(drawn, site.pixels.normalize(rows))
