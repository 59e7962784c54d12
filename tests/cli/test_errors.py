"""What the user can mend: a few lines on stderr, exit code 2, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

MOST_LINES = 5


def complaint(cli: Cli, *words: str | Path) -> str:
    """The lines on stderr of a command that must fail without touching the folder."""
    before = sorted(Path().rglob("*"))
    ended = cli(*words)
    assert ended.code == 2
    assert ended.out == ""
    assert 1 <= len(ended.err.splitlines()) <= MOST_LINES
    assert "Traceback" not in ended.err
    assert sorted(Path().rglob("*")) == before
    return ended.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("run --ronds 3", ["No such option '--ronds'", "'--rounds'"]),
        ("run --rounds abc", ["'--rounds'", "'abc' is not a valid integer"]),
        ("run --rounds", ["'--rounds' requires an argument"]),
        ("run --rounds -1", ["error: rounds:", "greater than or equal to 1", "got -1"]),
        ("run --seed -1", ["error: seed:", "greater than or equal to 0", "got -1"]),
        ("run --method fedpox", ["'fedpox'; did you mean 'fedprox'?", "known: fedavg, "]),
        ("run --data pac", ["'pac'; did you mean 'pacs'?", "known: ", "digits-mini"]),
        ("run --net moon", ["error: net: unknown name 'moon'", "moon-mlp"]),
        ("run --set rounds", ["error: rounds: write section.field=value"]),
        ("run --set training.epoch=1", ["training.epoch: no such field", "'epochs'"]),
        ("run --set method.mu=1", ["method.mu: no such field", "known: none"]),
        ("run --method fedprox --set method.mu=nan", ["method.mu:", "finite number", "got nan"]),
        (
            "run --method mine.py:Mine:eps=0.3,mu=1",
            ["has settings", "own, as --set method.eps=0.3 --set method.mu=1\n"],
        ),
        ("run now", ["unexpected extra argument (now)"]),
        ("run --data pacs", ["benchmark 'pacs' reads real images: set PROTOFED_DATA"]),
        ("run --clients 3", ["3 clients cannot cover 4 domains", "raise partition.clients"]),
        ("data show pacs", ["benchmark 'pacs' reads real images: set PROTOFED_DATA"]),
        ("data show digit", ["unknown benchmark 'digit'; did you mean 'digits'?", "\nknown: "]),
        ("data doctor photoz", ["unknown benchmark 'photoz'", "a folder of images: there is none"]),
        ("export runs/nope", ["error: runs/nope: no such folder; `protofed run` begins a run\n"]),
        ("methods show fedav", ["unknown name 'fedav'; did you mean 'fedavg'?", "(known: "]),
        ("methods --json show fedavg", ["write --json after show"]),
        ("data show digits-mini --picture no/a.png", ["cannot write no/a.png: No such file"]),
    ],
)
def test_a_fault_is_told_with_what_is_allowed(cli: Cli, words: str, told: list[str]) -> None:
    err = complaint(cli, *words.split())
    for part in told:
        assert part in err


@pytest.mark.parametrize(("words", "meant"), [("resme", "resume"), ("methods shw", "show")])
def test_a_mistyped_command_is_answered_once_with_the_nearest(
    cli: Cli, words: str, meant: str
) -> None:
    assert complaint(cli, *words.split()).count(f"Did you mean '{meant}'?") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[training]\nlr = nan", ["training.lr", "finite number", "got nan"]),
        ("[training]\nlr = -1.0", ["training.lr", "got -1.0"]),
        ("roundz = 3", ["roundz: no such field; did you mean 'rounds'?"]),
        ("rounds = 3\n[training\n", ["not valid TOML", "line 2"]),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--rounds", "4"]])
def test_a_fault_in_a_file_is_told_with_its_name(
    cli: Cli, text: str, told: list[str], flags: list[str]
) -> None:
    Path("my.toml").write_text(text)
    err = complaint(cli, "run", "--spec", "my.toml", *flags)
    assert err.startswith("error: my.toml: ")
    for part in told:
        assert part in err


def test_a_fault_in_a_flag_is_not_blamed_on_the_file(cli: Cli, tiny: Path) -> None:
    err = complaint(cli, "run", "--spec", tiny, "--rounds", "-1")
    assert err == "error: rounds: input should be greater than or equal to 1, got -1\n"


def test_many_faults_stay_within_five_lines(cli: Cli) -> None:
    Path("my.toml").write_text("".join(f"wrong{number} = 1\n" for number in range(9)))
    err = complaint(cli, "run", "--spec", "my.toml")
    assert err.splitlines()[-1] == "my.toml: ... and 5 more faults"


def test_a_spec_that_is_no_file_is_told_as_such(cli: Cli) -> None:
    assert complaint(cli, "run", "--spec", "no.toml") == (
        "error: no.toml: No such file or directory\n"
    )
    assert complaint(cli, "run", "--spec", ".") == "error: .: Is a directory\n"


def test_a_folder_with_something_else_is_not_touched(cli: Cli, tiny: Path) -> None:
    Path("full").mkdir()
    Path("full/letter.txt").write_text("dear")
    err = complaint(cli, "run", "--spec", tiny, "--out", "full")
    assert err == "error: full is not an empty folder\nchoose another --out\n"
    err = complaint(cli, "run", "--spec", tiny, "--out", "full/letter.txt")
    assert err == "error: full/letter.txt is not an empty folder\nchoose another --out\n"
    err = complaint(cli, "run", "--spec", tiny, "--out", "full/letter.txt/a")
    assert err.splitlines()[-1] == "error: cannot write to full/letter.txt/a: Not a directory"
    assert Path("full/letter.txt").read_text() == "dear"


def test_another_experiment_is_not_overwritten_even_again(cli: Cli, tiny: Path) -> None:
    assert cli("run", "--spec", tiny, "--rounds", "1", "--out", "a").code == 0
    for flags in ([], ["--again"]):
        err = complaint(cli, "run", "--spec", tiny, "--seed", "7", "--out", "a", *flags)
        first, fields, _ = err.splitlines()
        assert first.startswith("error: a holds another experiment (digest ")
        assert fields == "it differs in rounds (1 there, 2 now), seed (0 there, 7 now)"
    assert Path("a/done").exists()


def test_what_the_system_refuses_ends_without_a_traceback(cli: Cli, tiny: Path) -> None:
    err = complaint(cli, "run", "--spec", tiny, "--out", "a" * 300)
    assert err.startswith("error: ")
    assert "File name too long" in err


def no_memory(*given: object) -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("words", "where", "helps"),
    [
        (
            "data doctor digits-mini",
            "protofed.data.diagnostics.diagnose_benchmark",
            "fewer or smaller images",
        ),
        (
            "predict . a.png",
            "protofed.export.inference_module.load_trained_model",
            "use a file of `protofed export`",
        ),
        ("predict a.onnx a.png", "protofed.export.model_files.read_export", "end other programs"),
    ],
)
def test_without_memory_what_is_advised_can_help(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, words: str, where: str, helps: str
) -> None:
    monkeypatch.setattr(where, no_memory)
    err = complaint(cli, *words.split())
    assert "ran out of memory" in err
    assert helps in err
    assert "batch" not in err


ANSWERED = """
import sys
from protofed.cli import main
sys.argv = ["protofed", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    print("code", end.code, "slow", sorted({"torch", "numpy", "sklearn"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("words", "code"), [("--help", 0), ("run --help", 0), ("--version", 0), ("run --ronds 3", 2)]
)
def test_help_and_typos_do_not_wait_for_torch(words: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ANSWERED, *words.split()], capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == f"code {code} slow []"


def test_a_process_shows_its_error_without_a_traceback() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("protofed"), "run", "--rounds", "-1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: rounds: input should be greater than or equal to 1, got -1\n"
