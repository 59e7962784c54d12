"""``protofed report`` as people call it: a file, or a page that follows its runs."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from protofed.errors import ProtofedError
from protofed.report.page import ReportServer, open_server
from tests.report.conftest import Copy, lines_of, unfinish
from tests.report.reading import Page

with warnings.catch_warnings():
    # typer 0.20 asks click 8.5 for two names that click 9 will drop
    warnings.filterwarnings("ignore", r"'click\.utils\.get_", DeprecationWarning)
    from protofed.cli.report import report_command

COMMAND = "import typer; from protofed.cli.report import report_command; typer.run(report_command)"
PATIENCE = 60  # seconds until a test gives up; none waits this long


class Watched(NamedTuple):
    """A page that is being served."""

    process: subprocess.Popen[str]
    port: int


Watch = Callable[..., Watched]


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Start ``report --watch`` in a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str | Path) -> Watched:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *map(str, words), "--watch"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        started.append(process)
        assert process.stderr
        for line in process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                return Watched(process, int(found[1]))
        raise AssertionError("it ended without an address")

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ask(port: int, path: str = "/", **headers: str) -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    link.request("GET", path, headers=headers)
    reply = link.getresponse()
    found = reply.status, reply.read().decode()
    link.close()
    return found


def until(port: int, words: str) -> Page:
    """The page as soon as it says these words."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        page = Page(ask(port)[1])
        if words in page.text:
            return page
        time.sleep(0.1)
    raise AssertionError(f"never said {words}")


def test_a_growing_run_is_followed_to_its_end(made: Path, copy: Copy, watch: Watch) -> None:
    folder, whole = copy("fpl-0"), made / "fpl-0"
    unfinish(folder, 1)
    watched = watch(folder, made / "fedavg-0", "--no-confusion", "--port", "0")
    page = until(watched.port, "FPL, seed 0: round 1 of 3")
    assert [row[0] for row in page.tables["results-table"]] == ["method", "FedAvg", "largest class"]
    for name in ("rounds.jsonl", "scores.jsonl"):
        with (folder / name).open("a") as stream:
            stream.write(json.dumps(lines_of(whole / name)[1]) + "\n")
    until(watched.port, "FPL, seed 0: round 2 of 3")
    (folder / "scores.jsonl").write_text("[]\n")  # unreadable for a moment: the page stays
    for name in ("rounds.jsonl", "scores.jsonl", "done"):
        shutil.copy(whole / name, folder / name)
    page = until(watched.port, "best of 2 methods")
    heads = [row[0] for row in page.tables["results-table"]]
    assert heads == ["method", "FPL", "FedAvg", "largest class"]
    assert "unfinished runs" not in page.attributes("aria-label")


def test_ctrl_c_ends_it(made: Path, watch: Watch) -> None:
    watched = watch(made / "fpl-0", "--no-confusion", "--port", "0")
    watched.process.send_signal(signal.SIGINT)
    _, said = watched.process.communicate(timeout=PATIENCE)
    assert watched.process.returncode == 0
    assert said == "stopped\n"


def test_only_the_page_is_served_and_only_to_this_machine(made: Path, watch: Watch) -> None:
    watched = watch(made / "fpl-0", "--no-confusion", "--port", "0")
    assert ask(watched.port)[0] == 200
    for path in ("/spec.json", "/../spec.json", "//etc/passwd", "/report.html", "/%2e%2e/"):
        status, text = ask(watched.port, path)
        assert status == 404
        assert "digest" not in text
    assert ask(watched.port, Host="evil.example")[0] == 421
    assert ask(watched.port, Host=f"localhost:{watched.port}")[0] == 200


def test_a_taken_port_leads_to_the_next_one() -> None:
    first: ReportServer = open_server(0, "one")
    second = open_server(first.server_port, "two")
    try:
        assert first.server_address[0] == second.server_address[0] == "127.0.0.1"
        assert second.server_port > first.server_port
    finally:
        first.server_close()
        second.server_close()


def test_a_file_is_written_whole(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    report_command([made / "fpl-0", made / "fedavg-0"], out=out, baseline="FedAvg")
    told = capsys.readouterr()
    assert told.out == f"wrote {out} ({len(out.read_bytes()) // 1000} kB)\n"
    assert told.err.splitlines()[-1] == "confusion matrices 2/2: FedAvg, seed 0"
    page = Page(out.read_text(encoding="utf-8"))
    assert page.tables["results-table"][0][-2] == "to FedAvg"
    assert page.attributes("class").count("matrix") == 4
    assert "data-watched" not in out.read_text(encoding="utf-8")
    report_command([made / "fpl-0"], out=out, confusion=False)
    assert "matrix" not in Page(out.read_text(encoding="utf-8")).attributes("class")


def test_what_cannot_be_done_is_said(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match="name a file in a folder that is there"):
        report_command([made / "fpl-0"], out=tmp_path / "no" / "report.html")
    with pytest.raises(ProtofedError, match="unknown baseline 'FedAgv'; did you mean 'FedAvg'"):
        report_command(
            [made / "fedavg-0"], out=tmp_path / "a.html", baseline="FedAgv", confusion=False
        )
    assert list(tmp_path.iterdir()) == []
