"""Features of images as data of their own, from the command line."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from protofed.core.model import ImageShape
from protofed.nets import build_net
from tests.cli.conftest import Cli
from tests.data.pictures import make


def weights(folder: Path) -> str:
    path = folder / "w.safetensors"
    save_file(build_net("moon-cnn", 2, ImageShape(3, 16), 1).state_dict(), path)
    return str(path)


def test_images_become_rows_that_a_run_takes(cli: Cli, tmp_path: Path) -> None:
    make(tmp_path / "images")
    start = ("--net", "moon-cnn", "--pretrained", weights(tmp_path), "--side", "16")
    ended = cli("data", "embed", "images", "-o", "rows", *start)
    assert ended.code == 0, ended.err
    assert "photo: " in ended.out
    assert ended.out.splitlines()[-1] == f"rows of 84 numbers in {tmp_path / 'rows'}"
    assert cli("data", "embed", "images", "-o", "rows", *start).code == 0  # the same are there
    ran = cli("run", "--data", "rows", "--rounds", "1", "--workers", "0")
    assert ran.code == 0, ran.err
    assert "photo" in ran.out
    again = cli("data", "embed", "rows", "-o", "more", *start)
    assert again.code == 2
    assert "is for images, and these data are rows" in again.err


def test_a_file_that_is_no_weights_is_one_error_and_nothing_is_written(
    cli: Cli, tmp_path: Path
) -> None:
    make(tmp_path / "images")
    (tmp_path / "w.pth").write_bytes(b"no weights")
    start = ("--net", "moon-cnn", "--pretrained", "w.pth", "--side", "16")
    ended = cli("data", "embed", "images", "-o", "rows", *start)
    assert ended.code == 2
    assert ended.err.count("error:") == ended.err.count("error: pretrained: ") == 1
    assert "is no file of weights" in ended.err
    assert not (tmp_path / "rows").exists()
