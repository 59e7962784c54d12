"""Models that are of no use: weights of NaN, and files whose metadata does not fit them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
import safetensors
import torch
from onnx import numpy_helper
from safetensors.torch import save_file
from torch import Tensor

from protofed.core import tree
from protofed.core.serialization import pack_tree, unpack_tree
from tests.cli.conftest import Cli
from tests.export.conftest import Played

Tensors = dict[str, Tensor]


@pytest.fixture
def exported(cli: Cli, played: Played) -> Path:
    """A model with prototypes as a safetensors file."""
    assert cli("export", played("fedproto"), "--to", "safetensors", "-o", "m.safetensors").code == 0
    return Path("m.safetensors")


def rewrite(
    file: Path, texts: Mapping[str, str], change: Callable[[Tensors], None] = lambda tensors: None
) -> None:
    """Write a file anew with other metadata and tensors."""
    with safetensors.safe_open(file, "pt") as found:
        tensors = {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118
        known = found.metadata()
    change(tensors)
    save_file(tensors, file, {**known, **texts})


def refused(cli: Cli, model: Path, photos: Path) -> str:
    ended = cli("predict", model, photos)
    assert ended.code == 2, ended
    assert "nan" not in ended.out
    assert "error: " in ended.err
    return ended.err


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", ["encoder", "prototypes."])
def test_a_file_with_nan_is_refused(
    which: str, value: float, cli: Cli, exported: Path, photos: Path
) -> None:
    def spoil(tensors: Tensors) -> None:
        name = next(n for n in tensors if n.startswith(which) and tensors[n].is_floating_point())
        tensors[name].view(-1)[0] = value

    rewrite(exported, {}, spoil)
    assert "holds NaN or infinity" in refused(cli, exported, photos)


def test_an_onnx_file_that_answers_with_nan_is_refused(
    cli: Cli, played: Played, photos: Path
) -> None:
    assert cli("export", played(), "--to", "onnx", "-o", "m.onnx").code == 0
    model = onnx.load("m.onnx")
    for one in model.graph.initializer:
        numbers = numpy_helper.to_array(one)
        if numbers.dtype == "float32" and numbers.ndim > 1:
            one.CopyFrom(numpy_helper.from_array(numbers * float("nan"), one.name))
    onnx.save(model, "m.onnx")
    assert "NaN or infinity" in refused(cli, Path("m.onnx"), photos)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_onnx_file_whose_weights_are_nan_is_refused_though_it_answers(
    value: float, cli: Cli, played: Played, photos: Path
) -> None:
    assert cli("export", played(), "--to", "onnx", "-o", "m.onnx").code == 0
    model = onnx.load("m.onnx")
    one = next(part for part in model.graph.initializer if part.name.startswith("net.encoder"))
    numbers = numpy_helper.to_array(one).copy()
    numbers.reshape(-1)[0] = value  # one weight, which the next ReLU may swallow
    one.CopyFrom(numpy_helper.from_array(numbers, one.name))
    onnx.save(model, "m.onnx")
    assert "holds NaN or infinity" in refused(cli, Path("m.onnx"), photos)


def test_a_run_whose_model_holds_nan_is_refused(
    cli: Cli, played: Played, photos: Path, tmp_path: Path
) -> None:
    import shutil

    folder = Path(shutil.copytree(played(), tmp_path / "run"))
    place = folder / "checkpoints" / "round-00001"
    server = unpack_tree((place / "server.safetensors").read_bytes())
    (place / "server.safetensors").write_bytes(
        pack_tree(tree.map(lambda one: one * torch.nan, server))
    )
    manifest: dict[str, Any] = json.loads((place / "manifest.json").read_text())
    digest = hashlib.sha256((place / "server.safetensors").read_bytes()).hexdigest()
    manifest["sha256"]["server.safetensors"] = digest
    (place / "manifest.json").write_text(json.dumps(manifest))
    assert "holds NaN or infinity" in refused(cli, folder, photos)
    assert cli("export", folder, "--to", "safetensors", "-o", "x.safetensors").code == 2
    assert not Path("x.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("side", 5),
        ("side", 4096),
        ("side", "wide"),
        ("side", 10**400),
        ("channels", 1),
        ("channels", 2),
        ("classes", ["bird"]),
        ("classes", []),
        ("classes", ["bird", "cat", "dog"]),
        ("classes", 7),
        ("mean", [0.5]),
        ("mean", [float("nan")] * 3),
        ("std", [0, 0, 0]),
        ("std", [1e-40] * 3),
        ("client", -1),
        ("spec", {}),
        ("spec", {"data": {"name": "digits-mini", "side": 10**9}}),
        ("spec", [1]),
        ("scores", 3),
        ("protofed", 2),
        ("round", None),
    ],
    ids=str,
)
def test_crafted_metadata_is_refused(
    name: str, value: object, cli: Cli, exported: Path, photos: Path
) -> None:
    rewrite(exported, {name: json.dumps(value)})
    assert "m.safetensors" in refused(cli, exported, photos)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\ud7ff", "[[[[1]]]]" * 3])
def test_metadata_that_is_no_json_is_refused(
    text: str, cli: Cli, exported: Path, photos: Path
) -> None:
    rewrite(exported, {"classes": text})
    refused(cli, exported, photos)


def wider(tensors: Tensors) -> None:
    tensors["prototypes.vectors"] = torch.zeros(2, 7)


def beyond(tensors: Tensors) -> None:
    tensors["prototypes.labels"] = torch.tensor([0, 99])


def fewer(tensors: Tensors) -> None:
    del tensors["prototypes.counts"]


def flat(tensors: Tensors) -> None:
    tensors["prototypes.vectors"] = torch.zeros(3)


@pytest.mark.parametrize("change", [wider, beyond, fewer, flat])
def test_prototypes_that_do_not_fit_are_refused(
    change: Callable[[Tensors], None], cli: Cli, exported: Path, photos: Path
) -> None:
    rewrite(exported, {}, change)
    assert "m.safetensors" in refused(cli, exported, photos)
