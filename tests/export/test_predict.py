"""``protofed predict``: labels for new images, faults by name, pictures."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from protofed.core.model import model_from_net
from protofed.core.site import ArrayDataset
from protofed.data.image_decoding import DecodedImage, decode_image
from protofed.experiment.trained_run import open_trained_run
from protofed.export import predict
from protofed.export.inference_module import load_trained_model
from protofed.export.predict import HeatMapWriter, find_images, predict_images
from protofed.figures.gradcam import grad_cam
from tests.cli.conftest import Cli
from tests.data.pictures import spoil
from tests.export.conftest import Played
from tests.figures.played import Contrary


def test_a_run_and_its_files_give_the_same_table(cli: Cli, played: Played, photos: Path) -> None:
    folder = played()
    told = {}
    for kind, file in (("onnx", "m.onnx"), ("safetensors", "m.safetensors")):
        assert cli("export", folder, "--to", kind, "-o", file).code == 0
        told[kind] = cli("predict", file, photos)
    told["run"] = cli("predict", folder, photos)
    assert {ended.code for ended in told.values()} == {0}
    assert len({ended.out for ended in told.values()}) == 1
    lines = told["run"].out.splitlines()
    assert lines[0].split() == ["file", "label", "confidence", "runner-up", "its", "confidence"]
    assert sum(str(photos) in line for line in lines) == 24
    assert lines[-2] == ""
    assert lines[-1].startswith("FedAvg with moon-cnn, round 1 of 1; run ")


def test_the_labels_are_those_of_the_runs_own_predictions(
    cli: Cli, played: Played, photos: Path
) -> None:
    folder = played("fedproto")
    answers = json.loads(cli("predict", folder, photos, "--json").out)["answers"]
    images = [decode_image(str(file), 16) for file in sorted(photos.rglob("*.*"))]
    pixels = np.stack([image.pixels for image in images if isinstance(image, DecodedImage)])
    opened = open_trained_run(folder)
    labels = torch.zeros(len(pixels), dtype=torch.int64)
    said = opened.predictions(ArrayDataset(torch.from_numpy(pixels), labels))
    assert [one["label"] for one in answers] == [("bird", "cat")[n] for n in said.tolist()]
    assert len(answers) == 24
    received, (site, model) = opened.method.publish(opened.server), opened.model()
    assert received.protos is not None
    z = site.forward_eval(model, site.pixels.normalize(torch.from_numpy(pixels))).z
    for one, feature in zip(answers, z, strict=True):  # the nearest by a slow loop
        gaps = (received.protos.vectors - feature).square().sum(1).sqrt().tolist()
        place = gaps.index(min(gaps))
        label = ("bird", "cat")[int(received.protos.labels[place])]
        assert one["nearest_prototype"]["label"] == label
        assert one["nearest_prototype"]["distance"] == pytest.approx(gaps[place], rel=1e-4)


def test_prototypes_travel_in_safetensors(cli: Cli, played: Played, photos: Path) -> None:
    folder = played("fedproto")
    cli("export", folder, "--to", "safetensors", "-o", "m.safetensors")
    tables = [cli("predict", model, photos).out for model in (folder, "m.safetensors")]
    assert tables[0] == tables[1]
    assert "nearest prototype" in tables[0]


def test_bad_files_are_named_and_the_rest_is_labelled(
    cli: Cli, played: Played, photos: Path, tmp_path: Path
) -> None:
    mixed = tmp_path / "mixed" / "deep"
    mixed.mkdir(parents=True)
    shutil.copy(photos / "neg" / "cat" / "001.png", mixed / "good.png")
    (mixed / "back").symlink_to(tmp_path / "mixed")  # a ring of links ends
    (mixed / ".hidden.png").touch()
    bad = spoil(mixed)
    ended = cli("predict", played(), tmp_path / "mixed", "missing.png")
    assert ended.code == 1
    assert "good.png" in ended.out.split("cannot be read:")[0]
    assert "11 of 12 files cannot be read:" in ended.out
    for name, says in bad.items():
        (line,) = [line for line in ended.out.splitlines() if f"/{name}: " in line]
        assert says in line
    assert "  missing.png: cannot be read: No such file or directory" in ended.out
    rows = list(csv.DictReader(io.StringIO(cli("predict", played(), mixed, "--format", "csv").out)))
    assert [row["file"] for row in rows if row["label"]] == [str(mixed / "good.png")]
    assert {Path(row["file"]).name for row in rows if row["fault"]} == set(bad)
    told = json.loads(cli("predict", played(), mixed / "good.png", "--json").out)
    (one,) = told["answers"]
    assert one["confidence"] + one["runner_up_confidence"] == pytest.approx(1, abs=1e-6)
    assert one["label"] == rows[[row["file"] for row in rows].index(one["file"])]["label"]


def test_nothing_to_predict_and_two_formats_are_told(
    cli: Cli, played: Played, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    ended = cli("predict", played(), tmp_path / "empty")
    assert (ended.code, "no files in" in ended.err) == (2, True)
    assert cli("predict", played(), photos, "--json", "--format", "csv").code == 2
    assert cli("predict", photos, photos).code == 2  # a folder that is no run


def test_names_steer_no_terminal(cli: Cli, played: Played, photos: Path, tmp_path: Path) -> None:
    evil = tmp_path / "\x1b[2J[bold].png"
    shutil.copy(photos / "neg" / "cat" / "001.png", evil)
    ended = cli("predict", played(), evil, tmp_path / "\x1b]0;x.png")
    assert ended.code == 1
    assert all(line.isprintable() for line in ended.out.split("\n"))
    assert "\\x1b[2J[bold].png" in ended.out


def test_explain_writes_a_picture_for_each_image(
    cli: Cli, played: Played, photos: Path, tmp_path: Path
) -> None:
    folder = played()
    cli("export", folder, "--to", "safetensors", "-o", "m.safetensors")
    where = photos / "neg" / "cat"
    (tmp_path / "odd").mkdir()
    shutil.copy(where / "001.png", tmp_path / "odd" / "$x^{ a b.png")
    ended = cli("predict", "m.safetensors", where, tmp_path / "odd", "--explain", "heat")
    assert ended.code == 0, ended.err
    pictures = sorted(path.name for path in Path("heat").iterdir())
    assert pictures[:2] == ["0001-000.png", "0002-001.png"]
    assert len(pictures) == 7
    with Image.open(Path("heat") / pictures[-1]) as drawn:
        assert drawn.size[0] > 1.5 * drawn.size[1]  # two beside each other
        assert len(drawn.convert("RGB").getcolors(1 << 24) or []) > 50
    cli("export", folder, "--to", "onnx", "-o", "m.onnx")
    refused = cli("predict", "m.onnx", where, "--explain", "heat2")
    assert (refused.code, "--to safetensors" in refused.err) == (2, True)


def test_the_heat_is_that_of_the_label(
    played: Played, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = load_trained_model(played()).product
    assert product.portable is not None
    product.portable.method = Contrary()  # whose label is never the one that the net likes best
    shown: list[tuple[Tensor, Tensor, str]] = []

    def caught(*given: Any) -> bytes:
        shown.append(given)
        return b""

    monkeypatch.setattr(predict, "explanation_figure", caught)
    (answer,) = predict_images(
        product,
        find_images([photos / "neg" / "cat" / "001.png"]),
        HeatMapWriter(product, tmp_path / "heat"),
    )
    ((image, heat, title),) = shown
    net, x = product.portable.net, product.portable.pixels.normalize(image[None])
    least = net(x).logits.argmin(1)
    assert title.startswith(f"{answer.label}: ")
    assert answer.label == product.facts.classes[int(least)]
    assert torch.equal(heat, grad_cam(net, model_from_net(net), x, least)[0])
    assert not torch.equal(heat, grad_cam(net, model_from_net(net), x, 1 - least)[0])


def test_a_place_that_cannot_hold_pictures_is_told(
    cli: Cli, played: Played, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for place, why in (("file", "it is a file"), ("file/below", "Not a directory")):
        ended = cli("predict", played(), photos, "--explain", place)
        told = (
            f"error: cannot write heat maps to {place}: {why}\nchoose another folder: --explain\n"
        )
        assert (ended.code, ended.err.endswith(told)) == (2, True)


def test_one_file_is_no_files(cli: Cli, played: Played, photos: Path) -> None:
    assert "\n1 of 1 file cannot be read:\n" in cli("predict", played(), "missing.png").out
    one = photos / "neg" / "cat" / "001.png"
    assert cli("predict", played(), one, "--explain", "heat").err.endswith(
        "wrote 1 picture into heat\n"
    )
