"""Ways to spoil a file of a run folder, drawn by lot: as accidents, editors and strangers do."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from protofed.runtime.atomic_io import file_sha256

MARK = '"@here@"'
DEEP = "[" * 100_000
# What may stand in the place of any value, as JSON text; the last few no reader may ever see.
NASTY = [
    "null", "true", "false", "0", "1", "2", "3", "-1", "0.5", "1e400", "-1e400", "1" + "0" * 400,
    "9" * 5000, "NaN", "Infinity", "-Infinity", '""', '"x"', '"\\u0000"', '"\\ud800"', '"\\u202e"',
    '"<script>"', '"../../etc"', '"' + "x" * 5000 + '"', "[]", "{}", "[[1]]", '{"a": 1}', "[null]",
    '[{"client": 0}]', '"' + "0" * 64 + '"', "[" * 50 + "]" * 50, '{"a":' * 900 + "1" + "}" * 900,
    DEEP,
]  # fmt: skip


def spoil(file: Path, others: list[Path], dice: random.Random) -> str:
    """Spoil a file in one way; what was done."""
    ways: list[Callable[[Path, random.Random], None]] = [flip, cut, scribble, refit]
    if file.suffix != ".safetensors":
        ways = [flip, cut, scribble, lines, recode, *[values] * 6, refit]
    if dice.random() < 0.1:
        other = dice.choice(others)
        file.write_bytes(other.read_bytes())
        return f"{file.name}: {other.name} copied over it"
    way = dice.choice(ways)
    way(file, dice)
    return f"{file.name}: {way.__name__}"


def reseal(folder: Path) -> None:
    """Make all digests right again, as a forger can; scores and states are what they are now."""
    scores = folder / "scores.jsonl"
    sums: dict[Path, dict[str, Any]] = {}
    if scores.is_file():
        sums[folder / "done"] = {"scores": file_sha256(scores)}
    for place in folder.glob("checkpoints/*"):
        files = [file for file in place.glob("*.safetensors") if file.is_file()]
        sums[place / "manifest.json"] = {"sha256": {file.name: file_sha256(file) for file in files}}
    for file, new in sums.items():
        if not file.is_file():
            continue  # a pipe would be read for ever
        try:
            file.write_text(json.dumps({**json.loads(file.read_text()), **new}))
        except (OSError, ValueError, TypeError, RecursionError):
            continue  # it is spoilt itself


def flip(file: Path, dice: random.Random) -> None:
    """Some bytes are others."""
    content = bytearray(file.read_bytes())
    for _ in range(dice.choice([1, 1, 1, 5, 50]) if content else 0):
        content[dice.randrange(len(content))] = dice.randrange(256)
    file.write_bytes(content)


def cut(file: Path, dice: random.Random) -> None:
    """Only the beginning, or only the end."""
    content = file.read_bytes()
    place = dice.randrange(len(content) + 1)
    file.write_bytes(content[:place] if dice.random() < 0.7 else content[place:])


def scribble(file: Path, dice: random.Random) -> None:
    """Something else altogether."""
    kinds = [
        b"",
        b"\n",
        b"\x00" * 100,
        dice.randbytes(300),
        DEEP.encode(),
        b"\xff\xfe",
        b"{}",
        b"[]",
    ]
    file.write_bytes(dice.choice(kinds) + dice.choice([b"", b"\n"]))


def lines(file: Path, dice: random.Random) -> None:
    """Lines lost, doubled, or in another order."""
    found = file.read_bytes().splitlines(keepends=True) or [b""]
    way = dice.randrange(4)
    if way == 0:
        found.pop(dice.randrange(len(found)))
    elif way == 1:
        found.insert(dice.randrange(len(found) + 1), dice.choice(found))
    elif way == 2:
        dice.shuffle(found)
    else:
        found.insert(dice.randrange(len(found) + 1), dice.choice([b"\n", b"3\n", b"{}\n", b'{"']))
    file.write_bytes(b"".join(found))


def recode(file: Path, dice: random.Random) -> None:
    """Another encoding."""
    text = file.read_text(encoding="utf-8", errors="replace")
    file.write_bytes(text.encode(dice.choice(["utf-16", "utf-32", "utf-8-sig", "utf-7", "cp037"]),
                                 errors="replace"))  # fmt: skip


def values(file: Path, dice: random.Random) -> None:
    """A value is another, is gone, or has company; in a JSON file or in a line of one."""
    pieces = file.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    whole = not file.name.endswith(".jsonl")
    place = dice.randrange(len(pieces))
    spoilt = changed("\n".join(pieces) if whole else pieces[place], dice)
    pieces[place] = spoilt
    file.write_text(spoilt if whole else "\n".join([*pieces, ""]), encoding="utf-8")


def changed(text: str, dice: random.Random) -> str:
    """JSON text with one of its values changed; other text as it is."""
    try:
        content = json.loads(text)
    except ValueError:
        return text + dice.choice(NASTY)
    places = list(_places(content, None, None))
    home, key = dice.choice(places)
    nasty = dice.choice(NASTY)
    if home is None:
        return nasty
    if dice.random() < 0.2:
        del home[key]
    elif dice.random() < 0.1 and isinstance(home, dict):
        home[dice.choice(["more", "", "round", "digest", "\x1b[2J"])] = MARK.strip('"')
    else:
        home[key] = MARK.strip('"')
    return json.dumps(content).replace(MARK, nasty)


def _places(content: Any, home: Any, key: Any) -> Iterator[tuple[Any, Any]]:
    yield home, key
    children = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()  # fmt: skip  # noqa: E501
    for name, child in list(children)[:200]:
        yield from _places(child, content, name)


def refit(file: Path, dice: random.Random) -> None:
    """No file of its own any more: gone, a folder, a pipe, a link, or one that may not be read."""
    way = dice.randrange(9)
    if way == 0:
        file.chmod(0)
        return
    file.unlink()
    targets = {4: "nowhere", 5: "/dev/zero", 6: file.name, 7: "/dev/tty", 8: "spec.json"}
    if way == 1:
        file.mkdir()
    elif way in (2, 3):
        os.mkfifo(file)
    elif way in targets and dice.random() < 0.9:
        file.symlink_to(targets[way])


def spoil_header(file: Path, dice: random.Random) -> str:
    """The metadata of a safetensors file, whose values are JSON texts, or its list of tensors."""
    content = file.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    known = header["__metadata__"]
    name = dice.choice(sorted(known))
    if dice.random() < 0.8:
        known[name] = changed(known[name], dice)
        text = json.dumps(header).encode()
    else:
        text = changed(json.dumps(header), dice).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    return f"{file.name}: {name}"
