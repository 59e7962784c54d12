"""Archives that mean harm are refused, and nothing of them is written anywhere."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from protofed.data import archive_extraction as extracting
from protofed.data.archive_extraction import extract_archive
from protofed.errors import ProtofedError

Make = Callable[[Path], None]


def tarred(*members: tuple[tarfile.TarInfo, bytes]) -> Make:
    def make(path: Path) -> None:
        with tarfile.open(path, "w:gz") as archive:
            for info, content in members:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))

    return make


def plain(name: str, content: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def special(name: str, kind: bytes, to: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info, b""


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes]) -> Make:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members:
                archive.writestr(name, content)

    return make


def zip_special(name: str, mode: int, content: bytes = b"/etc/passwd") -> Make:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return zipped((info, content))


def twice(path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        zipped(("a", b"1"), ("a", b"2"))(path)


def locked(path: Path) -> None:
    zipped(("a", b"1"))(path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag in the list of members
    path.write_bytes(content)


def text(path: Path) -> None:
    path.write_bytes(b"hello")


def packed_zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("inner", "x")
    return stream.getvalue()


GOOD = plain("good/one.txt")
ZEROS = bytes(11 * 2**20)
HOSTILE: dict[str, tuple[Make, str]] = {
    "tar ..": (tarred(GOOD, plain("../out.txt")), "leaves the folder"),
    "tar deep ..": (tarred(GOOD, plain("good/../../out.txt")), "leaves the folder"),
    "tar absolute": (tarred(GOOD, plain("/tmp/out.txt")), "absolute"),
    "tar backslash": (tarred(GOOD, plain("..\\out.txt")), "backslash"),
    "tar drive": (tarred(GOOD, plain("C:out.txt")), "absolute"),
    "tar control": (tarred(GOOD, plain("a\nb")), "unprintable characters"),
    "tar symlink": (tarred(GOOD, special("link", tarfile.SYMTYPE, "/etc")), "is a link"),
    "tar own symlink": (tarred(GOOD, special("link", tarfile.SYMTYPE, "good")), "is a link"),
    "tar hard link": (tarred(GOOD, special("link", tarfile.LNKTYPE, "good/one.txt")), "is a link"),
    "tar pipe": (tarred(GOOD, special("pipe", tarfile.FIFOTYPE)), "is a device"),
    "tar device": (tarred(GOOD, special("disk", tarfile.BLKTYPE)), "is a device"),
    "tar terminal": (tarred(GOOD, special("tty", tarfile.CHRTYPE)), "is a device"),
    "tar twice": (tarred(GOOD, GOOD), "occurs twice"),
    "tar twice, otherwise written": (tarred(plain("a/b"), plain("./a//b")), "occurs twice"),
    "tar file and folder": (tarred(plain("a"), plain("a/b")), "both a file and a folder"),
    "tar nested by name": (tarred(GOOD, plain("more.tar.gz")), "archive within the archive"),
    "tar nested by content": (tarred(GOOD, plain("a.png", packed_zip())), "archive within the"),
    "tar nested gzip": (tarred(GOOD, plain("a.png", gzip.compress(b"x"))), "archive within the"),
    "tar bomb": (tarred(GOOD, plain("zeros", ZEROS)), "times its size"),
    "zip ..": (zipped(("good", b"1"), ("../out.txt", b"x")), "leaves the folder"),
    "zip absolute": (zipped(("good", b"1"), ("/tmp/out.txt", b"x")), "absolute"),
    "zip backslash": (zipped(("good", b"1"), ("a\\..\\out", b"x")), "backslash"),
    "zip symlink": (zip_special("link", stat.S_IFLNK | 0o777), "is a link"),
    "zip device": (zip_special("disk", stat.S_IFBLK | 0o600), "is a device"),
    "zip pipe": (zip_special("pipe", stat.S_IFIFO | 0o600), "is a device"),
    "zip twice": (twice, "occurs twice"),
    "zip file and folder": (zipped(("a", b"1"), ("a/b", b"2")), "both a file and a folder"),
    "zip nested by name": (zipped(("inner.ZIP", b"x")), "archive within the archive"),
    "zip nested by content": (zipped(("a.jpg", packed_zip())), "archive within the archive"),
    "zip bomb": (zipped(("zeros", ZEROS)), "times its size"),
    "zip locked": (locked, "encrypted file"),
    "no archive": (text, "not a complete"),
    "empty": (Path.touch, "not a complete"),
}


def everything(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*"))


@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_of_a_hostile_archive_is_written(kind: str, tmp_path: Path) -> None:
    make, why = HOSTILE[kind]
    archive = tmp_path / "in" / "set.archive"
    archive.parent.mkdir()
    make(archive)
    before = everything(tmp_path)
    with pytest.raises(ProtofedError, match=why):
        extract_archive(archive, tmp_path / "a" / "b" / "content")
    assert everything(tmp_path) == before
    assert not Path("/tmp/out.txt").exists()


@pytest.mark.parametrize("make", [tarred, zipped])
def test_members_and_bytes_are_counted(
    make: Callable[..., Make], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"f{number}" for number in range(20)]
    members = [plain(n, b"12345") if make is tarred else (n, b"12345") for n in names]
    make(*members)(tmp_path / "a")
    extract_archive(tmp_path / "a", tmp_path / "fine")
    assert len(everything(tmp_path / "fine")) == 20
    monkeypatch.setattr(extracting, "MOST_MEMBERS", 19)
    with pytest.raises(ProtofedError, match="more than 19 members"):
        extract_archive(tmp_path / "a", tmp_path / "no")
    monkeypatch.setattr(extracting, "MOST_MEMBERS", 20)
    monkeypatch.setattr(extracting, "MOST_BYTES", 99)
    with pytest.raises(ProtofedError, match="more than"):
        extract_archive(tmp_path / "a", tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_more_than_a_hundred_thousand_members_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(100_001):
            archive.writestr(f"{number}/", b"")
    with pytest.raises(ProtofedError, match="more than 100,000 members"):
        extract_archive(tmp_path / "a.zip", tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_a_tar_that_hides_its_bytes_in_a_header_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.pax_headers = {"comment": "0" * (25 * 2**20)}
    with tarfile.open(tmp_path / "a.tgz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    with pytest.raises(ProtofedError, match="times its size"):
        extract_archive(tmp_path / "a.tgz", tmp_path / "no")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("make", [tarred, zipped])
def test_a_cut_archive_is_no_archive(make: Callable[..., Make], tmp_path: Path) -> None:
    content = bytes(i * i % 251 for i in range(50_000))
    make(plain("a/b", content) if make is tarred else ("a/b", content))(tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    extract_archive(tmp_path / "a", tmp_path / "fine")
    assert (tmp_path / "fine" / "a" / "b").read_bytes() == content
    (tmp_path / "a").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ProtofedError, match="not a complete"):
        extract_archive(tmp_path / "a", tmp_path / "no")
    assert not (tmp_path / "no").exists()
