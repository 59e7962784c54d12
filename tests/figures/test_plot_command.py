"""``protofed plot``, as a command of its own."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from protofed.errors import ProtofedError
from protofed.figures import KINDS
from tests.figures.conftest import Made

with warnings.catch_warnings():
    # typer 0.20 asks click 8.5 for two names that click 9 will drop
    warnings.filterwarnings("ignore", r"'click\.utils\.get_", DeprecationWarning)
    import typer
    from typer.testing import CliRunner

    from protofed.cli.report import plot_command

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(plot_command)


def call(*words: object) -> str:
    """What a call prints; its fault if it has one."""
    ended = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(ended.exception, ProtofedError):
        raise ended.exception
    return ended.output


def test_without_a_kind_it_lists_them() -> None:
    lines = call().splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [[k, v] for k, v in KINDS.items()]
    assert max(map(len, lines)) <= 80


def test_it_writes_both_files_and_names_them(made: Made, tmp_path: Path) -> None:
    said = call("curves", made(), made("fedprox"), "-o", tmp_path / "fig", "--domain", "print")
    files = [tmp_path / "fig.svg", tmp_path / "fig.png"]
    assert said.splitlines() == [f"wrote {file}" for file in files]
    assert all(file.stat().st_size for file in files)


def test_the_kind_names_the_files(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("partition", made()).splitlines() == ["wrote partition.svg", "wrote partition.png"]
    assert (tmp_path / "partition.svg").exists()


def test_every_option_reaches_the_figure(made: Made) -> None:
    for option, value in {
        "rounds": "1,10",
        "by": "domain",
        "score": "last",
        "images": "2",
        "seed": "3",
        "clients": "0,print",
    }.items():
        with pytest.raises(ProtofedError, match=f"does not use the option '{option}'"):
            call("partition", made(), f"--{option}", value)


def test_faults_are_told(made: Made) -> None:
    with pytest.raises(ProtofedError, match="unknown kind of figure 'pie'"):
        call("pie", made())
    with pytest.raises(ProtofedError, match="no runs given"):
        call("curves")
    assert "--rounds one: write round numbers" in call("tsne", made(), "--rounds", "one")
