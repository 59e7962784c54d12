from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from protofed.core.site import ArrayDataset
from protofed.data import benchmarks
from protofed.data.benchmark_info import Domain
from protofed.data.benchmarks import BENCHMARKS, load_benchmark
from protofed.data.npz_store import ArchiveInfo
from protofed.data.partition import DirichletPartition, EqualPartition, SharesPartition
from protofed.errors import ProtofedError

DIGITS = ("mnist", (60_000, 10_000)), ("usps", (7291, 2007)), ("svhn", (10_000, 5000))
OFFICE = (("caltech", 899, 224), ("amazon", 768, 190), ("webcam", 237, 58), ("dslr", 127, 30))
PACS = (("photo", 1169, 501), ("art", 1433, 615), ("cartoon", 1640, 704), ("sketch", 2750, 1179))
WBC = (("barcelona", 1200, 300), ("tecom", 240, 60), ("cellavision", 80, 20), ("bccd", 273, 68))
SIZES = {  # domain: (train, test), as the papers or the files' own notes state them
    "bloodpbc": {"bloodpbc": (6000, 2000)},
    "cifar10": {"cifar10": (8000, 2000)},
    "cifar100": {"cifar100": (2000, 500)},
    "digits": {**dict(DIGITS), "mnistm": (7500, 2500)},
    "office-caltech": {domain: (train, test) for domain, train, test in OFFICE},
    "pacs": {domain: (train, test) for domain, train, test in PACS},
    "wbc": {domain: (train, test) for domain, train, test in WBC},
}
FOLDERS = {name: name for name in SIZES} | {
    "office-caltech": "office_caltech10",
    "wbc": "wbc_multilab",
}
RARE = {"wbc"}  # some domains have no image of some class in their test part


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the real images."""
    if not os.environ.get("PROTOFED_DATA"):
        pytest.skip("needs the real images: set PROTOFED_DATA to their folder")
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path))
    return Path(os.environ["PROTOFED_DATA"])


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small art_painting.npz and dslr.npz; image i is filled with i."""
    monkeypatch.setenv("PROTOFED_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))
    for name, file in (("pacs", "art_painting.npz"), ("office-caltech", "dslr.npz")):
        folder = tmp_path / "data" / FOLDERS[name]
        folder.mkdir(parents=True)
        x = np.broadcast_to(np.arange(23, dtype=np.uint8)[:, None, None, None], (23, 4, 4, 3))
        np.savez(folder / file, x=x, y=np.arange(23, dtype=np.uint8) % 7)
        digest = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        meta = {"classes": BENCHMARKS[name].classes, "files": {file: {"sha256": digest}}}
        (folder / "meta.json").write_text(json.dumps(meta))
    return tmp_path


def marks(part: ArrayDataset) -> list[int]:
    """The number that fills each image of a tiny data set."""
    assert bool((part.images == part.images[:, :1, :1, :1]).all())
    return part.images[:, 0, 0, 0].tolist()


def counts(part: ArrayDataset, classes: int) -> list[int]:
    return torch.bincount(part.labels, minlength=classes).tolist()


def check_parts(domain: Domain, side: int, classes: int, least: int = 1) -> None:
    for part in (domain.train, domain.test):
        assert part.images.shape[:3] == (len(part), side, side)
        assert part.images.shape[3] in (1, 3)
        assert part.images.dtype == torch.uint8
        assert part.labels.dtype == torch.int64
        assert min(counts(part, classes)) >= least


def test_benchmarks_stand_in_alphabetical_order_under_their_names() -> None:
    assert list(BENCHMARKS) == sorted([*SIZES, "digits-mini", "office-home", "pathmnist", "vlcs"])
    assert [entry.name for entry in BENCHMARKS.values()] == list(BENCHMARKS)


def test_defaults_follow_the_papers() -> None:
    classes = [len(set(entry.classes)) for entry in BENCHMARKS.values()]
    assert classes == [8, 10, 100, 10, 10, 10, 65, 7, 9, 5, 5]
    assert {n for n, e in BENCHMARKS.items() if e.side == 64} == {"office-home", "pacs", "vlcs"}
    assert {name for name, e in BENCHMARKS.items() if not e.flip} == {"digits", "digits-mini"}
    assert {name for name, e in BENCHMARKS.items() if not e.needs_data} == {"digits-mini"}
    nets = " ".join(entry.net.removesuffix("-cnn") for entry in BENCHMARKS.values())
    assert nets == "moon moon moon-resnet18 lsa moon lsa resnet10 lsa moon lsa lsa"


def test_notes_about_a_domain_are_found_by_its_name() -> None:
    digits = BENCHMARKS["digits"]
    assert digits.domain_note("svhn").startswith("a subset, 10,000 of 73,257")
    assert digits.domain_note("svhn").endswith("; cropped again from the full-number images")
    assert digits.domain_note("mnist") == ""


def test_unknown_names_are_answered_with_a_hint() -> None:
    with pytest.raises(ProtofedError, match="unknown benchmark 'pasc'; did you mean 'pacs'"):
        load_benchmark("pasc")
    with pytest.raises(ProtofedError, match="'photos'; did you mean 'photo'"):
        load_benchmark("pacs", ("art", "photos"))
    with pytest.raises(ProtofedError, match="known: mnist, usps, svhn, syn, mnistm"):
        load_benchmark("digits", ("dslr",))
    with pytest.raises(ProtofedError, match="'art' is listed twice"):
        load_benchmark("pacs", ("art", "photo", "art"))
    with pytest.raises(ProtofedError, match="at least 1 pixel"):
        load_benchmark("pacs", side=0)


def test_missing_data_is_told_by_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROTOFED_DATA", raising=False)
    for name in SIZES:
        with pytest.raises(ProtofedError, match=f"benchmark '{name}' reads real images"):
            load_benchmark(name)


def test_office_puts_eight_of_ten_in_order_to_train(tiny: Path) -> None:
    (domain,) = load_benchmark("office-caltech", ("dslr",), side=4).domains
    assert marks(domain.train) == [*range(8), *range(10, 18), 20, 21, 22]
    assert marks(domain.test) == [8, 9, 18, 19]
    assert domain.test.labels.tolist() == [8 % 7, 9 % 7, 18 % 7, 19 % 7]


def test_wbc_puts_eight_of_ten_of_each_class_to_train(tmp_path: Path) -> None:
    labels = np.arange(40, dtype=np.uint8)[::-1] % 4
    x = np.broadcast_to(np.arange(40, dtype=np.uint8)[:, None, None, None], (40, 4, 4, 3))
    np.savez(tmp_path / "lab.npz", x=x, y=labels)
    digest = hashlib.sha256((tmp_path / "lab.npz").read_bytes()).hexdigest()
    meta = {"classes": ["a", "b", "c", "d"], "files": {"lab.npz": {"sha256": digest}}}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    source = ArchiveInfo("wbc", tmp_path.name, ("a", "b", "c", "d"), home=tmp_path.parent)
    lab = benchmarks.split_80_20_by_class(source, "lab")
    assert counts(lab.train, 4) == [8] * 4
    assert counts(lab.test, 4) == [2] * 4
    # The last two images of each class, as they are stored: the largest that leave its remainder.
    last = [
        max(n for n in range(40) if labels[n] == c) - 4 * back for c in range(4) for back in (0, 1)
    ]
    assert marks(lab.test) == sorted(last)
    assert marks(lab.train) == sorted(set(range(40)) - set(last))


def test_pacs_splits_at_random_once_and_for_all(tiny: Path) -> None:
    (domain,) = load_benchmark("pacs", ("art",), side=4).domains
    assert domain.name == "art"
    train, test = marks(domain.train), marks(domain.test)
    assert sorted(train + test) == list(range(23))
    assert len(test) == 7  # 6.9, rounded up
    assert train == sorted(train)
    assert test != list(range(7))
    assert domain.train.labels.tolist() == [mark % 7 for mark in train]
    assert marks(load_benchmark("pacs", ("art",), side=4).domains[0].test) == test


def test_images_get_the_asked_side_or_the_default_one(tiny: Path) -> None:
    (small,) = load_benchmark("pacs", ("art",), side=8).domains
    (usual,) = load_benchmark("pacs", ("art",)).domains
    assert small.train.images.shape == (16, 8, 8, 3)
    assert usual.test.images.shape == (7, 64, 64, 3)
    assert marks(usual.test) == marks(small.test)


def test_domains_come_in_the_asked_order_with_their_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    part = ArrayDataset(torch.zeros(2, 5, 5, 1, dtype=torch.uint8), torch.tensor([0, 1]))

    def read(domain: str) -> Domain:
        return Domain(domain, part, part, f"{domain} by itself")

    entry = replace(BENCHMARKS["digits"], read=read)
    monkeypatch.setitem(benchmarks.BENCHMARKS, "digits", entry)
    chosen = load_benchmark("digits", ("mnistm", "usps")).domains
    assert [domain.name for domain in chosen] == ["mnistm", "usps"]
    assert chosen[0].note == entry.domain_note("mnistm")
    assert chosen[1].note == "usps by itself"
    assert [d.name for d in load_benchmark("digits").domains] == ["mnist", "usps", "svhn", "syn"]


def test_default_partitions_know_just_the_chosen_domains() -> None:
    digits = BENCHMARKS["digits"]
    assert digits.default_partition() == SharesPartition(
        clients={"mnist": 1, "usps": 4, "svhn": 2, "syn": 3},
        samples={"mnist": 600, "usps": 72, "svhn": 732, "syn": 229},
    )
    assert digits.default_partition(("mnistm", "usps")) == SharesPartition(
        clients={"mnistm": 1, "usps": 4}, samples={"mnistm": 590, "usps": 72}
    )
    assert BENCHMARKS["office-caltech"].default_partition(("dslr",)) == SharesPartition(
        clients={"dslr": 4}, share=0.2, repair=True
    )
    mini = BENCHMARKS["digits-mini"].default_partition(("print",))
    assert mini == EqualPartition(clients={"print": 2})
    assert BENCHMARKS["cifar100"].default_partition() == DirichletPartition(clients=10, alpha=0.5)
    with pytest.raises(ProtofedError, match="unknown domain of digits 'photo'"):
        digits.default_partition(("photo",))


@pytest.mark.parametrize("name", ["digits", "office-caltech", "pacs"])
def test_default_partitions_fit_their_domains(name: str) -> None:
    known, entry = {"syn": (10_000, 2_000)} | SIZES[name], BENCHMARKS[name]
    everything = entry.domains + entry.on_request
    rule = entry.default_partition(everything)
    for domain, clients in rule.spread(everything).items():
        labels = np.arange(known[domain][0]) % len(entry.classes)
        hands = rule.assign_rows(labels, clients, domain, np.random.default_rng(0))
        assert len(hands) == clients >= 1
        assert len(np.unique(np.concatenate(hands))) == sum(map(len, hands))


def test_digits_mini_needs_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROTOFED_DATA", raising=False)
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path))
    benchmark = load_benchmark("digits-mini", ("optical",))
    assert benchmark.classes == tuple("0123456789")
    check_parts(benchmark.domains[0], side=32, classes=10)


def test_import_is_light() -> None:
    code = (
        "import sys, protofed.data.benchmarks; print({'sklearn', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", list(SIZES))
def test_real_data_has_the_sizes_of_the_papers(name: str, data: Path) -> None:
    entry = BENCHMARKS[name]
    for domain in load_benchmark(name, tuple(SIZES[name])).domains:
        assert (len(domain.train), len(domain.test)) == SIZES[name][domain.name]
        check_parts(domain, entry.side, len(entry.classes), least=int(name not in RARE))


@pytest.mark.parametrize("name", list(SIZES))
def test_real_classes_are_counted_as_their_notes_say(name: str, data: Path) -> None:
    files = json.loads((data / FOLDERS[name] / "meta.json").read_text())["files"]
    for domain in SIZES[name]:
        file = files[f"{'art_painting' if domain == 'art' else domain}.npz"]
        stated = file.get("counts", file)
        _, train, test, _ = BENCHMARKS[name].read(domain)
        found = [counts(part, len(BENCHMARKS[name].classes)) for part in (train, test)]
        if "per_class" in stated:  # the split is ours
            assert np.add(found[0], found[1]).tolist() == stated["per_class"]
        else:
            parts = ("train", "test")
            named = [stated.get(f"{p}_per_class", stated.get(f"per_class_{p}")) for p in parts]
            assert found == named


def test_real_office_and_pacs_are_stored_by_class_then_file(data: Path) -> None:
    for path in [*(data / "office_caltech10").glob("*.npz"), *(data / "pacs").glob("*.npz")]:
        with np.load(path) as stored:
            names = [tuple(name.split("/")) for name in stored["names"].tolist()]
        assert names == sorted(names)


@pytest.mark.parametrize(("name", "domain"), [("office-caltech", "webcam"), ("pacs", "photo")])
def test_real_splits_lose_and_repeat_nothing(name: str, domain: str, data: Path) -> None:
    with np.load(data / FOLDERS[name] / f"{domain}.npz") as stored:
        everything = sorted(image.tobytes() for image in stored["x"])
    _, train, test, _ = BENCHMARKS[name].read(domain)
    both = [image.numpy().tobytes() for image in torch.cat([train.images, test.images])]
    assert sorted(both) == everything
    assert not set(both[: len(train)]) & set(both[len(train) :])


def test_real_amazon_has_the_repeated_images_that_its_note_tells_of(data: Path) -> None:
    _, train, test, note = load_benchmark("office-caltech", ("amazon",), side=64).domains[0]
    seen = {image.numpy().tobytes() for image in train.images}
    repeated = sum(image.numpy().tobytes() in seen for image in test.images)
    assert f"{repeated} of the {len(test)} test images" in note
