from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protofed.data import folder_images, image_decoding
from protofed.data.benchmarks import benchmark_info, load_benchmark, looks_like_folder
from protofed.data.folder_images import folder_info, folder_label, pack_folder
from protofed.data.folder_layout import StrayFile
from protofed.errors import ProtofedError
from protofed.runtime.console import telling
from tests.data.pictures import CLASSES, drawing, make, spoil


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path / "my images")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often a folder is decoded."""
    calls: list[int] = []
    honest = image_decoding.decode_in_parallel

    def counting(files: list[StrayFile], side: int, doing: str) -> object:
        calls.append(len(files))
        return honest(files, side, doing)

    monkeypatch.setattr(folder_images, "decode_in_parallel", counting)
    return calls


def names(root: Path, side: int = 32) -> dict[str, dict[str, list[str]]]:
    index = json.loads((pack_folder(root, side).place / "index.json").read_text())
    return {d: {p: [row[0] for row in rows] for p, rows in of.items()} for d, of in index.items()}


def test_a_folder_becomes_a_benchmark_with_its_own_pixels(root: Path) -> None:
    benchmark = load_benchmark(str(root), side=24)
    assert benchmark.classes == CLASSES
    assert [domain.name for domain in benchmark.domains] == ["neg", "photo"]
    for domain in benchmark.domains:
        assert (len(domain.train), len(domain.test)) == (16, 4)
        assert domain.test.labels.bincount().tolist() == [2, 2]
    files = names(root, 24)["photo"]["train"]
    for row, name in enumerate(files):
        if name.endswith("png"):
            _, label, file = name.split("/")
            number = int(file.removesuffix(".png"))
            expected = drawing(CLASSES.index(label), number, "photo")
            found = benchmark.domains[1].train
            assert np.array_equal(found.images[row].numpy(), expected)
            assert found.labels[row] == CLASSES.index(label)


def test_the_second_start_decodes_nothing_and_an_edit_is_noticed(
    root: Path, decoded: list[int]
) -> None:
    first = folder_info(root).data_version(32)
    assert folder_info(root).data_version(32) == first
    load_benchmark(str(root))
    assert decoded == [40]
    path = root / "photo" / "cat" / "001.png"
    before = path.stat()
    Image.fromarray(255 - drawing(1, 1, "photo")).save(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # an edit that hides its time
    second = folder_info(root).data_version(32)
    assert second != first
    Image.fromarray(drawing(1, 1, "photo")).save(path)
    assert folder_info(root).data_version(32) == first  # the same images again
    assert decoded == [40, 40, 40]


def test_another_size_is_another_pack_and_old_packs_go(root: Path, cache: Path) -> None:
    assert folder_info(root).data_version(16) != folder_info(root).data_version(32)
    (root / "photo" / "cat" / "001.png").unlink()
    folder_info(root).data_version(32)
    assert sorted(len(list(kept.iterdir())) for kept in (cache / "folders").iterdir()) == [1, 1]


def test_a_damaged_pack_is_made_again(root: Path, decoded: list[int]) -> None:
    whole = load_benchmark(str(root)).domains[0].train.images
    file = pack_folder(root, 32).place / "neg.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert torch.equal(load_benchmark(str(root)).domains[0].train.images, whole)
    (pack_folder(root, 32).place / "meta.json").write_text("{")
    assert torch.equal(load_benchmark(str(root)).domains[0].train.images, whole)
    assert len(decoded) == 3


def test_without_a_cache_it_works_all_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[int]
) -> None:
    version = folder_info(root).data_version(32)
    monkeypatch.setenv("PROTOFED_CACHE", "/proc/nowhere")
    assert folder_info(root).data_version(32) == version
    assert len(load_benchmark(str(root)).domains) == 2
    assert decoded == [40, 40]


def test_workers_make_the_same_pack_and_tell_how_far_they_are(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = pack_folder(root, 32).revision
    monkeypatch.setattr(image_decoding, "ALONE", 0)
    monkeypatch.setattr(image_decoding, "usable_cores", lambda: 2)
    told: list[tuple[str, int, int]] = []
    token = telling.set(lambda *words: told.append(words))
    try:
        assert pack_folder(root, 32, fresh=True).revision == alone
    finally:
        telling.reset(token)
    assert told == [("packing images", number, 40) for number in range(1, 41)]


def test_bad_files_are_skipped_with_names_and_reasons_or_refused(root: Path) -> None:
    clean = {d.name: len(d.train) + len(d.test) for d in load_benchmark(str(root)).domains}
    bad = spoil(root / "photo" / "cat")
    skipped = pack_folder(root, 32).skipped
    assert {name.rpartition("/")[2] for name in skipped} == set(bad)
    for name, says in bad.items():
        assert says in skipped[f"photo/cat/{name}"]
    neg, photo = load_benchmark(str(root)).domains
    assert {d.name: len(d.train) + len(d.test) for d in (neg, photo)} == clean
    assert "10 files skipped" in photo.note
    assert all(name in photo.note for name in bad)
    assert "skipped" not in neg.note
    with pytest.raises(ProtofedError, match="10 files cannot be used") as refused:
        folder_info(root, strict=True).data_version(32)
    assert all(name in str(refused.value) for name in bad)


def test_the_split_follows_the_pixels_and_keeps_copies_together(root: Path) -> None:
    before = load_benchmark(str(root)).domains[1]
    for number, path in enumerate(sorted((root / "photo" / "cat").iterdir())):
        path.rename(path.with_name(f"other-{99 - number}{path.suffix}"))
    after = load_benchmark(str(root)).domains[1]
    kinds = [{image.numpy().tobytes() for image in d.test.images} for d in (before, after)]
    assert kinds[0] == kinds[1]
    for path in sorted((root / "photo" / "cat").iterdir()):
        shutil.copy(path, path.with_name(f"copy-{path.name}"))
    both = load_benchmark(str(root)).domains[1]
    train, test = ({i.numpy().tobytes() for i in p.images} for p in (both.train, both.test))
    assert not train & test


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        (("train", "test"), (10, 10)),
        (("Train", "val"), (10, 10)),
        (("train", "valid", "test"), (20, 10)),
        (("train",), (8, 2)),
    ],
)
def test_splits_are_read_from_folders(
    splits: tuple[str, ...], expected: tuple[int, int], tmp_path: Path
) -> None:
    for split in splits:
        make(tmp_path / "own", ("one",), each=5)
        (tmp_path / "own" / "photo").mkdir(exist_ok=True)
        (tmp_path / "own" / "one").rename(tmp_path / "own" / "photo" / split)
    (domain,) = load_benchmark(str(tmp_path / "own")).domains
    assert (len(domain.train), len(domain.test)) == expected
    assert ("val images were added" in domain.note) == ("valid" in splits)
    assert ("split by protofed" in domain.note) == (splits == ("train",))


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    make(tmp_path / "own", ("photo",))
    (tmp_path / "own" / "photo" / "cat").rename(tmp_path / "own" / "photo" / "train")
    assert load_benchmark(str(tmp_path / "own")).classes == ("bird", "train")


def test_classes_are_compared_across_domains(root: Path) -> None:
    (root / "photo" / "cat").rename(root / "photo" / "Cat")
    with pytest.raises(ProtofedError, match="differ only by case") as fault:
        load_benchmark(str(root))
    assert "Cat in photo" in str(fault.value)
    assert "cat in neg" in str(fault.value)
    (root / "photo" / "Cat").rename(root / "photo" / "dog")
    notes = folder_info(root).notes
    assert "photo: has no folder for class cat" in notes
    assert "class dog is only in photo" in notes


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        ([], "holds no folders"),
        (["photo/"], "holds no class folders"),
        (["photo/train/cat/", "photo/extra/"], "next to other folders"),
        (["photo/test/cat/"], "has no train folder"),
        (["photo/2021/cat/a.png"], "no known split"),
        (["photo/cat/a.txt"], "has no usable training image"),
        (["train/cat/a.png", "Test/cat/b.png"], r"holds splits \(Test, train\) where its domains"),
        (["train/photo/cat/a.png"], r"write domain/class/image, .*or domain/split/class/image"),
    ],
)
def test_other_layouts_are_refused(paths: list[str], says: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for path in paths:
        place = tmp_path / "own" / path
        (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            place.touch()
    with pytest.raises(ProtofedError, match=says):
        load_benchmark(str(tmp_path / "own"))


def test_what_is_a_folder_and_what_a_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "photos"):
        (tmp_path / name).mkdir()
    told = {n: looks_like_folder(n) for n in ("digits", "./digits", "photos", "a/b", "~", "pcas")}
    assert list(told.values()) == [False, True, True, True, True, False]
    assert benchmark_info("digits").side == 32
    with pytest.raises(ProtofedError, match="does not exist"):
        benchmark_info("a/b")
    assert (folder_label("/x/my images"), folder_label("/")) == ("my-images", "images")
