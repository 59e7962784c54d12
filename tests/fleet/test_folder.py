"""The folder of a run across machines is read by every command, as far as that can be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from protofed.cli.federation import JobFollower
from protofed.errors import ProtofedError
from protofed.experiment.run_records import read_federation
from protofed.experiment.trained_run import open_trained_run
from protofed.export.inference_module import load_trained_model
from protofed.federation.remote_sites import remote_experiment
from protofed.spec.spec_parser import read_spec
from tests.cli.conftest import Cli
from tests.fleet.desks import SITES, SPEC, Known, desks, job, submitted
from tests.fleet.test_equal import local, spec


@pytest.fixture(scope="module")
def home(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run across machines has ended in `out`."""
    folder = tmp_path_factory.mktemp("federated")
    submitted(Known(desks(images, folder)), job(folder))
    return folder


def test_its_model_is_the_one_of_a_run_with_all_images(
    home: Path, images: Path, tmp_path: Path
) -> None:
    here, there = (
        load_trained_model(home / "out"),
        load_trained_model(local(spec("fedavg"), images, tmp_path / "local")),
    )
    assert here.product.facts.classes == there.product.facts.classes == ("bird", "cat")
    assert here.product.facts.scores["last"] == there.product.facts.scores["last"]
    ours, theirs = (taken.product.answer(there.images).logits for taken in (here, there))
    assert torch.equal(ours, theirs)


def test_export_says_that_it_was_checked_on_noise_and_predict_answers(
    home: Path, images: Path, cli: Cli
) -> None:
    ended = cli("export", home / "out", "--to", "safetensors", "-o", "model.safetensors")
    assert ended.code == 0, ended.err
    assert "on 64 images of noise (the real ones are at the sites)" in ended.out
    for model in (home / "out", Path("model.safetensors")):
        ended = cli("predict", model, images / "site-a" / "cat", "--json")
        assert ended.code == 0, ended.err
        assert {a["label"] for a in json.loads(ended.out)["answers"]} <= {"bird", "cat"}


def test_what_needs_images_says_where_they_are(home: Path, cli: Cli) -> None:
    with pytest.raises(ProtofedError, match="its images are at its sites"):
        open_trained_run(home / "out")
    ended = cli("plot", "tsne", home / "out")
    assert ended.code == 2
    assert "its images are at its sites" in ended.err


def test_models_that_never_left_the_sites_cannot_be_taken_along(
    images: Path, tmp_path: Path
) -> None:
    submitted(Known(desks(images, tmp_path)), job(tmp_path, spec=spec("local", rounds=1)))
    with pytest.raises(ProtofedError, match="never left the sites"):
        load_trained_model(tmp_path / "out")


def test_its_card_says_how_to_submit_it_again_and_its_own_spec_will_do(
    home: Path, images: Path, tmp_path: Path, cli: Cli
) -> None:
    out = home / "out"
    card = cli("card", out)
    assert card.code == 0
    assert card.out == (out / "card.md").read_text()
    named = json.loads((out / "federation.json").read_text())["run"]  # as the sites tell of it
    assert named.startswith(json.loads((out / "spec.json").read_text())["digest"][:12])
    sites = ",".join(SITES)
    assert f"protofed submit {out}/spec.json --sites {sites} --out {out}-again" in card.out
    on_record = json.loads((out / "spec.json").read_text())
    digest, _ = on_record.pop("digest"), on_record.pop("method_label")
    assert remote_experiment(on_record, read_federation(out)["offers"]).digest == digest
    submitted(Known(desks(images, tmp_path)), job(tmp_path, spec=on_record))
    again = tmp_path / "out" / "scores.jsonl"
    assert again.read_bytes() == (out / "scores.jsonl").read_bytes()


def test_resume_says_what_to_type_and_shows_what_is_finished(
    home: Path, images: Path, tmp_path: Path, cli: Cli
) -> None:
    assert "site-c" in cli("resume", home / "out").out
    begun = shutil.copytree(home / "out", tmp_path / "begun")
    (begun / "done").unlink()
    shutil.rmtree(begun / "checkpoints" / "round-00002")
    ended = cli("resume", begun)
    assert ended.code == 2
    assert f"protofed submit {begun}/spec.json --out {begun} --resume" in ended.err
    again = job(tmp_path, spec=read_spec(begun / "spec.json"), out="begun", resume=True)
    told = submitted(Known(desks(images, tmp_path)), again)
    assert [line["finished"] for line in told if "finished" in line] == [1]
    assert (begun / "scores.jsonl").read_bytes() == (home / "out" / "scores.jsonl").read_bytes()


def test_a_finished_run_is_shown_without_server_or_sites(
    home: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setenv("PROTOFED_HOME", str(home / "no-server"))
    out = home / "out"
    for more in ((), ("--resume",)):
        ended = cli("submit", out / "spec.json", "--out", out, *more)
        assert ended.code == 0, ended.err
        assert "already finished" in ended.err
        assert "site-c" in ended.out
    other = cli("submit", out / "spec.json", "--out", out, "--set", "rounds=9")
    assert "holds another experiment" in other.err
    assert "no server runs here" in cli("submit", out / "spec.json", "--out", "new").err


def test_who_submits_reads_who_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    JobFollower().waiting("waiting for site-b\x1b (there: site-a)")
    assert capsys.readouterr().err == "waiting for site-b\\x1b (there: site-a)\n"


def test_a_site_can_be_left_out_of_training() -> None:
    checked = remote_experiment({**SPEC, "leave_out": SITES[1]})
    assert checked.leave_out == SITES[1]
