"""Sets from a host to `load`: every byte of every set, and what must not get lost on the way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protofed.data import download
from protofed.data import download as getting
from protofed.data.benchmarks import BENCHMARKS, load_benchmark
from protofed.data.download import (
    ASSEMBLED,
    LOCK,
    SOURCES,
    DownloadProgress,
    download_benchmark,
    missing_images,
    missing_sources,
    sources_for,
)
from protofed.data.http_download import RemoteFile
from protofed.data.npz_store import PUBLISHED
from protofed.errors import ProtofedError
from protofed.runtime.atomic_io import file_sha256
from tests.data.conftest import Publish
from tests.data.publishing import PUBLISHERS
from tests.data.serving import Host


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def seen(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): file_sha256(p) for p in root.rglob("*") if p.is_file()}


def test_every_real_set_of_the_catalog_can_be_had() -> None:
    needed = {name for name, entry in BENCHMARKS.items() if entry.needs_data}
    assert {source.archive for source in SOURCES.values()} | ASSEMBLED.keys() == needed
    assert set(PUBLISHERS) == set(SOURCES)
    assert sources_for("digits") == ("mnist", "mnistm", "svhn", "usps")
    assert sources_for("mnist-m") == ("mnistm",)
    with pytest.raises(ProtofedError, match="unknown public set 'pasc'; did you mean 'pacs'"):
        sources_for("pasc")


def test_a_set_without_a_download_says_where_it_is_told_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTOFED_DATA", str(tmp_path))
    for name, archive in ASSEMBLED.items():
        with pytest.raises(ProtofedError, match=f"'{name}' cannot be downloaded: .*docs/data.md"):
            sources_for(name)
        assert missing_sources(name) == (name,)
        (missing,) = missing_images(name, BENCHMARKS[name].domains)
        expected = f"{name} is missing in {tmp_path}/{archive.folder}: see docs/data.md"
        assert str(missing) == expected


def test_the_table_is_well_formed() -> None:
    for name, source in SOURCES.items():
        assert source.licence, name
        assert source.citation, name
        assert set(source.folders) in (set(), set(source.makes))
        for remote in source.files:
            kind, _, digest = remote.checksum.partition(":")
            assert len(digest) == {"": 0, "md5": 32, "sha256": 64}[kind]
            assert all(url.startswith(("https://", "http://ufldl.")) for url in remote.urls)
            assert remote.checksum or all(url.startswith("https://") for url in remote.urls)


@pytest.mark.parametrize("name", sorted(PUBLISHERS))
def test_a_set_is_fetched_stored_and_loaded(
    name: str, publish: Publish, root: Path, follow: DownloadProgress, said: list[str]
) -> None:
    truth = publish(name)
    source = download.SOURCES[name]
    assert name in missing_sources(source.archive)
    assert download_benchmark(name, root, follow)
    folder = root / source.home.folder
    kept = {"meta.json", *truth}
    assert {path.name for path in folder.iterdir()} == kept
    for file, arrays in truth.items():
        with np.load(folder / file, allow_pickle=False) as stored:
            assert set(stored.files) - {"names"} == set(arrays) - {"names"}
            for key, array in arrays.items():
                assert np.array_equal(stored[key], array), (file, key)
    assert name not in missing_sources(source.archive)
    assert not any(line.startswith("note:") for line in said)
    before = seen(root)
    assert not download_benchmark(name, root, follow)  # once is enough
    assert seen(root) == before
    entry = BENCHMARKS[source.archive]
    chosen = (name,) if source.archive == "digits" else ()
    for domain in load_benchmark(source.archive, chosen).domains:
        assert len(domain.train) > 0 < len(domain.test)
        assert domain.train.images.shape[1:3] == (entry.side, entry.side)
        if len(next(iter(truth.values()))) == 4:  # the set's own split
            assert domain.note == PUBLISHED


def test_rows_stand_in_order_of_class_and_file(
    publish: Publish, root: Path, follow: DownloadProgress
) -> None:
    publish("office-caltech")
    download_benchmark("office-caltech", root, follow)
    with np.load(root / "office_caltech10" / "dslr.npz") as stored:
        names = [tuple(name.split("/")) for name in stored["names"].tolist()]
    assert names == sorted(names)
    assert names[0][0] == "backpack"  # stored as back_pack


def test_photographs_are_resized_to_the_asked_side(
    publish: Publish, root: Path, follow: DownloadProgress
) -> None:
    publish("vlcs")
    download_benchmark("vlcs", root, follow, side=16)
    with np.load(root / "vlcs" / "sun.npz") as stored:
        assert stored["x"].shape == (20, 16, 16, 3)


def test_sets_of_one_folder_do_not_disturb_each_other(
    publish: Publish, root: Path, follow: DownloadProgress
) -> None:
    for name in ("mnist", "usps"):
        publish(name)
        download_benchmark(name, root, follow)
    meta = json.loads((root / "digits" / "meta.json").read_text())
    assert set(meta["files"]) == {"mnist.npz", "usps.npz"}
    assert {d.name for d in load_benchmark("digits", ("mnist", "usps")).domains} == {
        "mnist",
        "usps",
    }


def test_a_wrong_file_stops_and_nothing_good_is_lost(
    publish: Publish, host: Host, root: Path, follow: DownloadProgress
) -> None:
    for name in ("mnist", "svhn"):
        publish(name)
    download_benchmark("mnist", root, follow)
    before = seen(root)
    right = (host.root / "svhn" / "test_32x32.mat").read_bytes()
    (host.root / "svhn" / "test_32x32.mat").write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    with pytest.raises(ProtofedError, match=r"test_32x32.mat is not the published file"):
        download_benchmark("svhn", root, follow)
    assert before.items() <= seen(root).items()
    assert not (root / "digits" / "svhn.npz").exists()
    load_benchmark("digits", ("mnist",))
    (host.root / "svhn" / "test_32x32.mat").write_bytes(right)
    host.asked.clear()
    download_benchmark("svhn", root, follow)
    assert [path for path, _ in host.asked] == ["/svhn/test_32x32.mat"]  # the right one is kept
    load_benchmark("digits", ("svhn",))


def test_a_file_without_a_published_checksum_must_stay_the_same(
    publish: Publish, host: Host, root: Path, follow: DownloadProgress, said: list[str]
) -> None:
    publish("office-caltech")
    download_benchmark("office-caltech", root, follow)
    (key,) = json.loads((root / LOCK).read_text())
    assert key == "office-caltech/office_caltech_10_dataset.zip"
    assert any("no published checksum" in line for line in said)
    archive = host.root / key
    before = seen(root)
    archive.write_bytes(archive.read_bytes() + b"\0")
    with pytest.raises(ProtofedError, match="differs from the file downloaded first"):
        download_benchmark("office-caltech", root, follow, again=True)
    assert before.items() <= seen(root).items()
    load_benchmark("office-caltech")


def test_what_is_there_is_replaced_only_when_asked(
    publish: Publish, root: Path, follow: DownloadProgress
) -> None:
    publish("pathmnist")
    mine = root / "pathmnist" / "pathmnist.npz"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    with pytest.raises(ProtofedError, match="replace it with `again`"):
        download_benchmark("pathmnist", root, follow)
    assert mine.read_bytes() == b"mine"
    assert download_benchmark("pathmnist", root, follow, again=True)
    load_benchmark("pathmnist")


def test_a_meta_file_of_something_else_is_not_written_over(
    publish: Publish, root: Path, follow: DownloadProgress
) -> None:
    publish("pacs")
    (root / "pacs").mkdir()
    (root / "pacs" / "meta.json").write_text('{"classes": ["cat"], "files": {}}')
    with pytest.raises(ProtofedError, match=r"meta.json is broken"):
        download_benchmark("pacs", root, follow)
    assert json.loads((root / "pacs" / "meta.json").read_text())["classes"] == ["cat"]


def test_fewer_images_than_published_are_told(
    publish: Publish,
    root: Path,
    follow: DownloadProgress,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish("cifar10")
    whole = replace(download.SOURCES["cifar10"], makes={"cifar10.npz": (50_000, 10_000)})
    monkeypatch.setitem(download.SOURCES, "cifar10", whole)
    download_benchmark("cifar10", root, follow)
    assert "does not have the 50,000 + 10,000 images" in said[-1]
    assert load_benchmark("cifar10").domains[0].note != PUBLISHED


def test_a_full_disk_is_told_before_anything_is_asked(
    publish: Publish,
    host: Host,
    root: Path,
    follow: DownloadProgress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish("usps")
    monkeypatch.setattr(getting, "ROOM", 2**60)
    with pytest.raises(ProtofedError, match=r"GB free, and about .* GB are needed"):
        download_benchmark("usps", root, follow)
    assert host.asked == []


def test_two_at_once_are_refused(publish: Publish, root: Path, follow: DownloadProgress) -> None:
    publish("usps")

    def begin(remote: RemoteFile) -> object:
        with pytest.raises(ProtofedError, match="another process is downloading"):
            download_benchmark("usps", root, DownloadProgress(follow.say, follow.begin))
        return follow.begin(remote)

    download_benchmark("usps", root, DownloadProgress(follow.say, begin))  # type: ignore[arg-type]
    load_benchmark("digits", ("usps",))


def test_without_a_mirror_the_published_addresses_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PROTOFED_MIRROR", raising=False)
    assert download.source_files("pacs", SOURCES["pacs"]) == SOURCES["pacs"].files
