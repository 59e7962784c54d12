"""What is packed of a folder, and packs where they are hard to keep: no home, no room, Ctrl-C."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from protofed.data.benchmarks import load_benchmark
from protofed.data.diagnostics import file_findings
from protofed.data.folder_images import folder_info, pack_folder
from protofed.errors import ProtofedError
from tests.data.pictures import make


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temp folder of this test's own, with something of somebody else in it."""
    folder = tmp_path / "temporary"
    (folder / "bystander").mkdir(parents=True)
    (folder / "bystander" / "thesis.txt").write_text("years of work")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PROTOFED_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", refuse)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_every_folder_has_its_own_pack_and_no_other_is_touched(
    temporary: Path, tmp_path: Path
) -> None:
    one, two = make(tmp_path / "one", ("photo",)), make(tmp_path / "two", ("neg", "photo"))
    packs = [pack_folder(one, 32), pack_folder(two, 32), pack_folder(two, 16)]
    assert len({pack.revision for pack in packs}) == 3
    assert [sorted(pack.notes) for pack in packs] == [["photo"], ["neg", "photo"], ["neg", "photo"]]
    assert pack_folder(one, 32).place == packs[0].place  # made once
    again = pack_folder(one, 32, fresh=True)
    assert again.revision == packs[0].revision
    assert all(pack.place.is_dir() for pack in (*packs, again))
    assert (temporary / "bystander" / "thesis.txt").read_text() == "years of work"


def test_a_pack_made_anew_where_no_cache_can_be_written_leaves_the_temp_folder_alone(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTOFED_CACHE", "/proc/nowhere")
    root = make(tmp_path / "one", ("photo",))
    assert pack_folder(root, 32).revision == pack_folder(root, 32, fresh=True).revision
    assert (temporary / "bystander" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_pack_that_does_not_reach_its_place_leaves_nothing_half_done(
    fault: BaseException, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))

    def stopped(made: Path, beside: Path) -> None:
        shutil.copytree(made, beside)
        raise fault

    monkeypatch.setattr(shutil, "move", stopped)
    root, left = make(tmp_path / "one", ("photo",)), {"bystander"}
    if isinstance(fault, OSError):
        left.add(pack_folder(root, 32).place.name)  # kept by this process until its end
    else:
        with pytest.raises(KeyboardInterrupt):
            pack_folder(root, 32)
    assert {path.name for path in temporary.iterdir()} == left
    assert [list(home.iterdir()) for home in (tmp_path / "cache" / "folders").iterdir()] == [[]]


@pytest.mark.parametrize("bad", [True, False])
def test_a_test_folder_without_a_usable_image_is_not_replaced_by_a_split(
    bad: bool, tmp_path: Path
) -> None:
    make(tmp_path / "own", ("one",))
    (tmp_path / "own" / "photo" / "test" / "cat").mkdir(parents=True)
    (tmp_path / "own" / "one").rename(tmp_path / "own" / "photo" / "train")
    if bad:
        (tmp_path / "own" / "photo" / "test" / "cat" / "a.png").touch()
    with pytest.raises(ProtofedError, match="has no usable test image among 20"):
        pack_folder(tmp_path / "own", 32)


def test_one_bad_file_is_one_file(tmp_path: Path) -> None:
    root = make(tmp_path / "own")
    (root / "photo" / "cat" / "bad.png").touch()
    _, photo = load_benchmark(str(root)).domains
    assert "; 1 file skipped: photo/cat/bad.png (" in photo.note
    with pytest.raises(ProtofedError, match=": 1 file cannot be used:\n"):
        folder_info(root, strict=True).data_version(32)
    (finding,) = file_findings(pack_folder(root, 32).skipped)
    assert finding.title == "1 file cannot be used"
