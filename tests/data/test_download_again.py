"""Sets that were fetched before: wrongly, at another size, or at the same time."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from protofed.data import download as getting
from protofed.data.benchmarks import load_benchmark
from protofed.data.download import LOCK, DownloadProgress, download_benchmark
from protofed.errors import ProtofedError
from protofed.runtime.atomic_io import atomic_write_json
from tests.data.conftest import Publish
from tests.data.serving import Host


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def tar_of_something_else() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        packed.addfile(tarfile.TarInfo("readme.txt"))
    return out.getvalue()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (b"the file is busy, please wait\n", "is not a complete .zip or .tar.gz file"),
        (tar_of_something_else(), "the archive has no folder sketch"),
    ],
    ids=["text", "another archive"],
)
def test_a_wrong_first_file_without_a_checksum_does_not_block_the_set(
    wrong: bytes, says: str, publish: Publish, host: Host, root: Path, follow: DownloadProgress
) -> None:
    publish("pacs")
    sketch = host.root / "pacs" / "sketch.tgz"
    right = sketch.read_bytes()
    sketch.write_bytes(wrong)
    with pytest.raises(ProtofedError, match=says) as fault:
        download_benchmark("pacs", root, follow)
    assert "rerun the same command to download it again" in str(fault.value)
    assert (root / "pacs" / ".get-pacs" / "sketch.tgz.wrong").read_bytes() == wrong
    assert not (root / LOCK).exists()
    sketch.write_bytes(right)
    host.asked.clear()
    assert download_benchmark("pacs", root, follow)
    assert ("/pacs/sketch.tgz", "") in host.asked
    assert len(json.loads((root / LOCK).read_text())) == 4
    load_benchmark("pacs")


def test_images_of_another_size_are_not_taken_for_those_asked_for(
    publish: Publish, root: Path, follow: DownloadProgress
) -> None:
    publish("vlcs")
    assert download_benchmark("vlcs", root, follow, side=16)
    assert not download_benchmark("vlcs", root, follow, side=16)
    assert not download_benchmark("vlcs", root, follow)  # whatever their size
    with pytest.raises(
        ProtofedError, match="in 16 pixels, not 24\nleave `side=24` out, or replace"
    ):
        download_benchmark("vlcs", root, follow, side=24)
    assert download_benchmark("vlcs", root, follow, side=24, again=True)
    with np.load(root / "vlcs" / "sun.npz") as stored:
        assert stored["x"].shape[1:] == (24, 24, 3)
    meta = json.loads((root / "vlcs" / "meta.json").read_text())
    assert meta["files"].pop("sun.npz").pop("side") == 24


@pytest.mark.parametrize("names", [("mnist", "usps"), ("pacs", "office-caltech")])
def test_two_sets_at_once_lose_nothing_of_each_other(
    names: tuple[str, str],
    publish: Publish,
    root: Path,
    follow: DownloadProgress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both_have_read = threading.Barrier(2)

    def slowly(path: Path, content: object) -> None:
        with suppress(threading.BrokenBarrierError):
            both_have_read.wait(0.5)
        atomic_write_json(path, content)

    for name in names:
        publish(name)
    monkeypatch.setattr(getting, "atomic_write_json", slowly)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda name: download_benchmark(name, root, follow), names)) == [
            True,
            True,
        ]
    if names == ("mnist", "usps"):
        described = json.loads((root / "digits" / "meta.json").read_text())["files"]
        assert set(described) == {"mnist.npz", "usps.npz"}
    else:
        keys = json.loads((root / LOCK).read_text())
        assert {key.partition("/")[0] for key in keys} == set(names)
