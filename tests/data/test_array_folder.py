"""Folders of arrays: equal content, equal digest; nothing hostile or damaged is taken."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protofed.data.array_checks import check_arrays
from protofed.data.array_folder import ArrayInfo, array_info, read_array_folder, store_arrays
from protofed.data.benchmarks import benchmark_info
from protofed.data.npz_store import read_array_file
from protofed.errors import ProtofedError
from protofed.federation.build import build_federation
from protofed.spec.spec_parser import parse_experiment
from tests.data.tables import Arrays, images, vectors


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))


def by_hand(folder: Path, given: Arrays, **meta: object) -> Path:
    """A folder of DOMAIN.npz files with x and y, as anybody may write it."""
    folder.mkdir()
    for name, (x, y) in given.items():
        np.savez_compressed(folder / f"{name}.npz", x=x, y=y)
    if meta:
        (folder / "meta.json").write_text(json.dumps(meta))
    return folder


@pytest.mark.parametrize("given", [vectors(), images()], ids=["vectors", "images"])
def test_a_folder_means_the_same_wherever_it_lies(given: Arrays, tmp_path: Path) -> None:
    made = store_arrays(check_arrays(given), tmp_path / "a" / "mine")
    moved = shutil.copytree(made.place, tmp_path / "b" / "mine")
    hand = by_hand(tmp_path / "mine", given)
    places = [str(made.place), str(moved), str(hand)]
    assert len({parse_experiment({"data": place}).digest for place in places}) == 1
    tensors = [benchmark_info(place).load().domains for place in places]
    for other in tensors[1:]:
        for one, two in zip(tensors[0], other, strict=True):
            assert torch.equal(one.train.images, two.train.images)
            assert torch.equal(one.test.labels, two.test.labels)
    renamed = shutil.copytree(made.place, tmp_path / "other")
    assert array_info(renamed).data_version(0) == made.meta.revision


def test_another_number_class_or_scale_is_another_revision(tmp_path: Path) -> None:
    given = vectors()
    nudged = {name: (x.copy(), y) for name, (x, y) in given.items()}
    nudged["south"][0][0, 0] += 1
    bundles = [
        check_arrays(given),
        check_arrays(nudged),
        check_arrays(given, classes=["u", "v", "w"]),
        check_arrays(given, standardize=False),
    ]
    packs = [store_arrays(bundle, tmp_path / str(n)) for n, bundle in enumerate(bundles)]
    assert len({pack.meta.revision for pack in packs}) == len(packs)


def test_a_folder_by_hand_may_say_more(tmp_path: Path) -> None:
    x, y = images()["day"]
    parts = {"x_train": x[:50, None], "y_train": y[:50], "x_test": x[50:, None], "y_test": y[50:]}
    folder = tmp_path / "hand"
    folder.mkdir()
    np.savez(folder / "day.npz", allow_pickle=False, **parts)
    (folder / "meta.json").write_text('{"classes": ["high", "mid", "low"], "channels_first": true}')
    entry = array_info(folder)
    assert (entry.classes, entry.side, entry.channels) == (("high", "mid", "low"), 16, 1)
    (domain,) = entry.load().domains
    assert (len(domain.train), len(domain.test), domain.note) == (50, 22, "")


def test_an_edited_folder_by_hand_is_packed_again(tmp_path: Path) -> None:
    folder = by_hand(tmp_path / "hand", vectors())
    before = array_info(folder).data_version(0)
    assert array_info(folder).data_version(0) == before
    x, y = vectors()["north"]
    np.savez(folder / "north.npz", x=x + 1, y=y)
    assert array_info(folder).data_version(0) != before


def test_files_that_hold_something_else_are_told(tmp_path: Path) -> None:
    folder = by_hand(tmp_path / "hand", vectors())
    np.savez(folder / "south.npz", x=np.zeros((4, 6)), label=np.zeros(4))
    with pytest.raises(ProtofedError, match=r"south.npz: it holds x, label\nit must hold x and y"):
        array_info(folder)
    (folder / "south.npz").unlink()
    (folder / "meta.json").write_text('{"classes": "ab"}')
    with pytest.raises(ProtofedError, match=r"meta.json: classes: Input should be a valid array"):
        array_info(folder)


@pytest.mark.parametrize("leave_out", [None, "south"])
def test_rows_are_standardised_by_the_domains_that_train(
    leave_out: str | None, tmp_path: Path
) -> None:
    given = vectors()
    pack = store_arrays(check_arrays(given), tmp_path / "mine")
    federation = build_federation(
        parse_experiment({"data": str(pack.place), "leave_out": leave_out})
    )
    trained = [d for d in federation.benchmark.domains if d.name != leave_out]
    pooled = torch.cat([domain.train.images for domain in trained]).double()
    x = federation.server.pixels.normalize(federation.tests["south"].images)
    mean, std = pooled.mean(0), pooled.std(0, correction=0)
    expected = (federation.tests["south"].images.double() - mean) / std
    torch.testing.assert_close(x.double(), expected, rtol=1e-5, atol=1e-5)


def test_other_shapes_have_one_mean_and_constants_stay_finite(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(7, 3, (40, 3, 4))
    pack = store_arrays(check_arrays({"a": (x, np.arange(40) % 2)}), tmp_path / "mine")
    stored = array_info(pack.place).load().domains[0].train.images
    seen = array_info(pack.place).row_transform(["a"]).normalize(stored)
    assert abs(float(seen.mean())) < 1e-5
    assert abs(float(seen.std(correction=0)) - 1) < 1e-5
    flat = np.concatenate([x[:, 0], np.full((40, 1), 0.1)], 1)
    pack = store_arrays(check_arrays({"a": (flat, np.arange(40) % 2)}), tmp_path / "flat")
    transform = array_info(pack.place).row_transform(["a"])
    assert float(transform.std[-1]) == 1


def test_standardising_can_be_switched_off(tmp_path: Path) -> None:
    pack = store_arrays(check_arrays(vectors(), standardize=False), tmp_path / "mine")
    rows = array_info(pack.place).load().domains[0].train.images
    assert torch.equal(array_info(pack.place).row_transform(["north"]).normalize(rows), rows)


def test_small_and_oblong_images_get_a_side_that_a_spec_allows(tmp_path: Path) -> None:
    y = np.arange(20) % 2
    for (height, width), side, pad in (((5, 4), 8, 1), ((12, 20), 20, 2), ((40, 40), 40, 4)):
        x = np.random.default_rng(0).integers(0, 255, (20, height, width)).astype(np.uint8)
        pack = store_arrays(check_arrays({"a": (x, y)}), tmp_path / f"{height}")
        entry = array_info(pack.place)
        assert (entry.side, entry.pad) == (side, pad)
        assert entry.load().domains[0].train.images.shape[1:] == (side, side, 1)


def test_a_folder_with_other_content_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "mine"
    store_arrays(check_arrays(vectors()), place)
    before = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
    store_arrays(check_arrays(vectors()), place)
    with pytest.raises(ProtofedError, match="holds other arrays, which was not changed"):
        store_arrays(check_arrays(images()), place)
    assert {path.name: path.stat().st_mtime_ns for path in place.iterdir()} == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    with pytest.raises(ProtofedError, match="holds something else"):
        store_arrays(check_arrays(vectors()), tmp_path / "notes")


def test_a_damaged_pack_of_the_same_arrays_is_written_again(tmp_path: Path) -> None:
    pack = store_arrays(check_arrays(vectors()), tmp_path / "mine")
    file = pack.place / "north.npz"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ProtofedError, match=r"north.npz is damaged or was changed") as fault:
        array_info(pack.place).load()
    assert "write the same arrays there again" in str(fault.value)
    assert "remove" not in str(fault.value)
    store_arrays(check_arrays(vectors()), pack.place)
    array_info(pack.place).load()


@pytest.mark.parametrize("damage", ["cut", "missing", "unlisted"])
def test_mending_a_pack_leaves_the_users_files_alone(damage: str, tmp_path: Path) -> None:
    pack = store_arrays(check_arrays(vectors()), tmp_path / "mine")
    intact = {path.name: path.read_bytes() for path in pack.place.iterdir()}
    (pack.place / "thesis.txt").write_text("three years of work")
    (pack.place / "extra.npz").write_bytes(b"not of this pack")
    (pack.place / "notes").mkdir()
    (pack.place / "notes" / "monday.txt").write_text("measured again")
    north = pack.place / "north.npz"
    if damage == "cut":
        north.write_bytes(north.read_bytes()[:-9])
    elif damage == "missing":
        north.unlink()
    else:
        edit(pack.place, lambda meta: meta.update({"files": []}))
    store_arrays(check_arrays(vectors()), pack.place)
    assert {name: (pack.place / name).read_bytes() for name in intact} == intact
    others = sorted({path.name for path in pack.place.iterdir()} - set(intact))
    assert others == ["extra.npz", "notes", "thesis.txt"]
    assert (pack.place / "thesis.txt").read_text() == "three years of work"
    assert (pack.place / "notes" / "monday.txt").read_text() == "measured again"
    array_info(pack.place).load()


def test_a_damaged_pack_of_a_folder_by_hand_is_made_again(tmp_path: Path) -> None:
    folder = by_hand(tmp_path / "hand", vectors())
    pack = array_info(folder).pack
    (pack.place / "north.npz").write_bytes(b"damaged")
    with pytest.raises(ProtofedError) as fault:
        array_info(folder).load()
    assert f"remove {pack.place}; it is made again from {folder}" in str(fault.value)
    shutil.rmtree(pack.place)
    array_info(folder).load()


def other_arrays(place: Path) -> str:
    """Other numbers under a right checksum of their file."""
    store_arrays(check_arrays(vectors(width=6, each=30)), place.with_name("again"))
    other = json.loads((place.with_name("again") / "meta.json").read_text())["files"]
    shutil.copy(place.with_name("again") / "north.npz", place / "north.npz")
    edit(place, lambda meta: meta["files"].update({"north.npz": other["north.npz"]}))
    return "north.npz does not hold the arrays that its meta.json describes"


def edit(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    meta = json.loads((place / "meta.json").read_text())
    change(meta)
    (place / "meta.json").write_text(json.dumps(meta))


def renamed_class(place: Path) -> str:
    edit(place, lambda meta: meta["classes"].reverse())
    return "its revision is not that of its content"


def path_outside(place: Path) -> str:
    edit(place, lambda meta: meta["domains"].update({"../north": meta["domains"]["north"]}))
    return "a domain's name is no plain name"


def short_mean(place: Path) -> str:
    edit(place, lambda meta: meta["domains"]["north"].update({"mean": [0.0]}))
    return "mean and std of north need 6 numbers"


def other_mean(place: Path) -> str:
    edit(place, lambda meta: meta["domains"]["north"].update({"mean": [1e-3] * 6}))
    return "north.npz does not hold the arrays that its meta.json describes"


def no_json(place: Path) -> str:
    (place / "meta.json").write_text('{"layout": "arrays 1", "kin')
    return "meta.json is damaged: Invalid JSON"


SPOILT = [other_arrays, renamed_class, path_outside, short_mean, other_mean, no_json]


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_pack_that_does_not_fit_its_meta_is_refused(
    spoil: Callable[[Path], str], tmp_path: Path
) -> None:
    pack = store_arrays(check_arrays(vectors()), tmp_path / "mine")
    said = spoil(pack.place)
    with pytest.raises(ProtofedError) as fault:
        array_info(pack.place).load()
    assert said in str(fault.value)


def pickled(path: Path) -> None:
    np.savez(path, x=np.array([{"a": 1}] * 4, dtype=object), y=np.arange(4))


def bomb(path: Path) -> None:
    """Half a gigabyte of zeros in half a megabyte."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        about = {"descr": "<f4", "fortran_order": False, "shape": (2**27, 1)}
        np.lib.format.write_array_header_1_0(member, about)
        for _ in range(64):
            member.write(bytes(2**23))


def liar(path: Path) -> None:
    """A header that promises four terabytes."""
    header = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": (2**40, 1)}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(40))


def no_zip(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04 and then nothing")


HOSTILE: dict[Callable[[Path], None], str] = {
    pickled: "Object arrays cannot be loaded",
    bomb: "as a zip bomb does",
    liar: "its header promises 4398046511104 bytes, it has 40",
    no_zip: "is not a readable .npz file",
}


@pytest.mark.parametrize("write", HOSTILE)
def test_hostile_files_are_refused(write: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "hand"
    folder.mkdir()
    write(folder / "a.npz")
    with pytest.raises(ProtofedError) as fault:
        read_array_folder(folder)
    assert HOSTILE[write] in str(fault.value)


def test_arrays_beyond_the_free_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "a.npy", np.zeros(100))
    assert read_array_file(tmp_path / "a.npy").names == ("x",)
    monkeypatch.setattr("protofed.data.npz_store.free_memory", lambda: 799)
    with pytest.raises(ProtofedError, match="holds 800 bytes of arrays, and 799 are free"):
        read_array_file(tmp_path / "a.npy")


def test_a_folder_of_images_stays_one_beside_a_stray_archive(tmp_path: Path) -> None:
    for domain in ("a", "b"):
        (tmp_path / "photos" / domain / "cat").mkdir(parents=True)
    np.savez(tmp_path / "photos" / "notes.npz", x=np.zeros(3))
    assert not isinstance(benchmark_info(str(tmp_path / "photos")), ArrayInfo)
