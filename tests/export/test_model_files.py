"""Files to take along: they answer as their run does, say what they are, and are checked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file

from protofed.errors import ProtofedError
from protofed.export.inference_module import (
    InferenceModule,
    ModelOutputs,
    TrainedProduct,
    load_trained_model,
)
from protofed.export.model_files import (
    FORMATS,
    OutputDifference,
    compare_outputs,
    read_export,
    write_export,
)
from protofed.methods import METHODS
from tests.cli.conftest import Cli
from tests.export.conftest import Played


@pytest.mark.parametrize("method", METHODS)
def test_every_methods_model_answers_from_a_file_as_in_its_run(
    method: str, played: Played, tmp_path: Path
) -> None:
    folder = played(method)
    taken = load_trained_model(folder, client=1 if METHODS[method]().personal else None)
    out = tmp_path / "model.safetensors"
    found = write_export(taken, FORMATS["safetensors"], out)
    assert found.images == len(taken.images) > 1
    assert found.scores < 1e-5
    facts = read_export(out).facts
    assert facts == taken.product.facts
    assert (facts.classes, facts.method) == (("bird", "cat"), METHODS[method].info.label)


@pytest.mark.parametrize("method", ["fedavg", "fedsr", "fedlsa", "fedseproto"])
def test_onnx_answers_as_the_run_for_any_number_of_images(
    method: str, played: Played, tmp_path: Path
) -> None:
    taken = load_trained_model(played(method))
    out = tmp_path / "model.onnx"
    assert write_export(taken, FORMATS["onnx"], out).scores < 1e-5
    model = onnx.load(out)
    onnx.checker.check_model(model, full_check=True)
    texts = {one.key: json.loads(one.value) for one in model.metadata_props}
    assert texts["classes"] == ["bird", "cat"]
    assert texts["digest"] == taken.product.facts.digest
    assert texts["mean"] == [0.485, 0.456, 0.406]
    assert texts["scores"]["last"]["domains"].keys() == {"photo", "neg"}
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert (given.name, given.type) == ("images", "tensor(uint8)")
    assert given.shape[1:] == [16, 16, 3]
    for count in (1, 3):
        logits, chances = session.run(None, {"images": taken.images[:count].numpy()})
        assert np.allclose(logits, taken.logits[:count], atol=1e-5)
        assert np.allclose(chances.sum(1), 1, atol=1e-6)


def test_a_file_tells_nothing_of_the_machine_it_was_made_on(
    played: Played, photos: Path, tmp_path: Path
) -> None:
    taken = load_trained_model(played())
    for kind in FORMATS.values():
        write_export(taken, kind, tmp_path / f"model{kind.ending}")
        content = (tmp_path / f"model{kind.ending}").read_bytes()
        assert str(photos.parent).encode() not in content
        assert str(Path(__file__).parent.parent.parent).encode() not in content


def test_a_client_is_named_where_each_has_a_model(cli: Cli, played: Played) -> None:
    folder = played("local")
    ended = cli("export", folder, "--to", "safetensors")
    assert ended.code == 2
    assert "clients: 0 (neg), 1 (photo)\nchoose one with --client" in ended.err
    ended = cli("export", folder, "--to", "safetensors", "--client", "7")
    assert "there is no client 7" in ended.err
    ended = cli("export", played(), "--to", "safetensors", "--client", "0")
    assert "leave --client out" in ended.err
    files = [Path(f"{number}.safetensors") for number in (0, 1)]
    for number, file in enumerate(files):
        ended = cli("export", folder, "--to", "safetensors", "--client", number, "-o", file)
        assert ended.code == 0, ended.err
        assert f"client {number} (" in ended.out
    assert files[0].read_bytes() != files[1].read_bytes()


class Wrong(InferenceModule):
    """A model whose file would say something else than its run."""

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, chances = super().forward(images)
        return logits + 0.1, chances


@pytest.mark.parametrize("kind", ["onnx", "safetensors"])
def test_a_file_that_answers_otherwise_never_comes_to_its_place(
    kind: str, cli: Cli, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protofed.export.inference_module.InferenceModule", Wrong)
    out = Path(f"model{FORMATS[kind].ending}")
    ended = cli("export", played(), "--to", kind, "-o", out)
    assert ended.code == 2
    assert "the check failed" in ended.err
    assert list(Path().iterdir()) == []


def test_the_check_refuses_nan(played: Played) -> None:
    taken = load_trained_model(played())

    def nothing(images: torch.Tensor) -> ModelOutputs:
        empty = torch.full((len(images), 2), torch.nan)
        return ModelOutputs(empty, empty)

    with pytest.raises(ProtofedError, match="check failed"):
        compare_outputs(TrainedProduct(taken.product.facts, nothing), taken)
    assert isinstance(compare_outputs(taken.product, taken), OutputDifference)


def test_without_the_extra_the_command_to_install_it_is_told(
    cli: Cli, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("onnx", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    ended = cli("export", played(), "--to", "onnx")
    assert ended.code == 2
    assert "pip install 'protofed[export]'" in ended.err
    assert "onnx and onnxscript" in ended.err


@pytest.mark.parametrize("ending", [".onnx", ".safetensors"])
def test_a_file_that_is_no_model_is_refused_in_words(
    ending: str, cli: Cli, played: Played, photos: Path
) -> None:
    file = Path(f"model{ending}")
    ended = cli("predict", file, photos)
    assert (ended.code, ended.err) == (2, f"error: {file} does not exist\n")
    file.write_bytes(b"nothing of the kind")
    ended = cli("predict", file, photos)
    assert ended.code == 2
    assert "cannot be read as" in ended.err
    kind = next(name for name, one in FORMATS.items() if one.ending == ending)
    cli("export", played(), "--to", kind, "-o", file)
    file.write_bytes(file.read_bytes()[:-2000])
    assert cli("predict", file, photos).code == 2


def test_strangers_files_and_other_weights_are_refused(played: Played, tmp_path: Path) -> None:
    strange = tmp_path / "strange.safetensors"
    save_file({"a": torch.zeros(1)}, strange)
    with pytest.raises(ProtofedError, match="not written by `protofed export`"):
        read_export(strange)
    facts = load_trained_model(played()).product.facts.texts()
    save_file({"a": torch.zeros(1)}, strange, facts)
    with pytest.raises(ProtofedError, match="do not fit its spec"):
        read_export(strange)
    save_file({"a": torch.zeros(1)}, strange, facts | {"classes": "[]"})
    with pytest.raises(ProtofedError, match="metadata is damaged"):
        read_export(strange)
    for name in ("model.exe", "model.pt"):
        with pytest.raises(ProtofedError, match=r"is not a model.*\(\.onnx, \.safetensors\)"):
            read_export(tmp_path / name)
