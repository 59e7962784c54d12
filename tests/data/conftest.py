"""What the tests of fetching share: a host with small sets, and the table that fits them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from protofed.data import download, http_download
from protofed.data.download import DownloadProgress
from protofed.data.http_download import RemoteFile
from tests.data.publishing import PUBLISHERS, Truth
from tests.data.serving import Host, serving

Publish = Callable[[str], Truth]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host of which protofed thinks that it mirrors everything; no waiting between tries."""
    monkeypatch.setattr(http_download, "BACKOFF", 0.0)
    monkeypatch.setenv("PROTOFED_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))
    (tmp_path / "host").mkdir()
    with serving(tmp_path / "host") as started:
        monkeypatch.setenv("PROTOFED_MIRROR", started.url + "/")
        yield started


@pytest.fixture
def publish(host: Host, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Puts a small set on the host; what is published of it is right: checksums and counts."""

    def make(name: str) -> Truth:
        folder = host.root / name
        folder.mkdir()
        truth = PUBLISHERS[name](folder)
        source = download.SOURCES[name]
        files = tuple(_described(folder, remote) for remote in source.files)
        counts = {
            file: tuple(len(arrays[k]) for k in ("y_train", "y_test", "y") if k in arrays)
            for file, arrays in truth.items()
        }
        small = replace(source, files=files, makes=counts)
        monkeypatch.setitem(download.SOURCES, name, small)
        return truth

    return make


def _described(folder: Path, remote: RemoteFile) -> RemoteFile:
    """The same file with the small one's checksum, where the table has one at all."""
    content = (folder / remote.name).read_bytes()
    kind = remote.checksum.partition(":")[0]
    digest = hashlib.new(kind, content).hexdigest() if kind else ""
    return remote._replace(size=len(content), checksum=f"{kind}:{digest}" if kind else "")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def follow(said: list[str]) -> DownloadProgress:
    """Keeps the lines, watches nothing."""
    return DownloadProgress(said.append, lambda remote: lambda done, total: None)
