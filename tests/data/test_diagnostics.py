from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from protofed.core.site import ArrayDataset
from protofed.data.benchmark_info import Benchmark, Domain
from protofed.data.diagnostics import GRADES, NEAR_BITS, Diagnosis, diagnose_benchmark
from protofed.data.domain_shift import measure_domain_shift
from protofed.data.folder_images import pack_folder
from protofed.data.image_decoding import HASH_SIDE, decode_image, perceptual_hash
from protofed.errors import ProtofedError
from protofed.spec.spec_parser import parse_experiment
from tests.data.pictures import drawing, make, spoil


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))


def details(found: Diagnosis, words: str) -> list[str]:
    """The details of the finding whose title holds some words; none if there is no such one."""
    mine = [finding for finding in found.findings if words in finding.title]
    assert len(mine) < 2
    return mine[0].details if mine else []


def bits(image: Image.Image) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.unpackbits(np.frombuffer(perceptual_hash(image), dtype=np.uint8))


def scene(seed: int, side: int = 96) -> Image.Image:
    """Smooth random colours, as a photograph's."""
    coarse = np.random.default_rng(seed).integers(0, 255, (6, 6, 3)).astype(np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def test_the_hash_asks_each_place_whether_its_right_neighbour_is_lighter() -> None:
    values = np.random.default_rng(0).integers(0, 255, (HASH_SIDE + 1, HASH_SIDE + 1))
    image = Image.fromarray(values.astype(np.uint8))
    found = bits(image)
    slow = [
        int(values[row, column + 1] - values[row, column] >= 2)
        for row in range(HASH_SIDE)
        for column in range(HASH_SIDE)
    ]
    assert found.tolist() == slow


def test_the_hash_survives_what_leaves_the_look_and_tells_others_apart(tmp_path: Path) -> None:
    original = scene(1)
    original.save(tmp_path / "a.jpg", quality=40)
    with Image.open(tmp_path / "a.jpg") as coarse:
        same = [coarse.copy(), original.resize((61, 61)), original.convert("L")]
    same.append(ImageEnhance.Brightness(original).enhance(0.9))
    assert max(int((bits(original) != bits(image)).sum()) for image in same) <= NEAR_BITS
    others = [int((bits(original) != bits(scene(seed))).sum()) for seed in range(2, 30)]
    assert min(others) > 2 * NEAR_BITS


def test_copies_are_found_and_graded_by_what_they_do(tmp_path: Path) -> None:
    root = make(tmp_path / "own")
    for split in ("train", "test"):
        shutil.copytree(root / "photo", root / "new" / split)
    shutil.rmtree(root / "photo")
    for number, path in enumerate(sorted((root / "new" / "test").rglob("*.*"))):
        scene(500 + number).save(path)
    first, second = scene(1), scene(2)
    first.save(root / "new" / "train" / "cat" / "one.png")
    first.save(root / "new" / "test" / "cat" / "again.bmp")  # the same in another format
    second.save(root / "neg" / "cat" / "two.png")
    second.resize((70, 70)).save(root / "new" / "train" / "cat" / "smaller.jpg")
    scene(3).save(root / "neg" / "cat" / "three.png")
    scene(3).save(root / "neg" / "bird" / "three.png")
    found = diagnose_benchmark(str(root))
    assert details(found, "(the same pixels) in training and in test") == [
        "new/train/cat/one.png = new/test/cat/again.bmp"
    ]
    (pair,) = details(found, "(the same pixels) under different classes")
    assert set(pair.split(" = ")) == {"neg/bird/three.png", "neg/cat/three.png"}
    near = [line for f in found.findings if "(nearly the same" in f.title for line in f.details]
    assert [set(line.split(" = ")) for line in near] == [
        {"neg/cat/two.png", "new/train/cat/smaller.jpg"}
    ]
    order = [GRADES.index(finding.grade) for finding in found.findings]
    assert order == sorted(order)
    assert found.findings[0].grade == "bad"


def test_counts_bad_files_tiny_and_uneven_classes(tmp_path: Path) -> None:
    root = make(tmp_path / "own", each=30)
    bad = spoil(root / "neg" / "bird")
    for path in sorted((root / "photo" / "cat").iterdir())[4:]:
        path.unlink()
    (root / "photo" / "dog").mkdir()
    Image.fromarray(drawing(0, 99)).save(root / "photo" / "dog" / "only.png")
    found = diagnose_benchmark(str(root))
    assert found.counts["neg"] == {"bird": (24, 6), "cat": (24, 6), "dog": (0, 0)}
    assert found.counts["photo"] == {"bird": (24, 6), "cat": (3, 1), "dog": (1, 0)}
    told = details(found, "10 files cannot be used")
    assert {line.partition(":")[0].rpartition("/")[2] for line in told} == set(bad)
    assert details(found, "a domain lacks") == ["neg: dog"]
    assert details(found, "fewer than 10 images") == ["photo: cat, 3 + 1", "photo: dog, 1 + 0"]
    assert details(found, "times the smallest or more (1)") == ["photo: bird 24, dog 1"]
    assert found.to_dict()["findings"][0]["advice"]


def dataset(size: int, seed: int, negative: bool) -> ArrayDataset:
    labels = torch.arange(size) % 2
    name = "neg" if negative else "plain"
    images = [drawing(label, seed + n, name) for n, label in enumerate(labels.tolist())]
    return ArrayDataset(torch.from_numpy(np.stack(images)), labels)


@pytest.mark.parametrize("negative", [False, True])
def test_the_probe_tells_a_shift_from_noise(negative: bool) -> None:
    domains = tuple(
        Domain(name, dataset(200, seed, other), dataset(100, seed + 10_000, other))
        for name, seed, other in (("one", 0, False), ("two", 50_000, negative))
    )
    shift = measure_domain_shift(Benchmark("toy", ("disc", "bar"), domains))
    assert shift is not None
    assert min(shift.accuracy[name][name] for name in ("one", "two")) > 80
    if negative:
        assert shift.word in ("strong", "moderate")
        assert any(drop.beyond_noise for drop in shift.drops)
    else:
        assert shift.word == "none beyond noise"


def test_the_suggested_spec_is_one(tmp_path: Path) -> None:
    root = make(tmp_path / 'own "images"')
    found = diagnose_benchmark(str(root))
    experiment = parse_experiment(tomllib.loads(found.spec))
    assert experiment.to_dict()["data"]["name"] == str(root)
    assert experiment.partition.clients == {"neg": 1, "photo": 1}
    assert experiment.training.batch == 16


def test_a_folder_that_cannot_be_trained_on_is_a_finding(tmp_path: Path) -> None:
    root = make(tmp_path / "own")
    (root / "neg" / "cat").rename(root / "neg" / "CAT")
    found = diagnose_benchmark(str(root))
    assert (found.findings[0].grade, found.spec) == ("stop", "")
    assert any("CAT in neg" in line for line in found.findings[0].details)
    with pytest.raises(ProtofedError, match="does not exist"):
        diagnose_benchmark(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("content", ["{", "{}", '{"neg": 1}', None])
def test_a_damaged_list_of_files_is_made_again(content: str | None, tmp_path: Path) -> None:
    root = make(tmp_path / "own")
    whole = diagnose_benchmark(str(root)).to_dict()
    index = pack_folder(root, 32).place / "index.json"
    index.unlink()
    if content is not None:
        index.write_text(content)
    assert diagnose_benchmark(str(root)).to_dict() == whole
    assert len(index.read_text()) > 1000


def test_a_benchmark_can_be_examined_too() -> None:
    found = diagnose_benchmark("digits-mini")
    assert found.shift is not None
    assert found.shift.word in ("strong", "moderate")
    assert parse_experiment(tomllib.loads(found.spec)).data.label == "digits-mini"
    assert found.counts["optical"]["3"] == (120, 30)


def test_decoded_and_arrays_have_the_same_hash(tmp_path: Path) -> None:
    image = Image.fromarray(drawing(0, 5))
    image.save(tmp_path / "a.png")
    found = decode_image(str(tmp_path / "a.png"), 32)
    assert not isinstance(found, str)
    assert found.look == perceptual_hash(image)
