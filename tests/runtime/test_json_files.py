"""JSON from strangers: read, or refused with the name of where it came from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protofed.errors import ProtofedError
from protofed.runtime.json_files import DEEPEST, parse_json, read_json_file, read_json_table

HALF = r'{"a": "\ud800"}'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        (b"\xff\xfe{", "not JSON"),
        ("9" * 5000, "digits"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), f"deeper than {DEEPEST}"),
        (HALF, "half a character"),
        (rb'{"\uDFFF": 1}', "half a character"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_what_is_no_plain_data_is_told_with_its_source(text: bytes | str, says: str) -> None:
    with pytest.raises(ProtofedError, match=rf"a\.json: .*{says}"):
        parse_json(text, "a.json")


def test_plain_data_is_read() -> None:
    assert parse_json(b'{"a": [1, 2.5, null, "\\ud83d\\ude00"]}', "") == {"a": [1, 2.5, None, "😀"]}
    deep = parse_json("[" * DEEPEST + "]" * DEEPEST, "")
    assert isinstance(deep, list)


def test_only_a_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "list").write_text("[]")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero", ".", "nothing"):
        with pytest.raises(ProtofedError, match="cannot be read"):
            read_json_file(tmp_path / name)
    with pytest.raises(ProtofedError, match="must hold a JSON object"):
        read_json_table(tmp_path / "list")
