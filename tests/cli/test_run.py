from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from protofed.data.partition import SharesPartition
from protofed.federation.evaluation import score_rules
from protofed.federation.notices import Notice
from protofed.spec.spec_parser import parse_experiment
from tests.cli.conftest import Cli

PROTOFED = [sys.executable, "-m", "protofed"]
# The tiny run of tiny.toml, said in flags alone.
TINY = """--data digits-mini --net moon-mlp --rounds 2 --clients 2 --set training.epochs=1
--set data.domains=["optical","print"] --set partition.kind=shares --set partition.samples=9"""
ALONE = ("--workers", "0")  # on a busy machine too
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10\d)[;m]")


def saved(folder: str) -> dict[str, Any]:
    """The spec that a run folder holds."""
    content: dict[str, Any] = json.loads((Path(folder) / "spec.json").read_text())
    return content


def evaluations(folder: str) -> list[dict[str, Any]]:
    """The lines of a run's scores."""
    lines = (Path(folder) / "scores.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def finished_rounds(err: str) -> list[int]:
    """The rounds that the progress lines tell of."""
    return [int(number) for number in re.findall(r"^round (\d+)/", err, re.MULTILINE)]


def test_a_piped_run_prints_its_table_and_nothing_else_on_stdout() -> None:
    done = subprocess.run(
        [*PROTOFED, "run", *TINY.split(), "--out", "a", *ALONE], capture_output=True, text=True
    )
    assert done.returncode == 0
    scores = evaluations("a")
    head, _, *rows = done.stdout.splitlines()
    for rule in score_rules(2).values():
        assert rule in head
    for row, domain in zip(rows, ("optical", "print"), strict=False):
        by_round = [line["domains"][domain] for line in scores]
        means = [f"{by_round[-1]:.2f}", f"{sum(by_round) / 2:.2f}"]
        assert row.split() == [domain, *means, "10.00"]  # of ten classes, all alike
    assert [row.split()[0] for row in rows[3:6]] == ["mean", "worst", "spread"]
    assert rows[-1].startswith("run folder: a  digest: " + saved("a")["digest"][:12])
    title, *notes, first, second = done.stderr.splitlines()
    assert notes[0].startswith("note: made by protofed")
    assert title == "FedAvg on digits-mini with moon-mlp -> a"
    assert first.startswith(f"round 1/2  mean accuracy {scores[0]['mean']:.2f} %")
    assert second.startswith(f"round 2/2  mean accuracy {scores[1]['mean']:.2f} %")
    assert "round 1/" not in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("no_color", [True, False])
def test_a_terminal_sees_a_bar_in_colour_unless_it_wants_none(tiny: Path, no_color: bool) -> None:
    master, slave = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    if no_color:
        env["NO_COLOR"] = "1"
    command = [*PROTOFED, "run", "--spec", str(tiny), "--out", "a", *ALONE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave, env=env) as process:
        os.close(slave)
        seen = drain(master)
        assert process.stdout is not None
        out = process.stdout.read().decode()
    os.close(master)
    assert process.returncode == 0
    assert "2/2 ━━━" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert bool(COLOUR.search(seen)) is not no_color
    assert "\x1b" not in out  # it is a pipe, whatever stderr is


def drain(master: int) -> str:
    """All that is written to a pseudo-terminal until its last writer leaves."""
    seen = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:  # Linux says EIO where others say end of file
            piece = b""
        if not piece:
            return seen.decode()
        seen += piece


def test_ctrl_c_stops_with_one_line_and_the_same_command_goes_on(tiny: Path) -> None:
    command = [*PROTOFED, "run", "--spec", str(tiny), "--rounds", "2000", "--out", "a", *ALONE]
    code, err = interrupted(command)
    assert code == 130
    assert err.splitlines()[-1] == "stopped; the same command resumes from a"
    assert err.count("stopped") == 1
    last = finished_rounds(err)[-1]
    code, err = interrupted(command)
    assert code == 130
    # The signal may come between a checkpoint and its progress line.
    assert finished_rounds(err)[0] in (last + 1, last + 2)
    assert f", resuming after round {finished_rounds(err)[0] - 1}" in err.splitlines()[0]


def interrupted(command: list[str]) -> tuple[int, str]:
    """Start a command, wait for its third progress line, press Ctrl-C; exit code and stderr."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        seen = lines_until(process.stderr, progress=3)
        process.send_signal(signal.SIGINT)
        seen += process.stderr.read()
        assert process.stdout.read() == ""
    assert "Traceback" not in seen
    return process.returncode, seen


def lines_until(stream: IO[str], progress: int) -> str:
    """The lines of a stream up to the given number of progress lines."""
    seen = ""
    for line in stream:
        seen += line
        if len(finished_rounds(seen)) == progress:
            break
    return seen


def test_a_stopped_repetition_does_not_advise_to_start_over_again(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press_ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("protofed.experiment.run_followers.RunWatcher.__call__", press_ctrl_c)
    ended = cli("run", "--spec", tiny, "--out", "a", "--again")
    assert ended.code == 130
    last = ended.err.splitlines()[-1]
    assert last == "stopped; the same command without --again resumes from a"


# Runs the command with a reader of stdout who leaves at once, or right after the table.
LEAVES = """
import os, sys
from protofed.cli import main, output
reader, writer = os.pipe()
os.dup2(writer, 1)
when, *words = sys.argv[1:]
if when == "after":
    render = output.render_document
    output.render_document = lambda *args: os.close(reader) or render(*args)
else:
    os.close(reader)
sys.argv = ["protofed", *words]
main()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_reader_who_leaves_early_ends_the_command_quietly(
    cli: Cli, tiny: Path, when: str
) -> None:
    words = ["run", "--spec", str(tiny), "--rounds", "1", "--out", "a"]
    assert cli(*words).code == 0
    command = [sys.executable, "-c", LEAVES, when, *words]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert done.stderr == "already finished, read from a (--again repeats it)\n"


def test_a_finished_run_is_read_again_or_repeated(cli: Cli, tiny: Path) -> None:
    words = ("run", "--spec", tiny, "--out", "a")
    first = cli(*words)
    scores = Path("a/scores.jsonl").read_bytes()
    made = Path("a/done").stat().st_mtime_ns
    read = cli(*words)
    assert read.code == 0
    assert read.out == first.out
    assert read.err == "already finished, read from a (--again repeats it)\n"
    assert Path("a/done").stat().st_mtime_ns == made
    repeated = cli(*words, "--again")
    assert finished_rounds(repeated.err) == [1, 2]
    assert Path("a/done").stat().st_mtime_ns > made
    assert Path("a/scores.jsonl").read_bytes() == scores


def test_json_is_one_object_with_scores_rules_digest_and_folder(cli: Cli, tiny: Path) -> None:
    ended = cli("run", "--spec", tiny, "--out", "a", "--json")
    assert ended.code == 0
    result = json.loads(ended.out)
    scores = evaluations("a")
    assert result["folder"] == "a"
    assert result["digest"] == saved("a")["digest"]
    assert {name: result[name]["rule"] for name in score_rules(2)} == score_rules(2)
    assert result["last"]["domains"] == scores[-1]["domains"]
    assert result["last_five"]["mean"] == pytest.approx(sum(s["mean"] for s in scores) / 2)
    assert result["notices"] == json.loads(Path("a/done").read_text())["notices"]


def test_the_result_is_printed_in_every_format(cli: Cli, tiny: Path) -> None:
    words = ("run", "--spec", tiny, "--out", "a")
    assert cli(*words).code == 0
    mean = evaluations("a")[-1]["mean"]
    for form, row in {
        "markdown": f"| mean | {mean:.2f} |",
        "latex": f"mean & {mean:.2f} &",
        "csv": f"mean,{mean:.2f},",
    }.items():
        assert row in cli(*words, "--format", form).out, form
    assert cli(*words, "--json").out == cli(*words, "--format", "json").out
    refused = cli("resume", "a", "--json", "--format", "csv")
    assert (refused.code, "--json means --format json" in refused.err) == (2, True)


def test_a_personal_method_shows_every_client_and_the_notices_come_last(
    cli: Cli, tiny: Path
) -> None:
    ended = cli("run", "--spec", tiny, "--method", "local", "--out", "a")
    result = evaluations("a")[-1]
    head, *lines = ended.out.splitlines()
    assert head.endswith("own domain only, last round   largest class")
    told = [line.startswith("client's own model on") for line in lines]
    clients = lines[told.index(True) :]
    for row, (client, scores) in zip(clients[2:], result["clients"].items(), strict=False):
        assert row.split() == [client, *(f"{score:.2f}" for score in scores.values())]
    notices = json.loads(Path("a/done").read_text())["notices"]
    assert notices  # nine images cannot hold ten classes
    assert lines[-1 - len(notices) : -1] == [f"note: {Notice(**notice)}" for notice in notices]


def test_a_flag_beats_set_beats_file_beats_default(cli: Cli, tiny: Path) -> None:
    words = ("--set", "rounds=5", "--set", "seed=5", "--rounds", "1")
    assert cli("run", "--spec", tiny.name, *words, "--out", "a").code == 0
    spec = saved("a")
    # rounds: 2 in the file, 5 by --set, 1 by flag; seed: 0 by default, 5 by --set
    assert (spec["rounds"], spec["seed"], spec["net"]) == (1, 5, "moon-mlp")
    assert spec["evaluate_every"] == 1
    digest, _ = spec.pop("digest"), spec.pop("method_label")
    assert parse_experiment(spec).digest == digest  # complete: it stands for the same run
    assert isinstance(parse_experiment(spec).partition, SharesPartition)


def test_another_method_drops_the_fields_of_the_file_s_method(cli: Cli, tiny: Path) -> None:
    tiny.write_text(tiny.read_text() + '[method]\nname = "fedprox"\nmu = 0.5\n')
    assert cli("run", "--spec", tiny, "--rounds", "1", "--out", "a").code == 0
    assert saved("a")["method"] == {"name": "fedprox", "mu": 0.5, "rethink_factor": False}
    assert cli("run", "--spec", tiny, "--method", "fedavg", "--out", "b").code == 0
    assert saved("b")["method"] == {"name": "fedavg"}


def test_without_out_the_folder_is_named_by_method_data_and_digest(cli: Cli, tiny: Path) -> None:
    assert cli("run", "--spec", tiny, "--rounds", "1").code == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name == f"fedavg-digits-mini-{saved(str(folder))['digest'][:8]}"
