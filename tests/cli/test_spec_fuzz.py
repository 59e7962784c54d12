"""Specs from strangers: broken files, and whether a slip of the finger is understood."""

from __future__ import annotations

import random
import re
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protofed.cli.run import _experiment_from_flags
from protofed.core.training import Training
from protofed.data.benchmarks import BENCHMARKS
from protofed.errors import ProtofedError
from protofed.methods import METHODS
from protofed.nets import NETS
from protofed.spec.experiment_spec import Data, Experiment
from protofed.spec.spec_faults import MOST_LINES
from protofed.spec.spec_parser import MOST_BYTES, parse_experiment

CASES = 2000
BASE = """\
net = "lsa-cnn"
rounds = 7
seed = 3
participation = 0.5
min_clients = 1
on_nonfinite = "skip"
[method]
name = "fedprox"
mu = 0.3
[data]
name = "digits-mini"
domains = ["optical", "print"]
side = 16
[partition]
kind = "shares"
clients = {optical = 2, print = 1}
samples = 9
[training]
lr = 0.02
epochs = 2
"""
NASTY = [
    "nan", "-inf", "inf", "-1", "0", "1e400", "9" * 400, "true", '""', "[]", "{}", "[[[[1]]]]",
    "1979-05-27T07:32:00Z", '"\\u001b[31m"', '"<script>"', "'" + "x" * 500 + "'", "0x10", "1.5",
    "[1, 'a', {b = 2}]", "{name = 'fedavg', name2 = 3}", "'../../etc'", '"""\nmany\nlines"""',
    "null", "=", "\x00", "[", '"', "'\u202e'", "{a.b.c.d = 1}", "-0", "1_000_000_000_000",
]  # fmt: skip


def mutated(text: str, dice: random.Random) -> bytes:
    """A spec with one to three things wrong with it, of every kind that we could think of."""
    for _ in range(dice.randint(1, 3)):
        lines = text.splitlines()
        place, row = dice.randrange(len(text) + 1), dice.randrange(len(lines))
        kind = dice.randrange(9)
        if kind == 0:
            text = text[:place] + text[place + dice.randint(1, 4) :]
        elif kind == 1:
            text = text[:place] + dice.choice(string.printable) + text[place:]
        elif kind == 2:
            text = (
                text[:place] + chr(dice.choice([0, 27, 0x7F, 0xE9, 0x202E, 0x1F600])) + text[place:]
            )
        elif kind == 3:
            text = "\n".join([*lines[:row], *lines[row + 1 :], ""])
        elif kind == 4:
            text = "\n".join([*lines, lines[row], ""])
        elif kind == 5:
            text = "\n".join(dice.sample(lines, len(lines)))
        elif kind == 6:
            text = text[:place]
        else:
            key = lines[row].split("=")[0]
            lines[row] = f"{key} = {dice.choice(NASTY)}"
            text = "\n".join(lines)
        text = text or "x"
    raw = text.encode()
    cut = dice.randrange(len(raw) + 1)
    extra = dice.choice([b"", b"", b"", b"", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf"])
    return raw[:cut] + extra + raw[cut:]


def complaint(file: Path) -> str | None:
    """What the command line's own reader says of a file; nothing if it is a spec."""
    try:
        assert isinstance(_experiment_from_flags(file, [], {}), Experiment)
    except ProtofedError as fault:
        return str(fault)
    return None


def test_two_thousand_broken_files_end_in_a_few_printable_lines(tmp_path: Path) -> None:
    dice, file, outcomes = random.Random(34), tmp_path / "a.toml", {"taken": 0, "refused": 0}
    file.write_text(BASE)
    assert complaint(file) is None
    for _ in range(CASES):
        content = mutated(BASE, dice)
        file.write_bytes(content)
        told = complaint(file)
        outcomes["taken" if told is None else "refused"] += 1
        if told is not None:
            assert 1 <= len(told.splitlines()) <= MOST_LINES, content
            assert all(line.isprintable() for line in told.split("\n")), content
            assert all(line.startswith((str(file), "...")) for line in told.split("\n")), content
    assert sum(outcomes.values()) == CASES
    assert outcomes["refused"] > CASES // 2
    assert outcomes["taken"] > 50


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"# " + b"x" * 10_000_000, "1 MiB"),
        (b"a = " + b"[" * 100_000, "not"),
        (b"a = " + b"{b = " * 50_000, "not"),
        (b".".join([b"a"] * 50_000) + b" = 1", "20 dots"),
        (b"[" + b" . ".join([b"'a-b'"] * 50_000) + b"]", "20 dots"),
        (b"a = {" + b".".join([b"a"] * 100_000) + b" = 1}", "20 dots"),
        (b"x" * 1_000_000, "not valid TOML"),
        (b"rounds = 3 # \xff\xfe", "not readable"),
        ("rounds = 3".encode("utf-16"), "not readable"),
        (b"\xef\xbb\xbfrounds = 0", "greater than or equal to 1"),
        (b"\x00" * 100, "not valid TOML"),
        (b"rounds = " + b"9" * 100_000, "4300 digits"),
    ],
    ids=lambda value: "" if isinstance(value, str) else repr(value[:12]),
)
def test_files_that_are_hardly_a_spec(content: bytes, word: str, tmp_path: Path) -> None:
    assert len(content) <= MOST_BYTES or len(content) > 9_000_000
    file = tmp_path / "a.toml"
    file.write_bytes(content)
    told = complaint(file)
    assert told is not None
    assert re.search(word, told)
    assert len(told) < 2000


def test_the_real_command_shows_no_traceback(tmp_path: Path) -> None:
    dice = random.Random(5)
    files = []
    for number in range(4):
        files.append(tmp_path / f"{number}.toml")
        files[-1].write_bytes([b"rounds = [" + mutated(BASE, dice), b"[" * 10**5, b"\xff",
                               b'net = "\\u001b[2J"'][number])  # fmt: skip
    script = (
        "import sys\nfrom protofed.cli import main\n"
        "for file in sys.argv[1:]:\n"
        "    sys.argv = ['protofed', 'run', '--spec', file]\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n        print('code', end.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *map(str, files)],
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["code", "2"] * 4
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) <= 4 * MOST_LINES


def slips(word: str, dice: random.Random) -> Iterator[str]:
    """Each kind of one-letter slip at every place: left out, doubled, another, added, swapped."""
    letters = string.ascii_lowercase + "_"
    for place in range(len(word)):
        yield word[:place] + word[place + 1 :]
        yield word[:place] + dice.choice(letters) + word[place + 1 :]
        yield word[:place] + dice.choice(letters) + word[place:]
        yield word[:place] + word[place : place + 2][::-1] + word[place + 2 :]


def told_for(raw: dict[str, object]) -> str:
    with pytest.raises(ProtofedError) as caught:
        parse_experiment(raw)
    return str(caught.value)


def slips_of_everything() -> Iterator[tuple[str, str]]:
    """Every slip in every name that a spec may hold, as (what was meant, what was told)."""
    dice = random.Random(7)
    training = list(Training.__dataclass_fields__)
    places = {
        "": [name for name in Experiment.model_fields if name != "public"],
        "data": list(Data.model_fields),
        "training": training,
    }
    for section, names in places.items():
        for word in names:
            for slip in set(slips(word, dice)) - {*names, word, ""}:
                yield word, told_for({section: {slip: 1}} if section else {slip: 1})
    values = {"method": list(METHODS), "data": list(BENCHMARKS), "net": list(NETS)}
    for section, known in values.items():
        for word in known:
            for slip in set(slips(word, dice)) - {*known, ""}:
                yield word, told_for({section: slip})


def test_a_slip_of_one_letter_is_nearly_always_understood() -> None:
    """More than 90 % of them get the right name as a hint; more in fact."""
    found = list(slips_of_everything())
    right = [f"did you mean '{meant}'?" in told for meant, told in found]
    share = sum(right) / len(right)
    missed = [(m, t.splitlines()[0]) for (m, t), ok in zip(found, right, strict=True) if not ok]
    assert len(right) > 1500
    assert share > 0.95, missed[:20]
